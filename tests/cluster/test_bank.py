"""A bank that is killed all the time: no transfer is torn, lost, doubled, or seen though it was aborted.

SEED=… replays the schedule of kills and the transfers of each process; BANK_S=… says how long.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from penstock.client.transactions import UNFINISHED
from tests.support import bank
from tests.support.cluster import ClusterOfServers
from tests.support.command import environment, penstock_command
from tests.support.server import Server, until, until_data
from tests.support.transactions import COMMITTED, CONFLUENT, LIBRARIES

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

DURATION_S = float(os.environ.get("BANK_S") or 15)
STAFF = {
    "old-1": "old-mover",
    "old-2": "old-mover",
    "new-1": "new-mover",
    "new-2": "new-mover",
    "auditor-1": "auditor",
    "auditor-2": "auditor",
}
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "transaction.state.log.num.partitions": 4,
    "offsets.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "log.segment.bytes": 256 << 10,
}


class Staff:
    """The processes of the bank. Who dies is replaced by another of the same name."""

    def __init__(self, bootstrap: str, home: Path, rng: random.Random) -> None:
        self._bootstrap = bootstrap
        self._home = home
        self._rng = rng
        self._working: dict[str, subprocess.Popen[bytes]] = {}
        self._frozen: list[subprocess.Popen[bytes]] = []
        self._hired = 0

    def hire(self, name: str) -> None:
        self._hired += 1
        ledger = self._home / "ledgers" / f"{self._hired}-{name}"
        words = [STAFF[name], self._bootstrap, name, str(self._rng.getrandbits(32)), str(ledger)]
        with open(self._home / "staff.log", "ab") as log:
            self._working[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.support.bank", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
            )

    def kill(self, name: str) -> None:
        self._working[name].kill()
        self._working[name].wait()
        self.hire(name)

    def freeze(self, name: str) -> None:
        """It sleeps, and does not know that it was replaced."""
        self._working[name].send_signal(signal.SIGSTOP)
        self._frozen.append(self._working[name])
        self.hire(name)

    def thaw(self) -> None:
        for process in self._frozen:
            process.send_signal(signal.SIGCONT)

    def replace_the_gone(self, role: str = "") -> None:
        for name, process in list(self._working.items()):
            if process.poll() is not None and role in STAFF[name]:
                self.hire(name)

    def dismiss(self, role: str = "") -> None:
        """Everyone of that role, at once."""
        self.thaw()
        for name, process in list(self._working.items()):
            if role in STAFF[name]:
                process.kill()
                process.wait()
                del self._working[name]
        for process in self._frozen:
            process.kill()
            process.wait()
        self._frozen = []

    def believed(self) -> tuple[set[str], set[str]]:
        """The transactions that someone knows to be committed, and to be aborted or never ended."""
        last: dict[str, str] = {}
        for path in (self._home / "ledgers").iterdir():
            for line in path.read_text().splitlines():
                what, _, name = line.partition(" ")
                last[name] = what
        return (
            {name for name, what in last.items() if what == "committed"},
            {name for name, what in last.items() if what in ("aborted", "begun")},
        )


class House(Protocol):
    """Where the bank has its accounts."""

    @property
    def bootstrap(self) -> str: ...
    def kill_a_broker(self, rng: random.Random) -> None:
        """And start it again."""


class OneBroker:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.bootstrap = server.bootstrap
        for topic in (bank.MOVES, bank.JOURNAL):
            server.create_topic(topic, partitions=bank.PARTITIONS)

    def kill_a_broker(self, rng: random.Random) -> None:
        self._server.kill()
        time.sleep(rng.uniform(0, 0.5))
        self._server.start()


class ThreeBrokers:
    """One dies at a time: two of three have what was acknowledged."""

    def __init__(self, cluster: ClusterOfServers) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap
        for topic in (bank.MOVES, bank.JOURNAL):
            cluster.create_topic(topic, partitions=bank.PARTITIONS, min_insync_replicas=2)

    def kill_a_broker(self, rng: random.Random) -> None:
        self._cluster.wait_healthy()
        victim = rng.choice(self._cluster.running)
        self._cluster.kill(victim)
        time.sleep(rng.uniform(0, 3))
        self._cluster.start(victim)


@pytest.fixture(params=[pytest.param("one broker", marks=pytest.mark.long), "three brokers"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    if request.param == "one broker":
        with Server(tmp_path, SETTINGS) as server:
            yield OneBroker(server)
    else:
        with ClusterOfServers(tmp_path, 3, SETTINGS) as cluster:
            yield ThreeBrokers(cluster)


@pytest.fixture
def staff(house: House, tmp_path: Path, rng: random.Random) -> Iterator[Staff]:
    (tmp_path / "ledgers").mkdir()
    made = Staff(house.bootstrap, tmp_path, rng)
    for name in STAFF:
        made.hire(name)
    yield made
    made.dismiss()


def trouble(house: House, staff: Staff, rng: random.Random) -> None:
    """Until the time is up: kills of the broker and of staff, and zombies."""
    ends_s = time.monotonic() + DURATION_S
    while time.monotonic() < ends_s:
        time.sleep(rng.uniform(0.1, 1.5))
        match rng.choice(["broker", "staff", "staff", "freeze", "thaw"]):
            case "broker":
                house.kill_a_broker(rng)
            case "staff":
                staff.kill(rng.choice(list(STAFF)))
            case "freeze":
                staff.freeze(rng.choice([name for name in STAFF if "auditor" not in name]))
            case _:
                staff.thaw()
        staff.replace_the_gone()


def read(house: House, topic: str) -> list[dict[str, Any]]:
    columns = CONFLUENT.read_all(house.bootstrap, topic, bank.PARTITIONS, COMMITTED)
    return [json.loads(value) for column in columns for value in column]


def test_sums_stay_equal_whoever_is_killed(house: House, staff: Staff, rng: random.Random) -> None:
    trouble(house, staff, rng)
    staff.dismiss("mover")
    until(lambda: not unfinished(house, "mover"), "what nobody ends is aborted in time")

    moves = read(house, bank.MOVES)
    assert len(moves) > 100, "there was something to see"
    check_transfers(moves, staff)
    for library in LIBRARIES:
        found = library.read_all(house.bootstrap, bank.MOVES, bank.PARTITIONS, COMMITTED)
        assert sum(map(len, found)) == len(moves), library.name
    check_journal(house, staff, moves)


def unfinished(house: House, role: str) -> list[str]:
    """Transactional ids of that role with a transaction that is not over."""
    done = penstock_command("txn", "list", "--json", PENSTOCK_BOOTSTRAP=house.bootstrap)
    if done.status:
        return [done.err]
    return [
        row["id"] for row in done.json() if row["state"] in UNFINISHED and role in STAFF[row["id"]]
    ]


def check_transfers(moves: list[dict[str, Any]], staff: Staff) -> None:
    assert sum(move["amount"] for move in moves) == 0, "money was made or lost"
    by_txn: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for move in moves:
        by_txn[move["txn"]].append(move)
    for name, found in by_txn.items():
        assert len(found) == found[0]["legs"], f"{name} is torn or doubled"
        by_transfer = Counter[int]()
        for move in found:
            by_transfer[move["transfer"]] += move["amount"]
        assert not any(by_transfer.values()), f"{name} does not add up"
    committed, aborted = staff.believed()
    lost = committed - by_txn.keys()
    assert not lost, f"{len(lost)} of {len(committed)} committed transactions are lost: {lost}"
    seen = aborted & by_txn.keys()
    assert not seen, f"{len(seen)} aborted transactions are seen: {seen}"


def check_journal(house: House, staff: Staff, moves: list[dict[str, Any]]) -> None:
    """The auditors, left in peace, come to the end; every move is there once."""

    def is_complete() -> bool:
        staff.replace_the_gone("auditor")
        return len(read(house, bank.JOURNAL)) >= len(moves)

    until_data(is_complete, "the journal is complete")
    staff.dismiss()

    def counted(rows: list[dict[str, Any]]) -> Counter[str]:
        return Counter(json.dumps(row, sort_keys=True) for row in rows)

    until(lambda: not unfinished(house, "auditor"), "the auditors' last transactions are over")
    assert counted(read(house, bank.JOURNAL)) == counted(moves)
