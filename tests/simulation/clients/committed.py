"""Readers of both isolation levels, and the fetch that they share with consume-transform-produce clients."""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.control import ControlType, decode_marker
from penstock.records.record import decode_records
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tests.simulation.clients.client import TIMEOUT_MS, Client
from tests.simulation.loop import Broken, SimLoop
from tests.support.checker import Partition

UNCOMMITTED: Final = 0
COMMITTED: Final = 1
_MAX_BYTES: Final = 8192
_WAIT_MS: Final = 500
_LULL_WAIT_MS: Final = 4_000


class Fetched(NamedTuple):
    """Records that a consumer is given, and where it goes on."""

    records: list[tuple[int, bytes]]
    transactional: list["TransactionalBatch"]
    next_offset: int
    stable_offset: int
    high_watermark: int


class TransactionalBatch(NamedTuple):
    """Records of a transaction, or the marker that ends it."""

    producer_id: int
    offset: int
    is_marker: bool


async def fetch(
    client: Client, place: Partition, offset: int, isolation: int, *, wait_ms: int = 0
) -> Fetched | None:
    """Fetch once from the leader. None means: recover, and fetch again."""
    topic, index = place
    try:
        connection, epoch = await client.leader(topic, index)
        wanted = FetchPartition(
            partition=index,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            partition_max_bytes=_MAX_BYTES,
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            isolation_level=isolation,
            topics=[FetchTopic(topic=topic, topic_id=client.topic_ids[topic], partitions=[wanted])],
        )
        response = await connection.request(request, FetchResponse, timeout_ms=wait_ms + TIMEOUT_MS)
    except BrokerError:
        return None
    if response.error_code or not response.responses:
        return None
    data = response.responses[0].partitions[0]
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise Broken(f"{client.name}: offset {offset} of {place} is out of range")
    return None if data.error_code else _given(data, offset, isolation)


def _given(data: PartitionData, offset: int, isolation: int) -> Fetched:
    """What a Java consumer makes of the response: aborted records and markers are left out."""
    aborted = sorted(
        ((it.first_offset, it.producer_id) for it in data.aborted_transactions or ()),
        reverse=True,
    )
    ended: set[int] = set()  # producers whose transaction at this point was aborted
    records: list[tuple[int, bytes]] = []
    transactional: list[TransactionalBatch] = []
    position = offset
    raw = data.records
    if isinstance(raw, memoryview):
        for start, header in iter_headers(raw):
            batch = raw[start : start + header.size_bytes]
            position = max(position, header.next_offset)
            while aborted and aborted[-1][0] <= header.last_offset:
                ended.add(aborted.pop()[1])
            if header.is_transactional and header.base_offset >= offset:
                transactional.append(
                    TransactionalBatch(header.producer_id, header.base_offset, header.is_control)
                )
            if header.is_control:
                marker = decode_marker(batch, header)
                if marker is not None and marker.type is ControlType.ABORT:
                    ended.discard(header.producer_id)
                continue
            if isolation == COMMITTED and header.is_transactional and header.producer_id in ended:
                continue
            found = decode_records(batch)
            records += [(it.offset, it.value or b"") for it in found if it.offset >= offset]
    return Fetched(records, transactional, position, data.last_stable_offset, data.high_watermark)


class IsolatedReader(Client):
    """Reads one partition from its start; `observe` is called for each record in order."""

    def __init__(
        self,
        loop: SimLoop,
        brokers: list[int],
        name: str,
        place: Partition,
        isolation: int,
        observe: Callable[[int, bytes], None],
    ) -> None:
        super().__init__(loop, brokers, name)
        self.place = place
        self.position = 0
        self._high_watermark = 0  # the largest that it was told
        self._open: dict[int, int] = {}  # the high watermark with which each transaction was stable
        self._isolation = isolation
        self._observe = observe

    async def run(self) -> None:
        while not self.is_stopping:
            wait_ms = _LULL_WAIT_MS if self.loop.world.is_lull else _WAIT_MS
            found = await fetch(self, self.place, self.position, self._isolation, wait_ms=wait_ms)
            if found is None:
                await self.recover(self.place[0])
                continue
            self._check(found)
            for offset, value in found.records:
                self._observe(offset, value)
            self.position = found.next_offset

    def _check(self, found: Fetched) -> None:
        """What was stable stays so: its markers are below the high watermark that came with it."""
        if found.stable_offset > found.high_watermark:
            raise Broken(f"{self.name}: the last stable offset passes the high watermark: {found}")
        is_newest = found.high_watermark >= self._high_watermark
        self._high_watermark = max(self._high_watermark, found.high_watermark)
        if self._isolation != COMMITTED:
            return
        if is_newest and found.stable_offset < self.position:
            raise Broken(
                f"{self.name} at {self.position}: the last stable offset went back: {found}"
            )
        for batch in found.transactional:
            if not batch.is_marker:
                self._open.setdefault(batch.producer_id, found.high_watermark)
            elif batch.offset >= self._open.pop(batch.producer_id, batch.offset + 1):
                raise Broken(f"{self.name}: records were stable before their {batch} was committed")
