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
import traceback
from base64 import encodebytes
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any
from urllib.parse import quote, urlencode

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import AsyncQueue, AsyncServer, HoldfastError, InvalidArgument, Queue, Server
from holdfast.connection import protocol
from holdfast.connection.address import Address, parse, shown
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
        ("redis://host:70000", "1 to 65535"),
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
        ("redis+cluster://a:70000", "1 to 65535"),
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


@pytest.mark.parametrize(
    "option", ["db=1", "replicas=1", "password_file=x", "ca=x", "reach=x", "bd=1"]
)
def test_an_option_that_means_nothing_to_the_embedded_server_is_refused(option: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(InvalidArgument) as refused:
        parse(f"embedded:///srv/jobs?{option}")
    assert str(refused.value) == (
        f"url has the option {name!r}, which means nothing to the embedded server: leave it out. "
        "With embedded:// there is patience only"
    )
    assert parse("embedded:///srv/jobs?patience=1").patience == 1


def test_without_a_url_the_environment_says_where_and_else_it_is_embedded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://from-environment")
    assert parse().host == "from-environment"
    assert parse("redis://given").host == "given"
    monkeypatch.setenv("HOLDFAST_URL", " redis://from-a-file\n")
    assert parse().host == "from-a-file"
    monkeypatch.delenv("HOLDFAST_URL")
    assert parse() == Address(embedded=True)
    assert parse().by_default
    assert not parse("embedded://").by_default
    monkeypatch.setenv("HOLDFAST_URL", "embedded://")
    assert not parse().by_default


@pytest.mark.parametrize("empty", ["", "  ", "\n"])
def test_a_url_in_the_environment_that_is_empty_is_refused(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", empty)
    with pytest.raises(InvalidArgument, match="HOLDFAST_URL is set, but empty"):
        Queue("q")
    assert parse("redis://given").host == "given"


def test_a_url_can_be_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    for no in ("", "0", "false", "No"):
        monkeypatch.setenv("HOLDFAST_REQUIRE_URL", no)
        assert parse().by_default
    monkeypatch.setenv("HOLDFAST_REQUIRE_URL", "1")
    for make in (Queue, AsyncQueue):
        with pytest.raises(InvalidArgument, match="HOLDFAST_REQUIRE_URL is set, and no server"):
            make("q")
    assert parse("embedded://") == Address(embedded=True)
    monkeypatch.setenv("HOLDFAST_URL", "embedded://")
    assert parse() == Address(embedded=True)


def greeting(url: str) -> list[bytes]:
    """The words that have to succeed when a connection is opened."""
    address = parse(url)
    packed, must, _ = protocol.Introduction().pack((address.user, address.password), address.db)
    reader = hiredis.Reader()
    reader.feed(packed)
    return [b" ".join(reader.gets()) for _ in range(must)]


def test_a_login_is_sent_before_anything_else() -> None:
    assert greeting("redis://host") == []
    assert greeting("redis://:p%C3%BC@host/2") == ["AUTH pü".encode(), b"SELECT 2"]
    assert greeting("redis://u:p@host") == [b"AUTH u p"]


def test_a_user_without_a_password_is_logged_in_too() -> None:
    # Else it would work as the default user, with that one's rights.
    assert greeting("redis://guest@host") == [b"AUTH guest "]


# ---------------------------------------------------------------- any URL, also hostile ones

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
something = anything.filter(bool)
hosts = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,20}[a-z0-9](\.[a-z0-9]{1,10}){0,3}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)
nodes = st.tuples(hosts, st.integers(1, 65535))


@st.composite
def addresses(draw: st.DrawFn) -> Address:
    kind: Any = draw(st.sampled_from(["", "cluster", "sentinel", "unix"]))
    login: Any = {"user": draw(anything), "password": draw(anything)}
    more: dict[str, Any] = {"replicas": draw(st.integers(0, 16))}
    if kind == "unix":
        path = "/" + draw(something).replace("\0", "")
        return Address(path=path, db=draw(st.integers(0, 99)), **login, **more)
    more["tls"] = draw(st.booleans())
    if not kind:
        host, port = draw(nodes)
        return Address(host, port, db=draw(st.integers(0, 99)), **login, **more)
    several = tuple(draw(st.lists(nodes, min_size=1, max_size=4)))
    more["reach"] = draw(st.one_of(st.just(""), hosts))
    if kind == "cluster":
        return Address(kind=kind, nodes=several, **login, **more)
    more["db"] = draw(st.integers(0, 99))
    more["sentinel_user"], more["sentinel_password"] = draw(anything), draw(anything)
    return Address(kind=kind, nodes=several, primary=draw(something), **login, **more)


def url_of(address: Address) -> str:
    """Write an address as a URL that has everything in it."""
    login = f"{quote(address.user, safe='')}:{quote(address.password, safe='')}@"
    options = {"replicas": str(address.replicas)}
    if address.path:
        options["db"] = str(address.db)
        return f"unix://{login}{quote(address.path)}?{urlencode(options, quote_via=quote)}"
    scheme = "rediss" if address.tls else "redis"
    if not address.kind:
        options["db"] = str(address.db)
        url = f"{scheme}://{login}{shown((address.host, address.port))}"
        return f"{url}?{urlencode(options, quote_via=quote)}"
    if address.reach:
        options["reach"] = address.reach
    path = ""
    if address.kind == "sentinel":
        path = f"/{quote(address.primary, safe='')}/{address.db}"
        options["sentinel_user"] = address.sentinel_user
        options["sentinel_password"] = address.sentinel_password
    listed = ",".join(shown(node) for node in address.nodes)
    return f"{scheme}+{address.kind}://{login}{listed}{path}?{urlencode(options, quote_via=quote)}"


@given(addresses())
def test_every_address_has_a_url_that_is_read_as_that_address(address: Address) -> None:
    assert parse(url_of(address)) == address


@given(addresses())
def test_what_is_shown_leads_to_the_same_place(address: Address) -> None:
    again = parse(str(address))
    same = ("host", "port", "path", "tls", "db", "user", "kind", "nodes", "primary")
    assert [getattr(again, name) for name in same] == [getattr(address, name) for name in same]
    assert again.password == ("***" if address.password else "")


@pytest.mark.parametrize("character", [chr(code) for code in range(256)] + ["€", "😀", "\u2028"])
def test_user_and_password_may_have_every_character(character: str) -> None:
    escaped = "".join(f"%{byte:02x}" for byte in character.encode())
    address = parse(f"redis+cluster://u{escaped}:p{escaped}@a,[::1]:2")
    assert (address.user, address.password) == (f"u{character}", f"p{character}")
    assert address.nodes == (("a", 6379), ("::1", 2))


PIECES = ["redis", "+cluster", "+sentinel", "unix", "embedded", "://", "/", ":", "@", ",", "[", "]"]
PIECES += ["::1", "%", "%40", "%00", "%ff", "?", "&", "=", "db", "0", "65536", "host", "\n", " "]
PIECES += ["\0", "ü", "\ud800", "password_file", "replicas", "verify", "#", ";", "\\", "."]


def read(url: str) -> Address | str:
    """Return what a URL says, or why it is refused, with all that a traceback would show."""
    try:
        return parse(url)
    except InvalidArgument as error:
        return "".join(traceback.format_exception(error, limit=0))


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_no_url_does_anything_but_name_a_server_or_be_refused(url: str) -> None:
    address = read(url)
    if isinstance(address, str):
        assert "InvalidArgument: url " in address
    else:
        assert parse(str(address)).nodes == address.nodes
        assert "\0" not in address.path + address.host


SECRET = "hunter2"


@given(
    st.lists(st.sampled_from(PIECES), max_size=4).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=4).map("".join),
    st.sampled_from(
        ["redis://", "redis+cluster://", "redis+sentinel://", "unix://", "http://", ""]
    ),
)
def test_no_password_is_ever_repeated(before: str, after: str, scheme: str) -> None:
    """Also where it has characters in it that should have been escaped."""
    address = read(f"{scheme}user:{before}{SECRET}{after}@host:1/0")
    if isinstance(address, str):
        assert SECRET not in address
    elif address.password:
        assert SECRET not in f"{address} {address!r}"


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:0",
        "redis://h:65536",
        "redis://h:6379x",
        "redis://h:٣",
        "redis://h:-1",
        "redis://h:+1",
        "redis://h: 1",
        "redis://::1",
        "redis://[::1]6379",
        "redis://[127.0.0.1]",
        "redis://[v1.x]",
        "redis://a b",
        "redis://a%20b",
        "redis+cluster://a,,b",
        "redis+cluster://a,b,",
        "redis+cluster://[::1],[::2",
        "redis+cluster://a?reach=a%00b",
        "redis://u:%ff@h",
        "redis://u:%4@h",
        "redis://u:50%@h",
        "redis://h?db=1&db=2",
        "redis://h/1?db=2",
        "redis://h?password_file=",
        "redis://h?password_file=a%00b",
        "redis://:p@h?password_file=/f",
        "redis+sentinel://h/m?sentinel_password=p&sentinel_password_file=/f",
        "redis://h?patience=-1",
        "redis://h?patience=inf",
        "redis://h?patience=",
        "unix:///a%00b",
        "embedded:///a%00b",
        "embedded:/srv/jobs",
        "redis:host",
        "redis://h\nx",
        "redis://\ud800",
    ],
)
def test_what_is_nearly_a_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^url "):
        parse(url)


@pytest.mark.parametrize(
    ("url", "node"),
    [
        ("redis://h:", ("h", 6379)),
        ("redis://:7", ("localhost", 7)),
        ("REDIS://H", ("h", 6379)),
        ("redis://[::1%25eth0]:1", ("::1%eth0", 1)),
        ("redis://[FE80::1%eth0]", ("fe80::1%eth0", 6379)),
        ("redis://münchen", ("münchen", 6379)),
        ("redis://my_service:1", ("my_service", 1)),
        (" redis://h\n", ("h", 6379)),
        ("redis://u:p@ss@h", ("h", 6379)),
    ],
)
def test_what_is_still_a_url_is_taken(url: str, node: tuple[str, int]) -> None:
    address = parse(url)
    assert (address.host, address.port) == node


def test_the_environment_fills_in_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    def login(url: str) -> tuple[str, str, str]:
        address = parse(url)
        return address.user, address.password, address.password_file

    monkeypatch.setenv("HOLDFAST_PASSWORD", "secret")
    assert login("redis://h") == ("", "secret", "")
    assert login("redis://me@h") == ("me", "secret", "")
    monkeypatch.setenv("HOLDFAST_USERNAME", "worker")
    assert login("redis://h") == ("worker", "secret", "")
    assert login("unix:///s") == ("worker", "secret", "")
    assert login("redis://me:mine@h") == ("me", "mine", "")
    assert login("redis://:mine@h") == ("worker", "mine", "")
    assert login("redis://h?password_file=/f") == ("worker", "", "/f")
    assert login("embedded://") == ("", "", "")
    monkeypatch.setenv("HOLDFAST_PASSWORD_FILE", "/run/secret")
    with pytest.raises(InvalidArgument, match="HOLDFAST_PASSWORD and HOLDFAST_PASSWORD_FILE"):
        parse("redis://h")
    monkeypatch.delenv("HOLDFAST_PASSWORD")
    assert login("redis+cluster://a,b") == ("worker", "", "/run/secret")
    monkeypatch.setenv("HOLDFAST_SENTINEL_USERNAME", "asker")
    monkeypatch.setenv("HOLDFAST_SENTINEL_PASSWORD", "seen")
    address = parse("redis+sentinel://a/m")
    assert (address.sentinel_user, address.sentinel_password) == ("asker", "seen")
    asked = address.sentinel(("a", 1))
    assert (asked.user, asked.password, asked.password_file) == ("asker", "seen", "")
    assert parse("redis+sentinel://a/m?sentinel_user=b&sentinel_password=c").sentinel_user == "b"


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
