"""A compacted topic: few keys that are written again and again, some once, with tombstones and transactions."""

import asyncio
from typing import Final

from penstock.records.record import Record
from tests.simulation.checks.compaction import Pass, Truth, name_of
from tests.simulation.clients.keyed import KeyedProducer, TransactionalKeyedProducer
from tests.simulation.clients.log_readers import LogReader
from tests.simulation.loop import Broken
from tests.simulation.workloads.workload import Cluster, Topic

_DELETE_RETENTION_MS: Final = 12_000
_CLOCKS_DIFFER_S: Final = 6.5  # those of two brokers, while none jumps
TOPIC: Final = Topic(
    "keyed",
    1,
    (
        ("cleanup.policy", "compact"),
        ("segment.bytes", "1800"),
        ("min.cleanable.dirty.ratio", "0.2"),
        ("delete.retention.ms", str(_DELETE_RETENTION_MS)),
        ("file.delete.delay.ms", "300"),
        ("flush.ms", "800"),
    ),
    is_whole=False,
)
_PLACE: Final = (TOPIC.name, 0)
_KEYS: Final = 8
_PAUSE_S: Final = 0.8


class Keyed:
    """Producers, and a reader that reads the log from its start to its end again and again."""

    topics: tuple[Topic, ...] = (TOPIC,)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        loop, brokers = cluster.loop, cluster.brokers
        self._producers: list[KeyedProducer] = [
            KeyedProducer(loop, brokers, "keyed-0", _PLACE, _KEYS),
            KeyedProducer(loop, brokers, "keyed-1", _PLACE, _KEYS),
            TransactionalKeyedProducer(loop, brokers, "keyed-txn", _PLACE, _KEYS),
        ]
        self._reader = LogReader(loop, brokers, "keyed-reader", _PLACE, has_gaps=True)
        self._reader.observe = self._observe
        self._truth = Truth()
        self._passes: list[Pass] = []
        self._pass = Pass(self._reader.name, 0.0)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def operations(self) -> int:
        return sum(producer.acked for producer in self._producers)

    @property
    def written(self) -> int:
        return 0

    def begin(self) -> None:
        for producer in self._producers:
            self._tasks.append(self._cluster.run_client(producer, producer.run()))
        self._cluster.run_client(self._reader, self._read())

    async def _read(self) -> None:
        reader, world = self._reader, self._cluster.world
        await reader.recover(TOPIC.name)
        self._pass = Pass(reader.name, world.now_s)
        while not reader.is_stopping:
            if not await reader.advance():
                await reader.recover(TOPIC.name)
            elif 0 < reader.end <= reader.position:
                self._end_pass()
                await asyncio.sleep(world.pause_s(_PAUSE_S))
                reader.restart()
                self._pass = Pass(reader.name, world.now_s)

    def _end_pass(self) -> None:
        self._pass.end, self._pass.ended_s = self._reader.position, self._cluster.world.now_s
        self._passes.append(self._pass)

    def _observe(self, record: Record) -> None:
        self._truth.read(record)
        self._pass.seen[record.key or b""] = record.offset
        self._cluster.invariants.read((self._reader.topic_ids[TOPIC.name], 0), record.offset)

    def stop(self) -> None:
        for producer in self._producers:
            producer.is_stopping = True

    def is_done(self) -> bool:
        return all(task.done() for task in self._tasks)

    def is_caught_up(self) -> bool:
        """A pass has read everything."""
        return bool(self._passes) and self._passes[-1].end >= self._end()

    def _end(self) -> int:
        return self._cluster.invariants.ends().get(_PLACE, 0)

    def judge(self) -> None:
        self._reader.is_stopping = True
        for producer in self._producers:
            for written in producer.written:
                self._truth.told(written)
        kept_s = _DELETE_RETENTION_MS / 1000 - _CLOCKS_DIFFER_S
        if self._cluster.world.faults["clock_jump"]:
            kept_s = 0.0  # a horizon may be hours ago
        passes = [*self._passes, *self._replicas()]
        problem = next(self._truth.check(passes, kept_s), None)
        if problem:
            raise Broken(f"compaction: {problem}")

    def _replicas(self) -> list[Pass]:
        """Each replica's log as a pass, and its records compared with those that were read."""
        found: list[Pass] = []
        now_s = self._cluster.world.now_s
        for host, log in self._cluster.contents(TOPIC.name):
            one = Pass(host, now_s, end=self._end(), ended_s=now_s)
            for record in log:
                known = self._truth.versions.get(record.offset)
                if known is not None:  # else it was aborted
                    if known[1].name != name_of(record):
                        raise Broken(f"{host}: {record.offset} is {name_of(record)}, not {known}")
                    one.seen[record.key or b""] = record.offset
            found.append(one)
        return found
