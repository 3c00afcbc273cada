"""`holdfast server` and `holdfast bench`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cli.support import Commands, interrupted, started
from holdfast import Queue, Server
from support import DEADLINE, wait_until


def pid_in(directory: Path) -> int:
    found = (directory / "server.lock").read_text().split()
    return int(found[0]) if found else 0


def test_the_embedded_server_runs_in_the_foreground_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with started("server", str(directory)) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert url == f"embedded://{directory}"
        with Queue("q", url) as queue:
            queue.add(b"x")
            assert queue.counts().ready == 1
        killed = pid_in(directory)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pid_in(directory) not in (0, killed), "another server")
        code, _, err = interrupted(process)
    assert code == 0
    assert err.splitlines() == [
        f"listens at unix://{directory}/server.sock; Ctrl-C ends it",
        "the server stops when no other process uses it",
    ]
    wait_until(lambda: not (directory / "server.sock").exists(), "the end of the server")


def test_the_embedded_server_of_a_project_is_found_from_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".holdfast").mkdir(mode=0o700)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    with started("server") as process:
        assert process.stdout
        assert process.stdout.readline().strip() == f"embedded://{tmp_path}/.holdfast"
        code, _, err = interrupted(process)
    assert code == 0
    assert err.splitlines()[0] == "the embedded server of this project"


def test_it_stays_while_others_use_it(tmp_path: Path) -> None:
    with started("server", str(tmp_path / "data")) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        with Queue("q", url) as queue:
            queue.add(b"x")
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
            pid = pid_in(tmp_path / "data")
            assert queue.counts().ready == 1
            os.kill(pid, 0)  # It is there.


def test_a_directory_that_cannot_be_used_is_an_error(hf: Commands, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tmp_path.chmod(0o755)
    assert "is not empty and has no" in hf.error("server", tmp_path, code=2)


def test_a_server_is_measured_and_nothing_is_left(hf: Commands, server: Server) -> None:
    told = hf.json("bench", "--seconds", "400ms")
    assert [set(one) for one in told] == [
        {"what", "jobs_per_second", "median_ms", "p99_ms", "calls"}
    ] * 4
    assert told[0]["jobs_per_second"] is None
    assert all(one["jobs_per_second"] > 0 for one in told[1:])
    assert all(0 < one["median_ms"] <= one["p99_ms"] for one in told)
    text = hf("bench", "--seconds", "400ms")
    assert "add, 1000 at a time" in text
    assert not [name for name in server.queues() if name.startswith("holdfast bench")]


def test_nothing_is_left_after_ctrl_c_either(hf: Commands, server: Server) -> None:
    def there() -> list[str]:
        return [name for name in server.queues() if name.startswith("holdfast bench")]

    with started("bench", "--seconds", "5m") as process:
        wait_until(there, "the queue of the bench")
        assert interrupted(process) == (130, "", "")
    assert there() == []


@pytest.mark.parametrize("seconds", ["0", "0.1", "1h", "x"])
def test_a_wrong_time_is_a_usage_error(hf: Commands, seconds: str) -> None:
    hf.error("bench", "--seconds", seconds, code=2)


def test_a_command_says_that_nobody_chose_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_URI", "redis://prod")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with started("add", "jobs", "x", cwd=tmp_path) as process:
        _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert err.startswith("Warning: HOLDFAST_URL is not set: using the embedded server in ")
    assert "HOLDFAST_URI" in err
    monkeypatch.setenv("HOLDFAST_URL", "embedded://")
    with started("add", "jobs", "x", cwd=tmp_path) as process:
        _, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, "")
