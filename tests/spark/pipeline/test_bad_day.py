"""A bad day, in one request: disks fill up, workers die, freeze and lose theirs, files are bad."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.job import Event
from holdfast.spark import Handle, Pipeline
from holdfast.spark.pipeline import working
from spark.pipeline.bad_day import FULL_SECONDS, LEASE_SECONDS, Victim
from spark.pipeline.support import (
    finish,
    halved_at_the_gate,
    must_be_published,
    names,
    numbers,
    rows,
    wait_long,
)
from support import TestServer

PARTS = 40
LIMIT = 2
DISK = 2**24
ROOM = 400_000
"""Bytes that are free for the output when parts begin: enough for some of them."""


# ------------------------------------------------------------------- what is looked at


class Watch:
    """What happened to the parts of a request, as the server told it: every lease, in order."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.most = 0
        """How many parts had a lease at the same time, at most."""
        self.failed: set[int] = set()
        self.lapses: Counter[int] = Counter()
        """How often the lease of a part lapsed since it was added or revived."""
        self.handle: Handle | None = None

    def take(self, event: Event) -> None:
        assert len(event.ids) == event.count, "every id is told"
        for number in self._numbers(event.ids):
            match event.kind:
                case "leased":
                    self.running.add(number)
                    self.most = max(self.most, len(self.running))
                case "completed" | "released" | "retried" | "cancelled":
                    self.running.discard(number)
                case "failed":
                    self.running.discard(number)
                    self.failed.add(number)
                case "reclaimed":
                    self.running.discard(number)
                    self.lapses[number] += 1
                case "revived":
                    del self.lapses[number]

    def _numbers(self, ids: list[str]) -> Iterator[int]:
        if self.handle:
            prefix = f"{self.handle.id}/"
            told = (id.removeprefix(prefix) for id in ids if id.startswith(prefix))
            yield from (int(number) for number in told if number.isdecimal())


@contextmanager
def watching(pipeline: Pipeline) -> Iterator[Watch]:
    """Watch a queue; at the end everything that happened before is known."""
    watch = Watch()
    over = "the end of the watch"
    begun = threading.Event()

    def listen() -> None:
        with pipeline.queue.events() as events:
            begun.set()
            for event in events:
                if event.kind == "added" and over in event.ids:
                    return
                watch.take(event)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert begun.wait(30)
    yield watch
    pipeline.queue.add(b"", id=over, delay=3600)
    listener.join(30)
    assert not listener.is_alive()
    pipeline.queue.cancel(over)


class Gate:
    """Where runs wait in the middle of a Spark job while it is closed."""

    def __init__(self, folder: Path, pipeline: Pipeline) -> None:
        self.folder = folder
        self._queue = pipeline.queue
        folder.mkdir()

    def close(self) -> None:
        for note in self.folder.iterdir():
            note.unlink()
        (self.folder / "closed").touch()

    def open(self) -> None:
        (self.folder / "closed").unlink()

    def wait_for(self, workers: list[Victim]) -> Victim:
        """Wait until all places are taken, one of them by one of these workers; return it."""
        found: list[Victim] = []

        def at_work() -> bool:
            found[:] = [one for one in workers if self.has(one.pid) and self.leases_of(one.pid)]
            return bool(found) and len(self._queue.peek(100, state="leased")) == LIMIT

        wait_long(at_work, "a worker to be in the middle of a part")
        return found[0]

    def has(self, pid: int) -> bool:
        """Tell whether a run of this worker waits here, or did since it was closed."""
        return (self.folder / str(pid)).exists()

    def leases_of(self, pid: int) -> set[tuple[str, str]]:
        """Return the jobs that this worker holds, each with its token."""
        holders = {one.holder for one in self._queue.workers() if one.about.get("pid") == pid}
        held = {(job.id, job.token or "") for job in self._queue.peek(100, state="leased")}
        return {(id, token) for id, token in held if token.rpartition(".")[0] in holders}


# -------------------------------------------------------------------------- what is bad


class SmallDisk:
    """A small file system for the output, where one can be mounted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(path)]
        self.is_small = subprocess.run(command, check=False, capture_output=True).returncode == 0

    def leave(self, free: int) -> None:
        """Fill it with ballast until so many bytes are free."""
        if self.is_small:
            (self.path / "ballast").unlink(missing_ok=True)
            about = os.statvfs(self.path)
            filled = max(0, about.f_bavail * about.f_frsize - free)
            (self.path / "ballast").write_bytes(bytes(filled))

    def close(self) -> None:
        if self.is_small:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)


class BadFile:
    """An input file that becomes another one when its request is planned."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = path.read_bytes()
        self._stat = path.stat()

    def replace_by(self, other: Path) -> None:
        self.path.write_bytes(other.read_bytes() + b"PAR1")

    def corrupt(self) -> None:
        """Damage it as a bad disk does: it has the same length and time."""
        self._write(self._content[:-100] + bytes(100))

    def put_back(self) -> None:
        self._write(self._content)

    def _write(self, content: bytes) -> None:
        self.path.write_bytes(content)
        os.utime(self.path, ns=(self._stat.st_atime_ns, self._stat.st_mtime_ns))


def kill_a_jvm(gate: Gate, workers: list[Victim]) -> None:
    victim = gate.wait_for(workers)
    victim.kill_the_jvm()
    must_leave(victim)
    workers.remove(victim)


def kill_a_worker(gate: Gate, workers: list[Victim]) -> None:
    victim = gate.wait_for(workers)
    victim.kill()
    workers.remove(victim)


def freeze(gate: Gate, victim: Victim) -> set[tuple[str, str]]:
    """Freeze a worker that has all places, in the middle of its parts; return its leases."""
    wait_long(lambda: len(gate.leases_of(victim.pid)) == LIMIT, "it to have all places")
    gate.wait_for([victim])
    victim.freeze()
    return gate.leases_of(victim.pid)


def thaw(gate: Gate, victim: Victim, held: set[tuple[str, str]]) -> None:
    """Thaw a worker when one of its parts is with another."""
    wait_long(lambda: held - gate.leases_of(victim.pid), "a lease to lapse")
    victim.thaw()
    wait_long(lambda: "the lease was lost" in victim.said, "it to hear of it")


def remove_local_directories(gate: Gate, workers: list[Victim]) -> None:
    """Remove the local directories of a worker in the middle of a part; then let it go on."""
    victim = gate.wait_for(workers)
    victim.look()
    victim.local.rename(victim.local.with_name("removed"))  # At once: it may be writing there.
    gate.open()
    must_leave(victim)
    workers.remove(victim)


def wait_for_a_full_disk(logs: Callable[[], list[str]]) -> None:
    wait_long(lambda: "no room for the output" in "".join(logs()), "the disk to be full")


def must_leave(victim: Victim) -> None:
    wait_long(lambda: victim.is_over, "it to leave")
    assert victim.process.returncode == 1, victim.said
    assert "SparkLost: Spark cannot work here" in victim.said


# ----------------------------------------------------------------------------- the day


def must_have_failed(handle: Handle, replaced: BadFile, corrupt: BadFile) -> None:
    """Check that just the parts with bad files have failed, and name them."""
    assert finish(handle).state == "failed"
    errors = handle.errors()
    assert len(errors) == 2, errors
    (of_replaced,) = [said for said in errors.values() if f"{replaced.path} has changed" in said]
    (of_corrupt,) = [said for said in errors.values() if str(corrupt.path) in said]
    assert "Put it back as it was" in of_replaced
    assert "is not a Parquet file" in of_corrupt


@contextmanager
def started(pipeline: Pipeline, url: str, root: Path, count: int) -> Iterator[list[Victim]]:
    """Start workers; leave nothing of them, whatever becomes of the test."""
    victims: list[Victim] = []
    try:
        folders = [root.parent / f"worker {number}" for number in range(count)]
        victims += (Victim(pipeline, url, root, folder) for folder in folders)
        yield victims
    finally:
        for victim in victims:
            victim.end()


def planned(spark: SparkSession, pipeline: Pipeline, gate: Gate) -> Handle:
    """Submit the request and plan it; none of its parts runs yet."""
    handle = pipeline.submit(
        "halved_at_the_gate",
        params={"gate": str(gate.folder)},
        input="in/*.parquet",
        output="disk/out",
        part_size=1,
        max_failures=0,  # What a machine does to a part would be the end of it.
        limit=0,
    )
    with pipeline.working(spark):
        wait_long(lambda: pipeline.queue.request(handle.id).status().sealed, "the plan")
    assert handle.progress().parts == PARTS
    return handle


@pytest.mark.timeout(1200)
def test_a_request_survives_a_bad_day(
    spark: SparkSession,
    test_server: TestServer,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(working, "FULL_SECONDS", FULL_SECONDS)
    numbers(spark, root / "in", rows=PARTS * 100, files=PARTS)
    shutil.copytree(root / "in", root.parent / "pristine")
    gate = Gate(root / "gate", pipeline)
    replaced = BadFile(root / "in/part-7.snappy.parquet")
    corrupt = BadFile(root / "in/part-23.snappy.parquet")
    with (
        closing(SmallDisk(root / "disk")) as disk,
        started(pipeline, test_server.queue_url, root, 3) as victims,
    ):
        with watching(pipeline) as watch:
            handle = watch.handle = planned(spark, pipeline, gate)
            replaced.replace_by(root / "in/part-8.snappy.parquet")
            corrupt.corrupt()
            disk.leave(ROOM)
            gate.close()
            handle.set_limit(LIMIT)
            alive = list(victims)
            kill_a_jvm(gate, alive)
            kill_a_worker(gate, alive)
            held = freeze(gate, alive[0])
            with pipeline.working(spark, concurrency=1, lease=LEASE_SECONDS):
                thaw(gate, alive[0], held)
                gate.open()
                if disk.is_small:
                    wait_for_a_full_disk(lambda: [caplog.text, *(one.said for one in alive)])
                gate.close()
                remove_local_directories(gate, alive)
                disk.leave(DISK)
                must_have_failed(handle, replaced, corrupt)
                replaced.put_back()
                corrupt.put_back()
                assert handle.revive() == 2
                must_be_published(handle, root / "disk")

        expected = halved_at_the_gate(
            spark.read.parquet(str(root.parent / "pristine")), gate=str(gate.folder)
        )
        assert rows(spark.read.parquet(str(root / "disk/out"))) == rows(expected)
        assert names(root / "disk/out/_holdfast") == [f".{handle.id}.json.crc", f"{handle.id}.json"]
        assert watch.most == LIMIT, "parts that had a lease at the same time"
        assert len(watch.failed) == 2, "only the parts with bad files failed"
        tries = {part.number: done.tries for part, done in handle.parts() if done}
        assert watch.lapses, "a worker was killed, and one was frozen"
        assert tries == {number: 1 + watch.lapses[number] for number in range(PARTS)}
        wait_long(lambda: not any(one.left() for one in victims), "all of them to be gone")
        assert pipeline.queue.audit() == []
        if not disk.is_small:
            pytest.skip("all passed but the full disk: no file system can be mounted here")
