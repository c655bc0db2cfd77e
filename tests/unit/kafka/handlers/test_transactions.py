"""Transactions as clients of each version see them: what is refused, with which code, and what is done."""

import pytest

from penstock.kafka.hangup import HangUp
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.state import Producer
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.describe_transactions import DescribeTransactionsRequest
from penstock.wire.messages.list_transactions import ListTransactionsRequest
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.support.clocks import ManualClock
from tests.support.context import BrokerContext
from tests.support.txn_session import NEW, OLD, Session, committed_values

E = ErrorCode
BOTH = pytest.mark.parametrize("version", [OLD, NEW], ids=["old", "new"])


@pytest.fixture
def session(broker: BrokerContext) -> Session:
    broker.create_topic("t", 3)
    return begun(broker)


def begun(broker: BrokerContext, version: int = NEW) -> Session:
    session = Session(broker, version=version)
    assert session.initialize() is E.NONE
    return session


def old(broker: BrokerContext) -> Session:
    broker.create_topic("t", 3)
    return begun(broker, OLD)


# The whole way -----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_is_seen_when_it_is_committed(
    broker: BrokerContext, version: int, committed: bool
) -> None:
    broker.create_topic("t", 2)
    session = begun(broker, version)
    if version == OLD:
        assert session.add("t", 0, 1) == [E.NONE, E.NONE]
    for index in (0, 1):
        assert session.send("t", index, b"a", b"b") is E.NONE
        assert committed_values(broker, "t", index) == []
    assert session.end(committed=committed) is E.NONE
    for index in (0, 1):
        assert committed_values(broker, "t", index) == ([b"a", b"b"] if committed else [])
        partition = broker.partition("t", index)
        assert partition.last_stable_offset == partition.high_watermark == 3


@BOTH
def test_one_transaction_comes_after_the_other(broker: BrokerContext, version: int) -> None:
    broker.create_topic("t")
    session = begun(broker, version)
    epochs = []
    for number in range(4):
        epochs.append(session.producer.epoch)
        if version == OLD:
            session.add("t", 0)
        assert session.send("t", 0, b"%d" % number) is E.NONE
        assert session.end(committed=number % 2 == 0) is E.NONE
    assert committed_values(broker, "t") == [b"0", b"2"]
    assert epochs == ([0, 0, 0, 0] if version == OLD else [0, 1, 2, 3])


# InitProducerId ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"), [(3, E.INVALID_PRODUCER_EPOCH), (4, E.PRODUCER_FENCED)]
)
def test_a_fenced_producer_is_told_so_in_words_it_knows(
    broker: BrokerContext, version: int, code: ErrorCode
) -> None:
    zombie, successor = Session(broker), Session(broker)
    zombie.initialize()
    stale = zombie.producer
    for _ in range(2):
        assert successor.initialize() is E.NONE
    assert zombie.initialize(stale, version=version) is code


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(broker: BrokerContext, timeout_ms: int) -> None:
    assert Session(broker).initialize(timeout_ms=timeout_ms) is E.INVALID_TRANSACTION_TIMEOUT


def test_an_id_has_a_name_of_a_length_that_can_be_stored(broker: BrokerContext) -> None:
    session = Session(broker)
    for name in ("", "x" * 32_768):
        session.id = name
        assert session.initialize() is E.INVALID_REQUEST


def test_a_newcomer_aborts_what_was_left_open(broker: BrokerContext, session: Session) -> None:
    session.send("t", 0, b"left")
    newcomer = Session(broker)
    assert newcomer.initialize() is E.CONCURRENT_TRANSACTIONS
    assert newcomer.initialize() is E.NONE
    assert newcomer.producer == Producer(session.producer.id, session.producer.epoch + 2)
    assert session.send("t", 0, b"more") is E.INVALID_PRODUCER_EPOCH
    assert session.send("t", 1, b"elsewhere") is E.INVALID_PRODUCER_EPOCH
    assert session.end(committed=True) is E.PRODUCER_FENCED
    assert committed_values(broker, "t") == []
    assert broker.partition("t").last_stable_offset == 2


# Produce -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, E.INVALID_TXN_STATE), (10, E.INVALID_TXN_STATE), (11, E.TRANSACTION_ABORTABLE)],
)
def test_an_old_client_must_add_a_partition_before_it_writes_there(
    broker: BrokerContext, version: int, code: ErrorCode
) -> None:
    session = old(broker)
    assert session.send("t", 0, b"x", version=version) is code
    session.add("t", 0)
    assert session.send("t", 0, b"x", version=version) is E.NONE
    assert session.send("t", 1, b"x", version=version) is code
    assert broker.partition("t", 1).log.next_offset == 0


def test_what_is_late_cannot_enter_the_next_transaction(
    broker: BrokerContext, session: Session
) -> None:
    late = session.request("t", 0, b"late")
    session.send("t", 1, b"a")
    session.end(committed=True)
    session.send("t", 1, b"b")
    answer = broker.ask(late, 12)
    assert answer.responses[0].partition_responses[0].error_code == E.INVALID_PRODUCER_EPOCH
    assert broker.partition("t", 0).log.next_offset == 0
    assert session.end(committed=True) is E.NONE


def test_after_the_end_an_old_client_must_add_again(broker: BrokerContext) -> None:
    session = old(broker)
    session.add("t", 0)
    session.send("t", 0, b"a")
    session.end(committed=True)
    assert session.send("t", 0, b"late", version=11) is E.TRANSACTION_ABORTABLE
    assert broker.partition("t").last_stable_offset == 2


def test_a_new_clients_first_batch_has_the_first_sequence(session: Session) -> None:
    assert session.send("t", 0, b"second", skip=1) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert session.send("t", 0, b"first") is E.NONE
    assert session.send("t", 0, b"third", skip=1) is E.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_came_twice_is_there_once(broker: BrokerContext, session: Session) -> None:
    request = session.request("t", 0, b"a")
    offsets = [
        broker.ask(request, 12).responses[0].partition_responses[0].base_offset for _ in range(2)
    ]
    assert offsets == [0, 0]
    session.end(committed=True)
    assert committed_values(broker, "t") == [b"a"]


def test_a_produce_in_no_transaction_at_all_is_refused(broker: BrokerContext) -> None:
    broker.create_topic("t")
    session = Session(broker, "nobody")
    session.producer = Producer(5, 0)
    assert session.send("t", 0, b"x") is E.INVALID_PRODUCER_ID_MAPPING
    assert session.send("t", 0, b"x", version=9) is E.INVALID_PRODUCER_ID_MAPPING


def test_partitions_that_may_not_be_written_do_not_join_the_transaction(
    broker: BrokerContext, session: Session
) -> None:
    broker.forbid(Operation.WRITE, ResourceType.TOPIC, "t")
    assert session.send("t", 0, b"x") is E.TOPIC_AUTHORIZATION_FAILED
    assert session.send("__transaction_state", 0, b"x") is E.INVALID_TOPIC_EXCEPTION
    assert session.send("unknown", 0, b"x") is E.UNKNOWN_TOPIC_OR_PARTITION
    unheard = session.request("t", 0, b"x")
    unheard.acks = 0
    with pytest.raises(HangUp, match="acks=0 in a transaction"):
        broker.ask(unheard, 12)
    assert state_of(broker, "tx") == ("Empty", [])
    broker.forbid(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "tx")
    assert session.send("t", 0, b"x") is E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_transaction_works_where_every_write_must_reach_the_disk_first(
    broker: BrokerContext, session: Session
) -> None:
    """Then nothing is committed at once: produces wait for the coordinator, and so do ends."""
    sync = [ConfigOp("flush.messages", Op.SET, "1")]
    for topic in ("__transaction_state", "t"):
        broker.run(broker.cluster.alter_configs(Resource.TOPIC, topic, sync))
    for number in range(3):
        for index in range(3):
            assert session.send("t", index, b"%d" % number) is E.NONE
        assert session.end(committed=number != 1) is E.NONE
        while state_of(broker, "tx")[0].startswith("Prepare"):
            broker.call(lambda: None)
    for index in range(3):
        assert committed_values(broker, "t", index) == [b"0", b"2"]


# AddPartitionsToTxn ------------------------------------------------------------------------------


def test_all_partitions_are_added_or_none(broker: BrokerContext) -> None:
    session = old(broker)
    broker.create_topic("secret")
    broker.forbid(Operation.WRITE, ResourceType.TOPIC, "secret")
    assert session.add("t", 0, 7) == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert session.add("secret", 0) == [E.TOPIC_AUTHORIZATION_FAILED]
    assert session.add("nowhere", 0) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert session.add("__transaction_state", 0) == [E.INVALID_TOPIC_EXCEPTION]
    assert state_of(broker, "tx") == ("Empty", [])
    session.producer = Producer(session.producer.id, 9)
    assert session.add("t", 0, version=1) == [E.INVALID_PRODUCER_EPOCH]
    assert session.add("t", 0, version=2) == [E.PRODUCER_FENCED]


@pytest.mark.parametrize(
    ("version", "code"), [(4, E.INVALID_TXN_STATE), (5, E.TRANSACTION_ABORTABLE)]
)
def test_brokers_ask_for_several_at_once_and_may_only_verify(
    broker: BrokerContext, version: int, code: ErrorCode
) -> None:
    session = old(broker)

    def ask(*, verify_only: bool) -> list[list[int]]:
        topics = [AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]
        transactions = [
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=session.producer.id,
                producer_epoch=session.producer.epoch,
                verify_only=verify_only,
                topics=topics,
            )
            for name in ("tx", "nobody")
        ]
        answer = broker.ask(AddPartitionsToTxnRequest(transactions=transactions), version)
        assert answer.error_code == E.NONE
        return [
            [row.partition_error_code for row in found.topic_results[0].results_by_partition]
            for found in answer.results_by_transaction
        ]

    unknown = [E.INVALID_PRODUCER_ID_MAPPING] * 2
    assert ask(verify_only=True) == [[code, code], unknown]
    session.add("t", 0)
    assert ask(verify_only=True) == [[E.NONE, code], unknown]
    assert ask(verify_only=False) == [[E.NONE, E.NONE], unknown]
    assert ask(verify_only=True) == [[E.NONE, E.NONE], unknown]
    broker.forbid(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    answer = broker.ask(AddPartitionsToTxnRequest(), version)
    assert answer.error_code == E.CLUSTER_AUTHORIZATION_FAILED


# EndTxn ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"), [(1, E.INVALID_PRODUCER_EPOCH), (2, E.PRODUCER_FENCED)]
)
def test_an_end_of_a_fenced_producer_is_refused(
    broker: BrokerContext, version: int, code: ErrorCode
) -> None:
    session = old(broker)
    session.producer = Producer(session.producer.id, 9)
    assert session.end(committed=True, version=version) is code


def test_an_end_may_be_asked_for_again(broker: BrokerContext, session: Session) -> None:
    session.send("t", 0, b"a")
    before = session.producer
    assert session.end(committed=True) is E.NONE
    after, session.producer = session.producer, before
    assert session.end(committed=True) is E.NONE
    assert session.producer == after
    session.producer = before
    assert session.end(committed=False) is E.INVALID_TXN_STATE
    assert broker.partition("t").log.next_offset == 2


# Offsets -----------------------------------------------------------------------------------------


def offset_of(broker: BrokerContext, *, stable: bool = True) -> tuple[ErrorCode, int]:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    group = OffsetFetchRequestGroup(group_id="g", topics=topics)
    answer = broker.ask(OffsetFetchRequest(groups=[group], require_stable=stable), 9)
    (found,) = answer.groups[0].topics[0].partitions
    return ErrorCode(found.error_code), found.committed_offset


@BOTH
@pytest.mark.parametrize("committed", [True, False])
def test_offsets_are_the_groups_when_the_transaction_commits(
    broker: BrokerContext, version: int, committed: bool
) -> None:
    broker.create_topic("t", 3)
    session = begun(broker, version)
    if version == OLD:
        assert session.send_offset("g", "t", 7) is E.INVALID_TXN_STATE
        assert session.add_group("g") is E.NONE
    assert session.send_offset("g", "t", 7) is E.NONE
    assert offset_of(broker) == (E.UNSTABLE_OFFSET_COMMIT, -1)
    assert offset_of(broker, stable=False) == (E.NONE, -1)
    assert session.end(committed=committed) is E.NONE
    assert offset_of(broker) == (E.NONE, 7 if committed else -1)


def test_offsets_of_a_fenced_producer_are_refused(broker: BrokerContext, session: Session) -> None:
    Session(broker).initialize()
    assert session.send_offset("g", "t", 7) is E.INVALID_PRODUCER_EPOCH
    assert offset_of(broker) == (E.NONE, -1)


def test_offsets_of_a_member_that_is_none_are_refused(session: Session) -> None:
    assert session.send_offset("g", "t", 7, generation=1, member="m") is E.ILLEGAL_GENERATION
    assert session.send_offset("g", "t", 7) is E.NONE
    code = session.send_offset("g", "t", 7, generation=1, member="m")
    assert code is E.UNKNOWN_MEMBER_ID


def test_offsets_are_refused_one_by_one(broker: BrokerContext, session: Session) -> None:
    assert session.send_offset("g", "unknown", 7) is E.UNKNOWN_TOPIC_OR_PARTITION
    assert session.send_offset("g", "t", 7, metadata="x" * 5000) is E.OFFSET_METADATA_TOO_LARGE
    assert session.send_offset("", "t", 7) is E.INVALID_GROUP_ID
    broker.forbid(Operation.READ, ResourceType.TOPIC, "t")
    assert session.send_offset("g", "t", 7) is E.TOPIC_AUTHORIZATION_FAILED
    broker.forbid(Operation.READ, ResourceType.GROUP, "g")
    assert session.send_offset("g", "t", 7) is E.GROUP_AUTHORIZATION_FAILED
    assert session.add_group("g") is E.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("partition", [-1, 3])
def test_an_offset_of_a_partition_that_is_not_there_is_refused(
    broker: BrokerContext, session: Session, partition: int
) -> None:
    request = session.offset_request("g", "t", 7)
    request.topics[0].partitions[0].partition_index = partition
    (refused,) = broker.ask(request, 5).topics[0].partitions

    assert refused.error_code == E.UNKNOWN_TOPIC_OR_PARTITION


# Looking, and helping ----------------------------------------------------------------------------


def state_of(broker: BrokerContext, name: str) -> tuple[str, list[tuple[str, list[int]]]]:
    request = DescribeTransactionsRequest(transactional_ids=[name])
    (found,) = broker.ask(request).transaction_states
    assert not found.error_code
    return found.transaction_state, [(row.topic, row.partitions) for row in found.topics]


def test_transactions_are_described(broker: BrokerContext, session: Session) -> None:
    session.send("t", 2, b"a")
    session.send("t", 0, b"a")
    request = DescribeTransactionsRequest(transactional_ids=["tx", "nobody", ""])
    found, unknown, empty = broker.ask(request).transaction_states
    assert (found.transactional_id, found.transaction_state) == ("tx", "Ongoing")
    assert (found.producer_id, found.producer_epoch) == session.producer
    assert found.transaction_timeout_ms == 60_000
    assert found.transaction_start_time_ms == broker.services.clock.wall_ms()
    assert [(row.topic, row.partitions) for row in found.topics] == [("t", [0, 2])]
    assert unknown.error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == E.INVALID_REQUEST
    broker.forbid(Operation.DESCRIBE, ResourceType.TOPIC, "t")
    assert state_of(broker, "tx") == ("Ongoing", [])


def test_transactions_are_listed_as_far_as_they_may_be_seen(
    broker: BrokerContext, session: Session
) -> None:
    session.send("t", 0, b"a")
    Session(broker, "idle").initialize()
    while broker.services.transactions.is_loading:
        code = broker.ask(ListTransactionsRequest()).error_code
        assert code in (E.NONE, E.COORDINATOR_LOAD_IN_PROGRESS)

    def listed(request: ListTransactionsRequest | None = None) -> list[str]:
        answer = broker.ask(request or ListTransactionsRequest(), 2)
        return sorted(row.transactional_id for row in answer.transaction_states)

    assert listed() == ["idle", "tx"]
    assert listed(ListTransactionsRequest(state_filters=["Ongoing"])) == ["tx"]
    producers = [session.producer.id]
    assert listed(ListTransactionsRequest(producer_id_filters=producers)) == ["tx"]
    assert listed(ListTransactionsRequest(duration_filter=0)) == []
    assert isinstance(broker.services.clock, ManualClock)
    broker.services.clock.advance(5000)
    assert listed(ListTransactionsRequest(duration_filter=5000)) == []
    assert listed(ListTransactionsRequest(duration_filter=4999)) == ["tx"]
    assert listed(ListTransactionsRequest(transactional_id_pattern="t.|id")) == ["tx"]
    assert listed(ListTransactionsRequest(transactional_id_pattern=r"\w+")) == ["idle", "tx"]
    wrong = broker.ask(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert wrong.error_code == E.INVALID_REGULAR_EXPRESSION
    answer = broker.ask(ListTransactionsRequest(state_filters=["Ongoing", "Odd"]), 1)
    assert answer.unknown_state_filters == ["Odd"]
    broker.forbid(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "tx")
    assert listed() == ["idle"]


@BOTH
def test_only_a_transaction_that_is_not_over_lasts(broker: BrokerContext, version: int) -> None:
    broker.create_topic("t")
    session = begun(broker, version)
    if version == OLD:
        session.add("t", 0)
    session.send("t", 0, b"a")
    assert isinstance(broker.services.clock, ManualClock)
    broker.services.clock.advance(5000)
    while broker.services.transactions.is_loading:
        broker.call(lambda: None)

    def listed() -> list[str]:
        answer = broker.ask(ListTransactionsRequest(duration_filter=1000), 1)
        return [row.transactional_id for row in answer.transaction_states]

    assert listed() == ["tx"]
    transaction = broker.services.transactions.find("tx")
    assert transaction is not None
    transaction.started = transaction.started._replace(ms=-1)  # it began before the machine did
    assert listed() == ["tx"]
    session.end(committed=True)
    assert listed() == []


def write_marker(
    broker: BrokerContext,
    producer: Producer,
    *,
    index: int = 0,
    topic: str = "t",
    committed: bool = False,
    coordinator: int = 0,
    transactions: int = 0,
) -> ErrorCode:
    marker = WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=committed,
        coordinator_epoch=coordinator,
        transaction_version=transactions,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
    )
    answer = broker.ask(WriteTxnMarkersRequest(markers=[marker]), 2)
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


def test_an_operator_may_end_a_transaction_in_a_partition(
    broker: BrokerContext, session: Session
) -> None:
    session.send("t", 0, b"hangs")
    assert write_marker(broker, session.producer) is E.NONE
    assert broker.partition("t").last_stable_offset == 2
    assert committed_values(broker, "t") == []
    assert write_marker(broker, session.producer, index=9) is E.UNKNOWN_TOPIC_OR_PARTITION
    own = write_marker(broker, session.producer, topic="__transaction_state")
    assert own is E.INVALID_TOPIC_EXCEPTION
    broker.forbid(Operation.ALTER, ResourceType.CLUSTER)
    broker.forbid(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    assert write_marker(broker, session.producer) is E.CLUSTER_AUTHORIZATION_FAILED


def test_markers_of_the_past_are_refused(broker: BrokerContext, session: Session) -> None:
    session.send("t", 0, b"a")
    older = Producer(session.producer.id, session.producer.epoch - 1)
    assert write_marker(broker, older) is E.INVALID_PRODUCER_EPOCH
    assert write_marker(broker, session.producer, coordinator=5, index=1) is E.NONE
    assert write_marker(broker, session.producer, coordinator=4, index=1) is (
        E.TRANSACTION_COORDINATOR_FENCED
    )


@BOTH
def test_what_a_newer_coordinator_has_ended_an_older_one_does_not_let_in_again(
    broker: BrokerContext, version: int
) -> None:
    broker.create_topic("t", 3)
    session = begun(broker, version)
    if version == OLD:
        session.add("t", 0)
        session.add_group("g")
    assert write_marker(broker, session.producer, coordinator=1000) is E.NONE
    place = broker.run(broker.services.groups.partition_of("g"))
    ended = write_marker(
        broker, session.producer, coordinator=1000, topic=place.topic, index=place.partition
    )
    assert ended is E.NONE

    assert session.send("t", 0, b"late") is E.NOT_ENOUGH_REPLICAS
    assert session.send_offset("g", "t", 7) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert committed_values(broker, "t") == []


def test_a_late_marker_of_version_2_does_not_end_the_transaction_that_came_after(
    broker: BrokerContext, session: Session
) -> None:
    session.send("t", 0, b"a")
    session.end(committed=True)
    marker = session.producer  # of the epoch that the end took
    end = broker.partition("t").log.next_offset
    assert write_marker(broker, marker, committed=True, transactions=2) is E.NONE
    assert broker.partition("t").log.next_offset == end, "it was there: nothing is written"
    session.send("t", 0, b"b")
    code = write_marker(broker, marker, committed=True, transactions=2)
    assert code is E.INVALID_PRODUCER_EPOCH
    assert committed_values(broker, "t") == [b"a"]
    assert session.end(committed=False) is E.NONE
    assert committed_values(broker, "t") == [b"a"]


def test_a_marker_for_a_group_settles_its_offsets(broker: BrokerContext, session: Session) -> None:
    assert session.send_offset("g", "t", 7) is E.NONE
    place = broker.run(broker.services.groups.partition_of("g"))
    assert isinstance(place, TopicPartition)
    code = write_marker(
        broker, session.producer, topic=place.topic, index=place.partition, committed=True
    )
    assert code is E.NONE
    assert offset_of(broker) == (E.NONE, 7)


@pytest.mark.parametrize("version", [3, 4])
def test_clients_hear_that_transactions_have_version_2(broker: BrokerContext, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    answer = broker.ask(request, version)
    supported = [(f.name, f.min_version, f.max_version) for f in answer.supported_features]
    finalized = [
        (f.name, f.min_version_level, f.max_version_level) for f in answer.finalized_features
    ]
    assert ("transaction.version", 2, 2) in finalized
    assert (("transaction.version", 0, 2) in supported) is (version >= 4)
