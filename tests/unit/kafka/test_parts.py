"""A request in parts names the same elements, and the joined responses are the response to the whole."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.apis import APIS
from penstock.kafka.parts import Parts
from penstock.model.steps import finish
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from penstock.wire.schema import Message

AT_ONCE = 3
counts = st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=5)


def answer_offsets(request: ListOffsetsRequest) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=it.partition_index, offset=7)
                    for it in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def in_parts(parts: Parts, request: Message, answer: Any) -> tuple[Any, list[int]]:
    whole, sizes = None, []
    for part in parts.split(request):
        sizes.append(sum(1 for _ in leaves(part.request, parts._request)))
        reply = answer(part.request)
        if whole is None:
            whole = reply
        else:
            parts.join(whole, reply, part.continued)
    return whole, sizes


def leaves(struct: Any, path: tuple[str, ...]) -> Any:
    for element in getattr(struct, path[0]) or ():
        if len(path) > 1:
            yield from leaves(element, path[1:])
        else:
            yield element


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8))
def test_topics_with_partitions_are_split_and_joined(partitions: list[int]) -> None:
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=f"t-{number}",
                partitions=[ListOffsetsPartition(partition_index=i) for i in range(count)],
            )
            for number, count in enumerate(partitions)
        ]
    )
    parts = Parts(("topics", "partitions"), at_once=AT_ONCE)
    expected = answer_offsets(request)
    if max(partitions) > AT_ONCE:
        assert parts.are_many(request)
    joined, sizes = in_parts(parts, request, answer_offsets)
    assert joined == expected
    assert max(sizes) <= AT_ONCE
    finish(parts.free(joined))
    assert joined.topics == []


def answer_groups(request: OffsetFetchRequest) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=[
                    OffsetFetchResponseTopics(
                        name=topic.name,
                        partitions=[
                            OffsetFetchResponsePartitions(partition_index=i)
                            for i in topic.partition_indexes
                        ],
                    )
                    for topic in group.topics or ()
                ],
            )
            for group in request.groups
        ]
    )


@given(counts.filter(bool))
def test_three_levels_are_split_and_joined(groups: list[list[int]]) -> None:
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=f"g-{number}",
                topics=[
                    OffsetFetchRequestTopics(name=f"t-{at}", partition_indexes=list(range(count)))
                    for at, count in enumerate(topics)
                ],
            )
            for number, topics in enumerate(groups)
        ]
    )
    parts = Parts(
        ("groups", "topics", "partition_indexes"),
        ("groups", "topics", "partitions"),
        at_once=AT_ONCE,
    )
    expected = answer_groups(request)
    joined, sizes = in_parts(parts, request, answer_groups)
    assert joined == expected
    assert max(sizes) <= AT_ONCE


def test_versions_without_the_first_array_use_the_other_path() -> None:
    parts = APIS[9].parts
    assert parts is not None
    topic = OffsetFetchRequestTopic(name="t", partition_indexes=list(range(1200)))
    request = OffsetFetchRequest(group_id="g", topics=[topic])

    def answer(asked: OffsetFetchRequest) -> OffsetFetchResponse:
        topics = [
            OffsetFetchResponseTopic(
                name=it.name,
                partitions=[
                    OffsetFetchResponsePartition(partition_index=i) for i in it.partition_indexes
                ],
            )
            for it in asked.topics or ()
        ]
        return OffsetFetchResponse(topics=topics)

    assert parts.are_many(request)
    expected = answer(request)
    joined, sizes = in_parts(parts, request, answer)
    assert joined == expected
    assert len(sizes) == 3
    assert not parts.are_many(OffsetFetchRequest(group_id="g", topics=None))


def test_the_error_of_a_later_part_is_kept() -> None:
    parts = Parts(
        ("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions"), at_once=2
    )
    whole = OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g")])
    more = OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", error_code=16)])
    parts.join(whole, more, 1)
    assert [(it.group_id, it.error_code) for it in whole.groups] == [("g", 16)]


def test_a_request_for_everything_is_not_split() -> None:
    parts = APIS[3].parts
    assert parts is not None
    assert not parts.are_many(MetadataRequest(topics=None))
    few = MetadataRequest(topics=[MetadataRequestTopic(name="t")] * parts.at_once)
    assert not parts.are_many(few)
    assert parts.are_many(MetadataRequest(topics=[MetadataRequestTopic(name="t")] * 101))


@pytest.mark.parametrize("api", [api for api in APIS.values() if api.parts], ids=lambda it: it.name)
def test_paths_lead_through_arrays_of_the_messages(api: Any) -> None:
    for parts in (api.parts, api.parts._otherwise):
        if parts is not None:
            for message, path in (
                (api._request, parts._request),
                (api._response, parts._response),
            ):
                struct = message
                for name in path:
                    assert struct.fields[name].kind == "array"
                    struct = struct.fields[name].element
