"""Where the password comes from: a file, the environment, or a function, for every connection."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import platform
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from engine_support import own_server
from faults.shells import SHELLS, Shell, _Blocking
from holdfast import (
    AsyncQueue,
    AsyncServer,
    HoldfastError,
    InvalidArgument,
    Queue,
    Server,
    ServerRefused,
    ServerUnavailable,
    Worker,
)
from holdfast.connection.address import MOST_PASSWORD_BYTES, read_password
from support import DEADLINE, TestServer, command_on, kill_connections, wait_until
from worker.support import at_work

BRIEFLY = 0.1
OLD, NEW = "hunter2-old", "hunter2-new"
_users = itertools.count()


@pytest.fixture(scope="module")
def own() -> Iterator[TestServer]:
    with own_server(tcp=True) as server:
        yield server


@pytest.fixture
def client(own: TestServer) -> Iterator[redis.Redis]:
    with own.client() as client:
        yield client


class User:
    """A user of a server, whose password changes."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.name = f"user{next(_users)}"
        self.change(OLD)

    def change(self, password: str) -> None:
        """Give it another password. Those who are connected stay."""
        rules = ("reset", "on", f">{password}", "~*", "&*", "+@all")
        command_on(self._client, "ACL", "SETUSER", self.name, *rules)

    def disconnect(self) -> None:
        command_on(self._client, "CLIENT", "KILL", "USER", self.name)


@pytest.fixture
def user(client: redis.Redis) -> User:
    return User(client)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> Shell:
    shell: Shell = request.param
    return shell


@contextmanager
def opened(shell: Shell, url: str | None, **options: Any) -> Iterator[Queue]:
    options = {"patience": DEADLINE, **options}
    if shell == "Queue":
        with Queue("q", Server(url, **options)) as queue:
            yield queue
        return
    with asyncio.Runner() as runner:
        blocking: Any = _Blocking(AsyncQueue("q", AsyncServer(url, **options)), runner)
        try:
            yield blocking
        finally:
            blocking.close()


def refused(ask: Callable[[], object]) -> HoldfastError:
    with pytest.raises(HoldfastError) as raised:
        ask()
    assert "hunter2" not in str(raised.value)
    return raised.value


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{OLD}\n")
    file.chmod(0o600)
    return file


# ------------------------------------------------------------------------------- a file


def test_the_password_may_be_in_a_file(
    shell: Shell, own: TestServer, user: User, password_file: Path
) -> None:
    url = f"redis://{user.name}@127.0.0.1:{own.port}?password_file={password_file}"
    with opened(shell, url) as queue:
        assert queue.counts().ready == 0
        assert "hunter2" not in repr(queue)


def test_a_file_is_read_for_every_connection(
    shell: Shell, own: TestServer, user: User, password_file: Path
) -> None:
    url = f"redis://{user.name}@127.0.0.1:{own.port}?password_file={password_file}"
    with opened(shell, url) as queue:
        queue.counts()
        user.change(NEW)
        password_file.write_text(NEW)
        user.disconnect()
        queue.counts()


@pytest.mark.parametrize("text", [b"%b", b"%b\n", b"%b\r\n", b"%b\n\n"])
def test_the_line_break_at_the_end_is_not_the_password(
    own: TestServer, user: User, password_file: Path, text: bytes
) -> None:
    password_file.write_bytes(text % OLD.encode())
    url = f"redis://{user.name}@127.0.0.1:{own.port}?password_file={password_file}"
    with Queue("q", Server(url)) as queue:
        queue.counts()


def test_spaces_and_any_bytes_are_the_password(client: redis.Redis, password_file: Path) -> None:
    password = b" \xff\xfe spaces\tand bytes "
    password_file.write_bytes(password + b"\n")
    command_on(client, "ACL", "SETUSER", "bytes", "reset", "on", b">" + password, "~*", "+@all")
    port = client.config_get("port")["port"]
    url = f"redis://bytes@127.0.0.1:{port}?password_file={password_file}"
    with Queue("q", Server(url)) as queue:
        queue.counts()


@pytest.mark.parametrize("content", [None, b"", b"\n", b"x" * (MOST_PASSWORD_BYTES + 1)])
def test_a_file_without_a_password_is_named_and_waited_for(
    shell: Shell, own: TestServer, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "nothing"
    if content is not None:
        file.write_bytes(content)
        file.chmod(0o600)
    with opened(shell, f"{own.url}?password_file={file}", patience=BRIEFLY) as queue:
        error = refused(queue.counts)
    assert isinstance(error, ServerUnavailable)
    assert str(file) in str(error)
    assert "Nothing was changed" in str(error)


def test_a_file_that_everybody_can_read_is_warned_about_once(
    own: TestServer, user: User, password_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password_file.chmod(0o604)
    for _ in range(2):
        read_password(str(password_file))
    [said] = [record.getMessage() for record in caplog.records]
    assert f"{password_file}: chmod 600" in said
    assert "hunter2" not in said


def test_the_login_may_come_from_the_environment(
    shell: Shell,
    own: TestServer,
    user: User,
    password_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", own.url)
    monkeypatch.setenv("HOLDFAST_USERNAME", user.name)
    monkeypatch.setenv("HOLDFAST_PASSWORD", OLD)
    with opened(shell, None) as queue:
        queue.counts()
    monkeypatch.delenv("HOLDFAST_PASSWORD")
    monkeypatch.setenv("HOLDFAST_PASSWORD_FILE", str(password_file))
    with opened(shell, None) as queue:
        queue.counts()


def test_a_password_that_the_server_does_not_want_is_said_so(
    shell: Shell, own: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PASSWORD", OLD)
    with opened(shell, own.url) as queue:
        error = refused(queue.counts)
    assert isinstance(error, ServerRefused)
    assert "expects no password" in str(error)


# --------------------------------------------------------------------------- a function


def test_a_function_gives_a_password_or_user_and_password(
    shell: Shell, own: TestServer, user: User
) -> None:
    with opened(shell, own.url, credentials=lambda: (user.name, OLD)) as queue:
        queue.counts()
    url = own.url.replace("//", f"//{user.name}:wrong@")
    with opened(shell, url, credentials=lambda: OLD) as queue:
        queue.counts()


def test_a_function_may_be_async(shell: Shell, own: TestServer, user: User) -> None:
    async def token() -> tuple[str, str]:
        await asyncio.sleep(0)
        return user.name, OLD

    with opened(shell, own.url, credentials=token) as queue:
        queue.counts()


def test_a_plain_function_does_not_block_the_event_loop(own: TestServer, user: User) -> None:
    went_on = threading.Event()

    def token() -> tuple[str, str]:
        assert went_on.wait(DEADLINE), "the loop stood still"
        return user.name, OLD

    async def main() -> None:
        async with AsyncQueue("q", AsyncServer(own.url, credentials=token)) as queue:
            asking = asyncio.create_task(queue.counts())
            await asyncio.sleep(0.01)
            went_on.set()
            await asking

    asyncio.run(main())


def test_a_function_is_asked_for_every_connection(
    shell: Shell, own: TestServer, user: User
) -> None:
    password, asked = [OLD], []

    def token() -> tuple[str, str]:
        asked.append(password[0])
        return user.name, password[0]

    with opened(shell, own.url, credentials=token) as queue:
        queue.counts()
        queue.counts()
        assert asked == [OLD]
        user.change(NEW)
        password[0] = NEW
        queue.counts()  # Who is in stays in.
        user.disconnect()
        queue.counts()
        assert asked == [OLD, NEW]


def test_a_token_that_expired_is_renewed_once(shell: Shell, own: TestServer, user: User) -> None:
    tokens = iter(["expired", OLD])
    with opened(shell, own.url, credentials=lambda: (user.name, next(tokens))) as queue:
        queue.counts()
    tokens = iter(["expired", "expired", OLD])
    with opened(shell, own.url, credentials=lambda: (user.name, next(tokens))) as queue:
        error = refused(queue.counts)
        assert isinstance(error, ServerRefused)
        assert error.word == "WRONGPASS"
        queue.counts()


def test_a_call_that_was_under_way_waits_for_a_token_that_is_let_in(
    shell: Shell, own: TestServer, user: User
) -> None:
    tokens = iter([OLD, "expired", "expired", "expired", OLD])
    login: Any = lambda: (user.name, next(tokens))  # noqa: E731
    with opened(shell, own.url, credentials=login) as queue:
        queue.counts()
        user.disconnect()
        queue.counts()


def test_a_connection_that_is_logged_out_is_opened_again(
    shell: Shell, own: TestServer, user: User, client: redis.Redis, tmp_path: Path
) -> None:
    """The server says NOAUTH on a connection that was good: not all of them hang up."""
    said_noauth = threading.Event()
    with relay(own, said_noauth) as port:
        url = f"redis://127.0.0.1:{port}"
        with opened(shell, url, credentials=lambda: (user.name, OLD)) as queue:
            queue.counts()
            said_noauth.set()
            assert queue.counts().ready == 0
            assert not said_noauth.is_set()


@contextmanager
def relay(server: TestServer, noauth: threading.Event) -> Iterator[int]:
    """A proxy that answers NOAUTH once, to whoever asks next, when the event is set."""
    from proxy import Frames

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk(outside: socket.socket) -> None:
            with outside, socket.socket(socket.AF_UNIX) as inside:
                inside.connect(str(server.socket))
                asked, answered = Frames(), Frames()
                while data := outside.recv(65536):
                    asked.feed(data)
                    while frame := asked.take():
                        if noauth.is_set():
                            noauth.clear()
                            outside.sendall(b"-NOAUTH Authentication required.\r\n")
                            continue
                        inside.sendall(frame)
                        while (reply := answered.take()) is None:
                            answered.feed(inside.recv(65536))
                        outside.sendall(reply)

        def listen() -> None:
            while True:
                try:
                    outside, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=talk, args=(outside,)))
                threads[-1].start()

        accepting = threading.Thread(target=listen)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(DEADLINE)
    for thread in threads:
        thread.join(DEADLINE)


def test_a_function_that_raises_is_like_a_server_that_is_away(
    shell: Shell, own: TestServer, user: User, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    troubles = 3

    def token() -> tuple[str, str]:
        nonlocal troubles
        troubles -= 1
        if troubles >= 0:
            raise LookupError(f"no access with {OLD}")
        return user.name, OLD

    with opened(shell, own.url, credentials=token) as queue:
        queue.counts()
    troubles = 10**6
    with opened(shell, own.url, credentials=token, patience=BRIEFLY) as queue:
        error = refused(queue.counts)
    assert isinstance(error, ServerUnavailable)
    assert "the credentials function raised LookupError" in str(error)
    assert "Nothing was changed" in str(error)
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [None, b"hunter2", 5, ("hunter2",), ("a", "b", "hunter2"), (1, 2), ("u", "hunter2\ud800")],
)
def test_a_function_that_returns_something_else_is_told_so(
    shell: Shell, own: TestServer, wrong: Any
) -> None:
    with opened(shell, own.url, credentials=lambda: wrong) as queue:
        error = refused(queue.counts)
    assert isinstance(error, InvalidArgument)
    assert "must return a password or (user, password)" in str(error)


def test_the_embedded_server_asks_nobody(shell: Shell, tmp_path: Path) -> None:
    def token() -> str:
        raise AssertionError("it was asked")

    url = f"embedded://{tmp_path / 'd'}"
    with opened(shell, url, credentials=token) as queue:
        queue.counts()


def test_a_worker_uses_them_too_and_goes_on_with_a_new_one(
    own: TestServer, user: User, client: redis.Redis
) -> None:
    password, ran = [OLD], []

    async def token() -> tuple[str, str]:
        return user.name, password[0]

    async_queue = AsyncQueue("q worked", AsyncServer(own.url, credentials=token))
    worker = Worker(async_queue)
    worker.handler(lambda job: ran.append(job.id))
    with Queue("q worked", own.url) as queue, at_work(worker):
        queue.add(b"x", id="a")
        wait_until(lambda: ran == ["a"], "the first run")
        user.change(NEW)
        user.disconnect()  # Now nobody gets in.
        password[0] = NEW
        queue.add(b"x", id="b")
        wait_until(lambda: ran == ["a", "b"], "the second run")


def test_a_user_without_a_password_is_let_in(
    shell: Shell, own: TestServer, client: redis.Redis
) -> None:
    command_on(client, "ACL", "SETUSER", "open", "reset", "on", "nopass", "~*", "&*", "+@all")
    for url, function in (
        (own.url.replace("//", "//open@"), None),
        (own.url, lambda: ("open", "")),
    ):
        with opened(shell, url, credentials=function) as queue:
            queue.counts()


def test_a_deleted_user_is_refused(
    shell: Shell, own: TestServer, user: User, client: redis.Redis
) -> None:
    login: Any = lambda: (user.name, OLD)  # noqa: E731
    with opened(shell, own.url, credentials=login, patience=2) as queue:
        queue.counts()
        command_on(client, "ACL", "DELUSER", user.name)
        assert "does not know this user and password" in str(refused(queue.counts))


# ----------------------------------------------------------------------- another server


def test_another_server_object_has_the_same_settings(own: TestServer, user: User) -> None:
    for kind in (Server, AsyncServer):
        first: Any = kind(
            own.url, patience=7, reply_within=3, credentials=lambda: "x", client_name="web"
        )
        second = kind.like(first, patience=2)
        assert type(second) is kind
        assert second.settings.patience == 2
        assert kind.like(second, patience=7).settings == first.settings
        assert second.session.holder != first.session.holder
    assert Server.like(first).settings == first.settings


def test_another_server_object_checks_the_server_only_if_its_user_may_be_another(
    own: TestServer, user: User
) -> None:
    def credentials() -> tuple[str, str]:
        return user.name, OLD

    def checks(server: Server) -> int:
        with own.client() as client:
            client.config_resetstat()
            with Queue("q", server) as queue:
                queue.counts()
            return int(client.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"])

    first = Server(own.url)
    assert checks(Server.like(first)) == 1
    assert checks(first) == 1
    assert checks(Server.like(first, patience=2)) == 0
    assert checks(Server.like(first, credentials=credentials)) == 1


# ------------------------------------------------------------------------ the client's name


def clients(client: redis.Redis, user: str) -> list[dict[str, Any]]:
    return [one for one in client.client_list() if one["user"] == user]


def test_connections_have_a_name(
    shell: Shell, own: TestServer, user: User, client: redis.Redis
) -> None:
    login: Any = lambda: (user.name, OLD)  # noqa: E731
    with opened(shell, own.url, credentials=login, client_name="my app:\n☃") as queue:
        queue.counts()
        [one] = clients(client, user.name)
        host = platform.node()[:40]
        assert one["name"] == f"holdfast:my-app-:{host}:{os.getpid()}"
        assert (one["lib-name"], one["lib-ver"]) != ("", "")
    with opened(shell, own.url, credentials=login) as queue:
        queue.counts()
        [one] = clients(client, user.name)
        assert one["name"].startswith("holdfast:")
        assert one["name"].count(":") == 3


def test_who_may_have_no_name_works_without_and_is_not_logged_again_and_again(
    shell: Shell, own: TestServer, user: User, client: redis.Redis
) -> None:
    command_on(client, "ACL", "SETUSER", user.name, "-client|setname", "-client|setinfo")
    command_on(client, "ACL", "LOG", "RESET")
    with opened(shell, own.url, credentials=lambda: (user.name, OLD)) as queue:
        for _ in range(3):
            queue.counts()
            kill_connections(client)
            queue.counts()
        [one] = clients(client, user.name)
        assert one["name"] == ""
    logged: Any = client.acl_log()
    assert sum(entry["count"] for entry in logged) <= 3
