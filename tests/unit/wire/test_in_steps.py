"""Codecs that work in steps read and write the same bytes as the others, and bound what they make."""

from random import Random

import pytest

from penstock.model.steps import finish
from penstock.wire.fields import Chunk
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.primitives import MAX_TAGS, MalformedMessage, encode_uvarint
from penstock.wire.schema import Message, decode_for, decode_in_steps, encode_in_steps
from tests.unit.wire.catalogue import all_messages, random_struct

LIMIT = 10_000


@pytest.mark.parametrize("message", all_messages(), ids=lambda message: message.__name__)
def test_steps_make_no_difference(message: type[Message]) -> None:
    for version in message.versions:
        sent = random_struct(message, version, Random(version), 5)
        encoded = sent.encode(version)
        out: list[Chunk] = []
        finish(encode_in_steps(message, version)(sent, out))
        assert b"".join(out) == encoded  # type: ignore[arg-type] # records are bytes here
        steps = decode_in_steps(message, version)(memoryview(encoded), 0, LIMIT)
        assert finish(steps) == decode_for(message, version)(memoryview(encoded), 0)


def commits(topics: int, partitions: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        topics=[
            OffsetCommitRequestTopic(
                name=f"t-{topic}",
                partitions=[OffsetCommitRequestPartition() for _ in range(partitions)],
            )
            for topic in range(topics)
        ]
    )


def test_elements_of_all_arrays_count_together() -> None:
    encoded = memoryview(commits(10, 9).encode(8))
    decode = decode_in_steps(OffsetCommitRequest, 8)
    assert finish(decode(encoded, 0, 100))[0] == commits(10, 9)
    with pytest.raises(MalformedMessage, match="more than 99 array elements"):
        finish(decode(encoded, 0, 99))


def test_large_messages_take_many_steps() -> None:
    encoded = memoryview(commits(10_000, 2).encode(8))
    assert sum(1 for _ in decode_in_steps(OffsetCommitRequest, 8)(encoded, 0, 30_000)) >= 10
    out: list[Chunk] = []
    assert sum(1 for _ in encode_in_steps(OffsetCommitRequest, 8)(commits(10_000, 2), out)) >= 20


def test_nothing_is_made_of_an_array_beyond_the_limit() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="")] * 1000)
    encoded = memoryview(request.encode(1))
    steps = decode_in_steps(MetadataRequest, 1)(encoded, 0, 999)
    with pytest.raises(MalformedMessage, match=r"MetadataRequest\.topics"):
        next(steps)


def test_tagged_fields_are_bounded() -> None:
    whole = FindCoordinatorRequest(coordinator_keys=["k"]).encode(4)
    count = MAX_TAGS + 1
    tags = encode_uvarint(count) + b"".join(encode_uvarint(i + 9) + b"\0" for i in range(count))
    frame = memoryview(whole[:-1] + tags)
    with pytest.raises(MalformedMessage, match="tagged fields"):
        decode_for(FindCoordinatorRequest, 4)(frame, 0)
    with pytest.raises(MalformedMessage, match="tagged fields"):
        finish(decode_in_steps(FindCoordinatorRequest, 4)(frame, 0, LIMIT))
