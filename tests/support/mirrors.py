"""A source of transactions and gaps, a mirror job in few lines, and what readers see at either end."""

import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any, NamedTuple

import confluent_kafka

from penstock.client.mirroring import append, mirror_state
from penstock.client.pool import Deadline, Leader, Pool
from penstock.model.ids import TopicPartition
from penstock.records.batch import BatchHeader, split_batches
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.raw_transactions import RawTransactional
from tests.support.server import PATIENCE_S, Server

_BY_NAME = 12  # the last Fetch that names topics
_FETCH_BYTES = 20_000
_STAYS_OPEN_MS = 900_000  # as long as brokers allow: a job of Spark's may take minutes


class Row(NamedTuple):
    offset: int
    key: bytes
    value: bytes


class Keyed(RawTransactional):
    """What it sends has a key: `key=value`."""

    def produce_request(self, name: TopicPartition, *values: bytes) -> ProduceRequest:
        request = super().produce_request(name, *values)
        pairs = [value.split(b"=") for value in values]
        records = [Record(n, 1, key, value) for n, (key, value) in enumerate(pairs)]
        batch = build_batch(
            records,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=self._sequences.get(name, 0),
            transactional=True,
        )
        part = PartitionProduceData(index=name.partition, records=memoryview(batch))
        request.topic_data = [TopicProduceData(name=name.topic, partition_data=[part])]
        return request


def write_transactions(server: Server, topic: str, rng: Random, count: int) -> Keyed:
    """Committed and aborted ones of two producers; returns a third with its transaction open."""
    producers = [Keyed(server.bootstrap, f"{topic}-{n}").initialize() for n in range(2)]
    for number in range(count):
        producer = rng.choice(producers)
        for _ in range(rng.randrange(1, 4)):
            producer.send(topic, 0, *_values(rng, number))
        producer.end(committed=rng.random() < 0.6)
    for producer in producers:
        producer.disconnect()
    left_open = Keyed(server.bootstrap, f"{topic}-open", timeout_ms=_STAYS_OPEN_MS).initialize()
    left_open.send(topic, 0, b"open=never")
    return left_open


def _values(rng: Random, number: int) -> list[bytes]:
    return [b"k%d=%d-%d" % (rng.randrange(20), number, n) for n in range(rng.randrange(1, 5))]


async def batches_from(
    pool: Pool, place: TopicPartition, offset: int
) -> AsyncIterator[tuple[BatchHeader, bytes]]:
    """All that is there now, as it is stored; compaction at the source may go on."""
    while True:
        asked = FetchPartition(
            partition=place.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=[FetchTopic(topic=place.topic, partitions=[asked])],
        )

        async def attempt(deadline: Deadline, request: FetchRequest = request) -> FetchResponse:
            return await pool.once(
                Leader(place), request, FetchResponse, deadline, at_most=_BY_NAME
            )

        data = (await pool.retry(attempt)).responses[0].partitions[0]
        assert data.error_code == 0, data
        assert isinstance(data.records, memoryview)
        found = list(split_batches(data.records))
        if not found:
            return
        for header, batch in found:
            yield header, bytes(batch)
            offset = header.next_offset


async def copy_rest(
    source: Pool, target: Pool, origin: TopicPartition, copy: TopicPartition
) -> int:
    """What a mirror job does, batch by batch, each one twice; the end of the log."""
    state = await mirror_state(target, copy.topic, [copy.partition])
    begin = (await mirror_state(source, origin.topic, [origin.partition])).partitions[0]
    done = state.partitions[copy.partition].log_end_offset
    before, since = b"", 0 if done < begin.log_start_offset else done
    async for _, batch in batches_from(source, origin, max(done, begin.log_start_offset)):
        position = await append(
            target, copy, before + batch, continues_at=since, topic_id=state.topic_id
        )
        assert position.high_watermark >= position.log_end_offset > done
        since, done, before = done, position.log_end_offset, batch
    return done


def committed_rows(bootstrap: str, topic: str) -> list[Row]:
    """What a reader of committed records sees, up to what is the end when it begins."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "log_level": 0,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    place = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
    _, end = consumer.get_watermark_offsets(place, PATIENCE_S)
    consumer.assign([place])
    rows: list[Row] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < deadline_s, "it comes to no end"
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is None:
            if message.offset() >= end:
                break
            rows.append(Row(message.offset(), message.key(), message.value()))
        elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            break
    consumer.close()
    return rows
