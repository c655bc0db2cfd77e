"""One client connection: frames in, answers out, in order, on a raw non-blocking socket.

Requests are taken in arrival order and answered in that order. A produce that waits for its
acknowledgement lets later requests pass into the log; anything else that waits holds back what
follows it. Nobody else's buffer is ever waited for: a peer that does not read its answers, or sends
more than there is memory for, is simply not read from.
"""

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Coroutine
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.api import Api
from penstock.kafka.apis import APIS, unsupported_version_reply
from penstock.kafka.context import Context
from penstock.kafka.hangup import HangUp
from penstock.kafka.security import ANONYMOUS, Principal
from penstock.model.errors import BrokerError, ErrorCode, StorageFault
from penstock.storage.files import FileSlice
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
_HEAD: Final = Struct(">ii")  # size, correlation id
_FLEXIBLE_HEAD: Final = Struct(">iib")  # and no tagged fields
_SMALLEST_FRAME_BYTES: Final = 8
_LARGE_FRAME_BYTES: Final = 64 << 10  # a larger frame gets a buffer of its own
_LARGEST_PLAIN_FRAME_BYTES: Final = 16 << 20
_FLUSH_AT_BYTES: Final = 256 << 10  # answers queued in memory before they are sent
_COPIED_SLICE_BYTES: Final = 16 << 10  # below this, one copy is cheaper than a second system call
_DISK_ERRORS: Final = (errno.EIO, errno.EUCLEAN)  # sendfile fails for the file, not for the socket
_MAX_UNANSWERED: Final = 1000  # produces of one connection that wait for acknowledgement


class Answer:
    """A request's place in the order of answers."""

    __slots__ = ("api", "chunks", "header", "started_s")

    def __init__(self, api: Api[Any, Any], header: RequestHeader, started_s: float) -> None:
        self.api = api
        self.header = header
        self.started_s = started_s
        self.chunks: list[Chunk] | None = None  # None: not known yet


class Connection:
    """Owned by its listener's loop. `close` may be called at any time, any number of times."""

    __slots__ = (
        "_blocked",
        "_closed",
        "_fd",
        "_flush_due",
        "_frame",
        "_frame_filled",
        "_frame_size",
        "_head_sent",
        "_held",
        "_loop",
        "_muted",
        "_out",
        "_out_bytes",
        "_reading",
        "_socket",
        "_tail",
        "_unanswered",
        "_waiting",
        "client_host",
        "listener",
        "principal",
        "used_s",
    )

    def __init__(self, sock: socket.socket, listener: "Listener", loop: "Loop", host: str) -> None:
        self.listener = listener
        self.client_host = host
        self.principal: Principal = ANONYMOUS
        self.used_s = loop.time()
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._tail = b""  # the front of a small frame, or whole ones that are held back
        self._frame: bytearray | None = None  # a large frame, being filled
        self._frame_size = 0
        self._frame_filled = 0
        self._out: deque[Chunk] = deque()
        self._out_bytes = 0  # of _out, in memory
        self._head_sent = 0  # bytes of _out[0] that have left
        self._unanswered: deque[Answer] = deque()
        self._waiting: asyncio.Future[Any] | None = None  # what the held request waits for
        self._flush_due = False  # at the end of this tick
        self._held = False  # a request that waits holds back later ones
        self._muted = False
        self._blocked = False  # the peer does not take our answers
        self._reading = True
        self._closed = False
        loop.add_reader(self._fd, self._on_readable)

    @property
    def is_idle(self) -> bool:
        return not (self._held or self._unanswered or self._out)

    # Reading -----------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            if self._held or self._blocked or self._muted:
                self._look_for_end()
            elif self._frame is not None:
                self._fill_frame(self._frame)
            else:
                self._fill_scratch()
        except (BlockingIOError, InterruptedError):
            return
        except HangUp as reason:
            self._flush()  # what came before the offence is answered
            self.close(str(reason))
        except OSError as error:
            self.close(f"read failed: {error.strerror}", expected=True)

    def _look_for_end(self) -> None:
        """More arrived while we cannot take it: leave it with the kernel, unless it is the end."""
        if not self._socket.recv(1, socket.MSG_PEEK):
            self.close("closed by the client", expected=True)
        else:
            self._stop_reading()

    def _fill_scratch(self) -> None:
        """Read into the loop's one scratch buffer and take every whole frame out of it in place."""
        view = self._loop.scratch
        kept = len(self._tail)
        if kept:
            view[:kept] = self._tail
            self._tail = b""
            received = self._socket.recv_into(view[kept:])
        else:
            received = self._socket.recv_into(view)
        if not received:
            self.close("closed by the client", expected=True)
            return
        self.used_s = self._loop.time()
        self._consume(view, kept + received)

    def _fill_frame(self, frame: bytearray) -> None:
        with memoryview(frame) as view:
            received = self._socket.recv_into(view[self._frame_filled : self._frame_size])
        if not received:
            self.close("closed by the client in the middle of a request", expected=True)
            return
        self.used_s = self._loop.time()
        self._frame_filled += received
        if self._frame_filled < self._frame_size:
            return
        self._frame = None
        try:
            self._take(memoryview(frame)[: self._frame_size])
        finally:
            self._loop.memory.give(frame)
        self._flush()

    def _consume(self, view: memoryview, end: int) -> None:
        """Take whole frames from the front of `view`; keep the rest for later."""
        position = 0
        while end - position >= 4 and not (self._held or self._blocked or self._muted):
            size = _SIZE.unpack_from(view, position)[0]
            if not _SMALLEST_FRAME_BYTES <= size <= self._loop.max_frame_bytes:
                raise HangUp(
                    f"a frame of {size} bytes; the limit is {self._loop.max_frame_bytes}"
                    " (socket.request.max.bytes)"
                )
            stop = position + 4 + size
            if stop > end:
                if size > _LARGE_FRAME_BYTES and end - position >= 6:
                    self._begin_frame(view[position + 4 : end], size)
                    position = end
                break
            self._take(view[position + 4 : stop])
            if self._closed:
                return
            position = stop
            if self._out_bytes > _FLUSH_AT_BYTES:
                self._flush()
        if position < end:
            self._tail = bytes(view[position:end])
        self._flush()

    def _begin_frame(self, front: memoryview, size: int) -> None:
        """Give a large frame a buffer of its own. Only records may be really large: anything else
        becomes Python objects, many times the size of their bytes."""
        api_key = int.from_bytes(front[:2], "big")
        if size > _LARGEST_PLAIN_FRAME_BYTES and api_key != ApiKey.PRODUCE:
            raise HangUp(
                f"a frame of {size} bytes for api {api_key}; the limit for all but Produce is "
                f"{_LARGEST_PLAIN_FRAME_BYTES}"
            )
        buffer = self._loop.memory.take(size)
        if buffer is None:  # try again when another connection is done with its buffer
            self._tail = _SIZE.pack(size) + bytes(front)
            self._muted = True
            self._stop_reading()
            self._loop.memory.when_free(self.unmute)
            return
        with memoryview(buffer) as view:  # a bytearray's own slice would copy `front` twice
            view[: len(front)] = front
        self._frame = buffer
        self._frame_size = size
        self._frame_filled = len(front)

    def _resume(self) -> None:
        """What held us back is gone: go on with what was kept, then with the socket."""
        if self._closed or self._held or self._blocked or self._muted:
            return
        if self._tail:
            kept = memoryview(bytearray(self._tail))
            self._tail = b""
            try:
                self._consume(kept, len(kept))
            except HangUp as reason:
                self.close(str(reason))
        self._read_again()

    def _read_again(self) -> None:
        if not (self._reading or self._closed or self._held or self._blocked or self._muted):
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def mute(self, seconds: float) -> None:
        """Take no request for a while (quotas)."""
        self._muted = True
        self._loop.call_later(seconds, self.unmute)

    def unmute(self) -> None:
        self._muted = False
        self._resume()

    # Handling ----------------------------------------------------------------------------------

    def _take(self, frame: memoryview) -> None:
        """Decode one request and have it handled."""
        started_s = self._loop.time()
        try:
            header, position = decode_request_header(frame)
            api = APIS.get(header.api_key)
            if api is None:
                raise HangUp(f"api {header.api_key} is not known here")
            if not api.min_version <= header.api_version <= api.max_version:
                self._refuse_version(api, header, started_s)
                return
            # as in Kafka, bytes that follow are let be: librdkafka 2.x leaves 3 after Metadata v9+
            request, _ = api.decode(header.api_version)(frame, position)
        except MalformedMessage as error:
            raise HangUp(f"malformed request: {error}") from error
        services = self.listener.services
        context = Context(services, header, self.principal, self.listener.name, self.client_host)
        try:
            reply = api.handle(request, context)
        except HangUp:
            raise
        except Exception as error:  # noqa: BLE001 - a request never crashes the broker
            reply = self._refusal(api, request, error)
        if isinstance(reply, Message):
            self._answer(Answer(api, header, started_s), reply)
        elif reply is None:
            services.metrics.request(api.name).done(self._loop.time() - started_s)
        else:
            holds = context.holds or not api.pipelined
            self._park(Answer(api, header, started_s), request, reply, holds=holds)

    def _refuse_version(self, api: Api[Any, Any], header: RequestHeader, started_s: float) -> None:
        reply = unsupported_version_reply(api)
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
        if not isinstance(error, BrokerError):
            self._failed(api, error)
            error = BrokerError("an unexpected error; see the broker's log")
        refusal: Message = api.refuse(request, error)
        return refusal

    def _failed(self, api: Api[Any, Any], error: Exception) -> None:
        """A fault of our own."""
        _log.error("request-failed api=%s client=%s", api.name, self.client_host, exc_info=error)
        self.listener.services.metrics.request(api.name).errors.value += 1

    def _park(self, answer: Answer, request: Message, reply: Any, *, holds: bool) -> None:
        """The answer comes later. Only a pipelined API lets the next request begin before it."""
        if asyncio.isfuture(reply):
            future: asyncio.Future[Any] = reply
        else:
            future = self._loop.create_future()
            self._loop.spawn(_into(future, reply), answer.api.name)
        self._unanswered.append(answer)
        if holds or len(self._unanswered) >= _MAX_UNANSWERED:
            self._held = True
            self._waiting = future
        future.add_done_callback(lambda done: self._finish(answer, request, done))

    def _finish(self, answer: Answer, request: Message, done: asyncio.Future[Any]) -> None:
        if self._closed or done.cancelled():
            return
        error = done.exception()
        if isinstance(error, HangUp):
            self.close(str(error))
            return
        if error is None:
            reply = done.result()
        elif isinstance(error, Exception):
            reply = self._refusal(answer.api, request, error)
        else:
            raise error
        if self._waiting is done:
            self._waiting = None
            self._held = False
        try:
            self._answer_parked(answer, reply)
        except HangUp as reason:
            self.close(str(reason))
            return
        if self._unanswered:
            self._flush_soon()
        else:
            self._flush()
        self._resume()

    # Answering ---------------------------------------------------------------------------------

    def _answer(self, answer: Answer, reply: Message) -> None:
        """A reply that is ready at once leaves at once, unless earlier ones are still to come."""
        chunks = self._encoded(answer, reply)
        if self._unanswered:
            answer.chunks = chunks
            self._unanswered.append(answer)
        else:
            self._queue(chunks)

    def _answer_parked(self, answer: Answer, reply: Message) -> None:
        answer.chunks = self._encoded(answer, reply)
        while self._unanswered and (chunks := self._unanswered[0].chunks) is not None:
            self._unanswered.popleft()
            self._queue(chunks)

    def _encoded(self, answer: Answer, reply: Message) -> list[Chunk]:
        try:
            chunks = encode_reply(answer, reply)
        except StorageFault as fault:
            self.listener.services.replicas.disk_failed(fault)
            raise HangUp(f"the answer to {answer.api.name} cannot be read: {fault}") from fault
        except Exception as error:
            self._failed(answer.api, error)
            raise HangUp(f"the answer to {answer.api.name} cannot be written") from error
        metrics = self.listener.services.metrics.request(answer.api.name)
        metrics.done(self._loop.time() - answer.started_s)
        return chunks

    def _queue(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self._out.append(chunk)
            if not isinstance(chunk, FileSlice):
                self._out_bytes += len(chunk)

    def _flush_soon(self) -> None:
        """More answers may come in this tick: send them together."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        """Send until all is gone or the peer takes no more."""
        if not self._out or self._blocked or self._closed:
            return
        try:
            while self._out:
                head = self._out[0]
                if isinstance(head, FileSlice):
                    self._send_slice(head)
                else:
                    self._send_bytes()
        except (BlockingIOError, InterruptedError):
            self._blocked = True
            self._loop.add_writer(self._fd, self._on_writable)
        except OSError as error:
            if error.errno in _DISK_ERRORS and isinstance(self._out[0], FileSlice):
                path = self._out[0].file.path
                self.listener.services.replicas.disk_failed(
                    StorageFault(f"{path}: cannot be read: {error.strerror}")
                )
            self.close(f"write failed: {error.strerror}", expected=True)

    def _send_slice(self, head: FileSlice) -> None:
        if head.is_stale:
            self.close("the log was truncated under a queued answer")
            return
        sent = os.sendfile(
            self._fd,
            head.fileno(),
            head.position + self._head_sent,
            head.size - self._head_sent,
        )
        if sent == 0:
            self.close("a segment ended before its index says so")
            return
        self._head_sent += sent
        if self._head_sent == head.size:
            self._head_sent = 0
            self._out.popleft()
            head.release()

    def _send_bytes(self) -> None:
        """Send the run of bytes at the front, joined: one system call for many small answers."""
        out = self._out
        run: list[Any] = []
        size = 0
        for chunk in out:
            if isinstance(chunk, FileSlice) or size > _FLUSH_AT_BYTES:
                break
            run.append(chunk)
            size += len(chunk)
        data = run[0] if len(run) == 1 else b"".join(run)
        skipped = self._head_sent
        sent = self._socket.send(memoryview(data)[skipped:] if skipped else data) + skipped
        for chunk in run:
            if sent < len(chunk):
                break
            sent -= len(chunk)
            self._out_bytes -= len(chunk)
            out.popleft()
        self._head_sent = sent

    def _on_writable(self) -> None:
        self._blocked = False
        self._flush()
        if not (self._blocked or self._closed):
            self._loop.remove_writer(self._fd)
            self._resume()

    # The end -----------------------------------------------------------------------------------

    def close(self, reason: str, *, expected: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        level = logging.DEBUG if expected else logging.WARNING
        _log.log(level, "connection-closed client=%s reason=%s", self.client_host, reason)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._waiting is not None:
            self._waiting.cancel()
        if self._frame is not None:
            frame, self._frame = self._frame, None
            self._loop.memory.give(frame)
        for chunk in self._out:
            if isinstance(chunk, FileSlice):
                chunk.release()
        self._out.clear()
        self._socket.close()
        self.listener.forget(self)


def encode_reply(answer: Answer, reply: Message) -> list[Chunk]:
    """The frame of one reply: bytes, and slices of files where it carries records."""
    version = answer.header.api_version
    body: list[Chunk] = [b""]  # the head, once the size is known
    answer.api.encode(version)(reply, body)
    sliced = isinstance(reply, FetchResponse) and _copy_small_slices(body)
    flexible = answer.api.has_flexible_response_header(version)
    size = sum(map(len, body)) + (5 if flexible else 4)
    correlation_id = answer.header.correlation_id
    if flexible:
        body[0] = _FLEXIBLE_HEAD.pack(size, correlation_id, 0)
    else:
        body[0] = _HEAD.pack(size, correlation_id)
    return body if sliced else [b"".join(body)]  # type: ignore[arg-type] # no slices are left


def _copy_small_slices(body: list[Chunk]) -> bool:
    """Replace slices that are not worth a system call of their own; whether any others are left."""
    sliced = False
    for index, chunk in enumerate(body):
        if isinstance(chunk, FileSlice):
            if len(chunk) <= _COPIED_SLICE_BYTES:
                body[index] = chunk.read()
                chunk.release()
            else:
                sliced = True
    return sliced


async def _into(future: asyncio.Future[Any], coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a handler that is a coroutine; its outcome becomes the future's."""
    try:
        result = await coroutine
    except Exception as error:  # noqa: BLE001 - the connection answers for it
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)
