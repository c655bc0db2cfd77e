"""One shard of a coordinator at work: what it decides is written once a tick, and told when that is committed.

Requests and timers ask `check_writable` before they change memory. If the log refuses a write nevertheless,
whoever waits is sent away and the shard is gone: memory is ahead of the log, and only the log counts. It is
rebuilt from there.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from penstock.broker.coordinators import shard_log
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.steady_clock import HOLD_MS
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, ErrorCode
from penstock.storage.log import Origin

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_MOVED: Final = {  # what a client must do about a write that failed: look for the coordinator again
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class Waiting(Protocol):
    """Hears of something when it is committed, or that it will never be."""

    def answer(self, message: Any) -> None: ...
    def refuse(self, error: BrokerError) -> None: ...


class PendingReply:
    """The reply to one request: complete at once or later, exactly once."""

    __slots__ = ("future", "message")

    def __init__(self) -> None:
        self.message: Any = None
        self.future: asyncio.Future[Any] | None = None

    def answer(self, message: Any) -> None:
        assert self.message is None, "answered once"
        self.message = message
        if self.future is not None and not self.future.done():  # or its connection is gone
            self.future.set_result(message)

    def refuse(self, error: BrokerError) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # its connection may be gone: no "never retrieved" in the log


Replies = list[tuple[Waiting, Any]]


class Append:
    """Records on their way: what is to be told when they are committed, and what the core remembers until then."""

    __slots__ = ("is_committed", "memory", "replies")

    def __init__(self, replies: Replies, memory: Any = None) -> None:
        self.replies = replies
        self.memory = memory
        self.is_committed = False


class LogShard:
    """The event loop is its only caller. `lost` is called once, when it can no longer be used."""

    def __init__(
        self,
        partition: Partition,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        lost: Callable[[BrokerError], None],
    ) -> None:
        self.partition = partition
        self._loop = loop
        self._clock = clock
        self._lost = lost
        self._records: list[shard_log.Pair] = []  # of this tick
        self._replies: Replies = []  # to be given when they are committed
        self._in_flight: deque[Append] = deque()  # all that is not committed yet
        self._read_back: Append | None = None  # in flight since `begin`, until it is committed
        self._waiting: set[Waiting] = set()  # everyone whose answer is still to come
        self._closed = False
        self._unwritable_ms: int | None = None  # when that was last seen
        self._opened_ms = clock.monotonic_ms()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def check_writable(self) -> None:
        """Raise, before memory changes, if the log would refuse the write; reads go on meanwhile."""
        try:
            self.partition.check_writable()
        except BrokerError as error:
            self._unwritable_ms = self._clock.monotonic_ms()
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                code = ErrorCode.NOT_COORDINATOR
            raise BrokerError(str(error), code) from error

    @property
    def is_writable(self) -> bool:
        try:
            self.check_writable()
        except BrokerError:
            return False
        return True

    def may_expire(self, retention_ms: int) -> bool:
        """Whether this broker has been the coordinator for long enough to delete what is old by its wall clock.

        A new coordinator may have started with a wrong clock: it waits as long as after a jump of the clock.
        """
        open_ms = self._clock.monotonic_ms() - self._opened_ms
        return open_ms >= min(HOLD_MS, retention_ms)

    def begin(self) -> None:
        """After a replay: go on with what the log tells of, once that is committed, as all else."""
        committed = self.partition.committed(self.partition.log.next_offset)
        if committed is not None:
            self._read_back = Append([])
            self._in_flight.append(self._read_back)
            committed.add_done_callback(self._append_done)

    def read(self, work: Callable[[], object]) -> Any:
        """What `work` reads is told only when all of it is committed."""
        reply_to = PendingReply()
        self._reply(reply_to, work())
        return self._answer_of(reply_to)

    def read_committed(self, work: Callable[[], object]) -> Any:
        """What `work` reads has no part in what is in flight: only the log as it was read back is waited for."""
        reply_to = PendingReply()
        message = work()
        if self._read_back is None or self._read_back.is_committed:
            self._answer(reply_to, message)
        else:
            self.check_writable()  # else nobody knows for how long: whoever asks is to come again
            self._read_back.replies.append((reply_to, message))
        return self._answer_of(reply_to)

    def _answer_of(self, reply_to: PendingReply) -> Any:
        """The answer, or the future of one."""
        if reply_to.message is not None:
            return reply_to.message
        reply_to.future = self._loop.create_future()
        self._waiting.add(reply_to)
        return reply_to.future

    def _guarded(self, work: Callable[[T], R], argument: T) -> R:
        try:
            return work(argument)
        except BrokerError:
            raise  # refused before anything was changed
        except Exception:
            # a bug may have left something half changed: what the log says is right
            self.fail(BrokerError("a coordinator failed; see the broker's log"))
            raise

    # Writing, and answering when it is written -------------------------------------------------

    def _reply(self, reply_to: Waiting, message: Any) -> None:
        """Everyone waits for what is not committed yet."""
        if self._records:
            self._replies.append((reply_to, message))
        elif self._in_flight:
            self._in_flight[-1].replies.append((reply_to, message))
        else:
            self._answer(reply_to, message)

    def _answer(self, reply_to: Waiting, message: Any) -> None:
        self._waiting.discard(reply_to)
        reply_to.answer(message)

    def _write(self, records: Iterable[shard_log.Pair]) -> None:
        """Into the log at the end of this tick, together with all else."""
        if not self._records:
            self._loop.call_soon(self.flush)
        self._records += records

    def flush(self) -> None:
        """One append for everything that this tick has written so far."""
        if self._closed or not self._records:
            return
        records, self._records = self._records, []
        replies, self._replies = self._replies, []
        self._in_flight.append(Append(replies, self._begin_append()))
        try:
            next_offset = shard_log.append(self.partition, records, self._clock.wall_ms())
        except Exception as error:  # noqa: BLE001 - nobody may be left without an answer
            if not isinstance(error, BrokerError):
                _log.exception("shard-append-failed partition=%s", self.partition)
            self.fail(error if isinstance(error, BrokerError) else BrokerError(str(error)))
            return
        self._appended(next_offset)

    def _begin_append(self) -> Any:
        """What the core remembers of the records that are about to be appended."""

    def _end_append(self, memory: Any) -> None:
        """They are committed."""

    def _append_batches(self, batches: Iterable[bytearray]) -> Append:
        """Batches of their own, behind all that was written before. Raises when the log refuses them.

        Memory changes after that, and then `_remember` is called.
        """
        self.flush()
        if self._closed:
            raise BrokerError(f"{self.partition} was lost", ErrorCode.NOT_COORDINATOR)
        self.partition.check_in_sync()
        now_ms, next_offset = self._clock.wall_ms(), -1
        for batch in batches:
            try:
                appended = self.partition.append(
                    memoryview(batch), now_ms=now_ms, origin=Origin.COORDINATOR
                )
            except BrokerError as error:
                if next_offset >= 0:  # the log is ahead of memory
                    self.fail(error)
                raise
            next_offset = appended.last_offset + 1
        append = Append([])
        if next_offset >= 0:
            self._in_flight.append(append)
            self._appended(next_offset)
        else:
            append.is_committed = True
        return append

    def _remember(self, append: Append) -> None:
        """Memory has changed by what was appended before."""
        append.memory = self._begin_append()
        if append.is_committed:
            self._end_append(append.memory)

    def _appended(self, next_offset: int) -> None:
        committed = self.partition.committed(next_offset)
        if committed is None:
            self._committed()
        else:
            committed.add_done_callback(self._append_done)

    def _append_done(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()  # looked at, or asyncio complains
        if self._closed:
            return
        if error is None:
            self._committed()
        else:
            self.fail(error if isinstance(error, BrokerError) else BrokerError(str(error)))

    def _committed(self) -> None:
        append = self._in_flight.popleft()
        append.is_committed = True
        if append.memory is not None:
            self._end_append(append.memory)
        for reply_to, message in append.replies:
            self._answer(reply_to, message)

    # The end -----------------------------------------------------------------------------------

    def fail(self, error: BrokerError) -> None:
        if not self._closed:
            _log.warning("shard-lost partition=%s error=%s", self.partition, error)
            self.close(_MOVED.get(error.code, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            self._lost(error)

    def close(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Whoever waits is sent away: to this coordinator again, or to where it is now."""
        if self._closed:
            return
        self._closed = True
        refusal = BrokerError(f"{self.partition} is no longer coordinated here", code)
        waiting, self._waiting = self._waiting, set()
        for reply_to in waiting:
            reply_to.refuse(refusal)
