"""Server URLs: parses them into an `Address`, which holds the login, but no repr shows it.

Passwords in files, and those of the user's `credentials` function, are read anew for each
connection, so that a password can change and a token can expire while a program runs. No message
here repeats a password, or the text of an error that may contain one.

A URL names one server, the nodes of a cluster, or Sentinels. `topology.py` chooses among several
servers.

The URL is not split by `urllib`: `urlsplit` refuses a list of hosts that contains an IPv6 address,
and what it accepts differs between patch releases of Python.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote

from holdfast.errors import InvalidArgument
from holdfast.escaping import logger

log = logger(__name__)

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


MOST_PASSWORD_BYTES: Final = 65536
"""The most bytes of a password file. Tokens are long, but not that long."""

Login: TypeAlias = tuple[str, str]
"""User and password; both are empty without a login."""

Credentials: TypeAlias = Callable[[], "str | Login | Awaitable[str | Login]"]
"""A function that returns a password, or a user and a password. It may be async."""

_warned: set[str] = set()


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
        return replace(
            self.at(node),
            db=0,
            is_sentinel=True,
            user=self.sentinel_user,
            password=self.sentinel_password,
            password_file=self.sentinel_password_file,
        )

    def login_from(self, said: Any) -> Login:
        """Return the login that a credentials function has returned."""
        if isinstance(said, str):
            said = (self.user, said)
        if isinstance(said, tuple | list) and len(said) == 2 and all(map(_can_be_sent, said)):
            user, password = said
            return user, password
        raise InvalidArgument(
            "the credentials function must return a password or (user, password) as str, in "
            f"characters that UTF-8 can encode, not {type(said).__name__}"
        )

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
        address = _address(*_split(url.strip()), by_default=by_default)
    except InvalidArgument:
        raise
    except ValueError:
        raise InvalidArgument(
            f"url cannot be read: it should look like {_FORMS}; characters special in a URL, "
            "also in a password, are written as %40 and so on"
        ) from None
    return _with_login(address)


def _split(url: str) -> tuple[str, str, str, str, dict[str, str]]:
    """Return scheme, login, hosts, path and options of a URL; raise ValueError if unreadable.

    Only the options are percent-decoded.
    """
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
        return scheme, "", "", rest, options
    authority, slash, path = rest.partition("/")
    login, _, hosts = authority.rpartition("@")
    return scheme, login, hosts, slash + path, options


def _address(
    scheme: str, login: str, hosts: str, path: str, given: dict[str, str], *, by_default: bool
) -> Address:
    """Interpret the pieces of a URL; raise ValueError if one cannot be read."""
    base, plus, kind = scheme.partition("+")
    found: dict[str, Any] = {"patience": _patience(given.pop("patience", None))}
    if scheme == "embedded":
        if given:
            raise InvalidArgument(
                f"url has the option {min(given)[:40]!a}, which means nothing to the embedded "
                "server: leave it out. With embedded:// there is patience only"
            )
        return Address(embedded=True, path=_path(path), by_default=by_default, **found)
    if scheme != "unix" and (base not in _TCP or kind not in _PORTS or bool(plus) != bool(kind)):
        raise InvalidArgument(f"url must begin with {_FORMS}")
    user, _, password = login.partition(":")
    found |= {"user": _decoded(user), "password": _decoded(password)}
    found["password_file"] = _file("password_file", given)
    found["replicas"] = _replicas(given.pop("replicas", "0"))
    if scheme == "unix":
        found["db"] = _database("", given)
        _refuse_unknown(given)
        if not path or hosts:
            raise InvalidArgument("url of a unix socket needs a path: unix:///run/valkey.sock")
        return Address(path=_path(path), **found)
    nodes = _nodes(hosts, _PORTS[kind])
    path = path.strip("/")
    if kind == "sentinel":
        primary, _, path = path.partition("/")
        if not primary:
            raise InvalidArgument(
                "url of Sentinels needs the name of the primary: redis+sentinel://host/mymaster"
            )
        found["primary"] = _decoded(primary)
        for option in ("sentinel_user", "sentinel_password"):
            found[option] = given.pop(option, "")
        found["sentinel_password_file"] = _file("sentinel_password_file", given)
    found["db"] = _database(path, given)
    if kind == "cluster" and found["db"]:
        raise InvalidArgument("url of a cluster can name no database other than 0")
    if base in _TLS:
        options = tuple((name, given.pop(name)) for name in _TLS_OPTIONS if name in given)
        if dict(options).get("verify", "full") not in ("full", "none"):
            raise InvalidArgument("url has an unknown verify: full (the default) or none")
        if any("\0" in value for _, value in options):
            raise ValueError
        found |= {"tls": True, "tls_options": options}
    if kind:
        reach = given.pop("reach", "")
        found |= {"kind": kind, "nodes": nodes, "reach": _host(reach) if reach else ""}
    elif len(nodes) > 1:
        raise InvalidArgument(
            "url names several hosts: use redis+cluster:// or redis+sentinel:// for those"
        )
    else:
        found["host"], found["port"] = nodes[0]
    _refuse_unknown(given)
    return Address(**found)


def _with_login(address: Address) -> Address:
    """Take the parts of the login that the URL leaves out from the environment."""
    if address.embedded:
        return address
    address = _filled(address, "", "HOLDFAST_")
    if address.kind != "sentinel":
        return address
    return _filled(address, "sentinel_", "HOLDFAST_SENTINEL_")


def _filled(address: Address, of: str, prefix: str) -> Address:
    names = ("user", "password", "password_file")
    user, password, file = (getattr(address, of + name) for name in names)
    if password and file:
        raise InvalidArgument(f"url has both a password and {of}password_file: leave one out")
    environ = (
        os.environ.get(prefix + name, "") for name in ("USERNAME", "PASSWORD", "PASSWORD_FILE")
    )
    other_user, other_password, other_file = environ
    if other_password and other_file:
        raise InvalidArgument(
            f"both {prefix}PASSWORD and {prefix}PASSWORD_FILE are set: unset one of them"
        )
    if not password and not file:
        password, file = other_password, other_file and str(Path(other_file).absolute())
    login: dict[str, Any] = dict(zip(names, (user or other_user, password, file), strict=True))
    return replace(address, **{of + name: word for name, word in login.items()})


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
    if not text.isascii() or not text.isdigit():
        raise ValueError
    if len(text) > 5 or not 0 < int(text) < 65536:
        raise InvalidArgument("url has a port out of range: give one from 1 to 65535")
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


# ------------------------------------------------------------------------------- logins


def read_password(path: str) -> str:
    """Return the password in a file, without trailing line breaks; raise OSError on failure."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MOST_PASSWORD_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise ConnectionError(
            f"the password file {path} cannot be read: {error.strerror}"
        ) from None
    if not text or len(text) > MOST_PASSWORD_BYTES:
        what = f"is longer than {MOST_PASSWORD_BYTES} bytes" if text else "is empty"
        raise ConnectionError(f"the password file {path} {what}")
    if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH) and path not in _warned:
        _warned.add(path)
        log.warning("every user of this machine can open the password file %s: chmod 600", path)
    return text.decode(errors="surrogateescape")


def no_credentials(error: Exception) -> ConnectionError:
    """Return the error for a credentials function that raised one, whose text may be secret."""
    return ConnectionError(
        f"cannot get credentials: the credentials function raised {type(error).__name__}"
    )


def _can_be_sent(word: object) -> bool:
    try:
        str.encode(word, errors="surrogateescape")  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):  # Not a str, or has a lone surrogate.
        return False
    return True
