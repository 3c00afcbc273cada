"""Counts of instructions: what callgrind wrote, what is comparable, which growth is told."""

import shutil
from pathlib import Path

import pytest

from bench import guard, instructions
from bench.counted import Counted
from bench.instructions import (
    NO_VALGRIND,
    NotCounted,
    counts_table,
    dumps,
    instructions_in,
    per_job,
)
from bench.measure import bench_server
from bench.page import MISSING
from bench.record import YARDSTICK, Both, Counts, load, moved, save, verdict

DUMP = """# callgrind format
version: 1
cmd:  valkey-server --port 10000
part: {part}
desc: Trigger: --dump-before=pingCommand

positions: line
events: Ir
summary: {instructions}


ob=(8) /usr/lib/librt.so.1
fn=(826) 0x0000000000001110
0 12

totals: {instructions}
"""


def counted(add: int, *, of: str = "valkey 9.1.2", yardstick: int = 15_000) -> Both:
    return {"server": Counts(of, {YARDSTICK: yardstick, "add": add})}


RECORDED = counted(100_000)


# ------------------------------------------------------------------------------ callgrind


def test_the_instructions_of_a_dump_are_its_summary() -> None:
    assert instructions_in(DUMP.format(part=1, instructions=8507523)) == 8507523


def test_a_file_without_a_summary_is_no_dump() -> None:
    with pytest.raises(NotCounted, match="has no summary"):
        instructions_in("totals: 7")


def test_dumps_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for part in (1, 2, 10):
        text = DUMP.format(part=part, instructions=1000 + part)
        (tmp_path / f"dump.{part}").write_text(text)
    (tmp_path / "dump").write_text("what was left at the end")
    assert dumps(tmp_path) == [1001, 1002, 1010]


def test_a_row_is_what_was_counted_between_its_two_marks() -> None:
    warm = 777
    found = [warm, 1000, warm, 50_000]
    assert per_job(found, {"add": 10, "lease": 100}) == {"add": 100, "lease": 500}


def test_a_program_whose_marks_were_not_seen_is_not_counted() -> None:
    with pytest.raises(NotCounted, match="3 marks were seen, not 4"):
        per_job([1, 2, 3], {"add": 10, "lease": 10})


# ------------------------------------------------------------------------------ comparing


@pytest.mark.parametrize(("now", "lines"), [(103_100, 1), (102_900, 0), (96_900, 1), (97_100, 0)])
def test_a_change_of_more_than_three_percent_is_told(now: int, lines: int) -> None:
    assert len(list(moved(counted(now), RECORDED))) == lines


def test_growth_is_loud_and_counts_and_a_fall_does_not() -> None:
    lines, grew = verdict(counted(103_100), RECORDED)
    assert grew
    assert lines == ["GREW by 3.1%: server, add: 100,000 → 103,100 instructions"]
    lines, grew = verdict(counted(90_000), RECORDED)
    assert not grew
    assert lines[0].startswith("fell by 10.0%: server, add")
    assert "--record" in lines[1]


def test_counts_that_stayed_are_one_line() -> None:
    lines, grew = verdict(counted(100_100), RECORDED)
    assert (len(lines), grew) == (1, False)


@pytest.mark.parametrize(
    "recorded",
    [{}, counted(100_000, of="valkey 9.1.3"), counted(100_000, yardstick=15_400)],
    ids=["nothing", "another version", "another build"],
)
def test_what_cannot_be_compared_is_told_and_not_judged(recorded: Both) -> None:
    lines, grew = verdict(counted(200_000), recorded)
    assert not grew
    assert [line.partition(":")[0] for line in lines] == ["not judged"]
    assert counts_table(counted(200_000), recorded).splitlines()[-1].count(MISSING) == 2


def test_the_table_has_the_figure_the_record_and_the_growth() -> None:
    row = counts_table(counted(103_100), RECORDED).splitlines()[-1]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        "add",
        "103,100",
        "100,000",
        "+3.1%",
    ]


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    save(RECORDED, tmp_path / "instructions.json")
    assert load(tmp_path / "instructions.json") == RECORDED
    assert load(tmp_path / "none.json") == {}


def test_the_record_has_the_rows_that_are_counted() -> None:
    with bench_server() as server:
        rows = Counted(server.url, server.client.ping, still=True).run()
    recorded = load()
    assert [list(one.counts) for one in recorded.values()] == [list(rows)] * 2
    assert set(recorded) == {"server", "client"}


# ------------------------------------------------------------------------------ valgrind


def test_without_valgrind_nothing_fails_unless_it_must(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert instructions.guard() == ([NO_VALGRIND], False)
    monkeypatch.setattr("sys.argv", ["instructions"])
    assert instructions.main() == 0
    monkeypatch.setattr("sys.argv", ["instructions", "--strict"])
    assert instructions.main() == 1
    assert capsys.readouterr().err.count("no valgrind") == 2


@pytest.mark.parametrize(("arguments", "ended"), [([], 0), (["--strict"], 1)])
def test_only_a_strict_run_fails_where_a_count_grew(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    ended: int,
) -> None:
    monkeypatch.setattr(instructions, "count", lambda: counted(103_100))
    monkeypatch.setattr(instructions, "load", lambda: RECORDED)
    monkeypatch.setattr("sys.argv", ["instructions", *arguments])
    assert instructions.main() == ended
    assert "GREW by 3.1%: server, add" in capsys.readouterr().out


def test_the_guard_says_which_count_grew_and_does_not_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(instructions, "count", lambda: counted(103_100))
    monkeypatch.setattr(instructions, "load", lambda: RECORDED)
    monkeypatch.setattr(guard, "Bench", lambda *_: None)
    monkeypatch.setattr(guard, "rows", lambda _bench: [])
    assert guard.main() == 0
    assert "GREW by 3.1%: server, add" in capsys.readouterr().out


needs_valgrind = pytest.mark.skipif(
    not shutil.which("valgrind"), reason="valgrind is not installed"
)


@needs_valgrind
def test_a_server_dumps_its_counters_at_each_mark(tmp_path: Path) -> None:
    under = instructions.callgrind(tmp_path, "pingCommand")
    with bench_server(under=under, more=instructions.QUIET) as server:
        server.client.ping()
        seen = len(dumps(tmp_path))
        for _ in range(10):
            server.client.set("key", b"value")
        server.client.ping()
        found = dumps(tmp_path)
    assert len(found) == seen + 1
    assert 1_000 < per_job(found[-2:], {"SET": 10})["SET"] < 100_000


@needs_valgrind
@pytest.mark.slow
@pytest.mark.timeout(600)  # Callgrind is fifty times slower than the program alone.
def test_counts_repeat_to_one_percent() -> None:
    first, second = instructions.count(), instructions.count()
    for side, one in first.items():
        for what, counted in one.counts.items():
            assert second[side].counts[what] == pytest.approx(counted, rel=0.01), (side, what)
