"""A Spark session that needs only pip: sets up Java, Python, network and logging."""

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
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
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
START_ERRORS: Final = (Py4JError, PySparkException)
"""What `session` raises if Spark does not start."""
_QUERY_LOGS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""The loggers to which PySpark writes each analysis error that it raises."""
FAIR: Final = {"spark.scheduler.mode": "FAIR"}
"""Spark jobs of different pools share the cores. Those of one pool run in turn, as by default."""

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
    """Return a Spark session that runs on the machine's Java, else on the one from pip.

    name    the name of the Spark application
    master  where Spark runs: local[*], local-cluster[…], spark://host:7077, …
    memory  memory of the driver, such as 1g
    config  Spark settings, which override those made here

    If a session is active, it is returned as it is and the arguments are ignored. A session of your
    own works as well: Holdfast needs only its connectors in it.
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
    # The last option counts, so the user's own log configuration overrides this one.
    settings["spark.driver.extraJavaOptions"] = f"{QUIET_LOG} {own}".strip()
    builder = SparkSession.builder.appName(name).master(master)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    try:
        return builder.getOrCreate()
    except BaseException:
        _kill_starting_java()
        raise


def _check(name: str, value: object, form: re.Pattern[str], known: str) -> None:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise InvalidArgument(f"{name} must be {known}, not {arguments.shown(value)}")


def _kill_starting_java() -> None:
    """Kill a Java that was still starting, for example at Ctrl-C: it would keep running."""
    if SparkContext._gateway is not None:  # noqa: SLF001
        return  # Java is up, and ends with this process.
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "_PYSPARK_DRIVER_CONN_INFO_PATH" in child.environ():
                child.kill()


def prepare(*, local: bool = True) -> None:
    """Set environment variables for Spark: JAVA_HOME and PYSPARK_PYTHON.

    Call it before you build a session of your own, to run on the same Java. `session` calls it.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        # A local session needs no address that other machines reach. This one always exists.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
