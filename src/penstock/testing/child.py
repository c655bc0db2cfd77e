"""A broker as a process of its own, as operators run it: it can be killed."""

import atexit
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import penstock
from penstock.testing.endpoints import Endpoints, parse_ready_line

STOP_TIMEOUT_S: Final = 30.0
_SHOWN_LOG_LINES: Final = 20


class ChildHost:
    """Owns at most one child at a time. Its stderr goes to a file; the child ends with this process."""

    def __init__(self, log_path: Path, start_timeout_s: float) -> None:
        self._log_path = log_path
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, options: Mapping[str, str]) -> Endpoints:
        assert self._process is None, "one child at a time"
        command = [sys.executable, "-m", "penstock", "serve"]
        for name, value in options.items():
            command += ["-o", f"{name}={value}"]
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is for the test, which stops us itself
            )
        atexit.register(self.kill)
        return self._await_ready(self._process)

    def stop(self) -> None:
        process = self._take()
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(
                self._with_log(f"no end {STOP_TIMEOUT_S:.0f} s after SIGTERM")
            ) from None
        if status != 0:
            raise RuntimeError(self._with_log(f"exit code {status} after SIGTERM"))

    def kill(self) -> None:
        if self._process is not None:
            process = self._take()
            process.kill()
            process.wait()

    def _take(self) -> subprocess.Popen[bytes]:
        process, self._process = self._process, None
        assert process is not None, "it was started"
        atexit.unregister(self.kill)
        if process.stdout is not None:
            process.stdout.close()
        return process

    def _await_ready(self, process: subprocess.Popen[bytes]) -> Endpoints:
        assert process.stdout is not None, "it is a pipe"
        deadline_s = time.monotonic() + self._start_timeout_s
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline_s - time.monotonic())):
                data = os.read(process.stdout.fileno(), 4096)
                output += data
                *lines, _ = output.decode(errors="replace").split("\n")
                for endpoints in filter(None, map(parse_ready_line, lines)):
                    return endpoints
                if not data:
                    break
        self.kill()
        raise RuntimeError(self._with_log("the broker did not start"))

    def _with_log(self, what: str) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()[-_SHOWN_LOG_LINES:]
        return "\n".join([f"{what}; the end of its log:", *(f"    {line}" for line in lines)])


def _environment() -> dict[str, str]:
    """This environment, without settings meant for other brokers, and with this very package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    paths = [str(Path(penstock.__file__).parents[1]), kept.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
