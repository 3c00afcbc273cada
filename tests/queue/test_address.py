"""URLs: what they say, and that a certificate is checked where one is asked for."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import secrets
import socket
import ssl
import threading
from base64 import encodebytes
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any

import pytest

from holdfast import AsyncQueue, AsyncServer, HoldfastError, InvalidArgument, Queue, Server
from holdfast.address import Address, parse
from holdfast.doctor import examine
from support import DEADLINE, TestServer


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", Address("localhost")),
        ("redis://host", Address("host")),
        ("redis://HOST:7000", Address("host", 7000)),
        ("valkey://host:7000/3", Address("host", 7000, db=3)),
        ("redis://host?db=3", Address("host", db=3)),
        ("redis://host/", Address("host")),
        ("redis://127.0.0.1:1", Address("127.0.0.1", 1)),
        ("redis://[::1]:7000", Address("::1", 7000)),
        ("redis://:pass@host", Address("host", password="pass")),
        ("redis://user:pass@host", Address("host", user="user", password="pass")),
        ("redis://u%40:p%3A%2F%25@host", Address("host", user="u@", password="p:/%")),
        ("rediss://host", Address("host", tls=True)),
        ("valkeys://host", Address("host", tls=True)),
        (
            "rediss://host?ca=/a/ca.pem&verify=none",
            Address("host", tls=True, tls_options=(("ca", "/a/ca.pem"), ("verify", "none"))),
        ),
        ("redis://host?replicas=2", Address("host", replicas=2)),
        ("unix:///run/valkey.sock?replicas=1", Address(path="/run/valkey.sock", replicas=1)),
        ("redis+cluster://", Address(kind="cluster", nodes=(("localhost", 6379),))),
        (
            "valkeys+cluster://u:p@A:1,[::1]:2,c?ca=/ca&reach=h&replicas=1",
            Address(
                kind="cluster",
                nodes=(("a", 1), ("::1", 2), ("c", 6379)),
                tls=True,
                tls_options=(("ca", "/ca"),),
                user="u",
                password="p",
                reach="h",
                replicas=1,
            ),
        ),
        (
            "redis+sentinel://:p@a,b:1/my%2Fmaster/3?sentinel_user=s&sentinel_password=t%26+",
            Address(
                kind="sentinel",
                nodes=(("a", 26379), ("b", 1)),
                primary="my/master",
                db=3,
                password="p",
                sentinel_user="s",
                sentinel_password="t&+",
            ),
        ),
        ("unix:///run/valkey.sock", Address(path="/run/valkey.sock")),
        ("unix:///run/a%20b?db=2", Address(path="/run/a b", db=2)),
        ("unix://user:pass@/run/s", Address(path="/run/s", user="user", password="pass")),
        ("embedded://", Address(embedded=True)),
        ("embedded:///var/lib/q", Address(embedded=True, path="/var/lib/q")),
    ],
)
def test_a_url_says_where_the_server_is(url: str, address: Address) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pass@host", "redis://:***@host:6379/0"),
        ("valkey://user:pass@host:1/2", "redis://user:***@host:1/2"),
        ("rediss://[::1]?ca=/ca", "rediss://[::1]:6379/0"),
        ("unix://user:pass@/s?db=1", "unix://user:***@/s?db=1"),
        ("unix:///s", "unix:///s"),
        ("redis+cluster://u:pass@a:1,[::1]", "redis+cluster://u:***@a:1,[::1]:6379"),
        (
            "rediss+sentinel://a/m/2?sentinel_password=pass",
            "rediss+sentinel://a:26379/m/2",
        ),
        ("embedded:///d", "embedded:///d"),
    ],
)
def test_an_address_is_shown_as_a_url_without_its_password(url: str, shown: str) -> None:
    assert str(parse(url)) == shown
    assert str(Server(url)) == f"Server({shown!r})"
    assert "pass" not in repr(parse(url))


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("", "begin with"),
        ("host:6379", "begin with"),
        ("http://host", "begin with"),
        ("redis//host", "begin with"),
        ("redis://host:port", "cannot be read"),
        ("redis://host:70000", "cannot be read"),
        ("redis://[::1", "cannot be read"),
        ("redis://host/zero", "database"),
        ("redis://host/-1", "database"),
        ("redis://host/1/2", "database"),
        ("redis://host/٣", "database"),
        ("redis://host?db=x", "database"),
        ("redis://host/" + "9" * 10, "database"),
        ("redis://host?timeout=5", "timeout"),
        ("redis://host?ca=/ca.pem", "ca"),
        ("rediss://host?colour=red", "colour"),
        ("rediss://host?verify=maybe", "verify"),
        ("redis://a,b", "several hosts"),
        ("redis+://a", "begin with"),
        ("redis+proxy://a", "begin with"),
        ("unix+cluster:///s", "begin with"),
        ("redis+cluster://a:x,b", "cannot be read"),
        ("redis+cluster://a:70000", "cannot be read"),
        ("redis+cluster://a/1", "no database"),
        ("redis+cluster://a?sentinel_user=u", "sentinel_user"),
        ("redis+sentinel://a", "name of the primary"),
        ("redis+sentinel:///", "name of the primary"),
        ("redis+sentinel://a/m/x", "database"),
        ("redis://host?replicas=x", "replicas"),
        ("redis://host?replicas=17", "replicas"),
        ("redis://host?replicas=-1", "replicas"),
        ("redis://host?reach=h", "reach"),
        ("embedded:///d?replicas=1", "replicas"),
        ("unix://", "path"),
        ("unix://?db=1", "path"),
        ("unix:///s?colour=red", "colour"),
        ("embedded:///d?colour=red", "colour"),
        ("redis://host?&&", "cannot be read"),
        ("redis://:pass/word@host", "%40"),
        ("redis://user:12#34@host", "%23"),
        ("embedded:///d#1", "%23"),
        ("unix://run/valkey.sock", "unix:///run"),
        ("redis://a..b", "cannot be read"),
        ("redis+cluster://a," + "b" * 64, "cannot be read"),
        ("redis://host?replicas=", "replicas"),
        (5, "str"),
        (b"redis://", "str"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: Any, word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        parse(url)
    with pytest.raises(InvalidArgument):
        Queue("q", url)
    with pytest.raises(InvalidArgument):
        AsyncQueue("q", url)


def test_without_a_url_the_environment_says_where_and_else_it_is_embedded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://from-environment")
    assert parse().host == "from-environment"
    assert parse("redis://given").host == "given"
    for nothing in ("", None):
        if nothing is None:
            monkeypatch.delenv("HOLDFAST_URL")
        else:
            monkeypatch.setenv("HOLDFAST_URL", nothing)
        assert parse() == Address(embedded=True)


def test_a_login_is_sent_before_anything_else() -> None:
    assert parse("redis://host").handshake() == []
    assert parse("redis://:p%C3%BC@host/2").handshake() == [
        (b"AUTH", "pü".encode()),
        (b"SELECT", b"2"),
    ]
    assert parse("redis://u:p@host").handshake() == [(b"AUTH", b"u", b"p")]


def test_a_user_without_a_password_is_logged_in_too() -> None:
    # Else it would work as the default user, with that one's rights.
    assert parse("redis://guest@host").handshake() == [(b"AUTH", b"guest", b"")]


# ------------------------------------------------------------------------------- TLS
#
# The bundled server speaks no TLS, and the standard library makes no certificates: so a
# small proxy speaks it, with a certificate that signs itself. ECDSA over P-256.

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int] | None


def add(one: Point, two: Point) -> Point:
    if one is None or two is None:
        return one or two
    if one[0] == two[0] and one[1] != two[1]:
        return None
    if one == two:
        slope = 3 * (one[0] ** 2 - 1) * pow(2 * one[1], -1, P)
    else:
        slope = (two[1] - one[1]) * pow(two[0] - one[0], -1, P)
    x = (slope**2 - one[0] - two[0]) % P
    return x, (slope * (one[0] - x) - one[1]) % P


def times(number: int) -> tuple[int, int]:
    """Return that many times the generator."""
    total: Point = None
    step: Point = G
    while number:
        if number & 1:
            total = add(total, step)
        step = add(step, step)
        number >>= 1
    assert total is not None
    return total


def der(tag: int, *contents: bytes) -> bytes:
    body = b"".join(contents)
    size = len(body)
    length = bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + body


def der_number(number: int) -> bytes:
    return der(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def der_name(*parts: int) -> bytes:
    """An object identifier."""
    encoded = bytearray([parts[0] * 40 + parts[1]])
    for part in parts[2:]:
        digits = [part & 127]
        while part := part >> 7:
            digits.append(part & 127 | 128)
        encoded += bytes(reversed(digits))
    return der(0x06, bytes(encoded))


def pem(kind: str, body: bytes) -> str:
    return f"-----BEGIN {kind}-----\n{encodebytes(body).decode()}-----END {kind}-----\n"


def certificate(host: str, file: Path) -> Path:
    """Write a key and a certificate that it signed for a host; return the file."""
    secret = 1 + secrets.randbelow(N - 1)
    x, y = times(secret)
    point = b"\0\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    curve = der_name(1, 2, 840, 10045, 3, 1, 7)
    by_sha256 = der(0x30, der_name(1, 2, 840, 10045, 4, 3, 2))
    common_name = der(0x30, der_name(2, 5, 4, 3), der(0x0C, b"holdfast test"))
    name = der(0x30, der(0x31, common_name))
    try:
        subject = der(0x87, socket.inet_aton(host))
    except OSError:
        subject = der(0x82, host.encode())
    extensions = der(
        0x30,
        der(0x30, der_name(2, 5, 29, 17), der(0x04, der(0x30, subject))),
        der(
            0x30, der_name(2, 5, 29, 19), der(0x01, b"\xff"), der(0x04, der(0x30, b"\x01\x01\xff"))
        ),
    )
    body = der(
        0x30,
        der(0xA0, der_number(2)),
        der_number(secrets.randbits(64)),
        by_sha256,
        name,
        der(0x30, der(0x17, b"200101000000Z"), der(0x17, b"490101000000Z")),
        name,
        der(0x30, der(0x30, der_name(1, 2, 840, 10045, 2, 1), curve), der(0x03, point)),
        der(0xA3, extensions),
    )
    digest = int.from_bytes(hashlib.sha256(body).digest(), "big")
    nonce = 1 + secrets.randbelow(N - 1)
    r = times(nonce)[0] % N
    s = pow(nonce, -1, N) * (digest + r * secret) % N
    signature = der(0x30, der_number(r), der_number(s))
    key = der(0x30, der_number(1), der(0x04, secret.to_bytes(32, "big")), der(0xA0, curve))
    file.write_text(
        pem("EC PRIVATE KEY", key)
        + pem("CERTIFICATE", der(0x30, body, by_sha256, der(0x03, b"\0", signature)))
    )
    return file


class TlsProxy:
    """Speaks TLS on a port, and passes on what is said to a unix socket."""

    def __init__(self, certificate: Path, inside: Path, client_ca: Path | None = None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        if client_ca:
            self._context.load_verify_locations(client_ca)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._inside = os.fspath(inside)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._talk, args=(raw,)))
                self._threads[-1].start()

    def _talk(self, raw: socket.socket) -> None:
        with raw, suppress(OSError):
            raw.settimeout(2)
            with (
                self._context.wrap_socket(raw, server_side=True) as outside,
                socket.socket(socket.AF_UNIX) as inside,
            ):
                inside.connect(self._inside)
                while True:
                    ready = [outside] if outside.pending() else select([outside, inside], [], [])[0]
                    for source in ready:
                        said = source.recv(65536)
                        if not said:
                            return
                        (inside if source is outside else outside).sendall(said)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(DEADLINE)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Certificates that sign themselves, one per name."""
    folder = tmp_path_factory.mktemp("certificates")
    made: dict[str, Path] = {}

    def certificate_for(name: str, host: str = "127.0.0.1") -> Path:
        if name not in made:
            made[name] = certificate(host, folder / f"{name}.pem")
        return made[name]

    return certificate_for


@pytest.fixture
def proxy(
    test_server: TestServer, certificates: Callable[..., Path]
) -> Iterator[Callable[..., str]]:
    """Put TLS before the server; returns the URL."""
    proxies = []

    def put(certificate: Path, client_ca: Path | None = None) -> str:
        proxies.append(TlsProxy(certificate, test_server.socket, client_ca))
        return f"rediss://127.0.0.1:{proxies[-1].port}"

    yield put
    for one in proxies:
        one.stop()


def use(url: str, name: str) -> None:
    """Use a queue in both shells."""
    with Queue(name, Server(url, patience=0)) as queue:
        queue.add(b"x" * 200_000, id="a")
        lease = queue.lease(30, wait=1)
        assert lease is not None
        assert len(lease.data) == 200_000
        queue.delete()

    async def main() -> None:
        async with AsyncQueue(name, AsyncServer(url, patience=0)) as queue:
            await queue.add(b"x" * 200_000, id="a")
            lease = await queue.lease(30, wait=1)
            assert lease is not None
            assert len(lease.data) == 200_000
            await queue.delete()

    asyncio.run(main())


def assert_refused(url: str, why: str) -> None:
    with Queue("q", Server(url, patience=0)) as queue, pytest.raises(HoldfastError, match=why):
        queue.add(b"x")

    async def main() -> None:
        async with AsyncQueue("q", AsyncServer(url, patience=0)) as queue:
            await queue.add(b"x")

    with pytest.raises(HoldfastError, match=why):
        asyncio.run(main())


def test_a_queue_works_over_tls(
    proxy: Callable[..., str], certificates: Callable[..., Path], queue_name: str
) -> None:
    mine = certificates("mine")
    use(f"{proxy(mine)}?ca={mine}", queue_name)


def test_a_certificate_of_an_unknown_authority_is_refused(
    proxy: Callable[..., str], certificates: Callable[..., Path]
) -> None:
    url = proxy(certificates("mine"))
    [finding] = examine(url).findings
    assert "name its authority with ?ca=" in finding.advice
    assert_refused(url, "certificate.*self-signed")
    assert_refused(f"{url}?ca={certificates('theirs')}", "certificate.*self-signed")


def test_a_certificate_of_another_host_is_refused(
    proxy: Callable[..., str], certificates: Callable[..., Path]
) -> None:
    other = certificates("other", "other.example")
    assert_refused(f"{proxy(other)}?ca={other}", "certificate is not valid for '127.0.0.1'")


def test_who_says_so_is_not_protected(
    proxy: Callable[..., str], certificates: Callable[..., Path], queue_name: str
) -> None:
    use(f"{proxy(certificates('other', 'other.example'))}?verify=none", queue_name)


def test_a_client_can_show_a_certificate_of_its_own(
    proxy: Callable[..., str], certificates: Callable[..., Path], queue_name: str
) -> None:
    mine, client = certificates("mine"), certificates("client")
    url = f"{proxy(mine, client)}?ca={mine}"
    use(f"{url}&cert={client}", queue_name)
    use(f"{url}&cert={client}&key={client}", queue_name)
    assert_refused(url, "127.0.0.1")


def test_a_certificate_that_is_not_there_is_named(
    proxy: Callable[..., str], certificates: Callable[..., Path], tmp_path: Path
) -> None:
    url = proxy(certificates("mine"))
    assert_refused(f"{url}?ca={tmp_path}/no-ca.pem", "no-ca.pem")
    assert_refused(f"{url}?verify=none&cert={tmp_path}/no-cert.pem", "no-cert.pem")


def test_a_connection_that_came_to_nothing_is_closed(
    proxy: Callable[..., str], certificates: Callable[..., Path], tmp_path: Path
) -> None:
    url = proxy(certificates("mine"))
    gc.collect()
    for options in ("", f"?ca={certificates('theirs')}", f"?ca={tmp_path}/no-ca.pem"):
        with Queue("q", Server(url + options, patience=0)) as queue, suppress(HoldfastError):
            queue.add(b"x")
        gc.collect()  # What was left open is warned about here, and not in another test.


def test_a_server_that_does_not_speak_tls_is_not_spoken_to_without(
    certificates: Callable[..., Path], test_server: TestServer
) -> None:
    """A listener that answers in the clear gets neither a password nor a job."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        heard.append(connection.recv(65536))
                        connection.sendall(b"+OK\r\n" * 10)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            port = listener.getsockname()[1]
            assert_refused(f"rediss://me:hunter2@127.0.0.1:{port}", "127.0.0.1")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(DEADLINE)
    assert heard
    assert not any(b"hunter2" in said for said in heard)
