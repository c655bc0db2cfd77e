"""What the tests of transactions across brokers have in common: sessions, and what became of them."""

import asyncio
from itertools import count
from typing import Any

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.client.errors import ClientError
from penstock.model.errors import ErrorCode
from penstock.records.batch import split_batches
from penstock.records.control import EndMarker, decode_marker
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.wire.schema import Message
from tests.support.several import Pass, Several
from tests.support.txn_session import NEW, OLD, Session, committed_values

E = ErrorCode
both_versions = pytest.mark.parametrize("version", [OLD, NEW], ids=["old", "new"])
either_end = pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
SPREAD = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
numbers = count()


def session(brokers: Several, at: int, version: int) -> Session:
    """Of a new transactional id, whose coordinator is that broker."""
    made = Session(brokers, brokers.name_at(at, f"tx{next(numbers)}"), version)  # type: ignore[arg-type] # as good as one broker
    brokers.until(lambda: made.initialize() is E.NONE)  # it may be reading its log back
    return made


def send(made: Session, topic: str, *indexes: int) -> None:
    if made.version == OLD:
        assert set(made.add(topic, *indexes)) == {E.NONE}
    for index in indexes:
        assert made.send(topic, index, b"x") is E.NONE


def state(brokers: Several, made: Session) -> str:
    services = brokers.services(brokers.coordinator(made.id))
    found = brokers.call(lambda: services.transactions.find(made.id))
    assert found is not None
    return found.status.title


def until_complete(brokers: Several, made: Session) -> None:
    def is_complete() -> bool:
        services = brokers.services(brokers.coordinator(made.id)).transactions
        found = None if services.is_loading else services.find(made.id)
        return found is not None and found.status.title.startswith("Complete")

    brokers.until(is_complete)


def values(brokers: Several, topic: str, index: int) -> list[bytes]:
    return committed_values(brokers, topic, index)  # type: ignore[arg-type] # as good as one broker


def markers(partition: Partition) -> list[EndMarker]:
    found = partition.log.read(0, 1 << 20, upto_offset=partition.log.next_offset)
    decoded = [
        decode_marker(batch, header)
        for piece in found.slices
        for header, batch in split_batches(memoryview(piece.read()))
        if header.is_control
    ]
    return [marker for marker in decoded if marker is not None]


def offset_of(brokers: Several, group: str, topic: str) -> tuple[int, int]:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True
    )
    answer = brokers.ask(request, 9, of=brokers.group_coordinator(group))
    if answer.groups[0].error_code:
        return answer.groups[0].error_code, -1
    (row,) = answer.groups[0].topics[0].partitions
    return row.error_code, row.committed_offset


async def lost(_: int, __: Message, ___: Pass) -> Any:
    """A gate that nothing passes."""
    raise ClientError("it is not there", E.NETWORK_EXCEPTION)


def produced(brokers: Several, made: Session, topic: str, index: int) -> asyncio.Task[ErrorCode]:
    """A produce on its way."""
    request = made.request(topic, index, b"x")
    version = 9 if made.version == OLD else 12

    async def ask() -> ErrorCode:
        answer = await brokers.asked(request, version)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    return brokers.begin(ask())


async def result_of(task: asyncio.Task[ErrorCode]) -> ErrorCode:
    return await task
