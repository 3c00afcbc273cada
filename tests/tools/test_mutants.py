"""The pure part of `make mutants`: which mutants there are, and which tests they meet."""

from __future__ import annotations

from collections import Counter

import pytest

from tools.mutants import (
    CannotTell,
    all_mutants,
    is_explained,
    kinds_of_keys,
    mutants_of,
    partners_of,
    per_cent,
    read_outcome,
    read_page,
    sample,
    touched_by,
)
from tools.mutants_plugin import choose

PARTNERS = partners_of(
    {"ready": "zset", "leased": "zset", "jobs": "hash", "wake": "list"}, ["ready", "leased", "jobs"]
)


def changes(lua: str) -> list[tuple[str, str]]:
    return [(mutant.kind, mutant.after) for mutant in mutants_of("x.lua", lua, PARTNERS)]


@pytest.mark.parametrize(
    ("line", "kind", "after"),
    [
        ("return a < b", "flip-comparison", "return a <= b"),
        ("return a ~= b", "flip-comparison", "return a == b"),
        ("return a and b", "flip-logic", "return a or b"),
        ("return not a", "drop-not", "return a"),
        ("return true", "flip-boolean", "return false"),
        ("return a + b", "swap-sign", "return a - b"),
        ("return 0", "nudge-number", "return 1"),
        ("return 1000", "nudge-number", "return 999"),
        ("return MAX_JOBS", "nudge-number", "return (MAX_JOBS - 1)"),
        ("return key.ready", "swap-key", "return key.leased"),
        ("call(x, y)", "drop", "(nothing)"),
        ("a.b, c = d, e", "drop", "(nothing)"),
        ("if a then b() end", "drop", "(nothing)"),
        ("if a then refuse('X', 'why') end", "drop-guard", "(nothing)"),
        ("call(x, y)  -- why", "drop", "(nothing)"),
    ],
)
def test_every_kind_changes_one_thing(line: str, kind: str, after: str) -> None:
    assert changes(f"{line}\n") == [(kind, after)]


@pytest.mark.parametrize(
    "lua",
    [
        "-- a < 0 and not true",
        "return 'a < 0 and not true', \"key.ready\"",
        "return -x",
        "return key.jobs, key.wake",
        "local a = b",
        "local a\nlocal b =\n  f(c)\n",
        "return f(\n  g(c),\n  d)\n",
        "local a = {\n  b = c,\n}\n",
        "if a then\nelse\nend\n",
        "local a = f(b)\n  or c\n",
    ],
)
def test_other_things_are_left_as_they_are(lua: str) -> None:
    assert [change for change in changes(lua) if change[0] != "flip-logic"] == []


def test_a_mutant_is_named_after_its_place_and_changes_nothing_else() -> None:
    lua = "local a = 5\n\nreturn 7 + b, 8\n"
    mutants = mutants_of("x.lua", lua, {})
    assert [mutant.id for mutant in mutants] == [
        "x.lua:1:nudge-number",
        "x.lua:3:nudge-number",
        "x.lua:3:swap-sign",
        "x.lua:3:nudge-number-2",
    ]
    assert mutants[-1].text == "local a = 5\n\nreturn 7 + b, 7\n"


def test_the_keys_of_a_kind_are_read_from_the_comments() -> None:
    kinds = kinds_of_keys(
        'NAMES = (\n    "ready",  # zset   id -> rank\n    "jobs",  # hash   …\n)'
    )
    assert kinds == {"ready": "zset", "jobs": "hash"}


def test_every_file_of_the_engine_has_mutants_and_a_transition_that_they_touch() -> None:
    mutants = all_mutants()
    assert len({mutant.id for mutant in mutants}) == len(mutants)
    assert {mutant.file for mutant in mutants} >= {"prelude.lua", "leases.lua", "shared/adding.lua"}
    assert touched_by("leases.lua", "lease") == ["lease"]
    assert "lease" in touched_by("prelude.lua", "held")
    assert "pause" not in touched_by("prelude.lua", "held")
    assert "pause" in touched_by("prelude.lua", "begin")


def test_a_sample_is_the_same_every_time_and_has_some_of_everything() -> None:
    mutants = all_mutants()
    some = sample(mutants, 200, 0)
    assert len(some) == 200
    assert sample(mutants, 200, 0) == some != sample(mutants, 200, 1)
    assert sample(mutants, 10**6, 0) == mutants
    counts = Counter(mutant.kind for mutant in some)
    for kind, count in Counter(mutant.kind for mutant in mutants).items():
        expected = count * 200 / len(mutants)
        # Four times as far as it usually is off: it must hold however the Lua changes.
        assert abs(counts[kind] - expected) <= 4 * expected**0.5 + 1


def test_a_mutant_is_explained_wherever_its_line_stands() -> None:
    page = (
        "| `x.lua` drop | `f(1)` → `(nothing)` | why |\n| `y.lua` | `g(1)` → `(anything)` | why |\n"
    )
    explained = read_page(page)
    moved = mutants_of("x.lua", "\n\nif a then\n  f(1)\nend\n", {})
    assert [mutant.kind for mutant in moved if is_explained(mutant, explained)] == ["drop"]
    assert all(is_explained(mutant, explained) for mutant in mutants_of("y.lua", "g(1)\n", {}))
    assert not any(is_explained(mutant, explained) for mutant in mutants_of("x.lua", "g(1)\n", {}))


def test_what_is_explained_does_not_count() -> None:
    assert per_cent(["caught", "caught", "caught", "survived", "explained"]) == 75
    assert per_cent(["explained"]) == 100


def test_only_a_test_that_fails_catches() -> None:
    assert not read_outcome(0, "9 passed", 1).caught
    assert (
        read_outcome(1, "FAILED tests/a.py::b[c d] - AssertionError", 1).by == "tests/a.py::b[c d]"
    )
    with pytest.raises(CannotTell):
        read_outcome(4, "ERROR: usage", 1)


def test_the_tests_that_bear_the_name_of_a_transition_come_first_and_the_model_last() -> None:
    tests = [
        "tests/model/test_model.py::test_all[rank]",
        "tests/engine/test_add.py::test_a",
        "tests/engine/test_any.py::test_b",
        "tests/engine/test_any.py::test_c[add-1]",
        "tests/engine/test_any.py::test_c[lease-1]",
        "tests/engine/test_any.py::test_c[lease-2]",
        "tests/engine/test_lease.py::test_d",
    ]
    model, far, general, of_add, one, two, named = tests
    everything = [named, one, two, general, of_add, far, model]
    assert choose(tests, {"lease"}, {"add"}, 99) == everything
    assert choose(tests, {"lease"}, {"add"}, 4) == [named, one, two, general, model]
    assert set(choose(tests, {"lease"}, {"add"}, 3)) - {one, two} == {named, general, model}
