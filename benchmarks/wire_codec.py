"""What the codec costs per message, in microseconds: `python -m benchmarks.wire_codec`."""

from collections.abc import Callable, Iterator
from functools import partial
from timeit import repeat

from penstock.wire.fields import Chunk
from penstock.wire.header import RequestHeader, decode_request_header, encode_request_header
from penstock.wire.messages import fetch, metadata, produce
from penstock.wire.schema import Message, decode_for, encode_for

TOPIC = "topic-name"
ROUNDS = 9
CALLS = 5_000


class Slice:
    """Stands for one MiB of a file."""

    def __len__(self) -> int:
        return 1 << 20


def produce_request() -> Message:
    partition = produce.PartitionProduceData(index=3, records=memoryview(bytes(16_000)))
    topic = produce.TopicProduceData(name=TOPIC, partition_data=[partition])
    return produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def produce_response() -> Message:
    partition = produce.PartitionProduceResponse(index=3, base_offset=123_456)
    topic = produce.TopicProduceResponse(name=TOPIC, partition_responses=[partition])
    return produce.ProduceResponse(responses=[topic])


def fetch_request() -> Message:
    partition = fetch.FetchPartition(partition=3, fetch_offset=99, partition_max_bytes=1 << 20)
    topic = fetch.FetchTopic(topic=TOPIC, partitions=[partition])
    return fetch.FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])


def fetch_response() -> Message:
    partition = fetch.PartitionData(partition_index=3, high_watermark=99, records=[Slice()])
    topic = fetch.FetchableTopicResponse(topic=TOPIC, partitions=[partition])
    return fetch.FetchResponse(responses=[topic])


def metadata_response() -> Message:
    partitions = [
        metadata.MetadataResponsePartition(
            partition_index=index, leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]
        )
        for index in range(1_000)
    ]
    topic = metadata.MetadataResponseTopic(name=TOPIC, partitions=partitions)
    return metadata.MetadataResponse(topics=[topic])


def decoding(message: Message, version: int) -> Callable[[], object]:
    frame = memoryview(bytearray(message.encode(version)))
    return partial(decode_for(type(message), version), frame, 0)


def encoding(message: Message, version: int) -> Callable[[], object]:
    encode = encode_for(type(message), version)

    def run() -> None:
        out: list[Chunk] = []
        encode(message, out)

    return run


def cases() -> Iterator[tuple[str, Callable[[], object], int]]:
    header = memoryview(encode_request_header(RequestHeader(0, 9, 1, "client")))
    yield "decode a request header", partial(decode_request_header, header), CALLS
    for version in (8, 9, 11):
        yield f"decode ProduceRequest v{version}", decoding(produce_request(), version), CALLS
        yield f"encode ProduceResponse v{version}", encoding(produce_response(), version), CALLS
    for version in (11, 12, 16):
        yield f"decode FetchRequest v{version}", decoding(fetch_request(), version), CALLS
        yield f"encode FetchResponse v{version}", encoding(fetch_response(), version), CALLS
    yield "make a ProduceResponse", produce_response, CALLS
    yield "make a FetchResponse", fetch_response, CALLS
    yield "encode MetadataResponse v12, 1000 partitions", encoding(metadata_response(), 12), 20
    yield "decode MetadataResponse v12, 1000 partitions", decoding(metadata_response(), 12), 20


def main() -> None:
    for name, run, calls in cases():
        cost_us = min(repeat(run, number=calls, repeat=ROUNDS)) / calls * 1e6
        print(f"{name:48} {cost_us:8.2f}")


if __name__ == "__main__":
    main()
