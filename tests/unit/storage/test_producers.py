"""No batch of a producer enters a log twice or out of order, also after a restart of any kind."""

from pathlib import Path
from struct import unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.configs import TopicConfig
from penstock.model.errors import (
    BrokerError,
    ErrorCode,
    InvalidProducerEpoch,
    OutOfOrderSequence,
)
from penstock.records.batch import stamp
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.storage import producers as producers_module
from penstock.storage import snapshot
from penstock.storage.checksummed_json import Damaged
from penstock.storage.epochs import Epochs
from penstock.storage.log import AbortedTxn, Appended, Log, Origin
from penstock.storage.producers import Producers
from penstock.storage.recovery import Ending
from penstock.storage.snapshot import Mark
from penstock.storage.txn_index import AbortedEntry, Digest, decode, encode
from tests.unit.storage.logs import (
    NOW_MS,
    SMALL,
    ForgetfulDisk,
    new_log,
    paths,
    put,
    raw,
    reopened,
    scratch,
)

LAST_SEQUENCE = (1 << 31) - 1
ALL_ENDINGS = list(Ending)


def send(
    log: Log, sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, txn: bool = False
) -> Appended:
    return put(
        log,
        *([b"v" * 20] * count),
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=txn,
    )


def end(
    log: Log, kind: ControlType, *, producer: int = 7, epoch: int = 0, coordinator: int = 0
) -> int:
    marker = build_marker(
        EndMarker(kind, coordinator),
        producer_id=producer,
        producer_epoch=epoch,
        timestamp_ms=NOW_MS,
    )
    appended = log.append_as_leader(
        memoryview(marker), leader_epoch=1, now_ms=NOW_MS, origin=Origin.COORDINATOR
    )
    return appended.base_offset


def described(log: Log) -> object:
    """Everything that is known of producers and transactions."""
    known = sorted(
        (
            producer_id,
            p.epoch,
            p.next_sequence,
            p.batches,
            p.coordinator_epoch,
            p.txn_first_offset,
        )
        for producer_id, p in log.producers
    )
    aborted = log.aborted_transactions(0, log.next_offset)
    return known, log.first_unstable_offset, aborted


# Sequences -------------------------------------------------------------------------------------


def test_batches_in_sequence_enter(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert [send(log, 0, 2).base_offset, send(log, 2).base_offset] == [0, 2]


def test_each_of_the_last_five_batches_is_known_as_a_duplicate(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    sent = [send(log, sequence * 2, 2) for sequence in range(8)]

    for number in range(3, 8):
        again = send(log, number * 2, 2)
        assert again == sent[number]._replace(duplicate=True)
    assert log.next_offset == 16
    with pytest.raises(OutOfOrderSequence, match="sent sequence 4; 16 is next"):
        send(log, 4, 2)


def test_a_batch_that_only_resembles_one_is_no_duplicate(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, 3)
    for sequence, count in ((0, 2), (1, 2), (4, 1)):
        with pytest.raises(OutOfOrderSequence):
            send(log, sequence, count)
    assert log.next_offset == 3


def test_a_duplicate_is_told_its_append_time_again(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig(message_timestamp_type="LogAppendTime"))
    assert send(log, 0).append_time_ms == send(log, 0).append_time_ms == NOW_MS


def test_sequences_start_again_after_the_last_one(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, LAST_SEQUENCE - 1, 2)
    send(log, 0, 1)
    log.truncate_to(0)
    send(log, LAST_SEQUENCE, 3)

    assert send(log, LAST_SEQUENCE, 3).duplicate
    assert send(log, 2).base_offset == 3


def test_a_producer_that_is_not_known_may_begin_anywhere(tmp_path: Path) -> None:
    assert send(new_log(tmp_path), 500).base_offset == 0


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, epoch=3)
    with pytest.raises(InvalidProducerEpoch, match="producer 7 is at epoch 3, the batch at 2"):
        send(log, 1, epoch=2)
    with pytest.raises(OutOfOrderSequence, match="begins epoch 4 with sequence 1, not 0"):
        send(log, 1, epoch=4)
    assert send(log, 0, epoch=4).base_offset == 1
    assert not send(log, 1, epoch=4).duplicate


def test_a_refused_batch_changes_nothing(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0)
    before = described(log)
    with pytest.raises(OutOfOrderSequence):
        send(log, 9)
    assert described(log) == before


def test_idle_producers_are_forgotten_but_not_those_with_an_open_transaction(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path)
    send(log, 0, producer=1)
    send(log, 0, producer=2, txn=True)

    assert [log.producers.expire(50, 100) for _ in range(3)] == [0, 0, 1]
    assert [info.producer_id for info in log.producers.active()] == [2]
    assert send(log, 55, producer=1).base_offset == 2


LONG_AGO_MS = NOW_MS - 1_000_000


def backfilled(path: Path, kind: str) -> Log:
    """A follower's log, with records of long ago: one of a producer, or the end of its transaction, too."""
    leader = new_log(path / "leader")
    txn = kind == "transaction"
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": txn}
    put(leader, b"v", time_ms=LONG_AGO_MS, **fields)
    if txn:
        ended = EndMarker(ControlType.COMMIT, 0)
        marker = build_marker(ended, producer_id=7, producer_epoch=0, timestamp_ms=LONG_AGO_MS)
        leader.append_as_leader(
            memoryview(marker), leader_epoch=1, now_ms=NOW_MS, origin=Origin.COORDINATOR
        )
    follower = new_log(path)
    follower.append_as_follower(memoryview(raw(leader)))
    return follower


@pytest.mark.parametrize("kind", ["batch", "transaction"])
@pytest.mark.parametrize("restarted", [False, True])
def test_who_was_followed_or_replayed_is_idle_from_then_on_however_old_its_records(
    tmp_path: Path, kind: str, restarted: bool
) -> None:
    log = backfilled(tmp_path, kind)
    if restarted:
        log = reopened(tmp_path)
    assert [known.last_timestamp_ms for known in log.producers.active()] == [LONG_AGO_MS]
    assert log.producers.expire(50, 100) == 0
    assert send(log, 0).duplicate
    assert [log.producers.expire(50, 100) for _ in range(2)] == [0, 1]


def test_who_writes_between_two_looks_was_not_idle(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for sequence in range(5):
        send(log, sequence)
        assert log.producers.expire(1000, 100) == 0
    assert log.producers.expire(1000, 100) == 1


DAY_MS = 86_400_000


@pytest.mark.parametrize("ending", ALL_ENDINGS)
@pytest.mark.parametrize("jump_ms", [30 * DAY_MS, -30 * DAY_MS])
def test_a_clock_that_jumps_makes_no_producer_idle_also_when_the_log_is_opened_again(
    tmp_path: Path, jump_ms: int, ending: Ending
) -> None:
    log = new_log(tmp_path)
    send(log, 0, producer=1)
    log.roll()
    then_ms = NOW_MS + jump_ms
    put(log, now_ms=then_ms, time_ms=then_ms, producer_id=2, producer_epoch=0, base_sequence=0)
    assert log.producers.expire(600_000, DAY_MS) == 0
    log.close()
    found = reopened(tmp_path, ending, log.next_offset)
    assert found.producers.expire(600_000, DAY_MS) == 0
    assert send(found, 0, producer=1).duplicate
    assert send(found, 0, producer=2).duplicate


def test_a_snapshot_keeps_who_has_been_idle_for_longer_than_others(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, producer=1)
    for _ in range(3):
        assert log.producers.expire(50, 200) == 0
    send(log, 0, producer=2)
    log.close()
    found = reopened(tmp_path, Ending.CLEAN, log.next_offset)
    assert {producer_id: it.idle_ms for producer_id, it in found.producers} == {1: 100, 2: 0}
    assert [found.producers.expire(50, 200) for _ in range(4)] == [0, 1, 0, 1]


def test_when_there_are_too_many_those_that_were_just_followed_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers_module, "PRODUCERS_LIMIT", 10)
    log = new_log(tmp_path)
    for producer in range(100, 109):
        send(log, 0, producer=producer)
    followed = backfilled(tmp_path / "other", "batch")
    records = bytearray(raw(followed))
    stamp(memoryview(records), log.next_offset, 1)
    log.append_as_follower(memoryview(records))
    send(log, 0, producer=109)
    assert 7 in log.producers
    assert 100 not in log.producers


def test_the_longest_idle_go_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers_module, "PRODUCERS_LIMIT", 20)
    log = new_log(tmp_path, TopicConfig())
    for producer in range(30):
        put(log, now_ms=NOW_MS + producer, producer_id=producer, producer_epoch=0, base_sequence=0)
    assert len(log.producers) <= 20
    assert 29 in dict(log.producers)
    assert 0 not in dict(log.producers)


# Transactions ----------------------------------------------------------------------------------


def test_the_oldest_open_transaction_holds_the_last_stable_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, producer=1, txn=True)
    send(log, 0, producer=2, txn=True)
    assert log.first_unstable_offset == 0
    end(log, ControlType.COMMIT, producer=1)
    assert log.first_unstable_offset == 1
    end(log, ControlType.ABORT, producer=2)
    assert log.first_unstable_offset is None


def test_a_transaction_is_decided_only_once_its_marker_is_replicated(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    marker = end(log, ControlType.COMMIT)

    assert log.last_stable_offset(marker) == 0
    assert log.last_stable_offset(marker + 1) == marker + 1


def test_readers_are_told_of_aborted_transactions_in_their_range(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for sequence in range(10):
        send(log, sequence, txn=True)
        end(log, ControlType.ABORT if sequence % 2 else ControlType.COMMIT)
    aborted = [AbortedTxn(7, 2 + 4 * number) for number in range(5)]

    assert len(log.segments) > 2
    assert log.aborted_transactions(0, 20) == aborted
    assert log.aborted_transactions(0, 3) == aborted[:1]
    assert log.aborted_transactions(3, 7) == aborted[:2], "its marker is at 3"
    assert log.aborted_transactions(4, 6) == []


def test_a_marker_from_the_past_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, epoch=2, txn=True)
    end(log, ControlType.COMMIT, epoch=2, coordinator=5)
    with pytest.raises(InvalidProducerEpoch):
        end(log, ControlType.COMMIT, epoch=1, coordinator=5)
    with pytest.raises(BrokerError) as refused:
        end(log, ControlType.COMMIT, epoch=2, coordinator=4)
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_every_marker_and_every_new_epoch_changes_where_a_producer_stands(tmp_path: Path) -> None:
    """Also a marker that ends nothing; records of an epoch that is known do not (KIP-890)."""
    log = new_log(tmp_path)
    seen = [log.producers.standing(7)]
    for happens in (
        lambda: end(log, ControlType.COMMIT),
        lambda: end(log, ControlType.COMMIT),
        lambda: end(log, ControlType.ABORT, coordinator=3),
        lambda: send(log, 0, epoch=1, txn=True),
        lambda: end(log, ControlType.COMMIT, epoch=1, coordinator=3),
    ):
        happens()
        assert log.producers.standing(7) not in seen
        seen.append(log.producers.standing(7))
    send(log, 1, epoch=1, txn=True)
    assert log.producers.standing(7) == seen[-1]
    send(log, 0, producer=8)
    assert log.producers.standing(7) == seen[-1], "others do not matter"
    assert [log.producers.coordinator_epoch(it) for it in (7, 8, 9)] == [3, -1, -1]


def test_a_marker_with_a_newer_epoch_fences_the_old_one(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    end(log, ControlType.ABORT, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 1, txn=True)
    assert send(log, 0, epoch=1, txn=True).base_offset == 2


def test_a_transactional_batch_needs_a_transactional_request(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    with pytest.raises(BrokerError) as refused:
        log.append_as_leader(
            memoryview(
                build_marker(
                    EndMarker(ControlType.COMMIT, 0),
                    producer_id=1,
                    producer_epoch=0,
                    timestamp_ms=NOW_MS,
                )
            ),
            leader_epoch=1,
            now_ms=NOW_MS,
        )
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_a_follower_knows_what_its_leader_knows(tmp_path: Path) -> None:
    leader, follower = new_log(tmp_path / "a"), new_log(tmp_path / "b")
    for sequence in range(6):
        send(leader, sequence, txn=True)
        if sequence % 2:
            end(leader, ControlType.ABORT)
    send(leader, 6, txn=True)
    follower.append_as_follower(memoryview(raw(leader)))

    assert described(follower) == described(leader)


# After a restart -------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.integers(0, 3),  # producer
        st.sampled_from(["data", "txn", "commit", "abort", "bump", "roll", "flush"]),
    ),
    max_size=30,
)


def play(log: Log, history: list[tuple[int, str]]) -> None:
    sequences, epochs = dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 0)
    for producer, step in history:
        epoch = epochs[producer]
        if step in ("data", "txn"):
            open_txns = {p.producer_id for p in log.producers.active() if p.txn_first_offset >= 0}
            txn = step == "txn" or producer in open_txns
            send(log, sequences[producer], producer=producer, epoch=epoch, txn=txn)
            sequences[producer] += 1
        elif step in ("commit", "abort"):
            kind = ControlType.COMMIT if step == "commit" else ControlType.ABORT
            end(log, kind, producer=producer, epoch=epoch)
        elif step == "bump":
            epochs[producer] += 1
            sequences[producer] = 0
        elif step == "roll":
            log.roll()
        else:
            log.flush()


def test_a_batch_outside_of_the_producers_open_transaction_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    with pytest.raises(BrokerError) as refused:
        send(log, 1)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    send(log, 1, txn=True)
    end(log, ControlType.COMMIT)
    assert send(log, 2).base_offset == 3


def test_a_marker_that_ends_older_epochs_is_known_again_and_never_ends_its_own(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path)
    assert not log.producers.has_entered(7, 1), "nothing is known of the producer"
    send(log, 0, txn=True)
    assert log.producers.has_open(7, 0)
    assert not log.producers.has_entered(7, 1), "the transaction is not over"
    end(log, ControlType.COMMIT, epoch=1)
    assert not log.producers.has_open(7, 0)
    assert log.producers.has_entered(7, 1)
    send(log, 0, epoch=1, txn=True)
    with pytest.raises(InvalidProducerEpoch):
        log.producers.has_entered(7, 1)


@settings(max_examples=60, deadline=None)
@given(steps, st.sampled_from(ALL_ENDINGS))
def test_what_is_known_of_producers_survives_any_end(
    history: list[tuple[int, str]], ending: Ending
) -> None:
    with scratch() as path:
        log = new_log(path)
        play(log, history)
        expected = described(log)
        if ending is Ending.CLEAN:
            log.close()

        assert described(reopened(path, ending, log.recovery_point)) == expected


@settings(max_examples=100, deadline=None)
@given(steps, st.data())
def test_after_a_power_loss_what_is_left_is_known_and_no_more(
    history: list[tuple[int, str]], data: st.DataObject
) -> None:
    with scratch() as path:
        disk = ForgetfulDisk()
        log = new_log(f"{path}/a", SMALL, disk)
        play(log, history)
        disk.after_power_loss(
            f"{path}/a", f"{path}/b", lambda size: data.draw(st.integers(0, size))
        )
        found = reopened(f"{path}/b", Ending.POWER_LOSS, log.recovery_point)
        twin = new_log(f"{path}/c")
        if kept := raw(found):
            twin.append_as_follower(memoryview(kept))

        assert found.next_offset >= log.recovery_point
        assert described(found) == described(twin)


@settings(max_examples=60, deadline=None)
@given(steps, st.data())
def test_after_a_cut_only_what_is_left_is_known(
    history: list[tuple[int, str]], data: st.DataObject
) -> None:
    with scratch() as path:
        log, twin = new_log(f"{path}/a"), new_log(f"{path}/b")
        play(log, history)
        offset = data.draw(st.integers(0, log.next_offset))
        kept = raw(log, upto=offset)
        if kept:
            twin.append_as_follower(memoryview(kept))
        if data.draw(st.booleans()):
            log.close()
            log = reopened(f"{path}/a", Ending.CLEAN, log.recovery_point)
        log.truncate_to(offset)

        assert log.next_offset == twin.next_offset
        assert described(log) == described(twin)


@pytest.mark.parametrize("ending", ALL_ENDINGS)
@pytest.mark.parametrize("point", [2, 12])
def test_a_snapshot_of_what_was_cut_off_is_not_taken_for_what_came_instead(
    tmp_path: Path, ending: Ending, point: int
) -> None:
    """As long as the log is at least as long as before, offsets alone do not tell the difference."""
    config = TopicConfig()
    log, twin = new_log(tmp_path / "a", config), new_log(tmp_path / "b", config)
    for sequence in range(10):
        send(log, sequence, producer=1, txn=True)
    log.roll()
    log.truncate_to(2)
    epochs_file = Path(log.path) / "leader-epochs"
    for sequence in range(10):
        put(log, b"other", producer_id=2, producer_epoch=0, base_sequence=sequence, epoch=5)
    twin.append_as_follower(memoryview(raw(log)))
    if ending is Ending.CLEAN:
        log.close()
    if point == 12:
        epochs_file.write_bytes(Epochs([(1, 0)]).encode(None))  # as it was before the cut

    found = reopened(tmp_path / "a", ending, point, config=config)
    assert described(found) == described(twin)
    assert found.epochs.entries() == [(1, 0), (5, 2)]


@pytest.mark.parametrize("ending", ALL_ENDINGS)
@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "not listed"])
def test_a_damaged_index_of_aborted_transactions_is_noticed_and_rebuilt(
    tmp_path: Path, damage: str, ending: Ending
) -> None:
    log = new_log(tmp_path)
    for sequence in range(12):
        send(log, sequence, txn=True)
        end(log, ControlType.ABORT)
    expected = described(log)
    log.close()
    files = paths(log, ".txnindex")
    assert len(files) > 2
    first = files[0].read_bytes()
    if damage == "missing":
        files[0].unlink()
    elif damage == "short":
        files[0].write_bytes(first[:34])
    elif damage == "flipped":
        files[0].write_bytes(first[:17] + bytes([first[17] ^ 1]) + first[18:])
    else:
        files[0].write_bytes(first + encode([AbortedEntry(9, 0, 5000, 5001)]))

    assert described(reopened(tmp_path, ending, 24)) == expected


def test_the_index_of_aborted_transactions_has_kafkas_entries() -> None:
    entry = AbortedEntry(7, 100, 110, 111)
    assert unpack(">hqqqq", encode([entry])) == (0, 7, 100, 110, 111)
    assert decode(encode([entry])) == [entry]


# The snapshot ----------------------------------------------------------------------------------


def test_a_snapshot_is_read_back_as_it_was(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for sequence in range(9):
        send(log, sequence // 3, producer=sequence % 3, epoch=2, txn=sequence == 8)
    section = snapshot.section_of(9, Mark(3, 5), log.producers, {0: Digest(2, 77)}, NOW_MS)
    ((found, found_raw),) = snapshot.decode(snapshot.encode([section]))
    again = Producers()
    again.restore(found.producers)

    assert (found.offset, found.mark, found.aborted) == (9, (3, 5), {0: (2, 77)})
    assert found_raw == section
    assert snapshot.section_of(9, Mark(3, 5), again, {0: Digest(2, 77)}, NOW_MS) == section
    assert again.first_open_offset == 8


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_snapshot_is_never_believed(data: st.DataObject) -> None:
    with scratch() as path:
        log = new_log(path, SMALL)
        send(log, 0)
        whole = snapshot.encode([snapshot.section_of(1, Mark(1, 2), log.producers, {}, NOW_MS)])
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[position] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(flipped), whole[:position]):
        with pytest.raises(Damaged):
            snapshot.decode(damaged)
