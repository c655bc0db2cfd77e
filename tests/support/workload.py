"""Clients of every kind at work on a cluster while a test breaks it, and in the end the proof that all was kept."""

import time
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from random import Random
from types import TracebackType
from typing import Final, Self

from tests.support.checker import History, Partition, assert_sound, summary
from tests.support.cluster import ClusterOfServers
from tests.support.commit_ledger import CommitLedger
from tests.support.fencing_load import FencingLoad
from tests.support.recorders import Load, Member, Readers, TransactionalLoad, read_logs
from tests.support.server import PATIENCE_S, until, until_data

TOPIC: Final = "t"
GROUP: Final = "g"
TRANSACTIONAL_ID: Final = "tx"
_MOST_SILENT_S: Final = 50.0  # ten times the promise, which benchmarks/failover.py measures


class Workload:
    """A topic of three replicas under load from `with` on; `finish` ends the load and checks everything.

    The group and the transactions are optional: they need coordinators, and cost time.
    """

    def __init__(
        self,
        cluster: ClusterOfServers,
        rng: Random,
        *,
        partitions: int = 3,
        per_second: int = 300,
        padding_bytes: int = 0,
        group: bool = False,
        transactions: bool = False,
    ) -> None:
        self.cluster = cluster
        self.history = History()
        self.partitions: list[Partition] = [(TOPIC, number) for number in range(partitions)]
        where = cluster.bootstrap
        self.load = Load(
            self.history,
            where,
            self.partitions,
            per_second=per_second,
            padding_bytes=padding_bytes,
        )
        self.reader = Readers(self.history, where, self.partitions)
        ledger = CommitLedger()
        self.members = [
            Member(self.history, where, [TOPIC], group=GROUP, name=f"m{number}", ledger=ledger)
            for number in range(2 if group else 0)
        ]
        self.transactions = (
            TransactionalLoad(self.history, where, self.partitions, rng, name=TRANSACTIONAL_ID)
            if transactions
            else None
        )
        self.fencing = FencingLoad(where) if transactions else None
        self._stack = ExitStack()
        self._is_over = False

    def __enter__(self) -> Self:
        for worker in (
            self.reader,
            *self.members,
            self.load,
            self.transactions,
            self.fencing,
        ):
            if worker is not None:
                self._stack.enter_context(worker)
        self.await_progress()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"so far: {summary(self.history)}")
        self._stack.__exit__(kind, error, trace)
        assert self._is_over or error is not None, "`finish` proves it"

    def await_progress(self) -> None:
        """Until every kind of client got on, and every partition takes messages again."""
        self.load.await_all_partitions(time.monotonic_ns())
        if self.transactions is not None:
            self.transactions.await_more(3)
        if self.fencing is not None:
            self.fencing.await_more()
        if self.members:
            goal = sum(member.commits for member in self.members) + 3
            until(
                lambda: sum(member.commits for member in self.members) >= goal,
                "the group goes on reading and committing",
            )

    def await_reader(self, upto_offset: int) -> None:
        """Of one partition: until the reader is there, and so has every replica in sync what comes before.
        It does not look at checksums, as few do."""
        assert len(self.partitions) == 1, "offsets are counts"
        until_data(
            lambda: self.reader.count >= upto_offset, f"the reader comes to offset {upto_offset}"
        )

    def silence_s(self, since_ns: int) -> float:
        """The longest time since then in which some partition acknowledged nothing; `pytest -rP` shows it."""
        found = self.load.longest_silence_s(since_ns)
        print(f"silent for {found:.2f} s at most")  # noqa: T201 - see above
        return found

    def assert_went_on(self, since_ns: int, *, after_s: float = 0.0) -> None:
        """No partition was silent for long; `after_s`: for how long the fault is borne by design."""
        assert self.silence_s(since_ns) < after_s + _MOST_SILENT_S

    def finish(self) -> None:
        """Ends the load, lets readers come to the end, and asserts that the history is sound."""
        self.load.end()
        if self.transactions is not None:
            self.transactions.end()
        if self.fencing is not None:
            self.fencing.end()
        self.cluster.wait_healthy()
        read_logs(self.history, self.cluster.bootstrap, self.partitions)
        total = sum(map(len, self.history.logs.values()))
        until_data(lambda: self.reader.count >= total, "the reader comes to the end")
        self.reader.end()
        if self.members:
            names = {member.name for member in self.members}
            saw_all = partial(group_saw_all, self.history, names)
            until_data(saw_all, "the group comes to the end", 2 * PATIENCE_S)
        for member in self.members:
            member.end()
        for topic, partition in self.partitions:
            self.cluster.check_replicas_agree(topic, partition)
        self._is_over = True
        assert_sound(self.history)


def group_saw_all(history: History, members: Collection[str]) -> bool:
    """Counts do not tell: after a rebalance something may be read twice."""
    seen = {one.value for one in history.seen if one.reader in members}
    return all(value in seen for log in history.logs.values() for _, value in log)
