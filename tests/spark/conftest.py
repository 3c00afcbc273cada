"""One Spark for all tests of it: starting one takes ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import Queue
from support import TestServer

pytest.importorskip("pyspark", reason="the extra holdfast[spark] is not installed")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What starts a JVM sooner, and does less for jobs that are run once.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(test_server: TestServer) -> Iterator[SparkSession]:
    """A session as users get it; nothing is registered, so the format must be found."""
    from holdfast.spark import session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_URL", test_server.queue_url)
        spark = session("tests", master="local[2,2]", config=QUICK)
        yield spark
        spark.stop()


@pytest.fixture
def options(live_queue: Queue, test_server: TestServer) -> dict[str, str]:
    """Where the test's queue is."""
    return {"url": test_server.queue_url, "queue": live_queue.name}
