"""One shard of groups at work: their steps are taken at once, their timers fire, their offsets are kept."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from penstock.broker.coordinators import shard_log
from penstock.broker.coordinators.shard import LogShard, PendingReply, Waiting
from penstock.broker.coordinators.timers import Timers
from penstock.broker.partitions.partition import Partition
from penstock.groups.events import (
    CancelTimer,
    Effect,
    Event,
    Reply,
    SetTimer,
    TimerKey,
    Write,
    WriteBytes,
)
from penstock.groups.offsets import Changes, encode_offset_key
from penstock.groups.records import Entry, GroupMetadataValue, encode_key, encode_value
from penstock.groups.shard import Now, Shard
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.schema import Struct

_log = logging.getLogger(__name__)

_PUT_OFF_MS: Final = 1000  # timers that are due while nothing can be written
_GRACE_MS: Final = 10_000  # for members to be heard of again after that
Answer = Struct | asyncio.Future[Any]
Ask = Callable[[PendingReply], list[Effect]]


class GroupShard(LogShard):
    def __init__(
        self,
        core: Shard,
        partition: Partition,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        lost: Callable[[BrokerError], None],
    ) -> None:
        super().__init__(partition, loop, clock, lost)
        self.core = core
        self._timers: Timers[tuple[str, TimerKey], Event] = Timers(loop, clock, self._timer_fired)

    def begin(self) -> None:
        """After a replay: every member's session begins anew."""
        super().begin()
        for group_id, effects in self.core.load(self._clock.monotonic_ms()):
            self._do(group_id, effects)

    def close(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        self._timers.close()
        super().close(code)

    # Asking ------------------------------------------------------------------------------------

    def step(self, group_id: str, event: Callable[[PendingReply], Event]) -> Answer:
        now_ms = self._clock.monotonic_ms()
        return self.ask(
            group_id, lambda reply_to: self.core.step(group_id, event(reply_to), now_ms)
        )

    def ask(self, group_id: str, work: Ask) -> Answer:
        """The answer of what `work` does, at once where nothing has to be waited for."""
        reply_to = PendingReply()
        self._guarded(lambda it: self._do(group_id, work(it)), reply_to)
        answer: Answer = self._answer_of(reply_to)
        return answer

    def do(self, group_id: str, work: Callable[[Now], list[Effect]]) -> None:
        """Something nobody asked for: expiry, a topic that is gone."""
        self._guarded(lambda now: self._do(group_id, work(now)), self.now())

    # Transactions ------------------------------------------------------------------------------

    def commit_in_transaction(self, request: TxnOffsetCommitRequest, max_text: int) -> Answer:
        """Offsets that count when the producer's transaction is committed. Raises when refused."""
        response, pending = self.core.commit_in_transaction(request, self.now(), max_text)
        records = [(encode_offset_key(*position), value) for position, value in pending]
        producer = (request.producer_id, request.producer_epoch)
        self._append_batches(shard_log.batches(records, self._clock.wall_ms(), producer))
        self.core.pend(request.producer_id, pending, self._clock.monotonic_ms())
        return self.read(lambda: response)  # type: ignore[no-any-return] # it is what was read

    def end_transaction(self, producer_id: int, marker: bytearray, *, committed: bool) -> None:
        """Write the marker; from then on its offsets count, or are gone. Raises when refused."""
        append = self._append_batches([marker])
        self.core.end_transaction(
            producer_id, committed=committed, now_ms=self._clock.monotonic_ms()
        )
        self._remember(append)

    def now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    def _begin_append(self) -> Changes:
        return self.core.offsets.begin_append()

    def _end_append(self, memory: Changes) -> None:
        self.core.offsets.end_append(memory)

    # Doing -------------------------------------------------------------------------------------

    def _do(self, group_id: str, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                key = (group_id, effect.key)
                if not (effect.keep_earlier and key in self._timers):
                    self._timers.set(key, effect.at_ms, effect.event)
            elif isinstance(effect, Reply):
                assert isinstance(effect.to, PendingReply)
                self._reply(effect.to, effect.message)
            elif isinstance(effect, CancelTimer):
                self._timers.cancel((group_id, effect.key))
            elif isinstance(effect, WriteBytes):
                self._write(effect.records)
            elif isinstance(effect, Write):
                self._write([self._encoded(entry) for entry in effect.entries])

    def _encoded(self, entry: Entry) -> shard_log.Pair:
        key, value = entry
        if isinstance(value, GroupMetadataValue):
            value.current_state_timestamp = self._clock.wall_ms()
        return encode_key(key), None if value is None else encode_value(key, value)

    def _timer_fired(self, key: tuple[str, TimerKey], event: Event) -> None:
        """Let the group step, but not while its log takes no writes, nor soon after: members were refused too."""
        group_id = key[0]
        now_ms = self._clock.monotonic_ms()
        is_writable = self.is_writable
        since_ms = self._unwritable_ms
        if not is_writable or (since_ms is not None and now_ms - since_ms < _GRACE_MS):
            self._timers.set(key, now_ms + _PUT_OFF_MS, event)
            return
        try:
            step = self.core.step
            self._guarded(lambda due: self._do(group_id, step(group_id, due, now_ms)), event)
        except Exception:  # noqa: BLE001 - the shard is lost, but not the timers of others
            _log.exception("group-timer-failed group=%s event=%s", group_id, event)

    def _reply(self, reply_to: Waiting, message: Any) -> None:
        """Heartbeats wait for nothing: they tell nothing new."""
        if isinstance(message, HeartbeatResponse):
            self._answer(reply_to, message)
        else:
            super()._reply(reply_to, message)
