"""A wrong URL, or a server in the wrong place: the error says what it is and what to do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine_support import own_server
from faults.shells import SHELLS, Shell, open_queue
from holdfast import HoldfastError, ServerRefused, ServerUnavailable
from holdfast.connection import protocol
from holdfast.doctor import examine
from support import DEADLINE, TestServer

from .test_address import TlsProxy, certificate


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> Shell:
    shell: Shell = request.param
    return shell


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with own_server(tcp=True) as server:
        yield server


def said(shell: Shell, url: str, *, patience: float = 0) -> HoldfastError:
    with open_queue(shell, "q", url, patience=patience) as queue, pytest.raises(HoldfastError) as e:
        queue.add(b"x")
    return e.value


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Listen on a port, and say the same to whoever says something."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            while True:
                try:
                    one, _ = listener.accept()
                except OSError:
                    return
                with one:
                    one.recv(65536)
                    one.sendall(answer)

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(DEADLINE)


def test_tls_to_a_port_without(shell: Shell, server: TestServer) -> None:
    error = said(shell, f"rediss://127.0.0.1:{server.port}")
    assert isinstance(error, ServerUnavailable)
    assert "does the port speak TLS? If it does not, begin the URL with redis://" in str(error)
    assert "Nothing was changed" in str(error)


@pytest.mark.parametrize("answer", [b"", b"-ERR unknown command\r\n", b"HTTP/1.1 400 Bad\r\n\r\n"])
def test_tls_to_one_who_answers_something_else(shell: Shell, answer: bytes) -> None:
    with answering(answer) as port:
        error = said(shell, f"rediss://127.0.0.1:{port}")
    assert "does the port speak TLS? If it does not, begin the URL with redis://" in str(error)


def test_a_certificate_for_another_host(
    shell: Shell, test_server: TestServer, tmp_path: Path
) -> None:
    file = certificate("valkey.example", tmp_path / "c.pem")
    proxy = TlsProxy(file, test_server.socket)
    url = f"rediss://127.0.0.1:{proxy.port}?ca={file}"
    try:
        error = said(shell, url)
        [finding] = examine(url).findings
    finally:
        proxy.stop()
    assert isinstance(error, ServerRefused)
    assert error.word == "TLS"
    assert "the host '127.0.0.1' does not match the server's certificate" in str(error)
    assert "write the name that the certificate is for into the URL" in str(error)
    assert "?ca=" not in str(error)  # It is the right one.
    assert "does not match the server's certificate" in finding.what
    assert "?ca=" not in finding.advice


@pytest.mark.parametrize("login", ["", ":hunter2@"])
@pytest.mark.parametrize("page", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"<!DOCTYPE HTML>\n<html>"])
def test_a_url_of_a_web_server(shell: Shell, page: bytes, login: str) -> None:
    with answering(page) as port:
        error = said(shell, f"redis://{login}127.0.0.1:{port}", patience=DEADLINE)
        [finding] = examine(f"redis://{login}127.0.0.1:{port}").findings
    assert isinstance(error, ServerRefused)
    assert error.word == "HTTP"
    where = f"redis://{login and ':***@'}127.0.0.1:{port}/0"
    assert str(error) == (
        f"{where} is a web server, which answers in HTTP: correct the host and port of the URL"
    )
    assert "is a web server" in finding.what
    assert "correct the host and port" in finding.advice


def test_no_tls_to_a_port_with(shell: Shell, test_server: TestServer, tmp_path: Path) -> None:
    proxy = TlsProxy(certificate("127.0.0.1", tmp_path / "c.pem"), test_server.socket)
    try:
        error = said(shell, f"redis://127.0.0.1:{proxy.port}")
        told = examine(f"redis://127.0.0.1:{proxy.port}")
    finally:
        proxy.stop()
    assert "does the port speak TLS? Then begin the URL with rediss://" in str(error)
    assert "rediss://" in str(told.findings)


def test_a_host_name_that_nobody_knows(shell: Shell) -> None:
    error = said(shell, "redis://me:hunter2@no-such-host.invalid")
    assert isinstance(error, ServerUnavailable)
    assert "the host name 'no-such-host.invalid' cannot be resolved" in str(error)
    assert "correct the URL, or look at the DNS settings" in str(error)
    assert "hunter2" not in str(error)
    [finding] = examine("redis://no-such-host.invalid").findings
    assert "no-such-host.invalid" in finding.what


def test_a_host_name_that_is_known_a_moment_later_is_waited_for(
    shell: Shell, server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = socket.getaddrinfo, []

    def ask(host: Any, *args: Any, **options: Any) -> Any:
        if host != "soon.example" or options.get("flags", 0) & socket.AI_NUMERICHOST:
            return real(host, *args, **options)
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    url = f"redis://soon.example:{server.port}"
    with open_queue(shell, "q", url, patience=DEADLINE) as queue:
        queue.counts()
    assert len(asked) >= 3


def test_a_host_with_several_addresses_is_reached_by_one_that_answers(
    shell: Shell, server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def ask(host: Any, *args: Any, **options: Any) -> Any:
        if host != "several.example" or options.get("flags", 0) & socket.AI_NUMERICHOST:
            return real(host, *args, **options)
        [(family, kind, protocol, name, place)] = real("127.0.0.1", *args, **options)
        closed = (place[0], 1)
        return [(family, kind, protocol, name, one) for one in (closed, place)]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    with open_queue(shell, "q", f"redis://several.example:{server.port}") as queue:
        queue.counts()


def test_what_a_server_says_of_its_disk_is_repeated() -> None:
    import hiredis

    text = "MISCONF Errors writing to the AOF file: No space left on device\x1b[31m"
    error = protocol.refusal(hiredis.ReplyError(text))
    assert isinstance(error, ServerRefused)
    assert error.word == "MISCONF"
    assert "its disk, which may be full, and accepts no changes: free space there" in str(error)
    assert "It said: Errors writing to the AOF file: No space left on device" in str(error)
    assert "\x1b" not in str(error)
