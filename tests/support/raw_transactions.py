"""A transactional producer of raw sockets: it speaks either version of transactions, and stops at any step.

What may be tried again is tried again, also through a restart of the broker; all else is raised.
"""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.transactions.state import Producer, group_by_topic
from penstock.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.schema import Message
from tests.support.raw_client import PATIENCE_S
from tests.support.raw_routes import ANYONE, Place, Routes

Answer = TypeVar("Answer", bound=Message)
OLD: Final = 1
NEW: Final = 2
_VERSIONS: Final = {  # of each API, for old and new clients
    ProduceRequest: (9, 12),
    EndTxnRequest: (3, 5),
    TxnOffsetCommitRequest: (3, 5),
    InitProducerIdRequest: (4, 5),
    AddPartitionsToTxnRequest: (3, 3),
    AddOffsetsToTxnRequest: (3, 3),
    FindCoordinatorRequest: (3, 3),
}
_LATER: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class Refused(Exception):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class RawTransactional:
    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        version: int = NEW,
        timeout_ms: int = 60_000,
    ) -> None:
        self.id = transactional_id
        self.producer = Producer(-1, -1)
        self._routes = Routes(bootstrap)
        self._version = version
        self._timeout_ms = timeout_ms
        self._added: set[TopicPartition | str] = set()
        self._sequences: dict[TopicPartition, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        self._routes.close()

    # The protocol ------------------------------------------------------------------------------

    def initialize(self) -> Self:
        find = FindCoordinatorRequest(key=self.id, key_type=1)
        self._ask(find, FindCoordinatorResponse, lambda answer: answer.error_code)
        request = InitProducerIdRequest(
            transactional_id=self.id, transaction_timeout_ms=self._timeout_ms
        )
        answer = self._ask(request, InitProducerIdResponse, lambda answer: answer.error_code)
        self._become(Producer(answer.producer_id, answer.producer_epoch))
        return self

    def _become(self, producer: Producer) -> None:
        if producer != self.producer:
            self._sequences.clear()
        self.producer = producer
        self._added.clear()

    def send(self, topic: str, partition: int, *values: bytes) -> int:
        """One batch, acknowledged; its first offset."""
        name = TopicPartition(topic, partition)
        if self._version < NEW:
            self._add(name)
        request = self.produce_request(name, *values)
        answer = self._ask(request, ProduceResponse, _produce_code)
        self._sequences[name] = self._sequences.get(name, 0) + len(values)
        offset: int = answer.responses[0].partition_responses[0].base_offset
        return offset

    def produce_request(self, name: TopicPartition, *values: bytes) -> ProduceRequest:
        batch = build_batch(
            [Record(number, 1, None, value) for number, value in enumerate(values)],
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=self._sequences.get(name, 0),
            transactional=True,
        )
        part = PartitionProduceData(index=name.partition, records=memoryview(batch))
        topic = TopicProduceData(name=name.topic, partition_data=[part])
        return ProduceRequest(
            transactional_id=self.id, acks=-1, timeout_ms=30_000, topic_data=[topic]
        )

    def _add(self, name: TopicPartition) -> None:
        if name not in self._added:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=self.producer.id,
                v3_and_below_producer_epoch=self.producer.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=name.topic, partitions=[name.partition])
                ],
            )
            self._ask(request, AddPartitionsToTxnResponse, _add_code)
            self._added.add(name)

    def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        find = FindCoordinatorRequest(key=group, key_type=0)
        self._ask(find, FindCoordinatorResponse, lambda answer: answer.error_code)
        if self._version < NEW and group not in self._added:
            add = AddOffsetsToTxnRequest(
                transactional_id=self.id,
                producer_id=self.producer.id,
                producer_epoch=self.producer.epoch,
                group_id=group,
            )
            self._ask(add, AddOffsetsToTxnResponse, lambda answer: answer.error_code)
            self._added.add(group)
        request = TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=group,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=offsets[TopicPartition(topic, index)],
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in group_by_topic(offsets).items()
            ],
        )
        self._ask(request, TxnOffsetCommitResponse, _offsets_code)

    def end(self, *, committed: bool) -> None:
        answer = self._ask(
            self._end_request(committed), EndTxnResponse, lambda answer: answer.error_code
        )
        new = Producer(answer.producer_id, answer.producer_epoch)
        self._become(new if self._version >= NEW else self.producer)

    def end_unheard(self, *, committed: bool) -> None:
        """Only send it: whether it arrives, and what becomes of it, is not known here."""
        request = self._end_request(committed)
        client = self._routes.client_for(self._place(request))
        client.send(request, _VERSIONS[EndTxnRequest][self._version >= NEW])

    def _end_request(self, committed: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.id,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            committed=committed,
        )

    # How ---------------------------------------------------------------------------------------

    def _place(self, request: Message) -> Place:
        if isinstance(request, ProduceRequest):
            data = request.topic_data[0]
            return "leader", data.name, data.partition_data[0].index
        if isinstance(request, TxnOffsetCommitRequest):
            return "group", request.group_id, 0
        return (
            ANYONE if isinstance(request, FindCoordinatorRequest) else ("transaction", self.id, 0)
        )

    def _ask(
        self, request: Message, answer: type[Answer], code_of: Callable[[Answer], int]
    ) -> Answer:
        version = _VERSIONS[type(request)][self._version >= NEW]
        deadline_s, place = time.monotonic() + PATIENCE_S, self._place(request)
        while True:
            try:
                told = self._routes.client_for(place).ask(request, answer, version)
            except OSError:
                self.disconnect()
                assert time.monotonic() < deadline_s, "the broker does not come back"
                time.sleep(0.02)
                continue
            code = ErrorCode(code_of(told))
            if code is ErrorCode.NONE:
                return told
            if code not in _LATER:
                raise Refused(code)
            self._routes.forget(place)
            assert time.monotonic() < deadline_s, f"{type(request).__name__}: still {code.name}"
            time.sleep(0.005)


def _produce_code(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


def _add_code(answer: AddPartitionsToTxnResponse) -> int:
    results = answer.results_by_topic_v3_and_below[0].results_by_partition
    return results[0].partition_error_code


def _offsets_code(answer: TxnOffsetCommitResponse) -> int:
    codes = [part.error_code for topic in answer.topics for part in topic.partitions]
    return next((code for code in codes if code), 0)
