"""A Java is found, or made usable; a session comes up without one on the machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from holdfast import HoldfastError
from holdfast.spark import java
from support import DEADLINE, wait_until

STARTED = """
from holdfast.spark import session
spark = session(
    master="local[1]",
    memory="512m",
    config={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
)
print(spark.range(7).count(), spark.read.format("holdfast").option("queue", "q").load().count())
spark.stop()
"""


def fake_java(directory: Path, text: str) -> Path:
    """Make a JAVA_HOME whose Java does as this script says."""
    script = directory / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return directory


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has no Java: a PATH with everything else that is on it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for tool in Path(directory).glob("*"):
            if tool.name != "java" and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_session_comes_up_where_there_is_no_java(no_java: Path) -> None:
    assert shutil.which("java") is None
    ran = subprocess.run(
        [sys.executable, "-c", STARTED],
        env={**os.environ, "HOLDFAST_URL": f"embedded://{no_java}/server"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "7 0\n"), ran.stderr


def test_ctrl_c_while_spark_starts_leaves_no_java(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTED],
        env={**os.environ, "HOLDFAST_URL": f"embedded://{tmp_path}/server"},
        stderr=subprocess.DEVNULL,
    ) as driver:
        me = psutil.Process(driver.pid)
        wait_until(lambda: bool(java_of(me)), "a Java that starts")
        [starting] = java_of(me)
        driver.send_signal(signal.SIGINT)
        driver.wait(DEADLINE)
    try:
        assert not starting.is_running()
    finally:
        with suppress(psutil.NoSuchProcess):
            starting.kill()


def java_of(driver: psutil.Process) -> list[psutil.Process]:
    return [child for child in driver.children() if is_spark(child)]


def is_spark(process: psutil.Process) -> bool:
    try:
        return "org.apache.spark.deploy.SparkSubmit" in process.cmdline()
    except psutil.Error:  # It was another, to ask a Java for its version, and is gone.
        return False


def test_the_java_of_pip_is_called_without_the_flag_that_it_does_not_know(no_java: Path) -> None:
    home = java.java_home()
    assert home.is_relative_to(no_java / "cache")
    ran = subprocess.run(
        [home / "bin" / "java", java.VECTOR, "-version"], capture_output=True, check=False
    )
    assert ran.returncode == 0
    assert java.java_home() == home


def test_the_java_of_java_home_comes_first(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(no_java / "own java", """echo 'openjdk version "21.0.1" 2025' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home


def test_a_java_that_is_too_old_is_passed_over(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(no_java / "old", """echo 'java version "1.8.0_292"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() != home


def test_a_java_without_the_module_is_called_without_the_flag(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = f"""[ "$1" = "{java.VECTOR}" ] && exit 1\necho "version \\"17.0.9\\" $1 $2" >&2"""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(no_java / "it's bare", told)))
    home = java.java_home()
    ran = subprocess.run(
        [home / "bin" / "java", "a b", java.VECTOR, "c"], capture_output=True, text=True, check=True
    )
    assert ran.stderr == 'version "17.0.9" a b c\n'


def test_no_java_at_all_is_said(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_of_pip", list)
    with pytest.raises(HoldfastError, match="needs Java 17 or newer") as raised:
        java.java_home()
    assert "`pip install 'holdfast-queue[java]'`" in str(raised.value)


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_292"', 8),
        ("what?", 0),
    ],
)
def test_the_version_of_a_java(told: str, version: int) -> None:
    assert java.version_of(told) == version


def test_the_core_does_not_import_spark() -> None:
    code = "import sys, holdfast, holdfast.cli; print([m for m in sys.modules if 'spark' in m])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
