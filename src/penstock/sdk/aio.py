"""AsyncProducer and AsyncConsumer: the same names, awaited. librdkafka works on its own threads; the loop never blocks.

A cancelled call leaves its object as if it had not been made (the rule is stated in `penstock.sdk.shelf`). The
consumer's thread only fetches. Messages are handed out on the loop, while the thread is idle, with no `await` between
the hand-out and the return to the caller: so there is no message that a cancellation could drop.
"""

import asyncio
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar

from penstock.sdk import checks
from penstock.sdk.client_thread import ClientThread, completed, run_in
from penstock.sdk.consumer import Consumer
from penstock.sdk.delivery import Delivered, Delivery
from penstock.sdk.errors import BufferExhausted, PenstockError
from penstock.sdk.librdkafka import LOGGER
from penstock.sdk.message import Message, Place
from penstock.sdk.positions import Time
from penstock.sdk.producer import MAX_BLOCK_MS, Producer
from penstock.sdk.sending import Headers
from penstock.sdk.workers import Order, is_async

if TYPE_CHECKING:
    from penstock.sdk.database import DatabaseHandler
    from penstock.sdk.exactly_once import Transaction, Transform
    from penstock.sdk.processing import Summary
    from penstock.sdk.retrying import Backoff, RetryTopics

P = ParamSpec("P")
T = TypeVar("T")
AsyncHandler = Callable[[Message], Awaitable[object]]

_FULL_WAIT_S: Final = 0.01
_SLICE_S: Final = 0.2


class Waker:
    """Completes futures of a loop from librdkafka's thread: one wake-up for all that came together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[tuple[asyncio.Future[Delivered], Any]] = deque()
        self._is_called = False

    def complete(self, future: "asyncio.Future[Delivered]", outcome: Any) -> None:
        self._done.append((future, outcome))
        if not self._is_called and not self._loop.is_closed():
            self._is_called = True
            self._loop.call_soon_threadsafe(self._drain)

    def call(self, call: Callable[[T], object], outcome: T) -> None:
        """An application's callback, on the loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, outcome)

    def _drain(self) -> None:
        self._is_called = False  # before looking: what comes from now on calls again
        while self._done:
            future, outcome = self._done.popleft()
            if future.done():  # its waiter was cancelled
                continue
            if isinstance(outcome, PenstockError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class AsyncDelivery:
    """A message on its way: `await` it for where it is. Nobody has to: an error that is not awaited is counted and logged."""

    def __init__(self, delivery: Delivery, waker: Waker) -> None:
        self._delivery = delivery
        self._waker = waker

    @property
    def done(self) -> bool:
        return self._delivery.done

    def __await__(self) -> Generator[Any, None, Delivered]:
        future: asyncio.Future[Delivered] = asyncio.get_running_loop().create_future()
        complete = partial(self._waker.complete, future)
        self._delivery.add_callback(complete).add_errback(complete)
        self._delivery.hurry()
        return future.__await__()

    async def result(self) -> Delivered:
        return await self

    async def exception(self) -> PenstockError | None:
        """What went wrong; None when the broker has it."""
        try:
            await self
        except PenstockError as error:
            return error
        return None

    def add_callback(self, call: Callable[[Delivered], object]) -> Self:
        """Calls `call(delivered)` on the loop when the broker has it."""
        self._delivery.add_callback(partial(self._waker.call, call))
        return self

    def add_errback(self, call: Callable[[PenstockError], object]) -> Self:
        """Calls `call(error)` on the loop when the message is given up."""
        self._delivery.add_errback(partial(self._waker.call, call))
        return self


class AsyncProducer:
    """`Producer` for asyncio: `delivery = await producer.send(…)` waits for room only; `await delivery` for the broker.

    Give it the arguments of Producer. Use it on the loop it is first used on.

    >>> async def write() -> int:
    ...     async with AsyncProducer(bootstrap) as producer:
    ...         delivery = await producer.send("notes", "hello")
    ...         return (await delivery).offset
    >>> import asyncio
    >>> asyncio.run(write())
    0
    """

    def __init__(
        self, bootstrap: str, *, max_block_ms: int = MAX_BLOCK_MS, **settings: Any
    ) -> None:
        self._max_block_s = checks.number("max_block_ms", max_block_ms, at_least=0) / 1000
        self._may_block = (  # it sleeps, or asks how many partitions there are
            settings.get("rate_limit") is not None
            or settings.get("split_large", False)
            or callable(settings.get("partitioner"))
            or settings.get("partitioner") == "round_robin"
        )
        self._producer = Producer(bootstrap, max_block_ms=0, **settings)
        self._waker: Waker | None = None
        self._thread = ClientThread("penstock-async-producer")
        self.metrics: Final = self._producer.metrics
        self.client_id: Final = self._producer.client_id

    def __repr__(self) -> str:
        return f"<Async{repr(self._producer)[1:]}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        timestamp: Time = 0,
        partition: int | None = None,
    ) -> AsyncDelivery:
        """Hands a message over; waits only while the buffer is full."""
        if self._waker is None:
            self._waker = Waker(asyncio.get_running_loop())
        message = (topic, value, key, headers, timestamp, partition)
        if self._may_block:
            return AsyncDelivery(await self._on_thread(self._producer.send, *message), self._waker)
        deadline_s = asyncio.get_running_loop().time() + self._max_block_s
        while True:
            try:
                return AsyncDelivery(self._producer.send(*message), self._waker)
            except BufferExhausted as full:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise BufferExhausted(
                        f"topic {topic!r}: the buffer was full for {self._max_block_s:g} s",
                        code=full.code,
                    ) from None
                await asyncio.sleep(_FULL_WAIT_S)

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the name that Producer has
        await self._on_thread(self._producer.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        try:
            await self._on_thread(self._producer.close, timeout)
        finally:
            self._thread.shutdown(wait=False)

    @asynccontextmanager
    async def transaction(
        self, consumer: "AsyncConsumer | None" = None
    ) -> "AsyncIterator[Transaction]":
        """`async with producer.transaction(): …`: all of it is seen, or nothing."""
        inner = self._producer.transaction(None if consumer is None else consumer.consumer)
        begun: list[Transaction] = []
        try:
            await self._on_thread(lambda: begun.append(inner.__enter__()))
        except asyncio.CancelledError as error:
            # it may be begun, now or in a while: what ends it is queued behind it on the same thread
            self._thread.submit(_undo, begun, error)
            raise
        try:
            yield inner
        except BaseException as error:
            await self._ended(inner, error)
            raise
        await self._ended(inner, None)

    async def _ended(self, inner: "Transaction", error: BaseException | None) -> None:
        """Commit or abort. When cancelled, raise that after it is decided."""
        kind = None if error is None else type(error)
        await completed(run_in(self._thread, inner.__exit__, kind, error, None), _nothing)

    async def _on_thread(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await run_in(self._thread, call, *arguments, **named)


def _undo(begun: "list[Transaction]", error: BaseException) -> None:
    """Abort a transaction whose caller was cancelled while it began."""
    for transaction in begun:
        try:
            transaction.__exit__(type(error), error, None)
        except PenstockError as failure:
            LOGGER.warning("a cancelled transaction is not aborted: %s", failure)


def _nothing() -> None:
    """A commit or an abort goes on when its caller is cancelled."""


class AsyncConsumer:
    """`Consumer` for asyncio; its thread is the only one that touches librdkafka. Give it the arguments of Consumer.

    >>> async def read() -> str:
    ...     async with AsyncConsumer(bootstrap, "greetings", group_id="async-readers") as consumer:
    ...         async for message in consumer:
    ...             return message.value.decode()
    >>> import asyncio
    >>> asyncio.run(read())
    'hello'
    """

    def __init__(self, bootstrap: str, topics: str | Sequence[str], **settings: Any) -> None:
        self._thread = ClientThread("penstock-async-consumer")
        self._fetch_error: BaseException | None = None  # of a fetch that nobody awaited
        self.consumer: Final = Consumer(bootstrap, topics, **settings)
        self.metrics: Final = self.consumer.metrics
        self.topics: Final = self.consumer.topics
        self.group_id: Final = self.consumer.group_id

    def __repr__(self) -> str:
        return f"<Async{repr(self.consumer)[1:]}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._on_thread(self.consumer.__exit__, kind, error, trace)
        finally:
            self._thread.shutdown(wait=False)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, until `stop`."""
        thread, consumer = self._thread, self.consumer
        while not consumer.is_stopped:
            message = None if thread.unfinished or self._fetch_error else consumer.take_ready()
            if message is None:
                message = await self.poll(_SLICE_S)
            if message is not None:
                yield message

    async def poll(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109  # the name that Consumer has
        """The next message, or None. Finishes the one before. A cancelled poll takes no message away."""
        found = await self._take(1, timeout)
        return found[0] if found else None

    async def poll_many(self, limit: int, timeout: float) -> list[Message]:  # noqa: ASYNC109
        """Up to `limit` messages, as soon as there is one. Finishes those before."""
        return await self._take(limit, timeout)

    async def _take(self, limit: int, timeout: float | None) -> list[Message]:  # noqa: ASYNC109
        """Fetch on the thread, then hand out here. Between a hand-out and the end of this call nothing is awaited."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout is None else loop.time() + timeout
        while not self.consumer.is_stopped:
            left_s = None if deadline_s is None else max(0.0, deadline_s - loop.time())
            await self._thread.idle(left_s)
            if not self._thread.unfinished:
                self._raise_fetch_error()
                messages = self.consumer.take_ready_many(limit)
                if messages:
                    return messages
                await self._on_thread(
                    self._fetch, _SLICE_S if left_s is None else min(_SLICE_S, left_s)
                )
            if not self._thread.unfinished:  # else another task has called meanwhile
                self._raise_fetch_error()
                messages = self.consumer.take_many(limit)
                if messages:
                    return messages
            if deadline_s is not None and loop.time() >= deadline_s:
                break
        return []

    def _fetch(self, timeout_s: float) -> None:
        """On the thread. An error is kept for the loop: the task that awaits this may be cancelled."""
        try:
            self.consumer.fetch(timeout_s)
        except BaseException as error:  # noqa: BLE001  # raised by `_raise_fetch_error`
            self._fetch_error = self._fetch_error or error

    def _raise_fetch_error(self) -> None:
        error, self._fetch_error = self._fetch_error, None
        if error is not None:
            raise error

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Reads these from now on, instead of what was given before."""
        await self._on_thread(self.consumer.subscribe, topics)

    def stop(self) -> None:
        """Ends the iteration, or `run`, after the messages in hand."""
        self.consumer.stop()

    def stop_on_signals(self, *numbers: int) -> None:
        """SIGTERM, or the signals given, call `stop` from now on. Call it on the loop of the main thread."""
        loop = asyncio.get_running_loop()
        for number in numbers or (signal.SIGTERM,):
            loop.add_signal_handler(number, self.stop)

    @property
    def is_stopped(self) -> bool:
        return self.consumer.is_stopped

    async def close(self) -> None:
        """Commits what is finished, the message in hand included unless an exception is on its way, and leaves the group."""
        await self.__aexit__(*sys.exc_info())

    async def commit(self) -> None:
        """Commits everything handed out so far, the message in hand included."""
        await self._on_thread(self.consumer.commit)

    async def commit_offsets(self, offsets: Mapping[Place, int]) -> None:
        """Commits these: each is the next message to be read."""
        await self._on_thread(self.consumer.commit_offsets, offsets)

    async def await_assignment(self, timeout: float = 30.0) -> list[Place]:  # noqa: ASYNC109
        """Waits until the group has given this consumer partitions."""
        return await self._on_thread(self.consumer.await_assignment, timeout)

    async def assignment(self) -> list[Place]:
        """The partitions that this consumer reads now."""
        return await self._on_thread(self.consumer.assignment)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """The next message of that partition will be the one at `offset`."""
        await self._on_thread(self.consumer.seek, topic, partition, offset)

    async def seek_to_time(self, when: Time) -> None:
        """Goes on, in every partition, with the first message of that time or later."""
        await self._on_thread(self.consumer.seek_to_time, when)

    async def pause(self, places: Sequence[Place] | None = None) -> None:
        """Hands out nothing of these partitions (all, if not given) until `resume`."""
        await self._on_thread(self.consumer.pause, places)

    async def resume(self, places: Sequence[Place] | None = None) -> None:
        """Goes on with these partitions (all, if not given)."""
        await self._on_thread(self.consumer.resume, places)

    async def lag(self) -> dict[Place, int]:
        """How many messages each partition has that were not handed out yet."""
        return await self._on_thread(self.consumer.lag)

    async def run(
        self,
        handler: AsyncHandler,
        *,
        workers: int = 8,
        order: Order = "key",
        retries: int = 5,
        backoff: "Backoff" = 0.1,
        dead_letter: str | None = None,
        retry_topics: "RetryTopics | Sequence[float] | None" = None,
        max_in_flight: int = 1000,
        drain_timeout: float = 30.0,
    ) -> "Summary":
        """Handles messages with `workers` tasks of this loop until `stop`. See `penstock.sdk.processing`."""
        from penstock.sdk.async_workers import run_on_loop
        from penstock.sdk.processing import Options

        options = Options.of(
            self.topics,
            workers=workers,
            order=order,
            retries=retries,
            backoff=backoff,
            dead_letter=dead_letter,
            retry_topics=retry_topics,
            max_in_flight=max_in_flight,
            drain_timeout_s=drain_timeout,
        )
        return await run_on_loop(self.consumer, handler, options, self._thread)

    async def transform(self, fn: "Transform", *, to: str, **settings: Any) -> int:
        """Exactly once, as `Consumer.transform` does it; `fn` may be a coroutine function, which runs on this loop."""
        loop = asyncio.get_running_loop()

        def call(message: Message) -> Any:
            return asyncio.run_coroutine_threadsafe(fn(message), loop).result()

        chosen = call if is_async(fn) else fn
        return await self._until_done(partial(self.consumer.transform, chosen, to=to, **settings))

    async def run_in_database(
        self, connection: Any, handler: "DatabaseHandler", **settings: Any
    ) -> int:
        """Exactly once into a database, as `Consumer.run_in_database` does it: plain DB-API, on the consumer's thread."""
        return await self._until_done(
            partial(self.consumer.run_in_database, connection, handler, **settings)
        )

    async def _until_done(self, call: Callable[[], T]) -> T:
        """When it is cancelled, end this call, but not the consumer, and wait for what is begun."""
        try:
            return await completed(
                run_in(self._thread, call), lambda: self.consumer.interrupt(True)
            )
        finally:
            self.consumer.interrupt(False)

    async def _on_thread(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await run_in(self._thread, call, *arguments, **named)
