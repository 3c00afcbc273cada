"""Where the server is: a URL taken apart. A password is in here, and in no repr."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import Final, TypedDict
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.errors import InvalidArgument

_TCP: Final = ("redis", "valkey", "rediss", "valkeys")
_TLS: Final = ("rediss", "valkeys")
_FORMS: Final = "redis://, rediss://, valkey://, valkeys://, unix:// or embedded://"
_TLS_OPTIONS: Final = ("ca", "cert", "key", "verify")


class _Login(TypedDict):
    user: str
    password: str


@dataclass(frozen=True)
class Address:
    """One server."""

    host: str = ""
    port: int = 6379
    path: str = ""
    """Of a unix socket, or of an embedded server's directory."""
    embedded: bool = False
    tls: bool = False
    tls_options: tuple[tuple[str, str], ...] = ()
    db: int = 0
    user: str = ""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Return the URL without its password."""
        if self.embedded:
            return f"embedded://{self.path}"
        login = f"{self.user}:***@" if self.password else ""
        if self.path:
            return f"unix://{login}{self.path}" + (f"?db={self.db}" if self.db else "")
        scheme = "rediss" if self.tls else "redis"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{login}{host}:{self.port}/{self.db}"

    def handshake(self) -> list[tuple[bytes, ...]]:
        """Return the commands that open a connection."""
        commands: list[tuple[bytes, ...]] = []
        if self.user or self.password:
            login = (self.user, self.password) if self.user else (self.password,)
            commands.append((b"AUTH", *(word.encode() for word in login)))
        if self.db:
            commands.append((b"SELECT", b"%d" % self.db))
        return commands

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS settings: certificate and host name are checked unless told otherwise."""
        options = dict(self.tls_options)
        try:
            context = ssl.create_default_context(cafile=options.get("ca"))
            if "cert" in options:
                context.load_cert_chain(options["cert"], options.get("key"))
        except OSError as error:
            named = ", ".join(value for name, value in self.tls_options if name != "verify")
            raise InvalidArgument(f"a certificate file cannot be used: {named} ({error})") from None
        if options.get("verify") == "none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse(url: str | None = None) -> Address:
    """Read a URL; without one, HOLDFAST_URL; without that, the embedded server.

    An error names the part that is wrong and never repeats the URL, which may hold a password.
    """
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or "embedded://"
    if not isinstance(url, str):
        raise InvalidArgument(f"url must be a str, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        port, user, password = parts.port, parts.username, parts.password
        query = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise InvalidArgument(f"url cannot be read: it should look like {_FORMS}") from None
    given = {name: values[-1] for name, values in query.items()}
    if parts.scheme == "embedded":
        _refuse_unknown(given)
        return Address(embedded=True, path=unquote(parts.netloc + parts.path))
    login = _Login(user=unquote(user or ""), password=unquote(password or ""))
    if parts.scheme == "unix":
        db = _database(given.pop("db", "0"))
        _refuse_unknown(given)
        if not parts.path:
            raise InvalidArgument("url of a unix socket needs a path: unix:///run/valkey.sock")
        return Address(path=unquote(parts.path), db=db, **login)
    if parts.scheme not in _TCP:
        raise InvalidArgument(f"url must begin with {_FORMS}")
    db = _database(given.pop("db", parts.path.strip("/") or "0"))
    tls = parts.scheme in _TLS
    options = tuple((name, given.pop(name)) for name in _TLS_OPTIONS if tls and name in given)
    if dict(options).get("verify", "full") not in ("full", "none"):
        raise InvalidArgument("url has an unknown verify: full (the default) or none")
    _refuse_unknown(given)
    host = parts.hostname or "localhost"
    return Address(host, port or 6379, tls=tls, tls_options=options, db=db, **login)


def _database(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidArgument("url names a database that is not a number: use /0 or ?db=0")
    return int(text)


def _refuse_unknown(given: dict[str, str]) -> None:
    if given:
        raise InvalidArgument(
            f"url has an unknown option {min(given)!r}: db, and with rediss:// "
            f"{', '.join(_TLS_OPTIONS)}"
        )
