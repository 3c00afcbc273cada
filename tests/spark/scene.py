"""A scene of a crash: a server, a proxy that knows the scripts, drivers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from engine_support import load_library
from holdfast import Queue
from holdfast.engine import library
from proxy import PASS, Kind, Proxy, Side, Step
from spark.program import Plan, stream
from spark.support import descendants, is_alive, payloads, source_processes
from support import TestServer, wait_until

SECONDS = 300.0

Deadly: TypeAlias = tuple[str, int, str]
"""A script, which of its calls, and whether before or after the server has it."""


def kill_java(java: int) -> None:
    os.kill(java, signal.SIGKILL)


def kill_all(java: int) -> None:
    """Kill the JVM and whatever it started, at once: the machine is gone."""
    for pid in descendants(java):
        os.kill(pid, signal.SIGKILL)


class FunctionProxy(Proxy):
    """A proxy that does something at the n-th call of one function, and lets all else pass."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._names = {function.called.encode(): function.name for function in library.FUNCTIONS}
        self._script = ""
        self._left = 0
        self._step = PASS
        self.calls: list[str] = []

    def at(self, script: str, number: int, step: Step) -> None:
        """Take this step at the n-th call of a script from now on."""
        self._script, self._left, self._step = script, number, step

    async def _do(self, step: Step, commands: list[bytes], client: Side, server: Side) -> bool:
        words = commands[-1].split(b"\r\n")
        name = self._names.get(words[4], "") if len(words) > 4 else ""
        self.calls.append(name)
        if name == self._script:
            self._left -= 1
            if self._left == 0:
                step = self._step
        return await super()._do(step, commands, client, server)


class Scene:
    """Jobs in a queue, and drivers that move them somewhere: they can be killed at any call."""

    def __init__(self, server: TestServer, proxy: FunctionProxy, plan: Plan) -> None:
        self.server = server
        self.proxy = proxy
        self.plan = plan
        self.queue = Queue(plan.queue, server.url)
        self.out = Queue(plan.out, server.url)
        with server.client() as client:
            load_library(client)
        if plan.what != "batch":
            self.queue.add_many(str(number) for number in range(plan.rows))

    def run(self, deadly: Deadly | None = None, kill: Callable[[int], None] = kill_java) -> int:
        """Run a driver; at the n-th call of a script, before or after it, kill something.

        The call that is under way then is never answered. Whatever is left of the driver when
        it ends is killed, too; what a killed JVM leaves behind must end by itself.
        """
        driver = subprocess.Popen(self.plan.command(), stdout=subprocess.PIPE, text=True)
        assert driver.stdout
        java = int(driver.stdout.readline() or 0)
        assert java, "the driver did not begin"
        orphans: list[int] = []

        def strike() -> None:
            orphans.extend(source_processes(java))
            kill(java)

        with self._met(deadly, strike):
            try:
                driver.wait(SECONDS)
            finally:
                for pid in descendants(driver.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                driver.wait()
                driver.stdout.close()
        wait_until(lambda: not any(map(is_alive, orphans)), "the end of what the JVM left")
        return driver.returncode

    def finish(self) -> None:
        """Run drivers until one ends well, and see that all is as it should be."""
        while self.run() != 0:
            pass
        self.check()

    def run_in(
        self,
        spark: SparkSession,
        deadly: Deadly | None = None,
        kill: Callable[[], None] = lambda: None,
        *,
        cut: bool = False,
    ) -> bool:
        """Run the stream in a session that lives on; True when it ended well."""
        with self._met(deadly, kill, cut=cut):
            query = stream(spark, self.plan).trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(int(SECONDS))
            except StreamingQueryException:
                return False
            finally:
                query.stop()
        return True

    def finish_in(self, spark: SparkSession) -> None:
        """Run the stream until it ends well, and see that all is as it should be."""
        while not self.run_in(spark):
            pass
        self.check()

    @contextmanager
    def _met(
        self, deadly: Deadly | None, strike: Callable[[], None], *, cut: bool = False
    ) -> Iterator[None]:
        """See that the moment comes, and strike then; the call under way is held, or cut."""
        met = threading.Event()

        def now() -> None:
            strike()
            met.set()

        if deadly:
            script, number, when = deadly
            if when == "before":
                step = Step(Kind.CUT_REQUEST if cut else Kind.HALF_OPEN, during=now)
            else:
                step = Step(Kind.CUT_REPLY if cut else Kind.HOLD, after=now)
            self.proxy.at(script, number, step)
        yield
        assert met.is_set() == bool(deadly), f"{deadly} was not met: {self.proxy.calls[-50:]}"
        self.proxy.at("", 0, PASS)

    def result(self) -> list[int]:
        """Return the numbers that arrived, in order, each as often as it did."""
        if self.plan.what == "batch":
            return sorted(map(int, payloads(self.queue)))
        if self.plan.what == "queue":
            return sorted(map(int, payloads(self.out)))
        return sorted(self._in_files())

    def _in_files(self) -> list[int]:
        """Read what the file sink has committed: its log says which files count."""
        out = Path(self.plan.folder) / "out"
        named = [
            line.split('"path":"', 1)[1].split('"', 1)[0].rpartition("/")[2]
            for log in (out / "_spark_metadata").iterdir()
            if not log.name.startswith(".")
            for line in log.read_text().splitlines()
            if '"path":"' in line
        ]
        assert len(set(named)) == len(named)
        tables = (pq.read_table(out / name) for name in named)
        return [int(value) for table in tables for value in table["value"].to_pylist()]

    def check(self) -> None:
        """See that every job arrived once, and that nothing is left anywhere."""
        self.queue.tidy()
        self.out.tidy()
        assert self.result() == list(range(self.plan.rows))
        for queue in (self.queue, self.out):
            counts = queue.counts()
            assert (counts.leased, counts.claims, counts.failed) == (0, 0, 0)
            assert queue.audit() == []
        if self.plan.what != "batch":
            assert self.queue.counts().waiting == 0

    def close(self) -> None:
        self.queue.close()
        self.out.close()
