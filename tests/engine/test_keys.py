from __future__ import annotations

import re

import pytest

from engine_support import words
from holdfast import InvalidArgument
from holdfast.connection.protocol import Packer
from holdfast.engine import library
from holdfast.engine.call import Call
from holdfast.engine.keys import NAMES, queue_keys
from holdfast.engine.library import FUNCTIONS, LEASE_WITH_RESULTS, PAUSE, Function
from holdfast.engine.replies import RECORD_BYTES, RECORD_FORMAT, Record

ENGINE = library.LUA
LUA = {
    path.relative_to(ENGINE).with_suffix("").as_posix(): re.sub(r"--.*", "", path.read_text())
    for path in ENGINE.rglob("*.lua")
}
TRANSITIONS = sorted({function.runs for function in FUNCTIONS})
# A key is named, or is what a loop took out of a list of named ones.
KEY = (
    r"(?:[\w.]+ and key\.\w+ or )?key\.\w+|(?:SETS|(?:SET|HASH)_KEYS)\[[\w.]+\]|set|set_key|hash"
    r"|unpack\(keys\)"
)
STRING = re.compile(r"'[^']*'|\"[^\"]*\"")


def test_the_library_knows_the_keys_in_the_order_in_which_they_are_sent() -> None:
    received = re.search(r"local function receive.*?\n(.*?) = unpack", LUA["prelude"], re.DOTALL)
    assert received
    assert tuple(re.findall(r"key\.(\w+)", received[1])) == NAMES


def test_the_library_stores_the_numbers_of_a_record_in_the_order_of_the_client() -> None:
    listed = re.search(r"local NUMBERS = \{(.*?)\}", LUA["shared/requests"], re.DOTALL)
    assert listed
    numbers = list(Record.__struct_fields__[:-1])
    assert re.findall(r"'(\w+)'", listed[1]) == numbers
    text = LUA["shared/requests"]
    assert f"local FORMAT, BYTES = '{RECORD_FORMAT}', {RECORD_BYTES}" in text
    unpacked = re.search(r"local (group, .*?) = struct.unpack", text, re.DOTALL)
    packed = re.search(r"struct.pack\(FORMAT,(.*?)\)", text, re.DOTALL)
    assert unpacked
    assert packed
    assert re.findall(r"\w+", unpacked[1]) == numbers
    assert re.findall(r"record\.(\w+)", packed[1]) == numbers


def test_every_transition_is_a_function_and_every_function_a_transition() -> None:
    found = [
        name for text in LUA.values() for name in re.findall(r"function transition\.(\w+)", text)
    ]
    assert sorted(found) == TRANSITIONS


def test_a_function_is_called_by_a_name_that_says_what_the_library_contains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = PAUSE.called
    texts = (library.code, library.prefix)
    monkeypatch.setitem(library.BOUNDS, "MAX_CHUNKS", 17)
    for text in texts:
        text.cache_clear()
    changed = PAUSE.called
    monkeypatch.undo()
    for text in texts:
        text.cache_clear()
    assert re.fullmatch(r"hf_[0-9a-f]{12}_pause", before)
    assert changed != before == PAUSE.called


def test_the_place_of_an_error_is_found_from_the_line_that_the_server_names() -> None:
    lines = library.library().decode().splitlines()
    for file in ("prelude", "shared/ending", "audit"):
        ours = library.read(file).splitlines()
        number = len(ours) // 2
        line = lines.index(ours[0]) + number
        assert lines[line - 1] == ours[number - 1]
        assert library.place_of(line) == f"{file}.lua:{number}"


@pytest.mark.parametrize("file", LUA)
def test_no_script_builds_or_spells_out_a_key(file: str) -> None:
    text = LUA[file]
    literals = [literal[1:-1] for literal in STRING.findall(text)]
    assert not [literal for literal in literals if "hf:" in literal or "{" in literal]
    commands = re.findall(r"\bp?call\(\s*'([A-Z]+)'(?:\s*,\s*([^,()]+(?:\([^()]*\))?))?", text)
    assert commands
    for command, key in commands:
        if command == "TIME":
            continue
        assert re.fullmatch(KEY, key.strip()), (command, key)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_every_function_is_given_exactly_the_keys_of_its_queue(function: Function) -> None:
    call = Call(function, [b"argument"], lambda _: None)
    command, called, count, *rest = words(Packer("a queue").pack(call, b"7", b"me", 5))
    assert (called, int(count)) == (function.called.encode(), len(NAMES))
    assert command == (b"FCALL" if function.changes else b"FCALL_RO")
    assert tuple(rest[: len(NAMES)]) == queue_keys("a queue")
    caller = [b"me", b"5"] if function.changes else []
    assert rest[len(NAMES) :] == [b"7", *caller, b"argument"]


def test_a_script_is_given_the_same_and_at_last_what_to_run() -> None:
    call = Call(LEASE_WITH_RESULTS, [b"argument"], lambda _: None)
    command, sha, count, *rest = words(Packer("q").pack_as_script(call, b"7", b"me", 5))
    assert (command, sha, int(count)) == (b"EVALSHA", library.sha(""), len(NAMES))
    assert rest == [*queue_keys("q"), b"7", b"me", b"5", b"argument", b"lease"]


def test_the_keys_of_a_queue_share_one_slot() -> None:
    keys = queue_keys("emails")
    assert keys[0] == b"hf:{emails}:ready"
    assert len(set(keys)) == len(NAMES)
    assert all(key.startswith(b"hf:{emails}:") for key in keys)


@pytest.mark.parametrize(
    "name", ["a", "{", "{}", "a}b", "a}:ready", "{a}:ready", ":", "\0", "\n", " ", "ü", "x" * 512]
)
def test_a_name_may_be_anything_that_leaves_the_braces_to_us(name: str) -> None:
    key = queue_keys(name)[0]
    # What a cluster hashes: between the first brace and the first that closes one.
    tag = key[key.index(b"{") + 1 :].partition(b"}")[0]
    assert tag
    assert key == b"hf:{" + name.encode() + b"}:ready"
    assert {k[k.index(b"{") + 1 :].partition(b"}")[0] for k in queue_keys(name)} == {tag}


def test_two_names_never_share_a_key() -> None:
    names = ["a", "a}", "a}:ready", "a}:ready}", "a:ready", "{a", "{a}", "a{", "A", "a ", "a\0"]
    keys = [key for name in names for key in queue_keys(name)]
    assert len(set(keys)) == len(names) * len(NAMES)


@pytest.mark.parametrize("name", ["", "}", "}a", "x" * 513, "ü" * 257, "\ud800", None, b"a", 7])
def test_a_name_that_could_not_be_kept_apart_or_exact_is_refused(name: object) -> None:
    with pytest.raises(InvalidArgument, match="queue name"):
        queue_keys(name)  # type: ignore[arg-type]
