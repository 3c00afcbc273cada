"""What a release is refused for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import release


def test_a_release_is_refused_when_two_builds_differ(tmp_path: Path) -> None:
    both = [tmp_path / "one" / "a.whl", tmp_path / "two" / "a.whl"]
    for file in both:
        file.parent.mkdir()
        file.write_bytes(b"the same")
    release.same(both[:1], both[1:])
    both[1].write_bytes(b"another")
    with pytest.raises(SystemExit, match=r"two builds of a\.whl differ"):
        release.same(both[:1], both[1:])
