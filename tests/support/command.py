"""Runs the `penstock` command as a user does: a process of its own, with stdin, stdout, stderr and an exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import penstock

SOURCE = str(Path(penstock.__file__).parents[1])
PATIENCE_S = 50.0  # many times what any command needs


class Done(NamedTuple):
    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**kept, "PYTHONPATH": SOURCE, "COLUMNS": "200", **more}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "penstock", *map(str, words)]


def penstock_command(*words: object, stdin: str | bytes = b"", **variables: str) -> Done:
    """Runs to the end, and asserts nothing."""
    ended = subprocess.run(
        command(*words),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        env=environment(**variables),
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def start_penstock(*words: object, **variables: str) -> "subprocess.Popen[str]":
    """Starts and returns at once; the caller waits for what it prints, and ends it."""
    return subprocess.Popen(
        command(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**variables),
        text=True,
        bufsize=1,
    )
