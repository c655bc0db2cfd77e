"""Readers of a log from its start, wherever that is: records may be deleted or compacted before they arrive."""

from collections.abc import Callable, Iterator
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.batch import BatchHeader, iter_headers
from penstock.records.control import ControlType, decode_marker
from penstock.records.record import Record, decode_records
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.simulation.clients.client import TIMEOUT_MS, Client
from tests.simulation.loop import Broken, SimLoop
from tests.support.checker import Partition

_EARLIEST: Final = -2


class LogReader(Client):
    """Reads committed records of one partition. `observe` gets each; `has_started` the earliest offset."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], name: str, place: Partition, *, has_gaps: bool
    ) -> None:
        super().__init__(loop, brokers, name)
        self.place = place
        self.topic, self.partition = place
        self.position = -1  # unknown
        self.end = 0  # last stable offset that a leader told
        self.observe: Callable[[Record], None] = lambda _record: None
        self.has_started: Callable[[int, int], None] = lambda _offset, _before: None
        self._has_gaps = has_gaps
        self._starts: dict[tuple[int, int], int] = {}  # by broker and leader epoch

    async def run(self) -> None:
        await self.recover(self.topic)
        while not self.is_stopping:
            if not await self.advance():
                await self.recover(self.topic)

    async def advance(self) -> bool:
        """Whether a request was answered well."""
        try:
            return await (self._find_start() if self.position < 0 else self._fetch())
        except BrokerError:
            return False

    async def _find_start(self) -> bool:
        connection, epoch = await self.leader(self.topic, self.partition)
        broker_id = self._leaders[self.place][0]
        wanted = ListOffsetsPartition(
            partition_index=self.partition, current_leader_epoch=epoch, timestamp=_EARLIEST
        )
        response = await connection.request(
            ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name=self.topic, partitions=[wanted])]
            ),
            ListOffsetsResponse,
            timeout_ms=TIMEOUT_MS,
        )
        found = response.topics[0].partitions[0]
        if found.error_code:
            return False
        self._saw_start(broker_id, epoch, found.offset)
        self._move_to(found.offset)
        return True

    def _move_to(self, start: int) -> None:
        before = max(-1 - self.position, 0)  # where it was when records were missing
        self.position = start
        self.has_started(start, before)

    def restart(self) -> None:
        """Begin again at the start of the log."""
        self.position = -1

    async def _fetch(self) -> bool:
        connection, epoch = await self.leader(self.topic, self.partition)
        broker_id = self._leaders[self.place][0]
        wanted = FetchPartition(
            partition=self.partition,
            current_leader_epoch=epoch,
            fetch_offset=self.position,
            partition_max_bytes=self.loop.world.rng.choice((300, 4096)),
        )
        topic = FetchTopic(
            topic=self.topic, topic_id=self.topic_ids[self.topic], partitions=[wanted]
        )
        response = await connection.request(
            FetchRequest(max_wait_ms=1000, min_bytes=1, isolation_level=1, topics=[topic]),
            FetchResponse,
            timeout_ms=TIMEOUT_MS,
        )
        if response.error_code or not response.responses:
            return False
        data = response.responses[0].partitions[0]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.position = -1 - self.position
            return True
        if data.error_code:
            return False
        self._saw_start(broker_id, epoch, data.log_start_offset)
        self.end = max(self.end, data.last_stable_offset)
        if data.records:
            self._take(data)
        return True

    def _saw_start(self, broker_id: int, epoch: int, start: int) -> None:
        """The start that one leader tells in one epoch never goes back."""
        before = self._starts.get((broker_id, epoch), 0)
        if start < before:
            raise Broken(
                f"{self.name}: broker {broker_id} went back from start {before} to {start}"
            )
        self._starts[broker_id, epoch] = start

    def _take(self, data: PartitionData) -> None:
        assert isinstance(data.records, memoryview)
        for header, records in _committed(data):
            for record in records:
                if record.offset < self.position:
                    continue
                if record.offset > self.position and not (
                    self._has_gaps or header.is_transactional
                ):
                    raise Broken(f"{self.name} got {record.offset} at {self.position}")
                self.position = record.offset + 1
                self.observe(record)
            self.position = max(self.position, header.next_offset)


def _committed(data: PartitionData) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """The batches, without the records of aborted transactions."""
    assert isinstance(data.records, memoryview)
    aborted = sorted(
        data.aborted_transactions or (), key=lambda one: one.first_offset, reverse=True
    )
    open_now: set[int] = set()
    for start, header in iter_headers(data.records):
        batch = data.records[start : start + header.size_bytes]
        while aborted and aborted[-1].first_offset <= header.last_offset:
            open_now.add(aborted.pop().producer_id)
        if header.is_control:
            marker = decode_marker(batch, header) if header.record_count else None
            if marker is not None and marker.type is ControlType.ABORT:
                open_now.discard(header.producer_id)
            yield header, []
        elif header.is_transactional and header.producer_id in open_now:
            yield header, []
        else:
            yield header, decode_records(batch)
