"""Orders, parts, results and files that somebody forged: nothing outside of the roots is touched.

Most of these attacks worked before there were checks. The others are variants that failed late, or
by luck, for another reason.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from holdfast import InvalidArgument, NewJob, Queue, Request, Worker, WrongState
from holdfast.spark import Pipeline
from holdfast.spark.pipeline.formats import Format
from holdfast.spark.pipeline.order import run_of, staging_of
from holdfast.spark.pipeline.working import Duties
from spark.pipeline.canaries import Canaries, web_server
from spark.pipeline.forging import (
    Forge,
    good_order,
    good_part,
    good_plan,
    good_result,
    nasty,
    stamp,
)
from spark.pipeline.support import must_be_published, names, wait_long

SEEDS = range(3)


@pytest.fixture
def canaries(tmp_path: Path, root: Path) -> Iterator[Canaries]:
    """What must be as before when the test is over."""
    (root / "in").mkdir()
    (root / "in/data.txt").write_text("one\ntwo\nthree\n")
    with web_server() as (url, asked):
        canaries = Canaries(tmp_path, url, asked)
        yield canaries
        canaries.check(root)
        canaries.close()


@pytest.fixture
def duties(spark: SparkSession, pipeline: Pipeline) -> Duties:
    worker = Worker(pipeline.queue, concurrency=1)
    return Duties(spark, pipeline.queue, pipeline.roots, worker)


def order(root: Path, **changes: Any) -> dict[str, Any]:
    """Return an order for one file, as it stands in the queue."""
    given = {"input": [f"{root}/in/data.txt"], "options": {}, "output_options": {}, "mode": "error"}
    return good_order(str(root), **given | changes)


def mounted(root: Path, outside: Path) -> dict[str, str]:
    """Options that put another file system behind `file:`, with a link that leads outside."""
    view = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
    return {
        "fs.file.impl": view,
        "fs.file.impl.disable.cache": "true",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        f"fs.viewfs.mounttable.default.link.{root}/in": f"file://{outside}/deep",
    }


class Forger:
    """Somebody who may use the queue, and nothing else."""

    def __init__(self, queue: Queue, root: Path) -> None:
        self.queue = queue
        self.root = root
        self._requests: dict[str, Request] = {}

    def request(self, id: str, follow_up: NewJob | None = None) -> Request:
        """Return a request that is open: one object, as it numbers the parts."""
        if id not in self._requests:
            self._requests[id] = self.queue.request(id, follow_up=follow_up)
            self._requests[id].open()
        return self._requests[id]

    def plan(self, data: object, id: str = "r") -> str:
        self.request(id)
        return self._add(data, "plan", f"{id}/plan")

    def publish(self, data: object, id: str = "r/end/1") -> str:
        return self._add(data, "publish", id)

    def _add(self, data: object, handler: str, id: str) -> str:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        return self.queue.add(raw, handler=handler, id=id, max_failures=0).id

    def part(self, slice: dict[str, Any], staging: object = None, id: str = "r") -> str:
        """Add a part to a request, with the staging that it really has unless another is given."""
        request = self.request(id)
        slice = {"stamps": [stamp(path) for path in slice["files"]]} | slice
        if staging is None:
            staging = self.staging(id)
        request.add(
            json.dumps({"staging": staging, "slice": slice}).encode(),
            handler="part",
            max_failures=0,
        )
        return f"{id}/{request.status().total - 1}"

    def staging(self, id: str = "r", output: str = "out") -> str:
        run = run_of(self.request(id).status())
        return staging_of(str(self.root / output), id, run)

    def planned(self, id: str = "r", **changes: Any) -> Path:
        """Write a plan where a worker would have written it."""
        run = run_of(self.request(id).status())
        given = order(self.root, id=id, run=run, **changes)
        staging = Path(self.staging(id))
        staging.mkdir(exist_ok=True)
        (staging / "_plan.json").write_text(json.dumps(good_plan(given)))
        return staging


@pytest.fixture
def forger(pipeline: Pipeline, root: Path) -> Forger:
    return Forger(pipeline.queue, root)


def work(spark: SparkSession, pipeline: Pipeline) -> None:
    """Do all that there is to do, and go on after what fails."""
    pipeline.work(spark, concurrency=2, until_empty=True)


def replace(path: Path, content: object) -> None:
    """Write a file of a pipeline as somebody else would, without the sum that Hadoop keeps."""
    path.write_text(json.dumps(content))
    path.with_name(f".{path.name}.crc").unlink()


def why(queue: Queue, id: str) -> str:
    """Return why a job failed; it must have."""
    job = queue.show(id)
    assert job is not None, f"{id} is gone"
    assert job.state == "failed", f"{id} is {job.state}"
    return str(job.error)


# ------------------------------------------------------------------- options (S1)


def test_a_request_with_settings_of_hadoop_is_refused(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    (root / "in/secret.txt").write_text("harmless\n")
    options = mounted(root, canaries.outside)
    with pytest.raises(InvalidArgument, match=r"options: 'fs\.file\.impl' is not allowed"):
        pipeline.submit(
            "same", input="in/secret.txt", output="out", options=options, max_failures=0
        )
    work(spark, pipeline)


def test_an_order_with_settings_of_hadoop_reads_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    (root / "in/secret.txt").write_text("harmless\n")
    mine = order(root, input=[str(root / "in/secret.txt")])
    plan = forger.plan({**mine, "options": mounted(root, canaries.outside)})
    work(spark, pipeline)
    assert "'fs.file.impl' is not allowed" in why(pipeline.queue, plan)


def test_an_order_with_settings_of_hadoop_writes_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    options = mounted(root, canaries.outside)
    options[f"fs.viewfs.mounttable.default.link.{root}"] = f"file://{canaries.outside}/victim"
    del options[f"fs.viewfs.mounttable.default.link.{root}/in"]
    plan = forger.plan(order(root, output_options=options))
    work(spark, pipeline)
    assert "'fs.file.impl' is not allowed" in why(pipeline.queue, plan)


def test_a_plan_with_settings_of_hadoop_reads_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    (root / "in/secret.txt").write_text("harmless\n")
    forger.planned(options=mounted(root, canaries.outside))
    part = forger.part({"files": [str(root / "in/secret.txt")]})
    work(spark, pipeline)
    assert "'fs.file.impl' is not allowed" in why(pipeline.queue, part)


def test_a_manifest_with_settings_of_hadoop_reads_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    handle = pipeline.submit("same", input="in/data.txt", output="out")
    work(spark, pipeline)
    must_be_published(handle, root)
    (manifest,) = (root / "out/_holdfast").glob("*.json")
    content = json.loads(manifest.read_text())
    (name,) = content["files"]
    options = mounted(root, canaries.outside)
    link = f"fs.viewfs.mounttable.default.link.{root}/out/{name}"
    options[link] = f"file://{canaries.outside}/secret.txt"
    replace(manifest, {**content, "options": options})
    with pytest.raises(InvalidArgument, match="is not allowed"):
        assert handle.read(spark).collect() == []


@pytest.mark.parametrize("place", ["/etc", "../x", "s3a://bucket/x", "http://localhost/x"])
def test_a_base_path_lies_below_the_roots(pipeline: Pipeline, root: Path, place: str) -> None:
    with pytest.raises(InvalidArgument, match=r"basePath must"):
        pipeline.submit("same", input="in/*.csv", output="out", options={"basepath": place})


# ------------------------------------------------------- results and parts (S2 to S4)


def published(forger: Forger, results: list[object], id: str = "r", **changes: Any) -> str:
    """Have a request whose parts came to these results; return the id of its publisher."""
    data = json.dumps({"output": str(forger.root / "out")}).encode()
    target = NewJob(data, handler="publish", max_failures=0, priority=0)
    request = forger.request(id, follow_up=target)
    forger.planned(id, **changes)
    for result in results:
        request.add(b"{}", handler="part")
        lease = forger.queue.lease(10)
        assert lease
        assert lease.id.startswith(f"{id}/")
        forger.queue.complete(lease, result=result)
    request.seal()
    return f"{id}/end/1"


def result(attempt: str, *files: str) -> dict[str, Any]:
    return good_result() | {"attempt": attempt, "files": files}


@pytest.mark.parametrize("last", [None, "same"])
@pytest.mark.parametrize(
    ("attempt", "file"),
    [
        ("../../outside/keep", "part-00000-x-c000.txt"),
        ("00000.t", "../../../outside/secret.txt"),
        ("00001.t", "part-00000-x-c000.txt"),
    ],
)
def test_a_result_that_names_what_its_part_did_not_write_moves_nothing(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    canaries: Canaries,
    forger: Forger,
    attempt: str,
    file: str,
    last: str | None,
) -> None:
    publisher = published(forger, [result(attempt, file)], finish=last)
    work(spark, pipeline)
    assert "the result of 'r/0'" in why(pipeline.queue, publisher)
    assert not (root / "out").exists()


def test_a_part_whose_base_is_none_of_its_file_writes_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    forger.planned()
    up = "/../../.." + str(root)
    piece = {"type": "bytes", "start": 0, "end": 10}
    part = forger.part({"files": [f"/a/b/c{up}/in/data.txt"], "base": "/a/b/c", "piece": piece})
    other = forger.part({"files": [f"{root}/in/data.txt"], "base": "/a/b/c", "piece": piece})
    work(spark, pipeline)
    assert "goes up" in why(pipeline.queue, part)
    assert "not below its basePath" in why(pipeline.queue, other)


def test_a_manifest_that_names_a_directory_is_not_read(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    handle = pipeline.submit("same", input="in/*.txt", output="out", id="a")
    work(spark, pipeline)
    (root / "out/part-dir").mkdir()
    (root / "out/part-dir/link.txt").symlink_to(canaries.outside / "secret.txt")
    path = root / "out/_holdfast/a.json"
    replace(path, json.loads(path.read_text()) | {"files": ["part-dir"]})
    with pytest.raises(WrongState, match="part-dir is gone"):
        handle.read(spark)


@pytest.mark.parametrize("piece", [None, {"type": "bytes", "start": 0, "end": 10}])
def test_a_part_whose_file_is_a_directory_reads_no_link_in_it(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    canaries: Canaries,
    forger: Forger,
    piece: object,
) -> None:
    forger.planned()
    (root / "dir").mkdir()
    (root / "dir/link.txt").symlink_to(canaries.outside / "secret.txt")
    part = forger.part({"files": [f"{root}/dir"], "piece": piece})
    work(spark, pipeline)
    assert f"{root}/dir is gone" in why(pipeline.queue, part)


@pytest.mark.parametrize("there", [True, False])
def test_the_error_of_a_file_with_a_line_break_is_one_line(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    canaries: Canaries,
    forger: Forger,
    there: bool,
) -> None:
    forger.planned()
    file = root / "in/a\nERROR b\u2028.txt"
    if there:
        file.write_bytes(bytes(100))
    piece = {"type": "bytes", "start": 0, "end": 1000}
    part = forger.part({"files": [str(file)], "piece": piece, "base": str(root / "in")})
    work(spark, pipeline)
    said = why(pipeline.queue, part)
    assert said.isprintable(), said
    problem = "has 100 bytes, not 1000" if there else "is gone"
    assert rf"{root}/in/a\nERROR b\u2028.txt {problem}" in said


def test_a_part_is_not_fetched_from_elsewhere(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    forger.request("r")
    name = Path(forger.staging()).name
    part = forger.part({"files": []}, f"{canaries.url}/{name}")
    plan = forger.plan(order(root, id="p", output=f"{canaries.url}/out"), id="p")
    publisher = forger.publish({"output": f"{canaries.url}/out"})
    work(spark, pipeline)
    for id in (part, plan, publisher):
        assert "must be below" in why(pipeline.queue, id)


def test_a_cancelled_part_does_not_remove_the_directory_that_it_names(
    root: Path, canaries: Canaries, forger: Forger, duties: Duties
) -> None:
    forger.request("r")
    data = {"staging": str(canaries.outside / "victim"), "slice": {"files": []}}
    job = SimpleNamespace(
        id="r/0", request="r", token="t", cancelled=True, data=json.dumps(data).encode()
    )
    with pytest.raises(Exception) as raised:
        duties.part(cast("Any", job))
    duties._tidy()
    assert "not where 'r' writes" in str(raised.value)


def test_a_pattern_that_hides_its_way_up_finds_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    hidden = rf"{root}/.\./outside/secret.csv"
    plan = forger.plan(order(root, input=[hidden], format="csv"))
    work(spark, pipeline)
    assert "must not go up" in why(pipeline.queue, plan)
    with pytest.raises(InvalidArgument, match="must not go up"):
        pipeline.submit("same", input=r".\./outside/secret.txt", output="o")


def test_an_output_elsewhere_is_not_read(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    handle = pipeline.submit("same", input="in/data.txt", output="out")
    work(spark, pipeline)
    must_be_published(handle, root)
    for place in (f"{canaries.url}/out", str(canaries.outside)):
        forged = {"state": "done", "output": place, "rows": 1, "files": 1}
        pipeline.queue.set_result(f"{handle.id}/end/1", forged)
        with pytest.raises(InvalidArgument, match="output must be below"):
            handle.read(spark)


def test_a_manifest_that_names_other_files_reads_none(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    handle = pipeline.submit("same", input="in/data.txt", output="out")
    work(spark, pipeline)
    must_be_published(handle, root)
    (manifest,) = (root / "out/_holdfast").glob("*.json")
    content = json.loads(manifest.read_text())
    replace(manifest, {**content, "files": ["../../outside/secret.txt"]})
    with pytest.raises(InvalidArgument, match=r"\.json is not what a pipeline writes"):
        assert handle.read(spark).collect() == []


def test_an_output_is_not_read_through_a_link(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    handle = pipeline.submit("same", input="in/data.txt", output="out")
    work(spark, pipeline)
    must_be_published(handle, root)
    (file,) = (root / "out").glob("part-*")
    file.unlink()
    file.symlink_to(canaries.outside / "secret.txt")
    with pytest.raises(InvalidArgument, match="leads out of"):
        assert handle.read(spark).collect() == []


# --------------------------------------------------------------------------- links


def test_links_in_staging_are_not_followed(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    publisher = published(forger, [result("00000.t", "part-0.txt")])
    staging = Path(forger.staging())
    (staging / "00000.t").mkdir()
    (staging / "00000.t/part-0.txt").write_text("one\n")
    (staging / "_gathered").symlink_to(canaries.outside / "victim")
    work(spark, pipeline)
    assert "leads out of" in why(pipeline.queue, publisher)
    (staging / "_gathered").unlink()
    (staging / "00000.t/part-0.txt").unlink()
    (staging / "00000.t/part-0.txt").symlink_to(canaries.outside / "secret.txt")
    pipeline.queue.revive(publisher)
    work(spark, pipeline)
    assert "leads out of" in why(pipeline.queue, publisher)
    (staging / "_gathered/part-00000-0.txt").symlink_to(canaries.outside / "secret.txt")
    pipeline.queue.revive(publisher)
    work(spark, pipeline)
    assert "leads out of" in why(pipeline.queue, publisher)
    assert not (root / "out").exists()


def test_a_last_transform_reads_through_no_link(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    publisher = published(forger, [result("00000.t", "part-0.txt")], finish="same")
    staging = Path(forger.staging())
    (staging / "00000.t").symlink_to(canaries.outside / "keep")
    work(spark, pipeline)
    assert "leads out of" in why(pipeline.queue, publisher)
    (staging / "00000.t").unlink()
    (staging / "00000.t").mkdir()
    (staging / "00000.t/more.txt").symlink_to(canaries.outside / "secret.txt")
    pipeline.queue.revive(publisher)
    work(spark, pipeline)
    assert "leads out of" in why(pipeline.queue, publisher)


def test_a_plan_behind_a_link_is_not_read(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    staging = forger.planned()
    (staging / "_plan.json").unlink()
    (staging / "_plan.json").symlink_to(canaries.outside / "secret.txt")
    part = forger.part({"files": [str(root / "in/data.txt")]})
    work(spark, pipeline)
    assert "leads out of" in why(pipeline.queue, part)


def test_a_staging_directory_that_became_a_link_is_not_written_to(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    staging = forger.planned()
    with pipeline.working(spark):  # It knows the plan already when the link is there.
        forger.part({"files": [str(root / "in/data.txt")]})
        wait_long(lambda: pipeline.handle("r").progress().done == 1, "the first part")
        staging.rename(root / "moved")
        staging.symlink_to(canaries.outside / "victim")
        part = forger.part({"files": [str(root / "in/data.txt")]})
        wait_long(lambda: pipeline.handle("r").progress().failed == 1, "the second part")
    assert "leads out of" in why(pipeline.queue, part)


def test_a_link_in_the_input_is_seen_before_spark_reads_it(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    (root / "in/link.csv").symlink_to(canaries.outside / "secret.csv")
    handle = pipeline.submit(
        "same", input="in/*.csv", options={"header": True}, output="out", max_failures=0
    )
    work(spark, pipeline)
    assert "leads out of" in why(pipeline.queue, f"{handle.id}/plan")


@pytest.mark.parametrize(
    ("name", "format"),
    [(".data.csv.crc", "csv"), ("_common_metadata", "parquet"), ("_metadata", "parquet")],
)
def test_a_link_in_what_is_read_beside_the_input_is_seen_before_spark_reads_it(
    pipeline: Pipeline,
    spark: SparkSession,
    root: Path,
    canaries: Canaries,
    name: str,
    format: Format,
) -> None:
    """Hadoop reads checksums, and Spark the summary of a directory of Parquet files."""
    if format == "csv":
        (root / "in/data.csv").write_text("1,a\n")
    else:
        spark.range(3).write.mode("overwrite").parquet(str(root / "in"))
    (root / "in" / name).unlink(missing_ok=True)
    (root / "in" / name).symlink_to(canaries.outside / "secret.txt")
    handle = pipeline.submit("same", input="in", format=format, output="out")
    with pipeline.working(spark):
        assert handle.wait(60).state == "failed"
    assert "a link?" in (handle.progress().error or "")


def test_the_output_of_a_stream_is_refused_as_only_its_log_says_which_files_count(
    pipeline: Pipeline, spark: SparkSession, root: Path
) -> None:
    (root / "rows").mkdir()
    (root / "rows/a.csv").write_text("1\n2\n")
    stream = spark.readStream.schema("id INT").csv(str(root / "rows"))
    query = (
        stream.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(root / "checkpoint"))
        .start(str(root / "in"), format="parquet")
    )
    query.awaitTermination(60)
    handle = pipeline.submit("same", input="in", format="parquet", output="out")
    with pipeline.working(spark):
        assert handle.wait(60).state == "failed"
    assert "output of a streaming query" in (handle.progress().error or "")


def test_a_named_link_that_leads_out_later_is_not_read(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    link = root / "in/link.txt"
    link.symlink_to(root / "in/data.txt")
    handle = pipeline.submit("same", input="in/link.txt", output="out", max_failures=0)
    forger.planned()
    part = forger.part({"files": [str(link)]})
    link.unlink()
    link.symlink_to(canaries.outside / "secret.txt")
    work(spark, pipeline)
    assert "must be below" in why(pipeline.queue, f"{handle.id}/plan")
    assert "leads out of" in why(pipeline.queue, part)
    with pytest.raises(InvalidArgument, match="must be below"):
        pipeline.submit("same", input="in/link.txt", output="other")


def test_a_manifest_is_not_written_through_a_link(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    (root / "out").mkdir()
    (root / "out/_holdfast").symlink_to(canaries.outside / "victim")
    handle = pipeline.submit(
        "same", input="in/data.txt", output="out", mode="append", max_failures=0
    )
    work(spark, pipeline)
    assert "leads out of" in why(pipeline.queue, f"{handle.id}/plan")


# ------------------------------------------------------------------ files in staging


def test_a_list_of_parts_that_was_replaced_is_checked(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    staging = forger.planned()
    forged = [{"files": [f"{canaries.outside}/secret.txt"], "size": 1}]
    (staging / "_parts-000000.json").write_text(json.dumps(forged))
    plan = forger.plan(order(root))
    work(spark, pipeline)
    assert "leads out of" in why(pipeline.queue, plan)
    assert forger.request("r").status().total == 0


def test_a_plan_that_was_replaced_publishes_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    publisher = published(forger, [result("00000.t", "part-0.txt")], finish="same")
    plan = Path(forger.staging()) / "_plan.json"
    (plan.parent / "00000.t").mkdir()
    (plan.parent / "00000.t/part-0.txt").write_text("one\n")
    content = json.loads(plan.read_text())
    for changes, said in (
        ({"output": str(root / "in"), "mode": "overwrite"}, "of another request"),
        ({"id": "other"}, "of another request"),
        ({"output_options": mounted(root, canaries.outside)}, "is not allowed"),
    ):
        plan.write_text(json.dumps({**content, "order": {**content["order"], **changes}}))
        work(spark, pipeline)
        assert said in why(pipeline.queue, publisher)
        pipeline.queue.revive(publisher)
    assert names(root / "in") == ["data.txt"]


def test_what_finish_came_to_is_checked(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    publisher = published(forger, [result("00000.t", "part-0.txt")], finish="same")
    forged = result("../../outside/keep", "part-00000-x-c000.txt")
    digest = hashlib.sha256(b"00000.t").hexdigest()[:16]
    (Path(forger.staging()) / f"_finished.{digest}.json").write_text(json.dumps(forged))
    work(spark, pipeline)
    assert "the result of finish" in why(pipeline.queue, publisher)


# --------------------------------------------------------------------------- schemas


def udt(module: str) -> dict[str, Any]:
    mine = {"type": "udt", "pyClass": f"{module}.X", "serializedClass": "gAQ=", "sqlType": "string"}
    field = {"name": "value", "type": mine, "nullable": True, "metadata": {}}
    return {"type": "struct", "fields": [field]}


@pytest.mark.parametrize("which", ["schema", "output", "in_files"])
def test_the_schema_of_a_plan_imports_nothing(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    canaries: Canaries,
    forger: Forger,
    which: str,
) -> None:
    staging = forger.planned()
    plan = json.loads((staging / "_plan.json").read_text())
    (staging / "_plan.json").write_text(json.dumps({**plan, which: json.dumps(udt("this"))}))
    part = forger.part({"files": [str(root / "in/data.txt")]})
    work(spark, pipeline)
    assert "this" not in sys.modules
    assert "user-defined type, 'this.X'" in why(pipeline.queue, part)


def test_the_schema_in_a_parquet_file_imports_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    about = {"org.apache.spark.sql.parquet.row.metadata": json.dumps(udt("this"))}
    table = pa.table({"value": ["a"]}).replace_schema_metadata(about)
    pq.write_table(table, root / "in/a.parquet")
    handle = pipeline.submit("same", input="in/*.parquet", output="out", max_failures=0)
    work(spark, pipeline)
    assert "this" not in sys.modules
    assert "user-defined type, 'this.X'" in why(pipeline.queue, f"{handle.id}/plan")


# --------------------------------------------------------------------------- own input (P14)


def test_a_request_does_not_replace_what_it_reads(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries, forger: Forger
) -> None:
    (root / "link").symlink_to(root / "in")
    for given, output in (
        ("in", "in"),
        ("in/*.txt", "in"),
        ("in/data.txt", "in"),
        ("in", "in/x"),
        ("link", "in"),
        ("link/*.txt", "in"),
        ("link/data.txt", "in"),
    ):
        with pytest.raises(InvalidArgument, match="would replace what is read"):
            pipeline.submit("same", input=given, format="text", output=output, mode="overwrite")
    forged = order(root, input=[str(root / "in")], output=str(root / "in"), mode="overwrite")
    found = order(root, id="f", input=[str(root / "*/*.txt")], output=str(root / "in"))
    behind = {**found, "id": "l", "input": [str(root / "l*/*.txt")]}
    ids = [forger.plan(forged)]
    ids += [forger.plan({**one, "mode": "overwrite"}, id=one["id"]) for one in (found, behind)]
    work(spark, pipeline)
    for id in ids:
        assert "would replace what is read" in why(pipeline.queue, id)
    assert names(root / "in") == ["data.txt"]


def test_an_output_beside_its_input_is_replaced(
    spark: SparkSession, pipeline: Pipeline, root: Path, canaries: Canaries
) -> None:
    (root / "a.csv").write_text("1\n")
    (root / "out").mkdir()
    handle = pipeline.submit("same", input="*.csv", output="out", mode="overwrite")
    work(spark, pipeline)
    must_be_published(handle, root)


# --------------------------------------------------------------------------- by chance


@pytest.mark.parametrize("seed", SEEDS)
def test_forged_jobs_touch_nothing_around_the_roots(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    canaries: Canaries,
    forger: Forger,
    seed: int,
) -> None:
    (root / "link").symlink_to(canaries.outside)
    forge = Forge(seed, nasty(str(root), str(canaries.outside), canaries.url))
    keep = frozenset({"id", "transform", "max_failures"})
    for n in range(40):
        forged = forge.forged(good_result() | {"seconds": n})
        published(forger, [forged], f"result {n}", output=str(root / "out"))
    for n in range(40):
        mine = good_order(str(root), id=f"plan {n}", output=f"{root}/out{n}")
        forger.plan(forge.forged(mine, keep), f"plan {n}")
        target = {"output": f"{root}/out"}
        forger.publish(forge.forged(target), f"publish {n}/end/1")
    staging = str(forger.planned("parts"))
    for _ in range(150):
        forged = forge.forged(good_part(str(root), staging))
        forger.request("parts").add(json.dumps(forged).encode(), handler="part", max_failures=0)
    honest = pipeline.submit("same", input="in/data.txt", output="honest")
    work(spark, pipeline)
    must_be_published(honest, root, "honest")
    assert len(pipeline.queue.failed(1000)) > 150
