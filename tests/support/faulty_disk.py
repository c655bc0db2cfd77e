"""A disk that fails, stalls or lies when a test says so, for a broker that runs with it preloaded."""

import errno
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

_SOURCE = Path(__file__).with_name("faulty_disk.c")


class Sync(NamedTuple):
    path: str
    error: int  # 0: it went well


class FaultyDisk:
    """Rules by operation (sync, write, read, send, cut, rename) and a part of the file's path."""

    def __init__(self, directory: Path) -> None:
        library = _library()
        self._rules_path = directory / "fault-rules"
        self._trace_path = directory / "fault-trace"
        self._rules: list[str] = []
        self.variables = {  # for the broker's environment
            "LD_PRELOAD": str(library),
            "FAULTS_RULES": str(self._rules_path),
            "FAULTS_TRACE": str(self._trace_path),
        }

    def fail(self, operation: str, part: str, error: int = errno.EIO) -> None:
        self._add(f"{operation} {part} error {error}")

    def slow_down(self, operation: str, part: str, delay_ms: int) -> None:
        self._add(f"{operation} {part} delay {delay_ms}")

    def hold(self, operation: str, part: str) -> None:
        """Until `heal`, such calls do not return."""
        self._add(f"{operation} {part} hold 0")

    def do_half(self, operation: str, part: str) -> None:
        self._add(f"{operation} {part} short 0")

    def heal(self) -> None:
        self._rules = []
        self._write()

    def syncs(self, part: str = "") -> list[Sync]:
        """Those that have returned, of files whose path has `part`."""
        if not self._trace_path.exists():
            return []
        found = []
        for line in self._trace_path.read_text().splitlines():
            error, _, path = line.partition(" ")
            if part in path:
                found.append(Sync(path, int(error)))
        return found

    def _add(self, rule: str) -> None:
        self._rules.append(rule)
        self._write()

    def _write(self) -> None:
        new = self._rules_path.with_suffix(".new")
        new.write_text("".join(f"{rule}\n" for rule in self._rules))
        new.rename(self._rules_path)


@functools.cache
def _library() -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the faulty disk with")
    library = Path(tempfile.mkdtemp(prefix="penstock-faults-")) / "faulty_disk.so"
    built = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"],
        capture_output=True,
        check=False,
    )
    if built.returncode != 0:
        pytest.skip(f"the faulty disk does not build here: {built.stderr.decode()[-300:]}")
    return library
