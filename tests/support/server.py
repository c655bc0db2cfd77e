"""One `penstock serve` process and its data, to be stopped, killed, broken and started again."""

import os
import selectors
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka.admin

from penstock.testing.endpoints import Endpoints, parse_ready_line
from tests.support.command import command, environment
from tests.support.failures import DataError, NotInTime, StartFailed
from tests.support.ports import kept_addresses

rd: Any = confluent_kafka.admin  # its stubs hide half of its names

PATIENCE_S = 60.0  # ten times and more of what anything here needs

_DEFAULTS = {
    "broker.session.timeout.ms": "20000",  # busy machines elect for nothing
}


def until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a state of processes: a leader, an event, a process that notices something."""
    if not _becomes_true(condition, patience_s):
        raise NotInTime(f"it did not come about within {patience_s:g} s: {what}")


def until_data(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for records, rows or offsets that must arrive: if they do not, they are lost."""
    if not _becomes_true(condition, patience_s):
        raise DataError(f"it did not come about within {patience_s:g} s: {what}")


def _becomes_true(condition: Callable[[], object], patience_s: float) -> bool:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


class Server:
    """At most one process at a time. Its data and its ports outlive it."""

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, object] | None = None,
        *,
        data_dir: Path | None = None,
        run_in: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`run_in`: the front of the command, such as nsenter. `variables`: more environment."""
        self.data_dir = data_dir or home / "data"
        given = {name: str(value) for name, value in (settings or {}).items()}
        self.settings = {**_DEFAULTS, **kept_addresses(), **given}
        self.variables = dict(variables or {})
        self._run_in = list(run_in)
        self._log_path = home / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoints: Endpoints | None = None
        self._heard = 0  # bytes of the log that earlier runs wrote

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self._reap()
        if error is not None:
            error.add_note("the broker's log:\n" + "\n".join(self.log.splitlines()[-60:]))

    # Running ---------------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when it says that it is ready."""
        return self.await_ready(self.launch())

    def await_ready(self, process: "subprocess.Popen[bytes]") -> Self:
        """The second half of `start`, after `launch`."""
        found = self._read_ready_line(process)
        if found is None:
            status = process.wait()
            self._reap()
            raise StartFailed(f"it did not start, exit code {status}; its log:\n{self.log}")
        self._endpoints = found
        self.settings["listeners"] = found.bootstrap
        if found.http is not None:
            self.settings["penstock.http"] = found.http
        return self

    def launch(self) -> "subprocess.Popen[bytes]":
        """Only begins to start; stdout is a pipe, stderr is the log."""
        assert self._process is None, "one process at a time"
        self._heard = self._log_path.stat().st_size if self._log_path.exists() else 0
        options = {**self.settings, "log.dirs": str(self.data_dir)}
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(
                [*self._run_in, *command("serve", *words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(**self.variables),
            )
        return self._process

    def ask_to_stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """As an operator would; its exit code."""
        self.ask_to_stop(number)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Until it ends; its exit code."""
        status = self.process.wait(PATIENCE_S)
        self._reap()
        return status

    def restart(self) -> Self:
        assert self.stop() == 0, self.log
        return self.start()

    def crash(self) -> Self:
        """Killed, and started again."""
        self.kill()
        return self.start()

    # What it says ----------------------------------------------------------------------------

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "it runs"
        return self._process

    @property
    def is_running(self) -> bool:
        """Any thread may ask, also while another reaps it."""
        process = self._process
        return process is not None and process.poll() is None

    @property
    def has_died(self) -> bool:
        """Its process ended, and nobody here made it."""
        return self._process is not None and self._process.poll() is not None

    @property
    def bootstrap(self) -> str:
        assert self._endpoints is not None, "it was started"
        return self._endpoints.bootstrap

    @property
    def pid(self) -> int:
        assert self._endpoints is not None, "it was started"
        return self._endpoints.pid

    @property
    def log(self) -> str:
        """Of the present or the last run."""
        if not self._log_path.exists():
            return ""
        with open(self._log_path, "rb") as file:
            file.seek(self._heard)
            return file.read().decode(errors="replace")

    def events(self, name: str) -> list[str]:
        """Log lines of one event."""
        return [line for line in self.log.splitlines() if line.split(" ")[2:3] == [name]]

    def has_ever_said(self, name: str) -> bool:
        """In this run or in one before it."""
        lines = self._log_path.read_text(errors="replace").splitlines()
        return any(line.split(" ")[2:3] == [name] for line in lines)

    def http(self, path: str) -> tuple[int, str]:
        """Status and text that a monitor gets."""
        assert self._endpoints is not None, "it was started"
        try:
            url = f"http://{self._endpoints.http}{path}"
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all series of a metric that carry these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        status, text = self.http("/metrics")
        assert status == 200, text
        found = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith((name + " ", name + "{")) and all(label in line for label in wanted)
        ]
        assert found, f"no metric {name} {wanted}"
        return sum(found)

    # Topics ----------------------------------------------------------------------------------

    @cached_property
    def admin(self) -> Any:
        """It reconnects after a restart."""
        return rd.AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
            }
        )

    def create_topic(self, name: str, *, partitions: int = 1, **config: object) -> str:
        """Settings with underscores for dots."""
        texts = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = rd.NewTopic(name, partitions, config=texts)
        self.admin.create_topics([topic])[name].result(PATIENCE_S)
        return name

    def topics(self) -> dict[str, int]:
        """How many partitions each has; without the broker's own."""
        listed = self.admin.list_topics(timeout=PATIENCE_S).topics
        return {
            name: len(topic.partitions)
            for name, topic in listed.items()
            if not name.startswith("__")
        }

    def delete_topic(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(PATIENCE_S)

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        return self.data_dir / topic / f"partition-{partition}"

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        return sorted(self.partition_dir(topic, partition).glob("*.log"))

    def size_bytes(self, topic: str) -> int:
        """Of all its segments. The broker is at work: one that goes meanwhile does not count."""
        total = 0
        for path in (self.data_dir / topic).glob("*/*.log"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    # How -------------------------------------------------------------------------------------

    def _read_ready_line(self, process: "subprocess.Popen[bytes]") -> Endpoints | None:
        assert process.stdout is not None, "it is a pipe"
        deadline_s, output = time.monotonic() + PATIENCE_S, b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline_s - time.monotonic())):
                data = os.read(process.stdout.fileno(), 4096)
                output += data
                *lines, _ = output.decode(errors="replace").split("\n")
                for endpoints in filter(None, map(parse_ready_line, lines)):
                    return endpoints
                if not data:
                    return None
        process.kill()
        return None

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
