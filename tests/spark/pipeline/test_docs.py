"""docs/pipeline.md runs, and leaves nothing out."""

from __future__ import annotations

import shutil
from inspect import signature
from pathlib import Path

from pyspark.sql import SparkSession

from docs.pages import DOCS, code_in, rows, run, section
from holdfast.spark import Pipeline

PAGE = DOCS / "pipeline.md"


def test_the_page_runs_as_one_program(spark: SparkSession) -> None:
    names = run(PAGE)
    assert Path(names["picture"]).stat().st_size > 1000
    with Pipeline("reports", roots=names["folder"]) as pipeline:
        assert pipeline.queue.audit() == []
        pipeline.queue.delete()
    shutil.rmtree(names["folder"])


def test_every_argument_of_submit_is_in_the_page() -> None:
    named = {word for row in rows(section(PAGE, "A request")) for word in code_in(row[0])}
    assert set(signature(Pipeline.submit).parameters) - {"self", "id"} <= named
