"""docs/spark.md, its how-to and the README run, and the page leaves nothing out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from docs.pages import DOCS, ROOT, code_in, program_of, rows, run, section
from holdfast import Queue
from holdfast.spark import columns, look, options, session, source
from holdfast.spark.pipeline import transforms

PAGE = DOCS / "spark.md"
README = ROOT / "README.md"
SECONDS = {"stagedFor": options.DEFAULT_STAGED_SECONDS, "claimFor": options.DEFAULT_CLAIM_SECONDS}


def first_cells(heading: str) -> list[str]:
    return [word for row in rows(section(PAGE, heading)) for word in code_in(row[0])]


def test_the_page_runs_as_one_program(spark: SparkSession) -> None:
    with Queue("emails") as queue, Queue("archive") as archive:
        names = run(PAGE)
        shutil.rmtree(names["folder"])
        for one in (queue, archive):
            assert one.audit() == []
            one.delete()


def test_the_how_to_runs_as_one_program(spark: SparkSession) -> None:
    with Queue("emails") as queue:
        names = run(DOCS / "how-to" / "spark.md")
        shutil.rmtree(names["folder"])
        assert queue.audit() == []
        queue.delete()


def test_the_readme_prints_what_it_says(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transforms, "_known", {})  # Its names are those of other pages, too.
    program, says = program_of(README, "Spark")
    names: dict[str, Any] = {"__name__": "readme"}
    exec(program, names)
    assert capsys.readouterr().out == says
    shutil.rmtree(names["folder"])
    with names["pipeline"].queue as reports, Queue("sales") as sales:
        for queue in (reports, sales):
            assert queue.audit() == []
            queue.delete()


@pytest.mark.slow
def test_the_readme_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment.pop("HOLDFAST_URL", None)
    program, says = program_of(README, "Spark")
    file = tmp_path / "program.py"
    file.write_text(program)
    ran = subprocess.run(
        [sys.executable, file], env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, says), ran.stderr


def test_every_column_is_in_the_page() -> None:
    assert first_cells("Columns of a write") == list(columns.COLUMNS)
    assert first_cells("Columns of a stream") == list(source.JOBS.names)
    shown = [word for word in first_cells("Looking") if word in look.JOBS.names and word != "queue"]
    assert list(dict.fromkeys(shown)) == list(look.JOBS.names)


def test_every_option_is_in_the_page_with_its_default() -> None:
    assert set(first_cells("Options of a write")) == {
        *options.OF_A_WRITE,
        *options.OF_A_STREAMS_WRITE,
    }
    assert set(first_cells("Options of a stream")) == set(options.OF_A_STREAM)
    assert set(first_cells("A session")) == set(signature(session).parameters)
    text = PAGE.read_text()
    for option, default in SECONDS.items():
        assert f"| `{option}` | `{default:.0f}` |" in text
    assert f"| `maxJobsPerTrigger` | `{options.DEFAULT_JOBS_PER_TRIGGER}` |" in text
    assert f"| `maxJobsPerPartition` | `{options.DEFAULT_JOBS_PER_PARTITION}` |" in text
