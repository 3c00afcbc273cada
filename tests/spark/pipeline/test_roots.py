"""Roots of a pipeline: directories that are there, or places in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import InvalidArgument
from holdfast.spark import Pipeline
from holdfast.spark.pipeline.roots import Roots


def test_a_directory_that_is_there_is_a_root(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    assert repr(Roots(tmp_path / "link")) == f"Roots({tmp_path.resolve()})"
    assert repr(Roots(["s3a://bucket/data", str(tmp_path)])).startswith("Roots(s3a://bucket/data, ")


@pytest.mark.parametrize("given", ["gone", "file", "gone/below", ["here", "gone"]])
def test_what_is_no_directory_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match="not a directory on this machine: create it"):
        Roots(given)


def test_a_pipeline_with_a_root_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not a directory on this machine"):
        Pipeline("q", "redis://localhost:1", roots=tmp_path / "gone")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "roots must be a list"),
        (5, "roots must be a list"),
        (b"/tmp", "roots must be a list"),
        ([], "roots must be at least one path"),
        (["/tmp", 5], "roots must be a path"),
        (["/tmp", b"/tmp"], "roots must be a path"),
        ("", "roots must be a path"),
        ([""], "roots must be a path"),
        (" ", "roots must be a path"),
        ("a\nb", "roots must be a path"),
        ("\udcff", "roots must be a path"),
    ],
    ids=repr,
)
def test_what_is_no_path_is_no_root(given: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Pipeline("q", "redis://localhost:1", roots=given)


STORE = Roots(["s3a://bucket/data/../data/", "abfss://box@place.dfs.core.windows.net/x"])


def test_places_in_a_store_are_compared_when_they_are_normal() -> None:
    assert repr(STORE).startswith(
        "Roots(s3a://bucket/data, abfss://box@place.dfs.core.windows.net/x"
    )
    assert STORE.locate("input", "S3A://bucket/data//a/./b/") == "s3a://bucket/data/a/b"
    assert STORE.locate("input", "day=1/*.csv") == "s3a://bucket/data/day=1/*.csv"
    assert STORE.locate("input", "s3a://bucket/data/part-?.csv") == "s3a://bucket/data/part-?.csv"
    assert STORE.locate("input", "s3a://bucket/data/x=a%2Fb") == "s3a://bucket/data/x=a%2Fb"
    assert STORE.holds("s3a://bucket/data/x=a%2Fb/part #1?.csv")
    assert STORE.locate_output("abfss://box@place.dfs.core.windows.net/x/out")
    assert Roots("s3a://[::1]:80/x").locate("input", "*.csv") == "s3a://[::1]:80/x/*.csv"


@pytest.mark.parametrize(
    "path",
    [
        "s3a://bucket/data/../payroll/x",
        "s3a://bucket/data/./../payroll/x",
        "s3a://bucket/data/%2e%2e/payroll/x",
        "s3a://bucket/data/%2E%2e%2Fpayroll/x",
        "s3a://bucket/data/%252e%252e/payroll/x",
        "s3a://bucket/data/..%2fpayroll/x",
        r"s3a://bucket/data/.\./payroll/x",
        r"s3a://bucket/data/\.\./payroll/x",
        "s3a://bucket/data/{a/.,b}./{a/.,b}./payroll/x",
        "s3a://bucket/database/x",
        "s3a://bucket/data?x=/data/y",
        "s3a://bucket/data#/../x",
        "s3a://bucket\\@other/data/x",
        "s3a://key:secret@bucket/data/x",
        "s3a://user@bucket/data/x",
        "s3a://bucket:1/data/x",
        "s3a://other/data/x",
        "s3://bucket/data/x",
        "s3a:/bucket/data/x",
        "s3a:bucket/data/x",
        "s3a:///bucket/data/x",
        "http://bucket/data/x",
        "https://bucket/data/x",
        "viewfs://bucket/data/x",
        "har://s3a-bucket/data/x",
        "jar:file:/data/x!/y",
        "file:/data/x",
        "file:///data/x",
        "hdfs://bucket/data/x",
        "s3a://bucket/data/x\n",
        "s3a://bucket/da\tta/x",
        "s3a://bucket/data/\x00",
        "/data/x",
        "abfss://other@place.dfs.core.windows.net/x/y",
    ],
)
def test_what_only_looks_as_if_it_were_below_a_root_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument):
        STORE.locate("input", path)
    with pytest.raises(InvalidArgument):
        STORE.check("input", path)


@pytest.mark.parametrize(
    "path",
    ["s3a://bucket/data/../x", "s3a://bucket/database", "S3A://bucket/data/x", "data/x", "/data/x"],
)
def test_a_file_that_is_named_otherwise_is_not_below_a_root(path: str) -> None:
    assert not STORE.holds(path)


@pytest.mark.parametrize(
    "path", ["{a,b}.{csv,json}", r"a\*b.csv", "{2025/12,2026/01}/*.csv", "..x"]
)
def test_patterns_that_go_nowhere_else_are_taken(tmp_path: Path, path: str) -> None:
    assert Roots(tmp_path).locate("input", path) == f"{tmp_path.resolve()}/{path}"


def test_a_file_behind_a_link_is_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/in").symlink_to(tmp_path / "root")
    (tmp_path / "root/out").symlink_to(tmp_path)
    roots = Roots(tmp_path / "root")
    assert roots.holds(str(tmp_path / "root" / "in" / "x"))
    for path in ("root/out/x", "root/../x", "root/./x", "x", "root/x\0"):
        assert not roots.holds(f"{tmp_path}/{path}")
    assert not roots.holds("root/x")


def test_an_input_keeps_its_name_and_an_output_is_where_links_lead(tmp_path: Path) -> None:
    (tmp_path / "root/in").mkdir(parents=True)
    (tmp_path / "named").symlink_to(tmp_path / "root")
    (tmp_path / "root/link").symlink_to(tmp_path / "root/in")
    (tmp_path / "root/out").symlink_to(tmp_path)
    for root in ("root", "named"):
        roots = Roots(tmp_path / root)
        for path in ("link/a.csv.gz", "link/*.csv", "link"):
            named = f"{tmp_path}/{root}/{path}"
            assert roots.locate("input", path) == named
            assert roots.locate("input", f"/{tmp_path}/{root}/./{path}") == named
            roots.check("input", named)
        real = tmp_path / "root"
        assert roots.locate_output("link/x") == f"{real}/in/x"
        for path in ("out/a.csv", "out/*.csv", "out", f"{real}/out/a.csv"):
            with pytest.raises(InvalidArgument, match="must be below"):
                roots.locate("input", path)


def test_a_root_that_is_named_by_going_up_is_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a/b")
    monkeypatch.chdir(tmp_path)
    assert Roots("link/..").locate("input", "x") == f"{tmp_path}/a/x"
    assert Roots("link").locate("input", "x") == f"{tmp_path}/link/x"


def test_an_output_has_no_root_in_it(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    roots = Roots([tmp_path, tmp_path / "a/b"])
    for output in (tmp_path, tmp_path / "a", tmp_path / "a/b"):
        with pytest.raises(InvalidArgument, match="not one of them"):
            roots.locate_output(str(output))
