"""The records of __transaction_state are Kafka's, byte for byte; what is not known stops who reads it."""

import pytest

from penstock.model.errors import UnknownRecord
from penstock.model.ids import TopicPartition
from penstock.transactions.records import (
    PartitionsSchema,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from penstock.transactions.shard import Shard
from penstock.transactions.state import (
    LAST_EPOCH,
    NO_EPOCH,
    Now,
    Status,
    Transaction,
    entry,
    restored,
)

NOW = Now(5_000, 1_700_000_000_000)
VALUE = TransactionLogValue(
    producer_id=7,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    transaction_status=Status.ONGOING,
    transaction_partitions=[PartitionsSchema(topic="t", partition_ids=[0, 2])],
    transaction_last_update_timestamp_ms=2,
    transaction_start_timestamp_ms=1,
)


def test_a_key_is_its_version_and_the_id() -> None:
    assert encode_key("tx") == b"\0\0\0\2tx"
    assert decode_key(encode_key("tx")) == "tx"


def test_version_0_has_no_tags() -> None:
    written = bytes.fromhex(
        "0000"  # version
        "0000000000000007"  # producer id
        "0003"  # epoch
        "0000ea60"  # timeout
        "01"  # ongoing
        "00000001" "000174" "00000002" "00000000" "00000002"  # t: 0, 2
        "0000000000000002"  # last update
        "0000000000000001"  # start
    )  # fmt: skip
    assert encode_value(VALUE, 0) == written
    assert decode_value(written) == VALUE


def test_version_1_carries_other_ids_and_the_clients_version_as_tags() -> None:
    value = decode_value(encode_value(VALUE))
    value.previous_producer_id, value.next_producer_id = 5, 9
    value.client_transaction_version = 2
    written = bytes.fromhex(
        "0001"
        "0000000000000007"
        "0003"
        "0000ea60"
        "01"
        "02" "0274" "03" "00000000" "00000002" "00"  # t: 0, 2, and no tags of its own
        "0000000000000002"
        "0000000000000001"
        "03"  # tags
        "00" "08" "0000000000000005"
        "01" "08" "0000000000000009"
        "02" "02" "0002"
    )  # fmt: skip
    assert encode_value(value) == written
    assert decode_value(written) == value


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\x02rest", b"\xff\xff", b"\0\x01\0"])
def test_a_value_that_cannot_be_read_is_no_value(data: bytes) -> None:
    with pytest.raises(UnknownRecord):
        decode_value(data)
    with pytest.raises(UnknownRecord):
        Shard().apply(encode_key("tx"), data, NOW)


@pytest.mark.parametrize("key", [b"", b"\0\x01\0\2tx", b"\0\0\0\x09tx"])
def test_a_key_that_cannot_be_read_is_no_key(key: bytes) -> None:
    with pytest.raises(UnknownRecord):
        decode_key(key)


@pytest.mark.parametrize("status", [Status.DEAD, Status.PREPARE_EPOCH_FENCE, 8, -1])
def test_a_status_that_is_never_stored_is_not_believed(status: int) -> None:
    value = decode_value(encode_value(VALUE))
    value.transaction_status = status
    with pytest.raises(UnknownRecord):
        restored("tx", value, NOW)


def test_the_last_record_of_an_id_counts_and_a_tombstone_forgets_it() -> None:
    shard = Shard()
    shard.apply(encode_key("tx"), encode_value(VALUE), NOW)
    value = decode_value(encode_value(VALUE))
    value.transaction_status, value.transaction_partitions = Status.COMPLETE_ABORT, []
    shard.apply(encode_key("tx"), encode_value(value), NOW)
    assert shard.transactions["tx"].status is Status.COMPLETE_ABORT
    shard.apply(encode_key("tx"), None, NOW)
    shard.apply(encode_key("other"), None, NOW)
    assert not shard.transactions


def test_what_is_written_is_what_is_read_back() -> None:
    transaction = Transaction("tx", 7, NOW)
    transaction.epoch, transaction.timeout_ms, transaction.version = 3, 60_000, 2
    transaction.status = Status.PREPARE_COMMIT
    transaction.partitions = {TopicPartition("t", 1), TopicPartition("u", 0)}
    transaction.started = Now(NOW.ms - 10, NOW.wall_ms - 10)
    key, value = entry(transaction)
    found = restored(decode_key(key), decode_value(value), NOW)
    for name in Transaction.__slots__:
        if name != "last_epoch":
            assert getattr(found, name) == getattr(transaction, name), name


def test_time_goes_on_while_nobody_is_there() -> None:
    value = decode_value(encode_value(VALUE))
    value.transaction_start_timestamp_ms = NOW.wall_ms - 700
    value.transaction_last_update_timestamp_ms = NOW.wall_ms + 50  # the clock was set back since
    found = restored("tx", value, NOW)
    assert (found.started.ms, found.updated.ms) == (NOW.ms - 700, NOW.ms)


@pytest.mark.parametrize(
    ("status", "version", "epoch", "last"),
    [
        (Status.COMPLETE_COMMIT, 2, 4, 3),
        (Status.PREPARE_ABORT, 2, 4, 3),
        (Status.COMPLETE_COMMIT, 2, 0, LAST_EPOCH - 1),  # it has got a new id
        (Status.COMPLETE_COMMIT, 0, 4, NO_EPOCH),
        (Status.ONGOING, 2, 4, NO_EPOCH),
        (Status.EMPTY, 2, 4, NO_EPOCH),
    ],
)
def test_who_may_ask_again_follows_from_what_is_stored(
    status: Status, version: int, epoch: int, last: int
) -> None:
    value = decode_value(encode_value(VALUE))
    value.transaction_status, value.client_transaction_version = status, version
    value.producer_epoch = epoch
    assert restored("tx", value, NOW).last_epoch == last


def test_states_are_called_as_kafka_calls_them() -> None:
    assert [status.title for status in Status] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort",
        "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence",
    ]  # fmt: skip
