"""The pure parts of the bench: what a sweep chooses, what a target compares, what the page says."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench import results as r
from bench.compare import PARTS, Compare, Plan, as_values
from bench.crew import Report, last_line
from bench.measure import Load
from bench.page import (
    MISSING,
    growth_table,
    instructions_table,
    main_table,
    page,
    setting,
    table,
    targets_table,
    with_spread,
)
from bench.peers.contenders import EVERYBODY, OURS, PEERS, chosen
from bench.peers.environments import HERE
from bench.record import ADD, YARDSTICK, Counts, load
from bench.results import Growth, Results, fastest, keep, spread
from bench.rounds import Life, rate
from bench.targets import RATIOS, TARGETS, Target, judge, judged, recovered

THREADS = "Holdfast, threads"


def measured(**values: list[float]) -> Results:
    results = Results()
    for name, rounds in values.items():
        for value in rounds:
            results.add(r.NEAR, r.DRAIN, name, value)
    return results


ROW = Target("row", r.DRAIN, "us", "best", ("a", "b"), 8)


# ------------------------------------------------------------------------------------ numbers


def test_the_fastest_setting_of_a_sweep_is_chosen_and_the_first_of_equals() -> None:
    assert fastest([({"n": 1}, 5.0), ({"n": 8}, 9.0), ({"n": 64}, 7.0)]) == {"n": 8}
    assert fastest([({"n": 1}, 5.0), ({"n": 8}, 5.0)]) == {"n": 1}
    assert fastest([({"n": 1}, 5.0), ({"n": 8}, 4.0), ({"n": 1}, 3.0), ({"n": 8}, 6.0)]) == {"n": 8}


def test_a_sweep_in_which_nothing_works_has_no_fastest() -> None:
    with pytest.raises(ValueError, match="setting that works"):
        fastest([])


def test_a_median_is_not_moved_by_one_bad_round() -> None:
    assert measured(us=[10, 1, 11]).median(r.NEAR, r.DRAIN, "us") == 10
    assert measured().median(r.NEAR, r.DRAIN, "us") is None


def test_the_spread_is_half_the_range_beside_the_median() -> None:
    assert spread([90, 100, 110]) == pytest.approx(0.1)
    assert spread([0, 0]) == 0


def test_the_rate_of_two_workers_is_from_the_first_handler_of_both_to_the_last() -> None:
    reports = [Report(60, 10.0, 11.0), Report(41, 10.5, 12.0), Report()]
    assert rate(reports) == pytest.approx(50)


def test_a_quick_look_tries_the_ends_of_a_sweep() -> None:
    peer = chosen("saq")[0]
    quick, full = (Plan((peer,), 1, 1, 1, quick) for quick in (True, False))
    assert list(quick.swept(peer)) == [peer.sweep[0], peer.sweep[-1]]
    assert full.swept(peer) == peer.sweep


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = measured(us=[1.5, 2.5])
    results.trouble("them", "drain", "does not install")
    results.growth = [Growth("leases", [1, 10], [[1.0], [2.0]], 2)]
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results
    assert Results.load(tmp_path / "none.json") == Results()


# ------------------------------------------------------------------------------------ targets


def test_a_target_is_beside_the_best_of_the_others() -> None:
    verdict = judge(measured(us=[80, 90], a=[10], b=[5]), ROW)
    assert (verdict.beside, verdict.ratio, verdict.reached) == ("best: a", 8.5, True)
    assert not judge(measured(us=[79], a=[10], b=[5]), ROW).reached


def test_where_less_is_better_the_best_is_the_least() -> None:
    verdict = judge(measured(us=[2.4], a=[2], b=[9]), replace(ROW, small=True, factor=1.2))
    assert (verdict.beside, verdict.reached) == ("best: a", True)
    assert verdict.target.startswith("≤ 1.2")
    assert not judge(measured(us=[2.5], a=[2]), replace(ROW, small=True, factor=1.2)).reached


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    assert judge(measured(us=[80]), ROW).reached is None
    assert judge(measured(a=[80]), ROW).reached is None
    unmeasured = [one for one in judged(Results()) if one.measure != r.INSTRUCTIONS]
    assert {one.reached for one in unmeasured} == {None}


def test_a_target_can_compare_with_two_processes_of_the_others() -> None:
    results = measured(us=[100], a=[90])
    results.add(r.NEAR, r.TWO, "a", 20)
    assert judge(results, replace(ROW, their_measure=r.TWO, others=("a",))).ratio == 5


def test_a_ratio_that_another_bench_kept_is_judged() -> None:
    row = RATIOS[0].row
    for ratio, reached in ((2.5, True), (2.6, False)):
        [verdict] = [one for one in judged(Results(ratios={row: ratio})) if one.row == row]
        assert (verdict.ratio, verdict.reached) == (ratio, reached)


def test_a_ratio_that_was_not_kept_names_its_bench() -> None:
    [line] = [
        line for line in targets_table(judged(Results())).splitlines() if RATIOS[0].row in line
    ]
    assert f"not measured: `{RATIOS[0].command}`" in line


def test_a_kept_ratio_stays_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.results.FILE", tmp_path / "results.json")
    measured(us=[1]).save(tmp_path / "results.json")
    keep("row", 1.5)
    results = Results.load(tmp_path / "results.json")
    assert results.ratios == {"row": 1.5}
    assert results.median(r.NEAR, r.DRAIN, "us") == 1


def test_the_instructions_and_the_bytes_have_a_limit() -> None:
    results = Results()
    results.add(r.NEAR, r.BYTES, THREADS, 261)
    found = {one.measure: one for one in judged(results)}
    assert found[r.BYTES].reached is False
    recorded = load()["client"].counts[ADD]
    assert found[r.INSTRUCTIONS].ours == recorded
    assert f"| {recorded:,} " in targets_table([found[r.INSTRUCTIONS]])


def test_recovery_may_take_the_lease_and_a_second() -> None:
    for seconds, reached in ((5.9, True), (6.1, False)):
        results = Results()
        results.add(r.NEAR, r.RECOVERY, THREADS, seconds)
        assert recovered(results).reached is reached


def test_every_target_names_contenders_that_there_are() -> None:
    names = {one.name for one in EVERYBODY}
    for one in TARGETS:
        assert {one.ours, *one.others} <= names
        assert one.others


# ------------------------------------------------------------------------------- contenders


def test_names_are_told_apart_and_chosen_by_their_words() -> None:
    assert len({one.name for one in EVERYBODY}) == len(EVERYBODY)
    assert [one.name for one in chosen("bullmq, huey")] == [
        "BullMQ (Node)",
        "BullMQ (Node), one at a time",
        "Huey",
        "BullMQ (Python)",
    ]
    assert chosen("") == EVERYBODY
    with pytest.raises(SystemExit, match="nobody is called nosuch"):
        chosen("nosuch")


def test_every_peer_has_a_pinned_version_and_an_adapter() -> None:
    for one in PEERS:
        assert one.version().count(".") >= 1
        assert one.node or (HERE / f"{one.module}.py").exists()
    for pins in HERE.glob("*.txt"):
        assert all("==" in line for line in pins.read_text().split())


def test_every_part_of_a_run_is_there() -> None:
    assert all(callable(getattr(Compare, part)) for part in PARTS)


def test_a_life_is_five_measures() -> None:
    life = as_values("life", Life(1, 2, 3, 4, 5))
    assert life == {r.ADD: 1, r.DRAIN: 2, r.BYTES: 3, r.TRIPS: 4, r.SERVER: 5}
    assert as_values(r.TWO, 7.0) == {r.TWO: 7.0}


# --------------------------------------------------------------------------------- the page


def test_a_table_stands_in_columns() -> None:
    assert table(["", "n"], [["a", "10"], ["long", "2"]]).splitlines() == [
        "|      | n  |",
        "|------|----|",
        "| a    | 10 |",
        "| long | 2  |",
    ]


def test_a_number_has_its_spread_when_there_are_several_rounds() -> None:
    assert with_spread([]) == MISSING
    assert with_spread([1234.5]) == "1,234"
    assert with_spread([900, 1000, 1100]) == "1,000 ±10 %"
    assert with_spread([1.0, 1.5, 2.0], "time") == "1.50 ±33 %"


def test_a_peer_that_did_not_run_is_in_the_table_and_its_reason_below() -> None:
    results = measured(**{THREADS: [50_000.0]})
    results.trouble("SAQ", "life", "saq does not install: no matching distribution")
    lines = main_table(results).splitlines()
    assert any(line.startswith("| SAQ") and line.count(MISSING) >= 8 for line in lines)
    assert "- SAQ: life: saq does not install: no matching distribution" in page(results)
    assert not any(line.startswith("| Huey") for line in lines)


def test_a_trouble_that_is_over_is_forgotten() -> None:
    results = Results()
    results.trouble("SAQ", "life", "no")
    results.cured("SAQ", "life")
    results.cured("SAQ", "latency")
    assert "Everybody did everything." in page(results)
    assert "SAQ" not in main_table(results)


def test_the_page_has_every_section_and_says_what_was_run() -> None:
    results = measured(**{one.name: [1000.0, 1100.0] for one in (*OURS, *PEERS)})
    results.machine = {"machine": "2 cores", "command": "`make bench-peers`"}
    results.settings[r.NEAR] = {"Celery": {"pool": "solo", "concurrency": 1, "forks": False}}
    results.add(r.FAR, r.DRAIN, THREADS, 500)
    results.add(r.NEAR, r.RECOVERY, THREADS, 5.2)
    results.trouble("Celery", r.RECOVERY, "not taken over within 90 s")
    text = page(results)
    assert "- command: `make bench-peers`" in text
    assert "drain /s, 2 ms away" in text
    assert "AOF always" not in text
    assert "pool solo, concurrency 1" in text
    assert "not taken over within 90 s" in text.partition("## Recovery")[2].partition("##")[0]
    assert "never: the job is lost" in text
    assert "Not measured: `make bench-growth`." in text
    for line in text.splitlines():
        assert line == line.rstrip()


def test_the_recorded_instructions_of_both_sides_stand_side_by_side() -> None:
    both = {
        "server": Counts("valkey 9.1.2", {YARDSTICK: 15_000, "add": 246_000}),
        "client": Counts("Python 3.11.2", {YARDSTICK: 212_000, "add": 67_000}),
    }
    lines = instructions_table(both).splitlines()
    assert [cell.strip() for cell in lines[-1].split("|")[1:-1]] == ["add", "246,000", "67,000"]
    assert "--record" in instructions_table({})


def test_the_page_says_how_busy_the_machine_was() -> None:
    assert "- far: load average 0.5 at the start" in page(
        Results(busy={"far": "load average 0.5 at the start"})
    )


def test_the_load_is_of_now_and_of_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([[0, 0, 0, 0, 0, 0, 0, 0], [50, 0, 0, 45, 0, 0, 0, 5]])
    averages = iter([(0.5, 0.0, 0.0), (2.0, 0.0, 0.0)])
    monkeypatch.setattr("bench.measure._ticks", lambda: next(ticks))
    monkeypatch.setattr("os.getloadavg", lambda: next(averages))
    said = str(Load())
    assert said == (
        "load average 0.5 at the start, 2.0 at the end, 5.0 % of the processor time stolen"
    )


def test_targets_are_marked() -> None:
    reached = judge(measured(us=[80], a=[10]), ROW)
    missed = judge(measured(us=[79], a=[10]), ROW)
    absent = judge(Results(), ROW)
    rows = targets_table([reached, missed, absent]).splitlines()[2:]
    marks = [row.split("|")[-2].strip() for row in rows]
    assert marks == ["reached", "missed", "not measured"]


def test_a_reason_that_several_rows_share_is_told_once() -> None:
    missed = measured(us=[79], a=[10])
    rows = [replace(ROW, row=row, why="it is slow") for row in ("one", "one", "two")]
    text = targets_table([judge(missed, row) for row in rows])
    assert text.splitlines()[-1] == "- one; two: it is slow"
    assert text.count("it is slow") == 1


def test_growth_is_from_the_smallest_to_the_largest() -> None:
    growth = [
        Growth("waiting jobs", [1_000, 1_000_000], [[10.0], [19.0, 30.0, 18.0]], 2),
        Growth("leases", [10, 10_000], [[10.0], [21.0]], 2),
        Growth("bytes", [100, 1_000_000], [[10.0], [900.0]], 2, "bytes are bytes."),
    ]
    text = growth_table(growth)
    marks = [row.split("|")[-2].strip() for row in text.splitlines()[2:5]]
    assert marks == ["reached", "missed", "explained"]
    assert "10.0 → 19.0" in text
    assert text.endswith("- bytes: bytes are bytes.")


def test_what_is_not_swept_is_not_named() -> None:
    assert setting({"concurrency": 8, "prefetch": None, "forks": True}) == "concurrency 8"


def test_the_last_line_of_an_error_is_told() -> None:
    assert last_line("Traceback\n  File\nImportError: no\n\n") == "ImportError: no"
    assert last_line("") == "it ended without a word"
