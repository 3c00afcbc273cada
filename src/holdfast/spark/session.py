"""A Spark session that works from pip alone: Java, Python, network and log are seen to."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from holdfast import arguments
from holdfast.errors import InvalidArgument
from holdfast.spark.java import java_home

LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

QUIET_LOG: Final = "-Dlog4j2.configurationFile=" + LOG_SETTINGS.as_uri()
QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_QUERY_LOGS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Where PySpark logs each analysis error, which it also raises."""
FAIR: Final = {"spark.scheduler.mode": "FAIR"}
"""Lets jobs of different pools share the cores; those of one pool run in turn, as without it."""

_MEMORY: Final = re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE)
_MASTER: Final = re.compile(
    r"local(\[([1-9][0-9]*|\*)(\s*,\s*[0-9]+)?\])?|local-cluster\[(\s*[0-9]+\s*,){2}\s*[0-9]+\s*\]"
    r"|yarn|(spark|k8s)://.+"
)
"""What Spark takes."""


def session(
    name: str = "holdfast",
    *,
    master: str = "local[*]",
    memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session, with the machine's Java or with the one that came with pip.

    name    of the Spark application
    master  where it runs: local[*], local-cluster[…], spark://host:7077, …
    memory  of the driver, such as 1g
    config  settings of Spark, above the ones that are made here

    A session that runs already is returned as it is, whatever is asked for here. Your own
    session works as well: only its connectors are ours.
    """
    _check("memory", memory, _MEMORY, "a number with k, m, g or t, such as 1g")
    _check("master", master, _MASTER, "local[*], local[4], spark://host:7077, k8s://… or yarn")
    if active := SparkSession.getActiveSession():
        return active
    prepare(local=master.startswith("local"))
    for logger in _QUERY_LOGS:
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    settings = {**QUIET, **FAIR, "spark.driver.memory": memory, **(config or {})}
    own = settings.get("spark.driver.extraJavaOptions", "")
    # The last one counts, so a log file of the user's own stands.
    settings["spark.driver.extraJavaOptions"] = f"{QUIET_LOG} {own}".strip()
    builder = SparkSession.builder.appName(name).master(master)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    try:
        return builder.getOrCreate()
    except BaseException:
        _end_what_was_not_heard_of()
        raise


def _check(name: str, value: object, form: re.Pattern[str], known: str) -> None:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise InvalidArgument(f"{name} must be {known}, not {arguments.shown(value)}")


def _end_what_was_not_heard_of() -> None:
    """End a Java that was starting, as after Ctrl-C: it could tell nobody, and would stay."""
    if SparkContext._gateway is not None:  # noqa: SLF001
        return  # It is up, and ends with this process.
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "_PYSPARK_DRIVER_CONN_INFO_PATH" in child.environ():
                child.kill()


def prepare(*, local: bool = True) -> None:
    """Set the environment that Spark is started in: JAVA_HOME and PYSPARK_PYTHON.

    Before your own session is built it gives you the same Java; `session` does it by itself.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        # A local session needs no address that others can reach, and has one on every machine.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
