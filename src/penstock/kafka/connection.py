"""One client connection: frames in, answers out, in order, on a raw non-blocking socket.

Requests are taken in arrival order and answered in that order. A Produce or MirrorAppend that waits
for its acknowledgement lets later requests pass into the log, and a follower's Fetch that waits is
overtaken by its next. Anything else that waits holds back what follows it: also a Produce or
MirrorAppend whose batches are not all in their logs, because it is appended in slices, a batch must
be opened, or its transaction is checked. Nobody else's buffer is ever waited for: a peer that does
not read its answers, or sends more than there is memory for, is simply not read from.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, nullcontext, suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.partitions.turns import Turns
from penstock.kafka.answers import Answer, Encoded, Later, Line
from penstock.kafka.api import Api, Handle, Known
from penstock.kafka.apis import APIS, unsupported_version_reply
from penstock.kafka.context import Context
from penstock.kafka.hangup import HangUp
from penstock.kafka.large_frame import (
    FIRST_BUFFER_BYTES,
    LARGE_FRAME_BYTES,
    LargeFrame,
    check_announced,
    watch_fillers,
)
from penstock.kafka.outbox import Outbox
from penstock.kafka.parts import Parts, handle_parts, visit_parts
from penstock.kafka.promise import Promise
from penstock.kafka.security import ANONYMOUS, Principal
from penstock.kafka.slices import SlicedAppend, Slices
from penstock.model.errors import BrokerError, ErrorCode, StorageFault
from penstock.storage.segment import DamagedLog
from penstock.wire.api_keys import ApiKey
from penstock.wire.fields import Chunk
from penstock.wire.header import RequestHeader, decode_request_header
from penstock.wire.messages.fetch import FetchResponse
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import Message

if TYPE_CHECKING:
    from penstock.kafka.server import Listener, Loop

_log = logging.getLogger(__name__)

_SIZE: Final = Struct(">i")
_SMALLEST_FRAME_BYTES: Final = 8
_FLUSH_AT_BYTES: Final = 256 << 10  # answers queued in memory before they are sent
_MANY_PARTITIONS: Final = 1000  # of a response that is encoded in steps
_NOTHING: Final = memoryview(b"")
_ENDS_WITH_CONNECTION: Final = (ApiKey.FETCH, ApiKey.OFFSET_FETCH)  # they wait, and change nothing

# Why no request is taken at the moment. There may be several reasons at once.
_HELD: Final = 1  # one that waits holds back later ones
_FULL: Final = 2  # too many are not answered yet
_BLOCKED: Final = 4  # the peer does not take our answers
_MUTED: Final = 8  # it has used up its share (quotas)
_STARVED: Final = 16  # others use all the memory for large frames
_CLOSED: Final = 32


class Connection:
    """Owned by its listener's loop. `close` may be called at any time, any number of times."""

    __slots__ = (
        "_announced_bytes",
        "_buffer",
        "_ended",
        "_fd",
        "_frame",
        "_held_for",
        "_known",
        "_line",
        "_loop",
        "_out",
        "_reading",
        "_socket",
        "_stops",
        "_tail",
        "_unmuting",
        "_waiting",
        "_writing",
        "client_host",
        "listener",
        "principal",
        "used_s",
    )

    def __init__(self, sock: socket.socket, listener: "Listener", loop: "Loop", host: str) -> None:
        self.listener = listener
        self.client_host = host
        self.principal: Principal = ANONYMOUS
        self.used_s = loop.time()  # when anything last moved through it
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._tail = _NOTHING  # the front of a small frame, or whole ones that are held back
        self._frame: LargeFrame | None = None  # being filled
        self._buffer: bytearray | None = None  # of the large frame that is being taken
        self._announced_bytes = 0  # of one that still waits for its buffer
        self._out = Outbox(sock)
        self._line = Line()
        self._known: Known | None = None  # the request that it sends again and again
        self._waiting: Later | None = None  # what the held request waits for
        self._held_for: ApiKey | None = None  # the API of the request that was held last
        self._stops = 0  # reasons why no request is taken
        self._unmuting: asyncio.TimerHandle | None = None
        self._ended = False  # the peer sends no more
        self._reading = True
        self._writing = False
        loop.add_reader(self._fd, self._on_readable)

    @property
    def is_idle(self) -> bool:
        """Whether silence is the peer's own: we owe it no answer, and would read what it sends."""
        return not (self._stops & (_HELD | _MUTED | _STARVED) or self._line.answers)

    # Reading -----------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            if self._stops:
                self._look_for_end()
            elif self._frame is not None:
                self._fill_frame(self._frame)
            else:
                self._fill_scratch()
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"read failed: {error.strerror}", expected=True)
        except Exception as error:  # noqa: BLE001 - a peer never crashes the broker
            self._hang_up(error)

    def _look_for_end(self) -> None:
        """More arrived while we cannot take it: leave it with the kernel, unless it is the end."""
        if not self._socket.recv(1, socket.MSG_PEEK):
            self._on_end()
        else:
            self._stop_reading()

    def _fill_scratch(self) -> None:
        """Read into the loop's one scratch buffer and take every whole frame out of it in place."""
        view = self._loop.scratch
        kept = len(self._tail)
        if kept:
            view[:kept] = self._tail
            received = self._socket.recv_into(view[kept:])
        else:
            received = self._socket.recv_into(view)
        if not received:
            self._on_end()
            return
        self._tail = _NOTHING
        self.used_s = self._loop.time()
        self._consume(view, kept + received)

    def _fill_frame(self, frame: LargeFrame) -> None:
        if not frame.receive(self._socket):
            self._on_end()
            return
        self.used_s = self._loop.time()
        if frame.needs_room:
            self._grow_frame(frame)
        elif frame.is_whole:
            self._frame = None
            self._loop.memory.fillers.discard(self)
            self._buffer = frame.buffer
            try:
                self._take(frame.contents)
            finally:
                self._give_back(self._keep_buffer())
            self._flush()

    def _consume(self, view: memoryview, end: int) -> None:
        """Take whole frames from the front of `view`; keep the rest for later."""
        position = 0
        while end - position >= 4 and not self._stops:
            size = _SIZE.unpack_from(view, position)[0]
            if not _SMALLEST_FRAME_BYTES <= size <= self._loop.max_frame_bytes:
                raise HangUp(
                    f"a frame of {size} bytes; the limit is {self._loop.max_frame_bytes}"
                    " (socket.request.max.bytes)"
                )
            stop = position + 4 + size
            if stop > end:
                if size > LARGE_FRAME_BYTES and end - position >= 6:
                    self._begin_frame(view[position + 4 : end], size)
                    position = end
                break
            position = stop + self._take(view[position + 4 : stop], view[stop:end])
            if self._out.size_bytes > _FLUSH_AT_BYTES:
                self._flush()
        if position < end:
            self._keep(view[position:end])
        self._flush()

    def _keep(self, rest: memoryview) -> None:
        """The scratch buffer is everybody's; what was kept before is ours, and need not be copied."""
        is_ours = rest.obj is not self._loop.scratch.obj
        self._tail = rest if is_ours else memoryview(bytearray(rest))

    def _begin_frame(self, front: memoryview, size: int) -> None:
        """Give a large frame a buffer of its own."""
        check_announced(size, front)
        self._announced_bytes = size
        first_bytes = min(size, FIRST_BUFFER_BYTES)
        buffer = self._loop.memory.take(first_bytes)
        if buffer is not None:
            self._fill_from(front, buffer)
            return
        self._keep(front)
        self._starve()
        self._loop.memory.ask(first_bytes, self._granted)

    def _grow_frame(self, frame: LargeFrame) -> None:
        larger = self._loop.memory.grow(frame.buffer)
        if larger is not None:
            frame.buffer = larger
            return
        self._starve()
        self._loop.memory.ask_larger(frame.buffer, self._granted)

    def _starve(self) -> None:
        self._stops |= _STARVED
        self._stop_reading()
        watch_fillers(self._loop)

    def _granted(self, buffer: bytearray) -> None:
        """Memory for the frame whose front was kept, or more of it for the one that is being filled."""
        self.used_s = self._loop.time()  # it was silent because we did not read
        if self._frame is None:
            self._fill_from(self._tail, buffer)
            self._tail = _NOTHING
        else:
            self._frame.buffer = buffer
        self._go_on(_STARVED)

    def _fill_from(self, front: memoryview, buffer: bytearray) -> None:
        self._frame = LargeFrame(self._announced_bytes, front, buffer, self._loop.time())
        self._loop.memory.fillers.add(self)

    def close_if_stalled(self) -> None:
        """Others wait for the memory that this frame holds."""
        assert self._frame is not None, "who fills one has one"
        if self._stops & ~_BLOCKED:  # it is us who do not read
            self._frame.mark(self._loop.time())
        elif (reason := self._frame.why_stalled(self._loop.time())) is not None:
            self.close(reason)

    def _go_on(self, stop: int) -> None:
        """One reason to take no request is gone."""
        self._stops &= ~stop
        self._resume()

    def _resume(self) -> None:
        """Unless something else is in the way, go on with what was kept, then with the socket."""
        if self._stops:
            return
        if self._tail:
            kept, self._tail = self._tail, _NOTHING
            try:
                self._consume(kept, len(kept))
            except Exception as error:  # noqa: BLE001 - as in `_on_readable`
                self._hang_up(error)
        if self._ended:
            self._leave_when_done()
        elif not (self._reading or self._stops):
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def mute(self, seconds: float) -> None:
        """Take no request for a while (quotas). Of several whiles, the one that ends last counts."""
        if self._stops & _CLOSED:
            return
        if self._unmuting is not None:
            if self._unmuting.when() >= self._loop.time() + seconds:
                return
            self._unmuting.cancel()
        self._stops |= _MUTED
        self._unmuting = self._loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        self._go_on(_MUTED)

    # Handling ----------------------------------------------------------------------------------

    def _take(self, frame: memoryview, rest: memoryview = _NOTHING) -> int:
        """Decode one request and have it handled, if it may be together with some in `rest`, which came
        after it; how many bytes those are."""
        started_s = self._loop.time()
        known = self._known
        if known is not None and (header := known.recognise(frame)) is not None:
            answer = Answer(APIS[header.api_key], header, started_s)
            self._carry_out(answer, self._context(header), known.request, known.handle)
            return 0
        try:
            header, position = decode_request_header(frame)
            api = APIS.get(header.api_key)
            if api is None:
                raise HangUp(f"api {header.api_key} is not known here")
            if not api.min_version <= header.api_version <= api.max_version:
                self._refuse_version(api, header, started_s)
                return 0
            # as in Kafka, bytes that follow are let be: librdkafka 2.x leaves 3 after Metadata v9+
            if len(frame) <= api.plain_bytes:
                request, _ = api.decode(header.api_version)(frame, position)
            else:
                request = _decoded_at_once(api, header, frame, position)
        except MalformedMessage as error:
            raise HangUp(f"malformed request: {error}") from error
        context = self._context(header)
        if request is None or (
            len(frame) > api.few_bytes and (api.are_many(request) or len(frame) > api.large_bytes)
        ):
            answer = Answer(api, header, started_s)
            later = self._take_long(answer, context, frame, position, request)
            self._park(answer, None, later, holds=True)
            return 0
        if rest and api.together is not None:
            together = api.together(request, context, frame, position, rest)
            if together is not None:
                for number, reply in together.replies:
                    numbered = header._replace(correlation_id=number)
                    self._reply(Answer(api, numbered, started_s), request, reply)
                return together.size_bytes
        if api.known is not None:
            if known is None:
                known = self._known = api.known()
            known.learn(header, request, frame, position)
        self._carry_out(Answer(api, header, started_s), context, request, api.handle)
        return 0

    def _take_long(
        self,
        answer: Answer,
        context: Context,
        frame: memoryview,
        position: int,
        request: Message | None,
    ) -> Coroutine[Any, Any, Message | Encoded | None]:
        """Keeps the frame's buffer, or copies it out of the scratch buffer, before it returns."""
        buffer = self._keep_buffer()
        if buffer is None:
            frame, request = memoryview(bytearray(frame)), None  # decoded from the copy
        if answer.api.slices is not None:
            return self._append_long(
                answer.api.slices, answer, context, frame, position, buffer, request
            )
        earlier = self._must_follow(answer.api)
        return self._handle_long(answer, context, frame, position, buffer, earlier)

    async def _handle_long(
        self,
        answer: Answer,
        context: Context,
        frame: memoryview,
        position: int,
        buffer: bytearray | None,
        earlier: list[asyncio.Future[Any]],
    ) -> Message | Encoded | None:
        """A request with many elements: decoded in steps and, where its API allows it, handled in parts."""
        api = answer.api
        try:
            if earlier:
                await asyncio.wait(earlier)
            if api.parts is None:
                request = await self._decoded(answer, frame, position)
                frame.release()
                self._give_back(buffer)  # only records would refer to it
                buffer = None
                return await self._handled(api, request, context)
            await self._prepare(api.parts, answer, context, frame, position)
            async with self._loop.long_requests if api.parts.is_queued else nullcontext():
                with self._loop.turns.without_full_collection():
                    return await self._handle_many(api.parts, answer, context, frame, position)
        finally:
            self._give_back(buffer)

    async def _prepare(
        self, parts: Parts, answer: Answer, context: Context, frame: memoryview, position: int
    ) -> None:
        """Wait for what the request needs from others, in no place of `long_requests`.

        Only its frame is kept meanwhile, so the request is decoded here and once more later.
        """
        preparation = answer.api.preparation
        if preparation is None or not preparation.begin(context):
            return
        turns = self._loop.turns
        async with self._loop.long_requests:
            with turns.without_full_collection():
                request = await self._decoded(answer, frame, position)
                await visit_parts(
                    parts, request, lambda part: preparation.visit(part, context), turns
                )
                del request
        await preparation.wait(context)

    async def _append_long(
        self,
        slices: Slices,
        answer: Answer,
        context: Context,
        frame: memoryview,
        position: int,
        buffer: bytearray | None,
        request: Message | None,
    ) -> Encoded | None:
        """Append a large request in slices. The next request may begin once all batches are in their logs."""
        try:
            entered = await self._enter(slices, answer, context, frame, position, request)
        except HangUp as error:
            raise error.without_frames() from None
        finally:
            self._give_back(buffer)
            # not kept while acknowledgements are awaited
            frame, buffer, request = _NOTHING, None, None
        self._let_next_begin(answer)
        reply = entered if isinstance(entered, Message) else await entered.response()
        if reply is None or self._is_closed():
            return None
        return await self._loop.turns.run(answer.encoded_in_steps(reply))

    async def _enter(
        self,
        slices: Slices,
        answer: Answer,
        context: Context,
        frame: memoryview,
        position: int,
        request: Message | None,
    ) -> SlicedAppend | Message:
        """Append all batches of a large request, or return its refusal as a whole."""
        api, turns = answer.api, self._loop.turns
        async with self._working():
            if request is None:
                request = await self._decoded(answer, frame, position)
            try:
                appends = await turns.run(slices.begin(request, context))
            except HangUp:
                raise
            except Exception as error:  # noqa: BLE001 - a request never crashes the broker
                return self._refusal(api, request, error)
        if appends.waiting is not None:
            with suppress(BrokerError):  # each partition is refused by itself
                await appends.waiting
        sliced = SlicedAppend(
            slices.parts,
            appends,
            context,
            lambda part, error: self._refusal(api, part, error),
            lambda later: self._loop.spawn(later, api.name),
        )
        async with self._working():
            await turns.run(sliced.steps(request, self._is_given_up, self._loop.time))
        await sliced.entered()
        return sliced

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Work on one of few long requests that append. Whoever waits for another broker is not counted."""
        async with self._loop.long_appends:
            with self._loop.turns.without_full_collection():
                yield

    def _is_closed(self) -> bool:
        return bool(self._stops & _CLOSED)

    def _is_given_up(self) -> bool:
        """Whether the client closed the connection, or its sending side: it may send again elsewhere."""
        return self._is_closed() or self._loop.peer_has_closed(self._fd)

    def _let_next_begin(self, answer: Answer) -> None:
        """A held request has done all that later ones must not overtake."""
        if self._waiting is not None and self._waiting is answer.future:
            self._waiting = None
            self._stops &= ~_HELD
            self._loop.call_soon(self._resume)

    async def _handle_many(
        self, parts: Parts, answer: Answer, context: Context, frame: memoryview, position: int
    ) -> Message | Encoded | None:
        api, turns = answer.api, self._loop.turns
        request = await self._decoded(answer, frame, position)
        if not parts.are_many(request):
            return await self._handled(api, request, context)
        reply = await handle_parts(
            parts, request, lambda part: self._part_handled(api, part, context), turns
        )
        return None if reply is None else await turns.run(answer.encoded_in_steps(reply))

    async def _decoded(self, answer: Answer, frame: memoryview, position: int) -> Message:
        api, turns = answer.api, self._loop.turns
        steps = api.decode_in_steps(answer.header.api_version)(frame, position, api.max_elements)
        try:
            with turns.without_full_collection():
                request: Message = (await turns.run(steps))[0]
        except MalformedMessage as error:
            raise HangUp(f"malformed request: {error}") from error
        return request

    async def _part_handled(
        self, api: Api[Any, Any], part: Message, context: Context
    ) -> Message | None:
        """Handle a request, or a part of one, unless the client is gone."""
        if self._stops & _CLOSED:
            raise HangUp(f"the client of {api.name} is gone")
        return await self._handled(api, part, context)

    async def _handled(
        self, api: Api[Any, Any], request: Message, context: Context
    ) -> Message | None:
        try:
            reply = api.handle(request, context)
            if reply is None or isinstance(reply, Message):
                return reply
            later: Message | None = await reply
        except HangUp:
            raise
        except Exception as error:  # noqa: BLE001 - a request never crashes the broker
            return self._refusal(api, request, error)
        return later

    def _must_follow(self, api: Api[Any, Any]) -> list[asyncio.Future[Any]]:
        """Return the OffsetCommits that an OffsetFetch must see: those before it on the connection."""
        return self._line.open_of(ApiKey.OFFSET_COMMIT) if api.key == ApiKey.OFFSET_FETCH else []

    async def _handled_after(
        self,
        earlier: list[asyncio.Future[Any]],
        api: Api[Any, Any],
        request: Message,
        context: Context,
    ) -> Message | None:
        await asyncio.wait(earlier)
        return await self._part_handled(api, request, context)

    def _keep_buffer(self) -> bytearray | None:
        buffer, self._buffer = self._buffer, None
        return buffer

    def _give_back(self, buffer: bytearray | None) -> None:
        if buffer is not None:
            self._loop.memory.give(buffer)

    def _context(self, header: RequestHeader) -> Context:
        listener = self.listener
        return Context(listener.services, header, self.principal, listener.name, self.client_host)

    def _carry_out(
        self, answer: Answer, context: Context, request: Message, handle: Handle[Any, Any]
    ) -> None:
        api = answer.api
        if earlier := self._must_follow(api):
            later = self._handled_after(earlier, api, request, context)
            self._park(answer, request, later, holds=True)
            return
        try:
            reply = handle(request, context)
        except HangUp:
            raise
        except Exception as error:  # noqa: BLE001 - a request never crashes the broker
            reply = self._refusal(api, request, error)
        if reply is None:
            self._count(answer)
        else:
            self._reply(answer, request, reply, holds=context.holds or not api.pipelined)

    def _reply(self, answer: Answer, request: Message, reply: Any, *, holds: bool = False) -> None:
        if isinstance(reply, Message):
            self._answer(answer, reply)
        else:
            self._park(answer, request, reply, holds=holds)

    def _refuse_version(self, api: Api[Any, Any], header: RequestHeader, started_s: float) -> None:
        reply = unsupported_version_reply(api, self.listener.services)
        if reply is None:
            raise HangUp(
                f"{api.name} v{header.api_version} is not supported; "
                f"v{api.min_version} to v{api.max_version} are"
            )
        self._answer(Answer(api, header._replace(api_version=0), started_s), reply)

    def _refusal(self, api: Api[Any, Any], request: Message, error: Exception) -> Message:
        """The whole request failed: say so in the API's own form."""
        if isinstance(error, StorageFault):
            if not isinstance(error, DamagedLog):
                self.listener.services.replicas.disk_failed(error)
            error = BrokerError(str(error), ErrorCode.KAFKA_STORAGE_ERROR)
        elif not isinstance(error, BrokerError):
            self._failed(api, error)
            error = BrokerError("an unexpected error; see the broker's log")
        refusal: Message = api.refuse(request, error)
        return refusal

    def _failed(self, api: Api[Any, Any], error: Exception) -> None:
        """A fault of our own."""
        _log.error("request-failed api=%s client=%s", api.name, self.client_host, exc_info=error)
        self.listener.services.metrics.request(api.name).errors.value += 1

    def _park(self, answer: Answer, request: Message | None, reply: Any, *, holds: bool) -> None:
        """The answer comes later. Only a pipelined API lets the next request begin before it."""
        if isinstance(reply, Promise) or asyncio.isfuture(reply):
            future: Later = reply
        else:
            future = self._loop.create_future()
            task = self._run(reply, future, answer)
            if answer.api.key in _ENDS_WITH_CONNECTION:
                future.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
            elif answer.api.key == ApiKey.PRODUCE and (buffer := self._keep_buffer()) is not None:
                # the handler has a copy of the records until it ends, also without the client
                task.add_done_callback(lambda _: self._give_back(buffer))
        answer.future = future
        self._line_up(answer, None)
        if holds:
            self._stops |= _HELD
            self._waiting, self._held_for = future, answer.api.key
        future.add_done_callback(lambda done: self._finish(answer, request, done))

    def _run(
        self, coroutine: Coroutine[Any, Any, Any], future: asyncio.Future[Any], answer: Answer
    ) -> asyncio.Task[Any]:
        """Run a coroutine of a handler; its outcome becomes the future's."""
        task = self._loop.spawn(_into(future, coroutine, answer, self._loop.turns), answer.api.name)
        task.add_done_callback(lambda _: _end_unstarted(coroutine, future))
        return task

    def _finish(
        self, answer: Answer, request: Message | None, done: Later, *, may_be_large: bool = True
    ) -> None:
        if self._stops & _CLOSED:
            _ = done.cancelled() or done.exception()  # nobody is left to hear of it
            return
        if (
            may_be_large
            and not done.cancelled()
            and done.exception() is None
            and _is_large(done.result())
        ):
            self._encode_later(answer, request, done)
            return
        if self._waiting is done:
            self._waiting = None
            self._stops &= ~_HELD
        try:
            self._answer_parked(answer, self._outcome(answer.api, request, done))
        except Exception as error:  # noqa: BLE001 - as in `_on_readable`
            self._hang_up(error)
            return
        if not self._line.is_due:  # else the next one comes in this very tick: they leave together
            self._flush()
        if self._tail:  # who kept the promise is in the middle of something: no request begins now
            self._loop.call_soon(self._resume)
        else:
            self._resume()

    def _encode_later(self, answer: Answer, request: Message | None, done: Later) -> None:
        """A large reply that came through a future is encoded in steps before it is sent."""
        future = answer.future = self._loop.create_future()
        if self._waiting is done:
            self._waiting = future
        self._run(_given(done.result()), future, answer)
        future.add_done_callback(
            lambda encoded: self._finish(answer, request, encoded, may_be_large=False)
        )

    def _outcome(
        self, api: Api[Any, Any], request: Message | None, done: Later
    ) -> Message | Encoded | None:
        if done.cancelled():
            raise HangUp(f"{api.name} was given up")
        error = done.exception()
        if error is None:
            reply: Message | Encoded | None = done.result()
            return reply
        if isinstance(error, HangUp) or not isinstance(error, Exception) or request is None:
            raise error
        return self._refusal(api, request, error)

    # Answering ---------------------------------------------------------------------------------

    def _answer(self, answer: Answer, reply: Message) -> None:
        """A reply that is ready at once leaves at once, unless earlier ones are still to come."""
        chunks = self._encoded(answer, reply)
        if self._line.answers:
            self._line_up(answer, chunks)
        else:
            self._out.put(chunks)

    def _line_up(self, answer: Answer, chunks: list[Chunk] | None) -> None:
        self._line.join(answer, chunks)
        if self._line.is_full:
            self._stops |= _FULL

    def _answer_parked(self, answer: Answer, reply: Message | Encoded | None) -> None:
        chunks: list[Chunk] = []
        if reply is None:
            self._count(answer)
        else:
            chunks = self._encoded(answer, reply)
        leaving = self._line.leave(answer, chunks)
        self._out.put(leaving)
        if not self._line.is_full:
            self._stops &= ~_FULL

    def _encoded(self, answer: Answer, reply: Message | Encoded) -> list[Chunk]:
        services = self.listener.services
        try:
            chunks = reply.chunks if isinstance(reply, Encoded) else answer.encoded(reply)
        except HangUp:
            raise
        except StorageFault as fault:
            services.replicas.disk_failed(fault)
            raise HangUp(f"the answer to {answer.api.name} cannot be read: {fault}") from fault
        except Exception as error:
            self._failed(answer.api, error)
            raise HangUp(f"the answer to {answer.api.name} cannot be written") from error
        self._count(answer)
        return chunks

    def _count(self, answer: Answer) -> None:
        """Count a request that is done in the metrics."""
        elapsed_s = self._loop.time() - answer.started_s
        self.listener.services.metrics.request(answer.api.name).done(elapsed_s)

    def _flush(self) -> None:
        """Send until all is gone or the peer takes no more."""
        if not self._out.chunks or self._stops & (_BLOCKED | _CLOSED):
            return
        try:
            self._out.flush()
        except BlockingIOError:
            self._stops |= _BLOCKED
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._on_writable)
        except OSError as error:
            self.close(f"write failed: {error.strerror}", expected=True)
        except HangUp as reason:
            self.close(str(reason))
        except StorageFault as fault:
            self.listener.services.replicas.disk_failed(fault)
            self.close(str(fault))

    def _on_writable(self) -> None:
        self.used_s = self._loop.time()
        self._stops &= ~_BLOCKED
        self._flush()
        if not self._stops & (_BLOCKED | _CLOSED):
            self._writing = False
            self._loop.remove_writer(self._fd)
            self._resume()

    # The end -----------------------------------------------------------------------------------

    def _on_end(self) -> None:
        """The peer sends no more, and may still read: what it asked for is answered first. But
        nothing is waited for on behalf of somebody who most likely is gone."""
        self._ended = True
        self._stop_reading()
        if self._stops & _HELD and self._held_for is not ApiKey.PRODUCE:
            self.close("closed by the client while it waited", expected=True)
        elif self._tail and not self._stops:
            self._resume()  # whole requests may have been kept that came before the end
        else:
            self._leave_when_done()

    def _leave_when_done(self) -> None:
        if not (self._out.chunks or self._line.answers or self._stops & _MUTED):
            self.close("closed by the client", expected=True)

    def _hang_up(self, error: Exception) -> None:
        """What came before the offence, or before a fault of our own, is answered."""
        if not isinstance(error, HangUp):
            _log.error("connection-failed client=%s", self.client_host, exc_info=error)
        self._flush()
        self.close(str(error) or "a fault of the broker's own; see its log")

    def close(self, reason: str, *, expected: bool = False) -> None:
        if self._stops & _CLOSED:
            return
        level = logging.DEBUG if expected else logging.WARNING
        _log.log(level, "connection-closed client=%s reason=%s", self.client_host, reason)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        starved, self._stops = self._stops & _STARVED, _CLOSED
        if starved:
            self._loop.memory.withdraw(self._granted)
        if self._unmuting is not None:
            self._unmuting.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._frame is not None:
            frame, self._frame = self._frame, None
            self._loop.memory.fillers.discard(self)
            self._loop.memory.give(frame.buffer)
        self._line.clear()
        self._out.clear()
        self._tail = _NOTHING
        self._socket.close()
        self.listener.forget(self)


def _decoded_at_once(
    api: Api[Any, Any], header: RequestHeader, frame: memoryview, position: int
) -> Message | None:
    """The request of a large frame, unless it has so many elements that this takes more than one step."""
    steps = api.decode_in_steps(header.api_version)(frame, position, api.max_elements)
    try:
        next(steps)
    except StopIteration as end:
        request: Message = end.value[0]
        return request
    steps.close()
    return None


async def _given(reply: Message) -> Message:
    return reply


def _is_large(reply: Any) -> bool:
    """Only fetches come through futures and may be large."""
    return isinstance(reply, FetchResponse) and (
        len(reply.responses) > _MANY_PARTITIONS
        or sum(len(topic.partitions) for topic in reply.responses) > _MANY_PARTITIONS
    )


def _end_unstarted(coroutine: Coroutine[Any, Any, Any], future: asyncio.Future[Any]) -> None:
    """A task that is cancelled before its first step, when the broker stops, never runs `_into`."""
    coroutine.close()
    future.cancel()


async def _into(
    future: asyncio.Future[Any],
    coroutine: Coroutine[Any, Any, Any],
    answer: Answer,
    turns: Turns,
) -> None:
    """Run a handler that is a coroutine; its outcome becomes the future's."""
    try:
        result = await coroutine
        if isinstance(result, Message):
            with suppress(Exception):  # the connection tries it too, and says what is wrong
                result = await turns.run(answer.encoded_in_steps(result))
    except Exception as error:  # noqa: BLE001 - the connection answers for it
        if not future.done():
            future.set_exception(error)
    except BaseException:
        future.cancel()
        raise
    else:
        if not future.done():
            future.set_result(result)
