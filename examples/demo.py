"""The main job of Holdfast, in two minutes: `make demo`.

Two pipeline workers, each with a Spark of its own, work on one big request that may have two parts
running at a time. A small urgent request comes and goes first. A worker is killed with -9. At the
end the output is compared with that of one plain Spark job over the same input.

    python examples/demo.py --megabytes 200
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, session, transform
from holdfast.spark.pipeline import Handle
from holdfast.spark.pipeline.report import Cut, draw

HERE = Path(__file__).parent
PARTS = 12
LIMIT = 2
PATIENCE_SECONDS = 600
MEMORY = "512m"
MADE = {"data", "server", "timeline.png", "worker-1.log", "worker-2.log"}


@transform
def sales(df: DataFrame, *, least: float) -> DataFrame:
    """Keep what is worth it; compute a little."""
    return (
        df.where(F.col("amount") >= least)
        .withColumn("tax", F.round(F.col("amount") * 0.19, 2))
        .withColumn("day", F.to_date(F.timestamp_seconds(F.col("at"))))
        .withColumn("key", F.sha2(F.concat_ws("-", "customer", "at"), 512))
    )


# -------------------------------------------------------------------------- the data


def make_data(spark: SparkSession, root: Path, megabytes: int) -> None:
    """Write sales of years, and of today."""

    def write(name: str, rows: int, files: int) -> None:
        frame = spark.range(rows, numPartitions=files).select(
            F.sha1(F.col("id").cast("string")).alias("customer"),
            (F.rand(7) * 100).alias("amount"),
            (F.lit(1_700_000_000) + F.col("id") * 13).alias("at"),
        )
        frame.write.parquet(str(root / name))

    write("years", megabytes * 18_000, PARTS)
    write("today", 20_000, 1)


def rows_that_differ(one: DataFrame, other: DataFrame) -> int:
    """Count the rows that only one of them has, or has more often."""
    return one.exceptAll(other).count() + other.exceptAll(one).count()


# ------------------------------------------------------------------------ the workers


def start_worker(url: str, root: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start what `holdfast pipeline work` starts: a process with a Spark of its own."""
    command = [sys.executable, "-m", "holdfast", "pipeline", "work", "demo", "--url", url]
    command += ["--root", str(root), "--transforms", "demo", "--memory", MEMORY]
    command += ["--concurrency", "1", "--lease", "3s", "--grace", "1s"]
    return subprocess.Popen(
        command,
        cwd=HERE,
        stdin=subprocess.DEVNULL,
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for us: we end them.
    )


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Whatever happens, leave no process behind."""
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Who is impatient must not stop this.
        started = psutil.Process().children(recursive=True)
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, timeout=10)


# ------------------------------------------------------------------------- the screen


class Screen:
    """Bars that grow in place on a terminal, and a line now and then elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._drawn = 0
        self._began = time.monotonic()
        self._said_at = 0.0
        self.watch: Callable[[Handle], None] = lambda _: None
        """Told of the first request at every look, drawn or not."""

    def say(self, text: str) -> None:
        self._drawn = 0
        print(f"{self._seconds()} {text}", flush=True)

    def show(self, handles: list[Handle]) -> None:
        now = time.monotonic()
        if not self._live and now - self._said_at < 5:
            return
        self._said_at = now
        lines = [self._line(handle) for handle in handles]
        if self._drawn and self._live:
            print(f"\x1b[{self._drawn}A", end="")
        for line in lines:
            print(f"\x1b[K{line}" if self._live else line)
        self._drawn = len(lines)
        sys.stdout.flush()

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._began:5.0f} s "

    def _line(self, handle: Handle) -> str:
        progress = handle.progress()
        filled = round(progress.fraction * 30)
        bar = "█" * filled + "░" * (30 - filled)
        counted = f"{progress.done:>2} of {progress.parts} parts, {progress.running} running"
        return f"{self._seconds()} {handle.id:<6} {bar} {counted}, {progress.state}"


def wait_for(
    condition: Callable[[], object], what: str, screen: Screen, handles: list[Handle]
) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_SECONDS} s for {what}")
        screen.watch(handles[0])
        screen.show(handles)
        time.sleep(0.3)


# ---------------------------------------------------------------------------- the story


class Seen:
    """What ran when, as the queue said while it ran: also runs that no result tells of."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._queue = pipeline.queue
        self.most = 0
        """How many parts of 'years' ran at the same time, at most."""

    def running(self, request: str) -> dict[int, tuple[str, float]]:
        """Return which worker, by its process id, runs which part, and since when."""
        pids = {info.holder: info.about.get("pid") for info in self._queue.workers()}
        found = {}
        for job in self._queue.peek(100, state="leased"):
            name, _, number = job.id.rpartition("/")
            if name == request and number.isdecimal() and job.token and job.leased_at:
                holder = job.token.rpartition(".")[0]
                found[pids.get(holder) or 0] = (job.id, job.leased_at)
        return found

    def count(self, handle: Handle) -> None:
        """Remember how many run now."""
        self.most = max(self.most, handle.progress().running)


def tell(folder: Path, megabytes: int) -> bool:
    """Run it all; return whether the output is what it should be."""
    screen, root = Screen(), folder / "data"
    root.mkdir(parents=True)
    url = f"embedded://{folder / 'server'}"
    screen.say("starting a server of our own, which writes everything to disk")
    with Pipeline("demo", url, roots=root) as pipeline:
        pipeline.queue.counts()
        screen.say(f"the server runs in {folder / 'server'}; starting Spark, which takes a while")
        spark = session("demo", memory=MEMORY)
        screen.say(f"Spark runs; writing about {megabytes} MB of sales")
        make_data(spark, root, megabytes)
        size = sum(file.stat().st_size for file in root.rglob("*.parquet")) / 2**20
        screen.say(f"{size:.0f} MB of sales, in {PARTS + 1} files")
        workers = [start_worker(url, root, folder / f"worker-{n}.log") for n in (1, 2)]
        screen.say("starting two workers, each with a Spark of its own")
        seen = Seen(pipeline)
        handles, cut = play(pipeline, workers, screen, seen)
        picture = draw(handles, folder / "timeline.png", title="demo", cut=cut)
        for worker in workers:
            worker.terminate()
        screen.say("comparing with one plain Spark job over the same input")
        plain = sales(spark.read.parquet(str(root / "years")), least=50.0)
        differ = rows_that_differ(handles[0].read(spark), plain)
        report(handles, max(seen.most, most_at_once(handles[0], cut)), differ, picture)
        spark.stop()
    return differ == 0


def play(
    pipeline: Pipeline, workers: list[subprocess.Popen[bytes]], screen: Screen, seen: Seen
) -> tuple[list[Handle], list[Cut]]:
    """Submit, overtake, kill, and wait; return the requests, and the run that was cut off."""

    def submit(id: str, priority: int, limit: int | None) -> Handle:
        return pipeline.submit(
            "sales",
            id=id,
            input=f"{id}/*.parquet",
            output=f"{id} clean",
            params={"least": 50.0},
            priority=priority,
            limit=limit,
            part_size=1,
        )

    big = submit("years", 50, LIMIT)
    screen.say(f"request 'years': {PARTS} parts, priority 50, at most {LIMIT} at a time")
    screen.watch = seen.count
    wait_for(lambda: big.progress().done >= 2, "the first parts", screen, [big])
    urgent = submit("today", 90, None)
    screen.say("request 'today': priority 90, so it goes first")
    both = [big, urgent]
    wait_for(lambda: urgent.progress().ended, "the urgent request", screen, both)
    screen.say(f"'today' is {urgent.progress().state}, 'years' goes on")
    cut = kill_one(workers, screen, seen, both)
    wait_for(lambda: big.progress().ended, "the big request", screen, both)
    screen.show(both)
    ended_well = {(part.id, done.worker) for part, done in big.parts() if done}
    # It may have completed in the moment before the kill.
    return both, [one for id, one in cut if (id, one.worker) not in ended_well]


def kill_one(
    workers: list[subprocess.Popen[bytes]],
    screen: Screen,
    seen: Seen,
    both: list[Handle],
) -> list[tuple[str, Cut]]:
    """Kill a worker in the middle of a part; return that part, and its run."""
    pids = [worker.pid for worker in workers]
    found: list[tuple[int, str, float]] = []

    def runs() -> bool:
        for pid, (id, since) in seen.running(both[0].id).items():
            if pid in pids:
                found.append((pid, id, since))
        return bool(found)

    wait_for(runs, "a part that runs", screen, both)
    pid, id, since = found[0]
    os.kill(pid, signal.SIGKILL)
    screen.say(
        f"worker {pids.index(pid) + 1} was killed with -9; its part goes to the other when the "
        "lease lapses"
    )
    return [(id, Cut(both[0].id, worker_name(pid), since, max(0.1, time.time() - since)))]


def worker_name(pid: int) -> str:
    """Return a worker's name, as results have it."""
    return f"{platform.node()}:{pid}"


def most_at_once(handle: Handle, cut: list[Cut]) -> int:
    """Return how many of its parts ran at the same time, at most."""
    runs = [(done.began_at, done.seconds) for _, done in handle.parts() if done]
    runs += [(one.began_at, one.seconds) for one in cut]
    changes = [(began, 1) for began, _ in runs] + [(began + took, -1) for began, took in runs]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def report(handles: list[Handle], held: int, differ: int, picture: Path) -> None:
    print(f"\n{'request':<10} {'state':<8} {'parts':>6} {'rows in':>12} {'rows out':>12}")
    for handle in handles:
        progress = handle.progress()
        print(
            f"{handle.id:<10} {progress.state:<8} {progress.parts:>6} "
            f"{progress.rows_in:>12,} {progress.rows_out:>12,}"
        )
    again = sum(done.tries > 1 for _, done in handles[0].parts() if done)
    print(f"\nparts of 'years' that ran at the same time: {held} at most, {LIMIT} are allowed")
    print(f"parts that were run again after the kill:   {again}")
    print(f"rows that differ from the plain Spark job:  {differ}")
    print(f"the timeline:                               {picture}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="of data, at most 300")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"))
    options = parser.parse_args()
    if not 1 <= options.megabytes <= 300:
        parser.error("--megabytes must be 1 to 300")
    folder = options.folder.absolute()
    if folder.exists() and {path.name for path in folder.iterdir()} - MADE:
        parser.error(f"{folder} has more in it than an earlier demo left: name another --folder")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with nothing_left():
            good = tell(folder, options.megabytes)
    except KeyboardInterrupt:
        print("\nstopped; nothing is left running")
        return 130
    print("exact: nothing lost, nothing twice" if good else "WRONG: the output differs")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
