"""A transactional producer that speaks straight to the handlers of a broker without sockets."""

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.batch import split_batches
from penstock.records.builder import build_batch
from penstock.records.control import ControlType, decode_marker
from penstock.records.record import Record, decode_records
from penstock.transactions.state import Producer
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.support.context import BrokerContext

OLD, NEW = 0, 1
_PRODUCE, _END, _OFFSETS = (9, 12), (3, 5), (3, 5)


class Session:
    """Each method is one request and returns its code. `producer` is what the broker said last."""

    def __init__(self, broker: BrokerContext, name: str = "tx", version: int = NEW) -> None:
        self.broker = broker
        self.id = name
        self.version = version
        self.producer = Producer(-1, -1)
        self.sequences: dict[TopicPartition, int] = {}
        broker.ask(FindCoordinatorRequest(key=name, key_type=1), 3)

    def initialize(
        self, expected: Producer | None = None, *, timeout_ms: int = 60_000, version: int = 5
    ) -> ErrorCode:
        request = InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=timeout_ms)
        if expected is not None:
            request.producer_id, request.producer_epoch = expected
        answer = self.broker.ask(request, version)
        if not answer.error_code:
            self.become(Producer(answer.producer_id, answer.producer_epoch))
        return ErrorCode(answer.error_code)

    def become(self, producer: Producer) -> None:
        if producer != self.producer:
            self.sequences = {}
        self.producer = producer

    def add(self, topic: str, *indexes: int, version: int = 3) -> list[ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer.id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))],
        )
        (found,) = self.broker.ask(request, version).results_by_topic_v3_and_below
        return [ErrorCode(row.partition_error_code) for row in found.results_by_partition]

    def request(self, topic: str, index: int, *values: bytes, skip: int = 0) -> ProduceRequest:
        sequence = self.sequences.get(TopicPartition(topic, index), 0) + skip
        batch = build_batch(
            [Record(number, 1, None, value) for number, value in enumerate(values)],
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        part = PartitionProduceData(index=index, records=memoryview(batch))
        data = TopicProduceData(name=topic, partition_data=[part])
        return ProduceRequest(
            transactional_id=self.id, acks=-1, timeout_ms=10_000, topic_data=[data]
        )

    def send(
        self, topic: str, index: int, *values: bytes, version: int | None = None, skip: int = 0
    ) -> ErrorCode:
        request = self.request(topic, index, *values, skip=skip)
        answer = self.broker.ask(request, _PRODUCE[self.version] if version is None else version)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            name = TopicPartition(topic, index)
            self.sequences[name] = self.sequences.get(name, 0) + len(values)
        return code

    def add_group(self, group: str) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.id,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            group_id=group,
        )
        return ErrorCode(self.broker.ask(request, 3).error_code)

    def send_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        version: int | None = None,
        generation: int = -1,
        member: str = "",
        metadata: str = "",
    ) -> ErrorCode:
        request = self.offset_request(group, topic, offset, metadata=metadata)
        request.generation_id, request.member_id = generation, member
        answer = self.broker.ask(request, _OFFSETS[self.version] if version is None else version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def offset_request(
        self, group: str, topic: str, offset: int, *, metadata: str = ""
    ) -> TxnOffsetCommitRequest:
        part = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=metadata
        )
        return TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=group,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )

    def end(self, *, committed: bool, version: int | None = None) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            committed=committed,
        )
        answer = self.broker.ask(request, _END[self.version] if version is None else version)
        if not answer.error_code and self.version == NEW:
            self.become(Producer(answer.producer_id, answer.producer_epoch))
        return ErrorCode(answer.error_code)


def committed_values(broker: BrokerContext, topic: str, index: int = 0) -> list[bytes]:
    """What a reader of committed records makes of the partition, as Kafka's own clients do."""

    def read() -> list[bytes]:
        partition = broker.partition(topic, index)
        offset = partition.log.start_offset
        values: list[bytes] = []
        while True:
            found = partition.read(offset, 1 << 20, 1)
            if not found.slices:
                return values
            aborted = sorted((txn.first_offset, txn.producer_id) for txn in found.aborted or ())
            out: set[int] = set()
            for piece in found.slices:
                for header, batch in split_batches(memoryview(piece.read())):
                    while aborted and aborted[0][0] <= header.last_offset:
                        out.add(aborted.pop(0)[1])
                    if header.is_control:
                        marker = decode_marker(batch, header)
                        if marker is not None and marker.type is ControlType.ABORT:
                            out.discard(header.producer_id)
                    elif header.producer_id not in out or not header.is_transactional:
                        values += [record.value or b"" for record in decode_records(batch, header)]
                    offset = header.next_offset
                piece.release()

    return broker.call(read)
