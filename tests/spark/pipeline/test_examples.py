"""The examples run, and do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples import clean_csv, daily_totals, urgent_beside_backfill
from holdfast import Queue
from support import TestServer


@pytest.fixture
def url(test_server: TestServer) -> str:
    return test_server.queue_url


def test_clean_csv(spark: SparkSession, root: Path, url: str) -> None:
    kept = clean_csv.main(spark, root, url)
    lines = [line for path in (root / "shops").iterdir() for line in path.read_text().split()[1:]]
    amounts_and_days = [line.split(",")[1:] for line in lines]
    assert kept == sum(
        amount in ("12.50", "99") and int(day[-2:]) <= 31 for amount, day in amounts_and_days
    )


def test_daily_totals(spark: SparkSession, root: Path, url: str) -> None:
    assert daily_totals.main(spark, root, url) == 31


def test_urgent_beside_backfill(spark: SparkSession, root: Path, url: str) -> None:
    picture = urgent_beside_backfill.main(spark, root, url)
    assert picture.read_bytes().startswith(b"\x89PNG")
    with Queue("backfill", url) as queue:
        years, today = queue.requests()
    assert (today.state, years.state) == ("completed", "completed")
    assert (today.ended_at or 0) < (years.ended_at or 0)
