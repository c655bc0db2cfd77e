"""Bugs in idempotent producers and transactions."""

from contextlib import AbstractContextManager
from typing import Any

from penstock.broker.coordinators.marker_sending import _Sending
from penstock.broker.coordinators.shard import PendingReply
from penstock.broker.coordinators.transactions import TransactionCoordinator
from penstock.broker.coordinators.txn_shard import TxnShard
from penstock.broker.coordinators.verification import Verification, _standing
from penstock.groups.offsets import Offsets
from penstock.model.errors import BrokerError, InvalidProducerEpoch, OutOfOrderSequence
from penstock.records.batch import NO_SEQUENCE
from penstock.storage import runs, state
from penstock.storage.log import Log
from penstock.storage.producers import SEQUENCE_COUNT, Producers
from penstock.storage.state import AbortedTxn, LogState
from penstock.transactions import machine
from penstock.transactions.events import Reply, SendMarkers, Write
from penstock.transactions.state import NO_EPOCH
from tests.simulation.planted.probe import Probe, answering, replaced, unchecked

Planted = AbstractContextManager[Any]


# Idempotence -------------------------------------------------------------------------------------


def duplicates_forgotten(probe: Probe) -> Planted:
    """A batch that is sent again is appended again."""

    def check(original: Any, producers: Any, header: Any) -> None:
        probe.deviates(original(producers, header) is not None)

    return replaced(probe, Producers, "check", check)


def only_the_last_batch_remembered(probe: Probe) -> Planted:
    """Of five batches in flight only the last is known as a duplicate."""

    def record(original: Any, producers: Any, header: Any, *rest: Any) -> None:
        original(producers, header, *rest)
        producer = producers._known.get(header.producer_id)
        if producer is not None and len(producer.batches) > 1:
            probe.deviates()
            del producer.batches[:-1]

    return replaced(probe, Producers, "record", record)


def sequence_gaps_accepted(probe: Probe) -> Planted:
    """A batch enters although the one before it has not."""

    def check(original: Any, producers: Any, header: Any) -> Any:
        try:
            return original(producers, header)
        except OutOfOrderSequence:
            producer = producers._known[header.producer_id]
            ahead = (header.base_sequence - producer.next_sequence) % SEQUENCE_COUNT
            if header.producer_epoch != producer.epoch or ahead >= SEQUENCE_COUNT // 2:
                raise
            probe.deviates()
            return None

    return replaced(probe, Producers, "check", check)


def old_producer_epochs_accepted(probe: Probe) -> Planted:
    """A producer that was fenced may go on to write."""

    def check(original: Any, producers: Any, header: Any) -> Any:
        try:
            return original(producers, header)
        except InvalidProducerEpoch:
            probe.deviates()
            return None

    return replaced(probe, Producers, "check", check)


def followers_know_no_producers(probe: Probe) -> Planted:
    """A follower copies batches without noting what its producers have sent."""

    def apply(original: Any, log_state: Any, segment: Any, header: Any, *more: Any) -> None:
        if header.producer_id < 0 or header.base_sequence == NO_SEQUENCE or header.is_transactional:
            original(log_state, segment, header, *more)
            return
        probe.deviates()
        _batch, log_end = more
        log_state._follow_epoch(header, log_end)

    return replaced(probe, LogState, "apply", apply)


def runs_skip_sequence_checks(probe: Probe) -> Planted:
    """Of batches that arrive together only the first is checked."""
    return answering(probe, runs, "_follows", True)


# What readers of committed records see -----------------------------------------------------------


def open_transactions_are_stable(probe: Probe) -> Planted:
    """The last stable offset is the high watermark."""

    def stable(original: Any, log: Any, high_watermark: int) -> int:
        probe.deviates(original(log, high_watermark) != high_watermark)
        return high_watermark

    return replaced(probe, Log, "last_stable_offset", stable)


def markers_count_before_they_are_replicated(probe: Probe) -> Planted:
    """A transaction is decided for readers as soon as its marker is in the leader's log."""

    def undecided(original: Any, producers: Any, high_watermark: int) -> Any:
        found = producers.first_open_offset
        probe.deviates(found != original(producers, high_watermark))
        return found

    return replaced(probe, Producers, "first_undecided_offset", undecided)


def last_aborted_transaction_untold(probe: Probe) -> Planted:
    """The walk over the aborted transactions ends one too early."""

    def aborted(original: Any, segments: Any, from_offset: int, upto_offset: int) -> Any:
        segments = list(segments)
        right = original(segments, from_offset, upto_offset)
        found = []
        for entry in (entry for segment in segments for entry in segment.aborted):
            if entry.last_stable_offset >= upto_offset:
                break
            if entry.last_offset >= from_offset and entry.first_offset < upto_offset:
                found.append(AbortedTxn(entry.producer_id, entry.first_offset))
        probe.deviates(found != right)
        return found

    return replaced(probe, state, "aborted_transactions", aborted)


# What enters a transaction -----------------------------------------------------------------------


def verification_left_out(probe: Probe) -> Planted:
    """KIP-890: records enter whatever the coordinator says of their transaction."""
    return unchecked(probe, TransactionCoordinator, "check")


def verdict_outlives_the_transaction(probe: Probe) -> Planted:
    """KIP-890: a verdict counts, also if a marker came between the question and the append."""

    def refusal(original: Any, verification: Any, partition: Any) -> Any:
        right = original(verification, partition)
        if partition.name in verification._guards:
            verification._guards[partition.name] = _standing(partition, verification._producer)
        found = original(verification, partition)
        probe.deviates(found != right)
        return found

    return replaced(probe, Verification, "refusal", refusal)


def older_coordinators_write_markers(probe: Probe) -> Planted:
    """A log takes the marker of a coordinator whose reign is over."""
    return unchecked(probe, Producers, "check_marker")


def late_markers_end_new_transactions(probe: Probe) -> Planted:
    """A marker that is sent again ends whatever its producer has begun since."""

    def has_entered(original: Any, producers: Any, producer_id: int, epoch: int) -> bool:
        try:
            probe.deviates(original(producers, producer_id, epoch))
        except BrokerError:
            probe.deviates()
        return False

    return replaced(probe, Producers, "has_entered", has_entered)


# The coordinator ---------------------------------------------------------------------------------


def markers_before_the_decision(probe: Probe) -> Planted:
    """Partitions are told of the end of a transaction before it is committed in the coordinator's log."""

    def do(original: Any, shard: Any, transactional_id: str, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, SendMarkers):
                probe.deviates()
                shard._send_markers(effect.markers)
            else:
                original(shard, transactional_id, [effect])

    return replaced(probe, TxnShard, "_do", do)


def transaction_replies_before_the_commit(probe: Probe) -> Planted:
    """A producer is answered before the coordinator's log has what it is told."""

    def reply(original: Any, shard: Any, asked: Any, message: Any) -> None:
        if isinstance(asked, PendingReply):
            probe.deviates(shard._records or shard._in_flight)
            shard._answer(asked, message)
        else:
            original(shard, asked, message)

    return replaced(probe, TxnShard, "_reply", reply)


def newcomers_get_the_same_epoch(probe: Probe) -> Planted:
    """InitProducerId does not fence the producer that had the id before."""

    def take_epoch(original: Any, transaction: Any, event: Any) -> None:
        if transaction.epoch == NO_EPOCH or event.expected is not None:
            original(transaction, event)
        else:
            probe.deviates()

    return replaced(probe, machine, "_take_epoch", take_epoch)


def timeouts_do_not_fence(probe: Probe) -> Planted:
    """The coordinator aborts a transaction in the epoch of its producer, who may still write."""

    def abort(original: Any, transaction: Any, *rest: Any) -> Any:
        probe.deviates()
        transaction.epoch -= 1
        return [_in_its_own_epoch(effect) for effect in original(transaction, *rest)]

    return replaced(probe, machine, "_abort_with_new_epoch", abort)


def _in_its_own_epoch(effect: Any) -> Any:
    if isinstance(effect, SendMarkers):
        return SendMarkers(effect.markers._replace(ends_epoch=False))
    return effect


def prepared_transactions_are_left(probe: Probe) -> Planted:
    """A new coordinator does not finish what the one before had decided."""
    return answering(probe, machine, "_loaded", [])


def failed_markers_are_given_up(probe: Probe) -> Planted:
    """A transaction is complete, though a partition could not be told."""

    def refused(_original: Any, _sending: Any, _name: Any, _code: Any) -> None:
        probe.deviates()

    return replaced(probe, _Sending, "_refused", refused)


def added_partitions_not_written(probe: Probe) -> Planted:
    """Only the memory of the coordinator knows which partitions a transaction has."""

    def add(original: Any, transaction: Any, event: Any, now: Any) -> Any:
        effects = original(transaction, event, now)
        kept = [effect for effect in effects if not isinstance(effect, Write)]
        probe.deviates(kept != effects)
        return kept

    return replaced(probe, machine, "_add", add)


def fenced_producers_may_end(probe: Probe) -> Planted:
    """EndTxn does not compare the epoch of the producer with that of the transaction."""

    def end(original: Any, transaction: Any, event: Any, now: Any) -> Any:
        if event.producer.id != transaction.producer_id:
            return original(transaction, event, now)
        effects = original(transaction, event, now)
        is_refused = any(isinstance(it, Reply) and it.outcome.code for it in effects)
        if not is_refused or event.producer.epoch >= transaction.epoch:
            return effects
        current = original(transaction, _as_current(event, transaction), now)
        probe.deviates(current != effects)
        return current

    return replaced(probe, machine, "_end", end)


def _as_current(event: Any, transaction: Any) -> Any:
    return type(event)(
        event.reply_to, transaction.producer, event.committed, event.version, event.fresh_id
    )


# Offsets in transactions -------------------------------------------------------------------------


def aborted_offsets_count(probe: Probe) -> Planted:
    """A group's offsets are those of a transaction, whether it was committed or not."""

    def end(original: Any, offsets: Any, producer_id: int, *, committed: bool) -> Any:
        probe.deviates(not committed and producer_id in offsets._pending)
        return original(offsets, producer_id, committed=True)

    return replaced(probe, Offsets, "end_transaction", end)


def pending_offsets_count_at_once(probe: Probe) -> Planted:
    """A group's offsets are those of a transaction that is not over yet."""

    def put(original: Any, offsets: Any, producer_id: int, position: Any, value: bytes) -> None:
        original(offsets, producer_id, position, value)
        probe.deviates()
        offsets._place(*position, value)

    return replaced(probe, Offsets, "put_pending", put)
