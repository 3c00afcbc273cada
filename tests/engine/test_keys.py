from __future__ import annotations

import re

import pytest

from engine_support import words
from holdfast import InvalidArgument
from holdfast.connection.protocol import Packer
from holdfast.engine import scripts
from holdfast.engine.call import Call
from holdfast.engine.keys import NAMES, queue_keys
from holdfast.engine.scripts import LEASE, PAUSE, SCRIPTS

ENGINE = scripts.LUA
LUA = {
    path.relative_to(ENGINE).with_suffix("").as_posix(): re.sub(r"--.*", "", path.read_text())
    for path in ENGINE.rglob("*.lua")
}
TRANSITIONS = sorted({script.name for script in scripts.SCRIPTS})
# A key is named, or is what a loop took out of a list of named ones.
KEY = (
    r"(?:[\w.]+ and key\.\w+ or )?key\.\w+|(?:SETS|(?:SET|HASH)_KEYS)\[[\w.]+\]|set|set_key|hash"
    r"|unpack\(KEYS\)"
)
STRING = re.compile(r"'[^']*'|\"[^\"]*\"")


def test_a_script_has_the_places_of_the_keys_instead_of_their_names() -> None:
    places = set(range(1, len(NAMES) + 1))
    for script in SCRIPTS:
        text = script.text.decode()
        assert not re.search(r"\bkey\b", text)
        assert {int(place) for place in re.findall(r"KEYS\[(\d+)\]", text)} <= places
    assert "call('ZPOPMIN', KEYS[1], " in LEASE.text.decode()
    assert NAMES[0] == "ready"


def test_a_script_carries_only_the_functions_that_it_reaches() -> None:
    for script in SCRIPTS:
        text = script.text.decode()
        for function in re.findall(r"^local function (\w+)", text, re.MULTILINE):
            assert len(re.findall(rf"\b{function}\b", text)) > 1, (script.name, function)
    assert "function begin" in PAUSE.text.decode()
    assert "function read_jobs" not in PAUSE.text.decode()


def test_no_word_in_capitals_is_left_for_the_server_to_look_up() -> None:
    for script in SCRIPTS:
        code = STRING.sub("", script.text.decode())
        words = set(re.findall(r"\b[A-Z][A-Z_]+\b", code)) - {"ARGV", "KEYS"}
        assert words == set(re.findall(r"^local ([A-Z_]+) =", code, re.MULTILINE))


def test_every_transition_is_a_script_and_every_script_a_transition() -> None:
    assert sorted(scripts.transitions()) == TRANSITIONS


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


def test_only_delete_sees_the_keys_themselves() -> None:
    bodies = {name: body for name, (_, body) in scripts.transitions().items()}
    assert [name for name, body in bodies.items() if re.search(r"\bKEYS\b", body)] == ["delete"]
    assert not re.search(r"\bKEYS\b", scripts.shared())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.name}-{script.flags}")
def test_every_script_is_given_exactly_the_keys_of_its_queue(script) -> None:  # type: ignore[no-untyped-def]
    packed = Packer("a queue").pack(Call(script, [b"argument"], lambda _: None), b"7", b"me", 5)
    name, sha, count, *rest = words(packed)
    assert (name, sha, int(count)) == (b"EVALSHA", script.sha, len(NAMES))
    assert tuple(rest[: len(NAMES)]) == queue_keys("a queue")
    caller = [b"me", b"5"] if script.changes else []
    assert rest[len(NAMES) :] == [b"7", *caller, b"argument"]


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
