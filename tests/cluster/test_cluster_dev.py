"""`penstock dev`: brokers that start, live and end together, and a user who is told what happened."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from penstock.testing.endpoints import parse_ready_line
from tests.support.command import command, environment, penstock_command
from tests.support.ports import kept_ports
from tests.support.server import PATIENCE_S, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MOST_BROKERS = 3
PAST_ONE_WISH_S = 0.6  # signals closer together than half a second count as one


class Dev:
    """The command as a process; what it prints is in files."""

    def __init__(self, home: Path, *words: object) -> None:
        self.data = home / "cluster"
        self._out, self._err = home / "out", home / "err"
        port = kept_ports(MOST_BROKERS)[0]
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                command("dev", "--data", self.data, "--port", port, "--http", "off", *words),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment(),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pids = self.pids()
        self.process.kill()
        self.process.wait()
        until(lambda: not any(map(is_alive, pids)), "brokers end when nobody looks after them")
        if error is not None:
            error.add_note(f"it said:\n{self.out}\n{self.err}")

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def pids(self) -> list[int]:
        """Of every broker that was ever ready, in that order."""
        return [found.pid for found in map(parse_ready_line, self.out.splitlines()) if found]

    def await_ready(self) -> Self:
        until(
            lambda: "PENSTOCK_BOOTSTRAP" in self.out or self.process.poll() is not None,
            "the cluster is ready",
        )
        assert self.process.poll() is None, self.err
        return self

    def bootstrap(self) -> str:
        found = re.search(r"^export PENSTOCK_BOOTSTRAP=(.*)$", self.out, re.MULTILINE)
        assert found is not None, self.out
        return found[1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def is_alive(pid: int) -> bool:
    try:
        return state_of(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_paused(pid: int) -> bool:
    return state_of(pid) == "T"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_asked_to_stop(pid: int) -> bool:
    """Whether SIGTERM waits for a process that is paused."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (pending,) = [line.split()[1] for line in lines if line.startswith("ShdPnd:")]
    return bool(int(pending, 16) & 1 << signal.SIGTERM - 1)


@pytest.mark.parametrize("brokers", [1, 3])
def test_the_line_to_copy_reaches_every_broker_and_ctrl_c_ends_them_all_well(
    tmp_path: Path, brokers: int
) -> None:
    with Dev(tmp_path, "--brokers", brokers).await_ready() as dev:
        done = penstock_command("cluster", "describe", "--json", PENSTOCK_BOOTSTRAP=dev.bootstrap())
        assert [broker["id"] for broker in done.json()["brokers"]] == [*range(1, brokers + 1)]
        addresses = [f"{broker['host']}:{broker['port']}" for broker in done.json()["brokers"]]
        assert dev.bootstrap() == ",".join(addresses)
        assert f"cluster ready brokers={brokers} metadata=sqlite:{dev.data}" in dev.out
        pids = dev.pids()
        assert len(pids) == brokers
        assert dev.stop(signal.SIGINT) == 0, dev.err
        assert not any(map(is_alive, pids))
        for number in range(1, brokers + 1):
            assert (dev.data / f"broker-{number}" / "clean").exists()
            assert re.search(rf"^broker-{number} \| .* stopped ", dev.err, re.MULTILINE)


def test_brokers_are_put_into_racks_in_turn_and_share_settings(tmp_path: Path) -> None:
    with Dev(tmp_path, "--brokers", 3, "--racks", "a,b", "-o", "num.partitions=7") as dev:
        dev.await_ready()
        bootstrap = dev.bootstrap()
        described = penstock_command("cluster", "describe", "--json", "--bootstrap", bootstrap)
        assert [broker["rack"] for broker in described.json()["brokers"]] == ["a", "b", "a"]
        assert dev.stop() == 0


def test_a_broker_that_dies_is_told_with_the_way_to_start_it_again(tmp_path: Path) -> None:
    with Dev(tmp_path, "--brokers", 2).await_ready() as dev:
        pids = dev.pids()
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: "penstock: broker" in dev.err, "it is told")
        (line,) = [text for text in dev.err.splitlines() if text.startswith("penstock:")]
        assert "ended (killed by SIGKILL); start it again with: penstock serve" in line
        assert dev.process.poll() is None
        assert is_alive(pids[1])

        os.kill(pids[1], signal.SIGKILL)
        assert dev.process.wait(PATIENCE_S) == 1, "nobody is left"


def test_a_broker_that_dies_is_started_again_when_asked_for(tmp_path: Path) -> None:
    with Dev(tmp_path, "--brokers", 2, "--restart").await_ready() as dev:
        first = dev.pids()
        os.kill(first[0], signal.SIGKILL)
        until(lambda: len(dev.pids()) == 3, "it is ready again")
        assert "it is started again" in dev.err
        assert dev.stop() == 0
        assert not any(map(is_alive, dev.pids()))


def test_a_broker_that_cannot_start_ends_the_others_and_says_why(tmp_path: Path) -> None:
    first, port = kept_ports(2)
    with (
        socket.create_server(("127.0.0.1", port)),
        Dev(tmp_path, "--brokers", 2, "--port", first) as dev,
    ):
        assert dev.process.wait(PATIENCE_S) == 1
        assert f"broker-2 | penstock: cannot listen on 127.0.0.1:{port}" in dev.err
        assert "penstock: broker 2 did not start (exit code 1)" in dev.err
        assert "cluster ready" not in dev.out


def test_a_second_signal_kills_a_broker_that_does_not_end(tmp_path: Path) -> None:
    with Dev(tmp_path, "--brokers", 2).await_ready() as dev:
        for pid in dev.pids():
            os.kill(pid, signal.SIGSTOP)
        until(lambda: all(map(is_paused, dev.pids())), "they are paused")
        dev.process.send_signal(signal.SIGINT)
        until(lambda: any(map(is_asked_to_stop, dev.pids())), "it has heard")
        time.sleep(PAST_ONE_WISH_S)
        assert dev.process.poll() is None, "it waits for them"
        assert dev.stop(signal.SIGINT) == 1
        assert not any(map(is_alive, dev.pids()))


def test_killed_itself_it_leaves_no_broker_behind(tmp_path: Path) -> None:
    with Dev(tmp_path, "--brokers", 2).await_ready() as dev:
        dev.process.kill()
        until(lambda: not any(map(is_alive, dev.pids())), "they end")
        assert (dev.data / "broker-1" / "clean").exists()
