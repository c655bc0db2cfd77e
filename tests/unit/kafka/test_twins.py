"""Which produce requests are alike, and where their records lie: what a decoder would say of each."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.twins import MAX_TWINS, Twin, twins
from penstock.wire.header import RequestHeader, decode_request_header, encode_request_header
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.wire.schema import decode_for

VERSIONS = range(3, 14)
TOPIC_ID = bytes(range(16))


def produce(
    records: bytes, topic: str = "orders", index: int = 3, topic_id: bytes = TOPIC_ID, **fields: Any
) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=memoryview(records))
    named = TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])
    return ProduceRequest(**{"acks": 1, "timeout_ms": 9, **fields}, topic_data=[named])


def frame(
    request: ProduceRequest, version: int, number: int = 1, client: str | None = "me"
) -> bytes:
    header = RequestHeader(request.api_key, version, number, client)
    payload = encode_request_header(header) + request.encode(version)
    return len(payload).to_bytes(4, "big") + payload


def twins_in(version: int, first: bytes, *more: bytes) -> list[Twin]:
    whole = memoryview(first)[4:]
    _, body_at = decode_request_header(whole)
    request, _ = decode_for(ProduceRequest, version)(whole, body_at)
    return twins(request, version, whole, body_at, memoryview(b"".join(more)))


@given(
    version=st.sampled_from(VERSIONS),
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    topic=st.text(min_size=1, max_size=200).filter(lambda it: len(it.encode()) < 300),
    client=st.none() | st.text(max_size=20),
    cut=st.integers(0, 40),
)
def test_the_records_of_each_are_found_however_long_they_are(
    version: int, sizes: list[int], topic: str, client: str | None, cut: int
) -> None:
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    frames = [
        frame(produce(payload, topic), version, 100 + number, client)
        for number, payload in enumerate(payloads)
    ]
    rest = b"".join(frames[1:])
    found = twins_in(version, frames[0], rest[: len(rest) - cut])
    whole = [number for number in range(1, len(frames)) if _end(frames, number) <= len(rest) - cut]
    assert [(it.correlation_id, bytes(it.records), it.end) for it in found] == [
        (100 + number, payloads[number], _end(frames, number)) for number in whole
    ]


def _end(frames: list[bytes], number: int) -> int:
    """Of a frame, counted from the end of the first."""
    return sum(map(len, frames[1 : number + 1]))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "other",
    [
        {"index": 4},
        {"acks": -1},
        {"acks": 0},
        {"timeout_ms": 10},
        {"transactional_id": "t"},
        {"topic": "orderz", "topic_id": bytes(16)},
        {"topic": "order", "topic_id": bytes(16)},
    ],
)
def test_anything_else_that_differs_ends_the_row(version: int, other: dict[str, Any]) -> None:
    same, odd = frame(produce(b"a"), version), frame(produce(b"a", **other), version)
    (found,) = twins_in(version, same, same, odd, same)
    assert found.end == len(same)


@pytest.mark.parametrize("version", VERSIONS)
def test_so_does_another_client_another_version_and_another_api(version: int) -> None:
    same = frame(produce(b"a"), version)
    other_api = same[:5] + b"\1" + same[6:]
    other_version = same[:7] + bytes([version + 1]) + same[8:]
    for odd in (frame(produce(b"a"), version, client="you"), other_api, other_version):
        assert twins_in(version, same, odd) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_quite_a_frame_is_left_to_the_decoder(version: int) -> None:
    same = frame(produce(b"abc"), version)
    longer = (len(same) - 4 + 1).to_bytes(4, "big") + same[4:]
    odd = [
        longer + b"\0",  # bytes that follow
        same[:-1],
        b"",
        b"\0",
        bytes(4),
        b"\xff" * 4 + same[4:],
        b"\x7f" * 4 + same[4:],
        (20).to_bytes(4, "big") + same[4:24],
        *(cut.to_bytes(4, "big") + same[4 : 4 + cut] for cut in range(len(same) - 4)),
        same.replace(b"abc", b"ab"),
    ]
    if version >= 9:
        odd += [
            longer[:-1] + b"\1\0",  # a tag that ends too soon
            same[:-3] + b"\1\0\0",
            same.replace(b"\4abc", b"\xff\xff\xff\xff\x7f"),  # a length beyond the frame
            same.replace(b"\4abc", b"\xff\xff\xff\xff\xff"),
            same.replace(b"\4abc", b"\0" + b"abc"),  # no records
        ]
    else:
        odd.append(same.replace(b"\0\0\0\3abc", b"\xff\xff\xff\xffabc"))
    for each in odd:
        assert twins_in(version, same, each) == []


def test_a_first_one_with_tags_or_with_bytes_behind_it_has_no_twins() -> None:
    same = frame(produce(b"abc"), 9)
    longer = (len(same) - 4 + 1).to_bytes(4, "big") + same[4:] + b"\0"
    assert twins_in(9, longer, longer) == []
    tagged = same[:-1] + b"\1\5\0"  # tag 5, empty
    tagged = (len(tagged) - 4).to_bytes(4, "big") + tagged[4:]
    assert twins_in(9, tagged, tagged) == []


def test_only_so_many_are_taken_at_once() -> None:
    same = frame(produce(b"a"), 9)
    assert len(twins_in(9, same, *[same] * (MAX_TWINS + 5))) == MAX_TWINS
