"""Credentials: user and password from the URL, a file, or the user's function.

They are read anew for each connection, so that a password can change and a token can expire while a
program runs. No message here repeats a password, or the text of an error that may contain one.
"""

from __future__ import annotations

import inspect
import logging
import os
import stat
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from holdfast.connection.address import Address
from holdfast.errors import InvalidArgument

log = logging.getLogger("holdfast")

MOST_BYTES: Final = 65536
"""The most bytes of a password file. Tokens are long, but not that long."""

Login: TypeAlias = tuple[str, str]
"""User and password; both are empty without a login."""

Credentials: TypeAlias = Callable[[], "str | Login | Awaitable[str | Login]"]
"""A function that returns a password, or a user and a password. It may be async."""

_warned: set[str] = set()


def check(credentials: Credentials | None) -> Credentials | None:
    """Refuse anything but a function, such as the password itself."""
    if credentials is not None and not callable(credentials):
        raise InvalidArgument(
            "credentials must be a function that returns a password or (user, password), not "
            f"{type(credentials).__name__}"
        )
    return credentials


def is_renewable(address: Address, credentials: Credentials | None) -> bool:
    """Return whether the password may change."""
    return bool(credentials or address.password_file or address.sentinel_password_file)


def login(address: Address, credentials: Credentials | None) -> Login:
    """Return the login for a new connection; raise OSError if that fails."""
    if credentials is None or address.is_sentinel or address.embedded:
        return _login_of(address)
    try:
        said = credentials()
        if inspect.isawaitable(said):
            said = _wait_for(said)
    except Exception as error:
        raise _trouble(error) from error
    return _checked(said, address)


async def async_login(address: Address, credentials: Credentials | None) -> Login:
    """Return the login, as `login` does. Anything that may block runs in a thread."""
    import asyncio  # noqa: PLC0415  # Slow to import, and not always needed.

    if credentials is None or address.is_sentinel or address.embedded:
        if address.password_file:
            return await asyncio.to_thread(_login_of, address)
        return _login_of(address)
    try:
        if inspect.iscoroutinefunction(credentials):
            said: Any = await credentials()
        else:
            said = await asyncio.to_thread(credentials)
            if inspect.isawaitable(said):
                said = await said
    except Exception as error:
        raise _trouble(error) from error
    return _checked(said, address)


def _login_of(address: Address) -> Login:
    if address.password_file:
        return address.user, _read(address.password_file)
    return address.user, address.password


def _read(path: str) -> str:
    """Return the password in a file, without trailing line breaks."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MOST_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise ConnectionError(
            f"the password file {path} cannot be read: {error.strerror}"
        ) from None
    if not text or len(text) > MOST_BYTES:
        what = "is empty" if not text else f"is longer than {MOST_BYTES} bytes"
        raise ConnectionError(f"the password file {path} {what}")
    if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH) and path not in _warned:
        _warned.add(path)
        log.warning("every user of this machine can open the password file %s: chmod 600", path)
    return text.decode(errors="surrogateescape")


def _wait_for(said: Awaitable[Any]) -> Any:
    """Run an awaitable in a new event loop, and return its result."""
    import asyncio  # noqa: PLC0415

    async def wait() -> Any:
        return await said

    answer: list[Any] = []
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(asyncio.run(wait()))
        except BaseException as error:  # noqa: BLE001  # Raised again below.
            trouble.append(error)

    # In a new thread, since this one may have a running event loop.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return answer[0]


def _trouble(error: Exception) -> ConnectionError:
    return ConnectionError(
        f"cannot get credentials: the credentials function raised {type(error).__name__}"
    )


def _checked(said: Any, address: Address) -> Login:
    if isinstance(said, str):
        said = (address.user, said)
    if isinstance(said, tuple | list) and len(said) == 2 and all(map(_can_be_sent, said)):
        user, password = said
        return user, password
    raise InvalidArgument(
        "the credentials function must return a password or (user, password) as str, in characters "
        f"that UTF-8 can encode, not {type(said).__name__}"
    )


def _can_be_sent(word: object) -> bool:
    try:
        str.encode(word, errors="surrogateescape")  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):  # Not a str, or has a lone surrogate.
        return False
    return True
