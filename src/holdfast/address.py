"""Where the server is: a URL taken apart. A password is in here, and in no repr.

It may be one server, or several of which one is to be chosen: the nodes of a cluster, or those
that Sentinels watch. Which one, `topology.py` knows.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, TypedDict
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.errors import InvalidArgument

_TCP: Final = ("redis", "valkey", "rediss", "valkeys")
_TLS: Final = ("rediss", "valkeys")
_PORTS: Final = {"": 6379, "cluster": 6379, "sentinel": 26379}
_FORMS: Final = (
    "redis://, rediss://, valkey://, valkeys://, redis+cluster://, redis+sentinel://, unix:// "
    "or embedded://"
)
_TLS_OPTIONS: Final = ("ca", "cert", "key", "verify")
_SENTINEL_LOGIN: Final = ("sentinel_user", "sentinel_password")

MOST_REPLICAS: Final = 16

Node: TypeAlias = tuple[str, int]
"""Host and port of one server of several."""


class _Login(TypedDict):
    user: str
    password: str


@dataclass(frozen=True)
class Address:
    """One server, or where to ask for it."""

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
    kind: Literal["", "cluster", "sentinel"] = ""
    nodes: tuple[Node, ...] = ()
    """Of a cluster, or the Sentinels: some that can be asked where the others are."""
    primary: str = ""
    """The name by which Sentinels know it."""
    sentinel_user: str = ""
    sentinel_password: str = field(default="", repr=False)
    reach: str = ""
    """The host by which all nodes are reached, whatever they call themselves."""
    replicas: int = 0
    """How many must have a change before it is acknowledged."""

    def __str__(self) -> str:
        """Return the URL without its password."""
        if self.embedded:
            return f"embedded://{self.path}"
        login = f"{self.user}:***@" if self.password else ""
        if self.path:
            return f"unix://{login}{self.path}" + (f"?db={self.db}" if self.db else "")
        scheme = "rediss" if self.tls else "redis"
        if self.kind:
            nodes = ",".join(shown(node) for node in self.nodes)
            path = f"/{self.primary}/{self.db}" if self.primary else ""
            return f"{scheme}+{self.kind}://{login}{nodes}{path}"
        return f"{scheme}://{login}{shown((self.host, self.port))}/{self.db}"

    def at(self, node: Node) -> Address:
        """Return the address of one of several: the same login, the same TLS."""
        return replace(self, host=node[0], port=node[1], kind="", nodes=(), primary="")

    def sentinel(self, node: Node) -> Address:
        """Return the address of a Sentinel, which has logins of its own."""
        login = _Login(user=self.sentinel_user, password=self.sentinel_password)
        return replace(self.at(node), db=0, **login)

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
        base, _, kind = parts.scheme.partition("+")
        hosts = parts.netloc.rpartition("@")[2]
        nodes = _nodes(hosts, _PORTS.get(kind, 0)) if base in _TCP else ()
        user, password = parts.username, parts.password
        query = _query(parts.query) if parts.query else {}
    except ValueError:
        raise InvalidArgument(
            f"url cannot be read: it should look like {_FORMS}; what means something in a URL, "
            "also in a password, is written as %40 and so on"
        ) from None
    if "#" in url:
        raise InvalidArgument("url has a '#': write it as %23")
    given = {name: values[-1] for name, values in query.items()}
    if parts.scheme == "embedded":
        _refuse_unknown(given)
        return Address(embedded=True, path=unquote(parts.netloc + parts.path))
    login = _Login(user=unquote(user or ""), password=unquote(password or ""))
    replicas = _replicas(given.pop("replicas", "0"))
    if parts.scheme == "unix":
        db = _database(given.pop("db", "0"))
        _refuse_unknown(given)
        if not parts.path or hosts:
            raise InvalidArgument("url of a unix socket needs a path: unix:///run/valkey.sock")
        return Address(path=unquote(parts.path), db=db, replicas=replicas, **login)
    if base not in _TCP or kind not in _PORTS or ("+" in parts.scheme) != bool(kind):
        raise InvalidArgument(f"url must begin with {_FORMS}")
    primary, path = "", parts.path.strip("/")
    if kind == "sentinel":
        name, _, path = path.partition("/")
        primary = unquote(name)
        if not primary:
            raise InvalidArgument(
                "url of Sentinels needs the name of the primary: redis+sentinel://host/mymaster"
            )
    db = _database(given.pop("db", path or "0"))
    if kind == "cluster" and db:
        raise InvalidArgument("url of a cluster can name no database other than 0")
    tls = base in _TLS
    options = tuple((name, given.pop(name)) for name in _TLS_OPTIONS if tls and name in given)
    if dict(options).get("verify", "full") not in ("full", "none"):
        raise InvalidArgument("url has an unknown verify: full (the default) or none")
    one = Address(tls=tls, tls_options=options, db=db, replicas=replicas, **login)
    if not kind:
        if len(nodes) > 1:
            raise InvalidArgument(
                "url names several hosts: use redis+cluster:// or redis+sentinel:// for those"
            )
        _refuse_unknown(given)
        return one.at(nodes[0])
    reach = given.pop("reach", "")
    asking = [given.pop(name, "") if kind == "sentinel" else "" for name in _SENTINEL_LOGIN]
    _refuse_unknown(given)
    return replace(
        one,
        kind="cluster" if kind == "cluster" else "sentinel",
        nodes=nodes,
        primary=primary,
        reach=reach,
        sentinel_user=asking[0],
        sentinel_password=asking[1],
    )


def shown(node: Node) -> str:
    """Return host and port as they stand in a URL."""
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _nodes(hosts: str, port: int) -> tuple[Node, ...]:
    """Read host and port of each; ValueError where one cannot be read."""
    parts = [urlsplit(f"//{host}") for host in hosts.split(",")]
    for part in parts:
        (part.hostname or "").encode("idna")  # As it is looked up.
    return tuple((part.hostname or "localhost", part.port or port) for part in parts)


def _query(text: str) -> dict[str, list[str]]:
    """Read options; a plus is one, as in the rest of a URL, and what is empty is not left out."""
    return parse_qs(text.replace("+", "%2B"), strict_parsing=True, keep_blank_values=True)


def _replicas(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 2 or int(text) > MOST_REPLICAS:
        raise InvalidArgument(f"url has a wrong number of replicas: 0 to {MOST_REPLICAS}")
    return int(text)


def _database(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidArgument("url names a database that is not a number: use /0 or ?db=0")
    return int(text)


def _refuse_unknown(given: dict[str, str]) -> None:
    if given:
        raise InvalidArgument(
            f"url has an unknown option {min(given)!r}: db, replicas; with rediss:// "
            f"{', '.join(_TLS_OPTIONS)}; of several servers reach; of Sentinels "
            f"{', '.join(_SENTINEL_LOGIN)}"
        )
