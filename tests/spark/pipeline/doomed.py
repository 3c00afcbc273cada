"""A pipeline worker that dies at a certain step, with its JVM, its JVM alone, or loses its disk.

    python -m spark.pipeline.doomed <url> <queue as hex> <root> <step>

Each step is a place in the code that is about to be passed; `wait` freezes there until it is woken.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spark.pipeline.support  # noqa: F401  # Registers the transforms.
from holdfast.spark import Pipeline, session
from holdfast.spark.pipeline import attempts, planning, publishing, stages, working
from holdfast.spark.pipeline.files import Files

STEPS = {
    "while planning": "die",
    "after the parts are written down": "die",
    "before Spark writes": "die",
    "after Spark wrote": "die",
    "before the part completes": "die",
    "while gathering": "die",
    "before the output gets its name": "die",
    "after the output got its name": "die",
    "before the publisher completes": "die",
    "the JVM in a part": "kill the JVM",
    "the JVM while planning": "kill the JVM",
    "frozen before Spark writes": "freeze",
    "frozen after Spark wrote": "freeze",
    "without its local directories": "live on",
}


def doomed(step: str, jvm: int) -> None:
    """Let this process end at a step."""
    how = STEPS[step]

    def end() -> None:
        if how == "kill the JVM":
            os.kill(jvm, signal.SIGKILL)
        elif how == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(owner: Any, name: str, *, only: Callable[..., bool] = lambda *_: True) -> None:
        real = getattr(owner, name)

        def passed(*args: Any, **options: Any) -> Any:
            if only(*args):
                end()
            return real(*args, **options)

        setattr(owner, name, passed)

    def after(owner: Any, name: str, *, only: Callable[..., bool] = lambda *_: True) -> None:
        real = getattr(owner, name)

        def passed(*args: Any, **options: Any) -> Any:
            result = real(*args, **options)
            if only(*args):
                end()
            return result

        setattr(owner, name, passed)

    match step:
        case "while planning" | "the JVM while planning":
            before(planning, "split")
        case "after the parts are written down":
            after(Files, "write", only=lambda _, path, content: "_parts-" in path)
        case "before Spark writes" | "the JVM in a part" | "frozen before Spark writes":
            before(attempts, "write")
        case "after Spark wrote" | "frozen after Spark wrote":
            before(stages, "rows")
        case "before the part completes":
            after(working, "run_part")
        case "while gathering":
            after(Files, "move", only=lambda _, path, to: "_gathered" in to)
        case "before the output gets its name":
            before(publishing, "_put")
        case "after the output got its name":
            after(publishing, "_put")
        case "before the publisher completes":
            after(working, "publish")


def main(url: str, queue: str, root: str, step: str) -> None:
    local = Path(root).parent / "local"
    config = {"spark.local.dir": str(local)}
    spark = session("doomed", master="local[2]", memory="512m", config=config)
    gateway: Any = spark.sparkContext._gateway
    doomed(step, gateway.proc.pid)
    Path(root).parent.joinpath("jvm").write_text(str(gateway.proc.pid))
    if step == "without its local directories":  # As after a cleaner of /tmp.
        shutil.rmtree(local)
    with Pipeline(bytes.fromhex(queue).decode(), url, roots=root) as pipeline:
        # What it held when it died comes back soon; who lives on must not lose it.
        pipeline.work(spark, concurrency=1, lease=15 if STEPS[step] == "live on" else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
