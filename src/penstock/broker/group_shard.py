"""One shard of groups at work: steps are taken at once, written once a tick, and answered when that is committed.

If the log refuses a write, whoever waits is sent away and the shard is gone: memory is ahead of the log,
and only the log counts. It is rebuilt from there.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock.broker import group_log
from penstock.broker.partition import Partition
from penstock.broker.timers import Timers
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
from penstock.groups.records import Entry, GroupMetadataValue, encode_key, encode_value
from penstock.groups.shard import Now, Shard
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.schema import Struct

_log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = Struct | asyncio.Future[Any]
Ask = Callable[["Asked"], list[Effect]]

_MOVED: Final = {  # what a client must do about a write that failed: look for the coordinator again
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class Asked:
    """One request and its answer, which is there at once or comes later, but only once."""

    __slots__ = ("future", "message")

    def __init__(self) -> None:
        self.message: Struct | None = None
        self.future: asyncio.Future[Any] | None = None

    def answer(self, message: Struct) -> None:
        assert self.message is None, "answered once"
        self.message = message
        if self.future is not None and not self.future.done():  # or its connection is gone
            self.future.set_result(message)

    def refuse(self, error: BrokerError) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


Replies = list[tuple[Asked, Struct]]


class GroupShard:
    """The event loop is its only caller. `lost` is called once, when it can no longer be used."""

    def __init__(
        self,
        core: Shard,
        partition: Partition,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        lost: Callable[[BrokerError], None],
    ) -> None:
        self.core = core
        self.partition = partition
        self._loop = loop
        self._clock = clock
        self._lost = lost
        self._timers: Timers[tuple[str, TimerKey], Event] = Timers(loop, clock, self._timer_fired)
        self._records: list[group_log.Pair] = []  # of this tick
        self._replies: Replies = []  # to be given when they are committed
        self._in_flight: deque[Replies] = deque()  # for each append that is not committed yet
        self._waiting: set[Asked] = set()  # everyone whose answer is still to come
        self._closed = False

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def begin(self) -> None:
        """After a replay: every member's session begins anew."""
        for group_id, effects in self.core.load(self._clock.monotonic_ms()):
            self._do(group_id, effects)

    # Asking ------------------------------------------------------------------------------------

    def step(self, group_id: str, event: Callable[[Asked], Event]) -> Answer:
        now_ms = self._clock.monotonic_ms()
        return self.ask(group_id, lambda asked: self.core.step(group_id, event(asked), now_ms))

    def ask(self, group_id: str, work: Ask) -> Answer:
        """The answer of what `work` does, at once where nothing has to be waited for."""
        asked = Asked()
        self._do(group_id, self._guarded(work, asked))
        return self._answer_of(asked)

    def read(self, work: Callable[[], Struct]) -> Answer:
        """What `work` reads is told only when all of it is committed."""
        asked = Asked()
        self._reply(asked, work())
        return self._answer_of(asked)

    def _answer_of(self, asked: Asked) -> Answer:
        if asked.message is not None:
            return asked.message
        asked.future = self._loop.create_future()
        self._waiting.add(asked)
        return asked.future

    def do(self, group_id: str, work: Callable[[Now], list[Effect]]) -> None:
        """Something nobody asked for: expiry, a topic that is gone."""
        self._do(group_id, self._guarded(work, self.now()))

    def now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    def _guarded(self, work: Callable[[T], list[Effect]], argument: T) -> list[Effect]:
        try:
            return work(argument)
        except BrokerError:
            raise  # refused before anything was changed
        except Exception:
            # a bug may have left a group half changed: what the log says is right
            self.fail(BrokerError("a group failed; see the broker's log"))
            raise

    # Doing -------------------------------------------------------------------------------------

    def _do(self, group_id: str, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                key = (group_id, effect.key)
                if not (effect.keep_earlier and key in self._timers):
                    self._timers.set(key, effect.at_ms, effect.event)
            elif isinstance(effect, Reply):
                assert isinstance(effect.to, Asked)
                self._reply(effect.to, effect.message)
            elif isinstance(effect, CancelTimer):
                self._timers.cancel((group_id, effect.key))
            elif isinstance(effect, WriteBytes):
                self._write(effect.records)
            elif isinstance(effect, Write):
                self._write([self._encoded(entry) for entry in effect.entries])

    def _encoded(self, entry: Entry) -> group_log.Pair:
        key, value = entry
        if isinstance(value, GroupMetadataValue):
            value.current_state_timestamp = self._clock.wall_ms()
        return encode_key(key), None if value is None else encode_value(key, value)

    def _timer_fired(self, key: tuple[str, TimerKey], event: Event) -> None:
        group_id = key[0]
        now_ms = self._clock.monotonic_ms()
        try:
            step = self.core.step
            self._do(group_id, self._guarded(lambda due: step(group_id, due, now_ms), event))
        except Exception:  # noqa: BLE001 - the shard is lost, but not the timers of others
            _log.exception("group-timer-failed group=%s event=%s", group_id, event)

    # Writing, and answering when it is written -------------------------------------------------

    def _reply(self, asked: Asked, message: Struct) -> None:
        """Everyone waits for what is not committed yet, but heartbeats: they tell nothing new."""
        if isinstance(message, HeartbeatResponse):
            self._answer(asked, message)
        elif self._records:
            self._replies.append((asked, message))
        elif self._in_flight:
            self._in_flight[-1].append((asked, message))
        else:
            self._answer(asked, message)

    def _answer(self, asked: Asked, message: Struct) -> None:
        self._waiting.discard(asked)
        asked.answer(message)

    def _write(self, records: list[group_log.Pair]) -> None:
        if not self._records and records:
            self._loop.call_soon(self._flush)
        self._records += records

    def _flush(self) -> None:
        """The end of a tick: one append for everything that it wrote."""
        if self._closed or not self._records:
            return
        records, self._records = self._records, []
        replies, self._replies = self._replies, []
        self._in_flight.append(replies)
        try:
            next_offset = group_log.append(self.partition, records, self._clock.wall_ms())
        except Exception as error:  # noqa: BLE001 - nobody may be left without an answer
            if not isinstance(error, BrokerError):
                _log.exception("group-append-failed partition=%s", self.partition)
            self.fail(error if isinstance(error, BrokerError) else BrokerError(str(error)))
            return
        committed = self.partition.committed(next_offset)
        if committed is None:
            self._committed()
        else:
            committed.add_done_callback(self._append_done)

    def _append_done(self, done: asyncio.Future[None]) -> None:
        if self._closed:
            return
        error = None if done.cancelled() else done.exception()
        if error is None:
            self._committed()
        else:
            self.fail(error if isinstance(error, BrokerError) else BrokerError(str(error)))

    def _committed(self) -> None:
        for asked, message in self._in_flight.popleft():
            self._answer(asked, message)

    # The end -----------------------------------------------------------------------------------

    def fail(self, error: BrokerError) -> None:
        if not self._closed:
            _log.warning("group-shard-lost partition=%s error=%s", self.partition, error)
            self.close(_MOVED.get(error.code, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            self._lost(error)

    def close(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Whoever waits is sent away: to this coordinator again, or to where it is now."""
        if self._closed:
            return
        self._closed = True
        self._timers.close()
        refusal = BrokerError(f"{self.partition} is no longer coordinated here", code)
        waiting, self._waiting = self._waiting, set()
        for asked in waiting:
            asked.refuse(refusal)
