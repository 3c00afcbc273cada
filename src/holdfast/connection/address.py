"""Server URLs: parses them into an `Address`. It holds the password, but no repr shows it.

A URL names one server, the nodes of a cluster, or Sentinels. `topology.py` chooses among several
servers.

The URL is not split by `urllib`: `urlsplit` refuses a list of hosts that contains an IPv6 address,
and what it accepts differs between patch releases of Python.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict
from urllib.parse import unquote

from holdfast.errors import InvalidArgument

_TCP: Final = ("redis", "valkey", "rediss", "valkeys")
_TLS: Final = ("rediss", "valkeys")
_PORTS: Final = {"": 6379, "cluster": 6379, "sentinel": 26379}
_FORMS: Final = (
    "redis://, rediss://, valkey://, valkeys://, redis+cluster://, redis+sentinel://, unix:// "
    "or embedded://"
)
_TLS_OPTIONS: Final = ("ca", "cert", "key", "verify")
_SENTINEL_LOGIN: Final = ("sentinel_user", "sentinel_password", "sentinel_password_file")
_OPTIONS: Final = (
    "db",
    "replicas",
    "patience",
    "reach",
    "password_file",
    *_TLS_OPTIONS,
    *_SENTINEL_LOGIN,
)

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_STRAY_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NOT_IN_A_HOST: Final = re.compile(r'[\s\x00-\x1f\x7f%<>@\[\\\]^`{|}"]')
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_IN_A_PATH: Final = re.compile(r"[\x00-\x1f\x7f%?#]|^\s|\s$")
_IN_A_WORD: Final = re.compile(r"[\x00-\x1f\x7f%?#/:@]|^\s|\s$")

MOST_REPLICAS: Final = 16

Node: TypeAlias = tuple[str, int]
"""Host and port of one server of several."""


class _Login(TypedDict):
    user: str
    password: str
    password_file: str


class _Split(NamedTuple):
    """The pieces of a URL. Only the options are percent-decoded."""

    scheme: str
    login: str
    hosts: str
    path: str
    options: dict[str, str]


@dataclass(frozen=True)
class Address:
    """The address of one server, or the nodes or Sentinels to ask for it."""

    host: str = ""
    port: int = 6379
    path: str = ""
    """The path of a unix socket, or of an embedded server's directory."""
    embedded: bool = False
    by_default: bool = field(default=False, compare=False, repr=False)
    """Whether it is the embedded server because no URL was given."""
    tls: bool = False
    tls_options: tuple[tuple[str, str], ...] = ()
    db: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = field(default="", repr=False)
    """The file with the password, read anew for each connection."""
    kind: Literal["", "cluster", "sentinel"] = ""
    nodes: tuple[Node, ...] = ()
    """Some nodes of a cluster, or some Sentinels, to ask for the others."""
    primary: str = ""
    """The name that Sentinels use for the primary."""
    sentinel_user: str = ""
    sentinel_password: str = field(default="", repr=False)
    sentinel_password_file: str = field(default="", repr=False)
    is_sentinel: bool = False
    """Whether this is a Sentinel, which has its own login and no queues."""
    reach: str = ""
    """The host through which all nodes are reached, whatever host names they announce."""
    replicas: int = 0
    """How many replicas must have a change before it is acknowledged."""
    patience: float | None = None
    """Seconds for which a call is retried, unless the program sets its own patience."""

    def __str__(self) -> str:
        """Return the URL without its password."""
        if self.embedded:
            return f"embedded://{_escaped(_IN_A_PATH, self.path)}"
        login = _escaped(_IN_A_WORD, self.user)
        if self.password or self.password_file:
            login += ":***"
        login += "@" if login else ""
        if self.path:
            path = _escaped(_IN_A_PATH, self.path)
            return f"unix://{login}{path}" + (f"?db={self.db}" if self.db else "")
        scheme = "rediss" if self.tls else "redis"
        if self.kind:
            nodes = ",".join(shown(node) for node in self.nodes)
            primary = _escaped(_IN_A_WORD, self.primary)
            path = f"/{primary}/{self.db}" if primary else ""
            return f"{scheme}+{self.kind}://{login}{nodes}{path}"
        return f"{scheme}://{login}{shown((self.host, self.port))}/{self.db}"

    def at(self, node: Node) -> Address:
        """Return the address of one node, with the same login and TLS options."""
        return replace(self, host=node[0], port=node[1], kind="", nodes=(), primary="")

    def sentinel(self, node: Node) -> Address:
        """Return the address of a Sentinel, which has its own login."""
        login = _Login(
            user=self.sentinel_user,
            password=self.sentinel_password,
            password_file=self.sentinel_password_file,
        )
        return replace(self.at(node), db=0, is_sentinel=True, **login)

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context. It checks certificate and host name unless `verify=none`."""
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
    """Parse a URL. Default: HOLDFAST_URL, else the embedded server.

    The environment supplies the parts of the login that the URL leaves out. Errors name the wrong
    part and never repeat the URL, which may hold a password.
    """
    by_default = url is None and "HOLDFAST_URL" not in os.environ
    if url is None:
        url = default_url()
    if not isinstance(url, str):
        raise InvalidArgument(f"url must be a str, not {type(url).__name__}")
    try:
        url.encode()  # A lone surrogate cannot be sent.
        address = replace(_address(_split(url.strip())), by_default=by_default)
    except InvalidArgument:
        raise
    except ValueError:
        raise InvalidArgument(
            f"url cannot be read: it should look like {_FORMS}; characters special in a URL, "
            "also in a password, are written as %40 and so on"
        ) from None
    return _with_login(address)


def _split(url: str) -> _Split:
    """Split a URL into pieces; raise ValueError if it cannot be read."""
    if "#" in url:
        raise InvalidArgument("url has a '#': write it as %23")
    if _CONTROL.search(url):
        raise InvalidArgument("url has a line break or another control character in it")
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise InvalidArgument(f"url must begin with {_FORMS}")
    rest, _, query = rest.partition("?")
    options: dict[str, str] = {}
    for option in query.split("&") if query else ():
        name, equals, value = option.partition("=")
        name = _decoded(name)
        if not name or not equals:
            raise ValueError
        if "@" in query and name not in _OPTIONS:  # Not named: it may be a piece of the password.
            raise InvalidArgument(
                "url has an unknown option, or a '?' in its password: write that as %3F"
            )
        if name in options:
            raise InvalidArgument("url has the same option twice")
        options[name] = _decoded(value)
    scheme = scheme.lower()
    if scheme == "embedded":
        return _Split(scheme, "", "", rest, options)
    authority, slash, path = rest.partition("/")
    login, _, hosts = authority.rpartition("@")
    return _Split(scheme, login, hosts, slash + path, options)


def _address(parts: _Split) -> Address:
    """Interpret the pieces of a URL; raise ValueError if one cannot be read."""
    base, plus, kind = parts.scheme.partition("+")
    given = dict(parts.options)
    patience = _patience(given.pop("patience", None))
    if parts.scheme == "embedded":
        if given:
            raise InvalidArgument(
                f"url has the option {min(given)[:40]!a}, which means nothing to the embedded "
                "server: leave it out. With embedded:// there is patience only"
            )
        path = _path(parts.path)
        return Address(embedded=True, path=path, patience=patience)
    if parts.scheme != "unix" and (
        base not in _TCP or kind not in _PORTS or bool(plus) != bool(kind)
    ):
        raise InvalidArgument(f"url must begin with {_FORMS}")
    user, _, password = parts.login.partition(":")
    login = _Login(
        user=_decoded(user),
        password=_decoded(password),
        password_file=_file("password_file", given),
    )
    replicas = _replicas(given.pop("replicas", "0"))
    if parts.scheme == "unix":
        db = _database("", given)
        _refuse_unknown(given)
        if not parts.path or parts.hosts:
            raise InvalidArgument("url of a unix socket needs a path: unix:///run/valkey.sock")
        return Address(path=_path(parts.path), db=db, replicas=replicas, patience=patience, **login)
    nodes = _nodes(parts.hosts, _PORTS[kind])
    primary, path = "", parts.path.strip("/")
    if kind == "sentinel":
        name, _, path = path.partition("/")
        primary = _decoded(name)
        if not primary:
            raise InvalidArgument(
                "url of Sentinels needs the name of the primary: redis+sentinel://host/mymaster"
            )
    db = _database(path, given)
    if kind == "cluster" and db:
        raise InvalidArgument("url of a cluster can name no database other than 0")
    tls = base in _TLS
    options = tuple((name, given.pop(name)) for name in _TLS_OPTIONS if tls and name in given)
    if dict(options).get("verify", "full") not in ("full", "none"):
        raise InvalidArgument("url has an unknown verify: full (the default) or none")
    if any("\0" in value for _, value in options):
        raise ValueError
    one = Address(
        tls=tls, tls_options=options, db=db, replicas=replicas, patience=patience, **login
    )
    if not kind:
        if len(nodes) > 1:
            raise InvalidArgument(
                "url names several hosts: use redis+cluster:// or redis+sentinel:// for those"
            )
        _refuse_unknown(given)
        return one.at(nodes[0])
    reach = given.pop("reach", "")
    if reach:
        reach = _host(reach)
    if kind == "cluster":
        _refuse_unknown(given)
        return replace(one, kind="cluster", nodes=nodes, reach=reach)
    asking = replace(
        one,
        kind="sentinel",
        nodes=nodes,
        primary=primary,
        reach=reach,
        sentinel_user=given.pop("sentinel_user", ""),
        sentinel_password=given.pop("sentinel_password", ""),
        sentinel_password_file=_file("sentinel_password_file", given),
    )
    _refuse_unknown(given)
    return asking


def _with_login(address: Address) -> Address:
    """Take the parts of the login that the URL leaves out from the environment."""
    if address.embedded:
        return address
    login = _filled(
        _Login(user=address.user, password=address.password, password_file=address.password_file),
        "password_file",
        "HOLDFAST_",
    )
    address = replace(address, **login)
    if address.kind != "sentinel":
        return address
    asking = _filled(
        _Login(
            user=address.sentinel_user,
            password=address.sentinel_password,
            password_file=address.sentinel_password_file,
        ),
        "sentinel_password_file",
        "HOLDFAST_SENTINEL_",
    )
    return replace(
        address,
        sentinel_user=asking["user"],
        sentinel_password=asking["password"],
        sentinel_password_file=asking["password_file"],
    )


def _filled(login: _Login, option: str, prefix: str) -> _Login:
    if login["password"] and login["password_file"]:
        raise InvalidArgument(f"url has both a password and {option}: leave one out")
    user, password, file = (
        os.environ.get(prefix + name, "") for name in ("USERNAME", "PASSWORD", "PASSWORD_FILE")
    )
    if password and file:
        raise InvalidArgument(
            f"both {prefix}PASSWORD and {prefix}PASSWORD_FILE are set: unset one of them"
        )
    if login["password"] or login["password_file"]:
        password = file = ""
    return _Login(
        user=login["user"] or user,
        password=login["password"] or password,
        password_file=login["password_file"] or (str(Path(file).absolute()) if file else ""),
    )


def default_url() -> str:
    """Return the default URL: HOLDFAST_URL, else that of the embedded server.

    HOLDFAST_REQUIRE_URL=1 forbids the embedded server, for programs that must share a server.
    """
    given = os.environ.get("HOLDFAST_URL")
    if given is not None:
        if not given.strip():
            raise InvalidArgument(
                "HOLDFAST_URL is set, but empty: set it to the URL of a server, or to embedded:// "
                "for the embedded one, or unset it"
            )
        return given.strip()
    if os.environ.get("HOLDFAST_REQUIRE_URL", "").strip().lower() not in ("", "0", "no", "false"):
        raise InvalidArgument(
            "HOLDFAST_REQUIRE_URL is set, and no server is named: set HOLDFAST_URL, or give url="
        )
    return "embedded://"


def shown(node: Node) -> str:
    """Return host and port as written in a URL."""
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _escaped(special: re.Pattern[str], text: str) -> str:
    return special.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)


def _decoded(text: str) -> str:
    """Decode percent escapes; raise ValueError for invalid UTF-8, InvalidArgument for a stray %."""
    if _STRAY_PERCENT.search(text):
        raise InvalidArgument("url has a '%' that is not followed by two hex digits: write %25")
    return unquote(text, errors="strict")


def _path(text: str) -> str:
    path = _decoded(text)
    if "\0" in path:
        raise ValueError
    return path


def _file(option: str, given: dict[str, str]) -> str:
    """Take an option that names a file. A relative name is relative to the working directory."""
    path = given.pop(option, None)
    if path is None:
        return ""
    if not path or "\0" in path:
        raise InvalidArgument(f"url has {option} without the name of a file")
    return str(Path(path).absolute())


def _nodes(hosts: str, port: int) -> tuple[Node, ...]:
    """Parse a list of hosts and ports; raise ValueError if one cannot be read."""
    parts = hosts.split(",")
    if len(parts) > 1 and "" in parts:
        raise InvalidArgument("url has an empty place in its list of hosts")
    return tuple(_node(part, port) for part in parts)


def _node(text: str, port: int) -> Node:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and rest[0] != ":"):
            raise ValueError
        host = host.replace("%25", "%")  # Both are used before a zone.
        IPv6Address(host)
        return host.lower(), _port(rest[1:], port)
    host, _, rest = text.partition(":")
    if ":" in rest:
        raise InvalidArgument(
            "url has a host or port with a ':' in it: put an IPv6 address in brackets, as "
            "[::1]:6379, and write a ':' in a password as %3A"
        )
    return _host(host) or "localhost", _port(rest, port)


def _host(text: str) -> str:
    """Check and normalize a host name or an IP address."""
    if _NOT_IN_A_HOST.search(text) or len(text) > 253:
        raise ValueError
    if ":" in text:
        IPv6Address(text)
    else:
        text.encode("idna")
    return text.lower()


def _port(text: str, default: int) -> int:
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 0 < int(text) < 65536:
        raise ValueError
    return int(text)


def _replicas(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 2 or int(text) > MOST_REPLICAS:
        raise InvalidArgument(f"url has a wrong number of replicas: 0 to {MOST_REPLICAS}")
    return int(text)


def _patience(text: str | None) -> float | None:
    if text is None:
        return None
    if not _SECONDS.fullmatch(text):
        raise InvalidArgument("url has a wrong patience: seconds, such as 1 or 0.5")
    return float(text)


def _database(path: str, given: dict[str, str]) -> int:
    text = given.pop("db", None)
    if text is not None and path:
        raise InvalidArgument("url names a database twice: use /0 or ?db=0, not both")
    text = path or "0" if text is None else text
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidArgument("url names a database that is not a number: use /0 or ?db=0")
    return int(text)


def _refuse_unknown(given: dict[str, str]) -> None:
    if given:
        raise InvalidArgument(
            f"url has an unknown option {min(given)[:40]!a}: db, patience, replicas, "
            "password_file; with "
            f"rediss:// {', '.join(_TLS_OPTIONS)}; with several servers reach; with Sentinels "
            f"{', '.join(_SENTINEL_LOGIN)}"
        )
