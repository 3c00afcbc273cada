"""One Spark for all tests of a process: starting one takes ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import Queue
from support import TestServer

# Without the extra holdfast[spark] there is nothing to test.
collect_ignore_glob = [] if find_spec("pyspark") else ["*.py"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(test_server: TestServer) -> Iterator[SparkSession]:
    """A session as users get it; nothing is registered, so the format must be found."""
    from holdfast.spark import session
    from spark.program import INTERPRETED, QUICK

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_URL", test_server.queue_url)
        few = {"spark.ui.retainedStages": "50"}  # A worker soon has run more than Spark remembers.
        spark = session("tests", master="local[2,2]", config=QUICK | INTERPRETED | few)
        yield spark
        spark.stop()


@pytest.fixture
def options(live_queue: Queue, test_server: TestServer) -> dict[str, str]:
    """Where the test's queue is."""
    return {"url": test_server.queue_url, "queue": live_queue.name}
