"""Older versions of this one, whose brokers run beside the new ones: a copy that supports less, or a revision of long ago."""

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.command import SOURCE
from tests.support.server import Server

_TABLE: Final = Path("penstock", "model", "features.py")


def narrower_source(home: Path, ranges: Mapping[str, tuple[int, int]]) -> str:
    """For PYTHONPATH: this source, with these ranges of levels in the place of its own."""
    tree = home / "older"
    shutil.copytree(SOURCE, tree, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    lines = [f"    {name!r}: Levels{levels}," for name, levels in ranges.items()]
    patch = ["", "SUPPORTED = MappingProxyType({**SUPPORTED,", *lines, "})", ""]
    with open(tree / _TABLE, "a", encoding="utf-8") as table:
        table.write("\n".join(patch))
    return str(tree)


def earlier_revisions() -> list[str]:
    """`UPGRADE_FROM=REVISION pytest …` also upgrades from there."""
    return [name for name in os.environ.get("UPGRADE_FROM", "").split(",") if name]


def source_of(home: Path, revision: str) -> str:
    """For PYTHONPATH: the source as it was in that revision."""
    packed = subprocess.run(
        ["git", "archive", revision, "src"],
        cwd=Path(SOURCE).parent,
        capture_output=True,
        check=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(home / "earlier", filter="data")
    return str(home / "earlier" / "src")


def run_from(server: Server, source: str) -> None:
    """From its next start on."""
    server.variables["PYTHONPATH"] = source
