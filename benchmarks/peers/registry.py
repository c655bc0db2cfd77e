"""Where peers come from: package registries that this machine is set up for, into a cache; nothing is installed system-wide."""

import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

CACHE_VARIABLE: Final = "BENCH_CACHE"
_FETCH_TIMEOUT_S: Final = 600.0
_COMPLETE: Final = ".complete"
_SHOWN_CHARACTERS: Final = 300

_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
<dependencies>{}</dependencies></project>"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


class Missing(Exception):
    """A peer, or its client, that cannot be had here, and why."""


def cache_directory() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "penstock" / "peers"


def java() -> str:
    return _program("java")


def maven_libraries(name: str, artefacts: Sequence[str]) -> Path:
    """A directory with the artefacts (GROUP:ARTEFACT:VERSION) and all they need."""
    there = cache_directory() / name
    if not (there / _COMPLETE).exists():
        maven = _program("mvn")
        with tempfile.TemporaryDirectory(prefix="penstock-peer-") as work:
            listed = "".join(_DEPENDENCY.format(*artefact.split(":")) for artefact in artefacts)
            Path(work, "pom.xml").write_text(_POM.format(listed))
            _fetch(
                [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"], work
            )
            _keep(Path(work, "lib"), there)
    return there


def debian_tree(name: str, packages: Sequence[str]) -> Path:
    """A directory with the packages unpacked, as if it were the root of a system."""
    there = cache_directory() / name
    if not (there / _COMPLETE).exists():
        apt, dpkg = _program("apt-get"), _program("dpkg")
        with tempfile.TemporaryDirectory(prefix="penstock-peer-") as work:
            _fetch([apt, "-qq", "download", *packages], work)
            tree = Path(work, "tree")
            for archive in sorted(Path(work).glob("*.deb")):
                _fetch([dpkg, "-x", str(archive), str(tree)], work)
            _keep(tree, there)
    return there


def client_library(module: str, distribution: str) -> Any:
    """A client that only the extra `bench` brings; untyped, or not here when types are checked."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Missing(
            f"Python has no {distribution}; install it with: pip install 'penstock[bench]'"
        ) from None


def version_of(command: Sequence[str]) -> str:
    """What a program says its version is, or that it does not run here."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{command[0]} does not run here: {error}") from None
    return (done.stdout or done.stderr).strip().splitlines()[0]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not on the PATH")
    return found


def _fetch(command: Sequence[str], directory: str) -> None:
    what = " ".join(Path(word).name for word in command[:3])
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{what}: no end in {_FETCH_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise Missing(f"{what}: {said[-_SHOWN_CHARACTERS:]}")


def _keep(made: Path, there: Path) -> None:
    """Half of it is never taken for the whole: the mark comes last."""
    shutil.rmtree(there, ignore_errors=True)
    there.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(made, there, symlinks=True)
    (there / _COMPLETE).touch()
