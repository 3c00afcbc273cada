"""The directory of an embedded server: found, trusted or refused, marked, stamped."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded_support import connect, end, kill_server, wait_until_stopped
from holdfast import Queue
from holdfast.errors import InvalidArgument, QueueFull, UnsupportedServer
from holdfast.server import directory as places
from holdfast.server import embedded, keeper
from holdfast.server.embedded import Embedded, default_directory, find_binary, maxmemory
from holdfast.server.health import Health

OTHER_USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act for another user")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "holdfast"
    yield directory
    end(directory)


@pytest.fixture
def user(directory: Path) -> Iterator[Embedded]:
    user = Embedded(directory)
    yield user
    user.leave()


def marker(directory: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / places.MARKER).read_text())
    return found


def write_stamp(directory: Path, stamp: str) -> None:
    home = os.open(directory, os.O_RDONLY)
    places.write_stamp(home, stamp)
    os.close(home)


# --- whose directory it is --------------------------------------------------------------------


def test_a_directory_with_a_foreign_file_of_our_name_is_refused_and_left_alone(
    user: Embedded,
) -> None:
    user.directory.mkdir(mode=0o700)
    (user.directory / "server.conf").write_text("precious")
    (user.directory / "appendonlydir").mkdir()
    with pytest.raises(InvalidArgument, match="does not write into it"):
        user.ensure()
    assert (user.directory / "server.conf").read_text() == "precious"
    assert len([*user.directory.iterdir()]) == 2


def test_a_private_directory_with_other_things_in_it_is_refused(user: Embedded) -> None:
    user.directory.mkdir(mode=0o700)
    (user.directory / "authorized_keys").write_text("ssh-ed25519 AAAA")
    with pytest.raises(InvalidArgument, match="not empty and has no"):
        user.ensure()
    assert [*user.directory.iterdir()] == [user.directory / "authorized_keys"]


def test_a_foreign_file_in_the_place_of_the_marker_is_none(user: Embedded) -> None:
    user.directory.mkdir(mode=0o700)
    (user.directory / places.MARKER).write_text('{"what": "something else"}')
    with pytest.raises(InvalidArgument, match="is not what Holdfast wrote"):
        user.ensure()
    (user.directory / places.MARKER).unlink()
    (user.directory / places.MARKER).symlink_to(user.directory.parent / "elsewhere")
    (user.directory.parent / "elsewhere").write_text(json.dumps({"what": places._SAYS}))
    with pytest.raises(InvalidArgument, match=r"cannot be read .*or name another directory"):
        user.ensure()


@pytest.mark.parametrize("damage", ["", "{", '{"what": "something else"}', "[]"])
def test_a_damaged_marker_is_told_with_what_belongs_into_it(user: Embedded, damage: str) -> None:
    user.ensure()
    connect(user).set("key", "value")
    user.leave()
    wait_until_stopped(user.directory)
    (user.directory / places.MARKER).write_text(damage)
    with pytest.raises(InvalidArgument, match="is not what Holdfast wrote into it") as refused:
        user.ensure()
    assert "If the directory belongs to an embedded server, replace its text by {" in str(
        refused.value
    )
    (user.directory / places.MARKER).write_text(str(refused.value).partition(" by ")[2])
    user.ensure()
    assert connect(user).get("key") == "value"


@needs_root
def test_a_marker_that_cannot_be_read_is_told(user: Embedded) -> None:
    user.ensure()
    user.leave()
    wait_until_stopped(user.directory)
    for path in (user.directory, *user.directory.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER)
    (user.directory / places.MARKER).chmod(0)
    for above in [*user.directory.parents][:4]:
        above.chmod(above.stat().st_mode | 0o011)
    os.seteuid(OTHER_USER)
    try:
        with pytest.raises(
            InvalidArgument, match=r"cannot be read \(Permission denied\): .*chmod 600"
        ):
            user.ensure()
    finally:
        os.seteuid(0)


def test_a_new_directory_and_an_empty_one_are_marked(user: Embedded) -> None:
    user.directory.mkdir(mode=0o700)
    user.ensure()
    assert marker(user.directory)["what"] == places._SAYS
    (user.directory / "notes").write_text("mine")  # Whatever comes later, it is ours.
    user.leave()
    user.ensure()


def test_a_directory_of_the_first_release_is_adopted_with_its_jobs(user: Embedded) -> None:
    user.ensure()
    connect(user).set("key", "value")
    user.leave()
    wait_until_stopped(user.directory)
    (user.directory / places.MARKER).unlink()
    (user.directory / "server.conf").write_text(keeper.CONFIG)  # As 0.1 left it.
    user.ensure()
    assert connect(user).get("key") == "value"
    assert marker(user.directory)["what"] == places._SAYS


def test_what_a_start_that_was_killed_left_behind_is_no_obstacle(user: Embedded) -> None:
    user.directory.mkdir(mode=0o700)
    for name in (
        "start.lock",
        "users.lock",
        "server.log",
        *(f"{n}12ab" for n in places._UNFINISHED),
    ):
        (user.directory / name).touch()
    user.ensure()


@needs_root
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "ssh").mkdir(mode=0o700)
    (tmp_path / "queue").symlink_to(tmp_path / "ssh")
    os.lchown(tmp_path / "queue", OTHER_USER, OTHER_USER)
    for directory in (tmp_path / "queue", tmp_path / "queue" / "below"):
        with pytest.raises(InvalidArgument, match="link of another user"):
            Embedded(directory).ensure()
    assert [*(tmp_path / "ssh").iterdir()] == []


def test_a_link_that_takes_the_place_of_the_directory_later_is_not_followed(
    user: Embedded, tmp_path: Path
) -> None:
    (tmp_path / "ssh").mkdir(mode=0o700)
    user.directory.symlink_to(tmp_path / "ssh")
    with pytest.raises(InvalidArgument, match="replaced by a link"):
        user.ensure()
    assert [*(tmp_path / "ssh").iterdir()] == []


def test_links_of_our_own_are_followed_as_the_system_does(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "one").symlink_to("a/b")
    (tmp_path / "a" / "two").symlink_to(tmp_path / "one")
    for path in ("one", "a/two", "a/two/..", "one/../b/./new/er", "one/c/../d"):
        assert places.real_path(tmp_path / path) == Path(os.path.realpath(tmp_path / path)), path
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InvalidArgument, match="leads to itself"):
        places.real_path(tmp_path / "loop")


def test_a_current_directory_that_was_removed_matters_only_to_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert places.real_path(tmp_path / "here") == tmp_path / "here"
    with pytest.raises(InvalidArgument, match="current directory, which was removed"):
        places.real_path("here")


def test_a_path_that_is_too_long_for_the_server_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has 1050 bytes, and at most 1000"):
        places.real_path("/" + "long/" * 210)


def test_a_parent_that_everyone_can_write_to_is_refused_unless_it_is_sticky(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for ancestor in tmp_path.parents:
        if not ancestor.stat().st_mode & 0o001:
            assert places.real_path(open_to_all / "q").name == "q"  # Nobody else gets that far.
            return
    with pytest.raises(InvalidArgument, match="everyone can replace"):
        places.real_path(open_to_all / "q")
    open_to_all.chmod(0o1777)
    assert places.real_path(open_to_all / "q") == open_to_all / "q"


@pytest.mark.parametrize("name", ["server.conf", "server.log", "appendonlydir", "keeper.lock"])
def test_a_link_among_the_files_is_not_followed(user: Embedded, name: str, tmp_path: Path) -> None:
    user.ensure()
    user.leave()
    wait_until_stopped(user.directory)
    there = user.directory / name
    there.rename(tmp_path / "elsewhere")
    there.symlink_to(tmp_path / "elsewhere")
    before = None if there.is_dir() else there.read_text()
    with pytest.raises(InvalidArgument, match=f"{name} is a link"):
        user.ensure()
    assert before is None or (tmp_path / "elsewhere").read_text() == before


def test_a_directory_that_was_made_open_is_not_trusted_with_what_others_put_there(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.directory.mkdir()
    user.directory.chmod(0o777)
    chmod = os.fchmod

    def plant_first(home: int, mode: int) -> None:
        (user.directory / "server.log").symlink_to("/etc/passwd")
        chmod(home, mode)

    monkeypatch.setattr(os, "fchmod", plant_first)
    with pytest.raises(InvalidArgument, match="not a directory of user"):
        user.ensure()


# --- which server wrote it --------------------------------------------------------------------


def test_the_directory_says_which_server_wrote_it(user: Embedded) -> None:
    user.ensure()
    info = connect(user).info("server")
    version = info.get("valkey_version") or info["redis_version"]
    assert marker(user.directory)["server"].split() == [
        "Valkey" if "valkey_version" in info else "Redis",
        version,
    ]


def test_an_older_server_is_not_started_on_the_jobs_of_a_newer_one(user: Embedded) -> None:
    user.ensure()
    connect(user).set("key", "value")
    now = marker(user.directory)["server"]
    kill_server(user.directory)
    before = (user.directory / "server.log").read_text()
    write_stamp(user.directory, f"{now.split()[0]} 99.0.1")
    with pytest.raises(UnsupportedServer, match=f"written by .* 99.0.1, and .* is {now}") as error:
        Queue("q", f"embedded://{user.directory}").counts()
    assert str(user.directory) in str(error.value)
    assert (user.directory / "server.log").read_text() == before  # No fix is quoted.
    write_stamp(user.directory, now)
    user.ensure()
    assert connect(user).get("key") == "value"


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [
        ("", "Redis 7.0.15", True),
        ("Valkey 9.1.2", "Valkey 9.1.2", True),
        ("Valkey 9.1.2", "Valkey 9.1.0", True),
        ("Valkey 9.1.2", "Valkey 10.0.0", True),
        ("Valkey 9.1.2", "Valkey 9.0.9", False),
        ("Valkey 9.1.2", "Valkey 8.1.9", False),
        ("Valkey 9.1.2", "Redis 7.0.15", False),
        ("Valkey 8.0.1", "Redis 8.2.2", False),
        ("Redis 7.0.15", "Valkey 9.1.2", True),
        ("Redis 7.2.11", "Valkey 8.0.8", True),
        ("Redis 7.4.6", "Valkey 9.1.2", False),
        ("Redis 8.2.2", "Redis 7.2.11", False),
        ("nonsense", "Redis 7.2.11", True),
    ],
)
def test_which_server_may_follow_which(before: str, after: str, fits: bool) -> None:
    product, _, version = after.partition(" ")
    server = Health(product, tuple(map(int, version.split("."))), "", aof=True)
    if fits:
        places.must_read(Path("/d"), before, server, Path("/bin/server"))
    else:
        with pytest.raises(UnsupportedServer, match=f"by {before}, and /bin/server is {after},"):
            places.must_read(Path("/d"), before, server, Path("/bin/server"))


def test_a_server_that_did_not_start_leaves_no_stamp(
    user: Embedded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user.ensure()
    now = marker(user.directory)["server"]
    kill_server(user.directory)
    newer = tmp_path / "newer"
    newer.write_text(
        "#!/bin/sh\n"
        f"if [ $1 = --version ]; then echo '{now.split()[0]} server v=99.0.1 bits=64'; exit; fi\n"
        "exit 1\n"
    )
    newer.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("HOLDFAST_SERVER_BINARY", str(newer))
        with pytest.raises(Exception, match="ends as soon as it is started"):
            user.ensure()
    user.ensure()
    assert marker(user.directory)["server"] == now


def test_a_directory_without_a_stamp_gets_the_one_that_its_file_has(user: Embedded) -> None:
    user.ensure()
    now = marker(user.directory)["server"]
    connect(user).set("key", "value")
    connect(user).bgrewriteaof()
    user.leave()
    wait_until_stopped(user.directory)
    home = os.open(user.directory, os.O_RDONLY)
    assert places._stamp_in_file(home) in (now, now.replace("Valkey", "Redis"))
    os.close(home)


REDIS_7_0 = os.environ.get("HOLDFAST_REDIS_7_0", "")
needs_redis_7_0 = pytest.mark.skipif(
    not REDIS_7_0, reason="HOLDFAST_REDIS_7_0 names no redis-server 7.0"
)


@needs_redis_7_0
def test_redis_7_0_is_not_started_on_the_jobs_of_a_newer_server(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.ensure()
    connect(user).set("key", "value")
    kill_server(user.directory)
    files = {path: path.read_bytes() for path in (user.directory / "appendonlydir").iterdir()}
    with monkeypatch.context() as patch:
        patch.setenv("HOLDFAST_SERVER_BINARY", REDIS_7_0)
        with pytest.raises(UnsupportedServer, match="which cannot read them"):
            user.ensure()
    assert {path: path.read_bytes() for path in files} == files
    user.ensure()
    assert connect(user).get("key") == "value"


@needs_redis_7_0
def test_jobs_of_redis_7_0_are_taken_over_by_a_newer_server(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("HOLDFAST_SERVER_BINARY", REDIS_7_0)
        user.ensure()
        connect(user).set("key", "value")
        assert marker(user.directory)["server"].startswith("Redis 7.0.")
        kill_server(user.directory)
    user.ensure()
    assert connect(user).get("key") == "value"


# --- how much memory it may use ---------------------------------------------------------------


def test_the_server_has_a_limit_of_memory_and_the_environment_can_set_it(
    user: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_SERVER_MAXMEMORY", raising=False)
    user.ensure()
    half = embedded._memory() // 2
    assert connect(user).config_get("maxmemory") == {"maxmemory": str(half)}
    assert half > 0
    kill_server(user.directory)
    monkeypatch.setenv("HOLDFAST_SERVER_MAXMEMORY", "64mb")
    user.ensure()
    assert connect(user).config_get("maxmemory") == {"maxmemory": str(64 << 20)}


def test_a_producer_that_adds_without_end_is_refused_and_the_queue_can_be_drained(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_MAXMEMORY", "16mb")
    with Queue("q", f"embedded://{directory}") as queue:
        with pytest.raises(QueueFull):
            queue.add_many([bytes(1 << 20)] * 100)
        while lease := queue.lease(30):
            assert queue.complete(lease)
        assert queue.add(b"x")


@pytest.mark.parametrize("given", ["0", "512mb", " 4GB ", "1000000", "900k"])
def test_the_limit_is_written_as_the_server_writes_it(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_MAXMEMORY", given)
    assert maxmemory() == given.strip().lower()


@pytest.mark.parametrize("given", ["lots", "-1", "1.5gb", "50%", "1gb\nsave 1 1", "٣"])
def test_a_limit_that_cannot_be_read_is_refused(
    user: Embedded, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_MAXMEMORY", given)
    with pytest.raises(InvalidArgument, match="HOLDFAST_SERVER_MAXMEMORY"):
        user.ensure()


def test_a_container_that_may_use_less_than_the_machine_has_counts(tmp_path: Path) -> None:
    assert embedded._memory(tmp_path) == embedded._memory(tmp_path / "nothing") > 0
    group = tmp_path / "sys/fs/cgroup/system.slice/app.service"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/app.service\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("1000000\n")
    assert embedded._memory(tmp_path) == 1_000_000
    (group / "memory.max").write_text("500000\n")
    assert embedded._memory(tmp_path) == 500_000
    (tmp_path / "sys/fs/cgroup/memory").mkdir()
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("400000\n")
    assert embedded._memory(tmp_path) == 400_000


# --- the default ------------------------------------------------------------------------------


@pytest.fixture
def nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Path]:
    """A place with a home directory, and nothing that says which server to use."""
    (tmp_path / "home/project/deep").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "home/project/deep")
    for name in list(os.environ):
        if "URL" in name or name.startswith("XDG"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(places, "_told", [])
    caplog.set_level(logging.INFO, "holdfast")
    yield tmp_path / "home"
    end(tmp_path / "home/.local/share/holdfast")
    end(tmp_path / "home/project/.holdfast")


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was logged about the choice of a server: others may log meanwhile."""
    return [record for record in caplog.records if "HOLDFAST_URL" in record.getMessage()]


def test_the_embedded_server_that_nobody_chose_is_told_once(
    nowhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Queue("a") as first, Queue("b") as second:
        assert told(caplog) == []  # Nothing is used yet.
        first.add(b"x")
        second.add(b"x")
    [record] = told(caplog)
    assert record.levelname == "WARNING"
    line = record.getMessage()
    assert line.startswith(
        f"HOLDFAST_URL is not set: using the embedded server in {nowhere}/.local/share/holdfast. "
    )
    assert "or to embedded:// to choose this one and silence this message" in line


def test_the_embedded_server_that_was_chosen_is_not_told(
    nowhere: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue("a", "embedded://") as queue:
        queue.add(b"x")
    monkeypatch.setenv("HOLDFAST_URL", "embedded://")
    with Queue("a") as queue:
        assert len(queue) == 1
    assert told(caplog) == []


@pytest.mark.parametrize(
    "name",
    [
        *("HOLDFAST_URI", "HOLDFAST_ULR", "HOLFAST_URL", "HOLDFASTURL", "holdfast_url"),
        *("HOLDFAST_REDIS_URL", "REDIS_URL", "VALKEY_URL"),
    ],
)
def test_a_variable_that_was_meant_to_be_holdfast_url_is_named(
    nowhere: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "redis://u:secret@h")
    places.tell_default(nowhere)
    assert f"(Holdfast does not read {name}, which is set.)" in caplog.text
    assert "secret" not in caplog.text


def test_other_variables_are_not_named(nowhere: Path) -> None:
    names = ("HOLDFAST_REQUIRE_URL", "HOLDFAST_SERVER_BINARY", "DATABASE_URL", "HOLDFAST_TEST")
    assert places._hint(dict.fromkeys(names, "x")) == ""


def test_a_directory_of_the_project_is_used_where_there_is_one(
    nowhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert default_directory() == nowhere / ".local/share/holdfast"
    (nowhere / "project/.holdfast").mkdir()
    with Queue("a") as queue, Queue("a", "embedded://") as chosen:
        queue.add(b"x")
        assert len(chosen) == 1
    assert f"in {nowhere}/project/.holdfast. " in caplog.text
    assert stat.S_IMODE((nowhere / "project/.holdfast").stat().st_mode) == 0o700
    assert (nowhere / "project/.holdfast/.gitignore").read_text() == "*\n"


def test_the_nearest_directory_of_a_project_counts_up_to_the_home_directory(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = nowhere / ".local/share/holdfast"
    (nowhere.parent / ".holdfast").mkdir()
    assert default_directory() == user  # That one is above the home directory.
    (nowhere / ".holdfast").mkdir()
    assert default_directory() == nowhere / ".holdfast"
    (nowhere / "project/deep/.holdfast").mkdir()
    assert default_directory() == nowhere / "project/deep/.holdfast"
    monkeypatch.chdir(nowhere.parent)
    assert default_directory() == nowhere.parent / ".holdfast"


def test_what_is_no_directory_of_ours_is_no_projects(nowhere: Path) -> None:
    user = nowhere / ".local/share/holdfast"
    (nowhere / "project/deep/.holdfast").touch()
    (nowhere / "project/.holdfast").symlink_to(nowhere / "nothing")
    assert default_directory() == user
    if os.geteuid() == 0:
        (nowhere / "project/deep/.holdfast").unlink()
        (nowhere / "project/deep/.holdfast").mkdir(mode=0o700)
        os.chown(nowhere / "project/deep/.holdfast", OTHER_USER, OTHER_USER)
        assert default_directory() == user


def test_a_link_of_ours_may_stand_for_a_projects_directory(nowhere: Path) -> None:
    (nowhere / "store").mkdir()
    (nowhere / "project/.holdfast").symlink_to(nowhere / "store")
    assert default_directory() == nowhere / "project/.holdfast"
    assert Embedded().directory == nowhere / "store"


def test_a_projects_directory_with_other_things_in_it_is_refused(nowhere: Path) -> None:
    (nowhere / "project/.holdfast").mkdir(mode=0o700)
    (nowhere / "project/.holdfast/settings.toml").write_text("")
    with pytest.raises(InvalidArgument, match="not empty and has no"):
        Queue("a").add(b"x")


def test_the_binary_is_still_found(nowhere: Path) -> None:
    assert find_binary().is_file()
