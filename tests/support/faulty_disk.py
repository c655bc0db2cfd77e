"""A disk that fails, stalls or lies when a test says so, for a broker that runs with it preloaded."""

import errno
from pathlib import Path
from typing import NamedTuple

from tests.support.preloaded import build


class Sync(NamedTuple):
    path: str
    error: int  # 0: it went well


class FaultyDisk:
    """Rules by operation (sync, write, read, send, cut, rename) and a part of the file's path."""

    def __init__(self, directory: Path) -> None:
        self._rules_path = directory / "fault-rules"
        self._trace_path = directory / "fault-trace"
        self._rules: list[str] = []
        self.variables = {  # for the broker's environment
            "LD_PRELOAD": str(build("faulty_disk")),
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
