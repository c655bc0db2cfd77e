"""The order of answers: each request's place in it, and the bytes of its answer when it is known."""

import asyncio
from struct import Struct
from typing import Any, Final, NamedTuple

from penstock.kafka.api import Api
from penstock.kafka.hangup import HangUp
from penstock.kafka.promise import Promise
from penstock.model.steps import Steps
from penstock.storage.files import FileSlice
from penstock.wire.api_keys import ApiKey
from penstock.wire.fields import Chunk
from penstock.wire.header import RequestHeader
from penstock.wire.messages.fetch import FetchResponse
from penstock.wire.schema import Message

Later = asyncio.Future[Any] | Promise[Any]

_HEAD: Final = Struct(">ii")  # size, correlation id
_FLEXIBLE_HEAD: Final = Struct(">iib")  # and no tagged fields
_MAX_ANSWERS: Final = 1000  # of one connection, that are still to come
_MAX_KNOWN_BYTES: Final = 1 << 20  # that wait for earlier ones
COPIED_SLICE_BYTES: Final = 16 << 10  # below this, one copy is cheaper than a second system call
_COPIED_WHEN_SCARCE_BYTES: Final = 1 << 20  # while queued answers hold too many files


class Encoded(NamedTuple):
    """A reply as it is sent."""

    chunks: list[Chunk]


class Answer:
    __slots__ = ("api", "chunks", "future", "header", "started_s")

    def __init__(self, api: Api[Any, Any], header: RequestHeader, started_s: float) -> None:
        self.api = api
        self.header = header
        self.started_s = started_s
        self.chunks: list[Chunk] | None = None  # None: not known yet
        self.future: Later | None = None  # what it waits for

    def encoded_in_steps(self, reply: Message) -> Steps[Encoded]:
        body: list[Chunk] = [b""]
        yield from self.api.encode_in_steps(self.header.api_version)(reply, body)
        if self.api.parts is not None:
            yield from self.api.parts.free(reply)
        return Encoded(self.encoded(reply, body))

    def encoded(self, reply: Message, body: list[Chunk] | None = None) -> list[Chunk]:
        """The frame of the reply: bytes, and slices of files where it carries records. `body`: if it is encoded already."""
        version = self.header.api_version
        if body is None:
            body = [b""]  # the head, once the size is known
            self.api.encode(version)(reply, body)
        sliced = isinstance(reply, FetchResponse) and _copy_small_slices(body)
        flexible = self.api.has_flexible_response_header(version)
        size = sum(map(len, body)) + (5 if flexible else 4)
        correlation_id = self.header.correlation_id
        if flexible:
            body[0] = _FLEXIBLE_HEAD.pack(size, correlation_id, 0)
        else:
            body[0] = _HEAD.pack(size, correlation_id)
        return body if sliced else [b"".join(body)]  # type: ignore[arg-type] # no slices are left


class Line:
    """Requests that were taken and not answered, in order: an answer leaves when all before it have."""

    __slots__ = ("_known_bytes", "answers")

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._known_bytes = 0  # of answers that wait for earlier ones

    @property
    def is_full(self) -> bool:
        return len(self.answers) >= _MAX_ANSWERS or self._known_bytes > _MAX_KNOWN_BYTES

    @property
    def is_due(self) -> bool:
        """Whether the first answer is known to the loop already, and will be here in a moment."""
        first = self.answers[0].future if self.answers else None
        return first is not None and first.done()

    def open_of(self, key: ApiKey) -> list[asyncio.Future[Any]]:
        """Return the futures of that API's requests that are not answered yet."""
        found = [it.future for it in self.answers if it.api.key == key]
        return [it for it in found if isinstance(it, asyncio.Future) and not it.done()]

    def join(self, answer: Answer, chunks: list[Chunk] | None) -> None:
        """At the end, with the answer if it is known already."""
        self.answers.append(answer)
        if chunks is not None:
            answer.chunks = chunks
            self._known_bytes += memory_bytes(chunks)

    def leave(self, answer: Answer, chunks: list[Chunk]) -> list[Chunk]:
        """Now that this answer is known: what may leave, in order."""
        answer.chunks = chunks
        self._known_bytes += memory_bytes(chunks)
        leaving: list[Chunk] = []
        count = 0
        for first in self.answers:
            if first.chunks is None:
                break
            leaving += first.chunks
            count += 1
        if count:
            del self.answers[:count]
            self._known_bytes -= memory_bytes(leaving)
        return leaving

    def clear(self) -> None:
        for answer in self.answers:
            release(answer.chunks or [])
        self.answers.clear()
        self._known_bytes = 0


def memory_bytes(chunks: list[Chunk]) -> int:
    """How much of it lies in memory. A slice of a file counts as well, for its descriptor."""
    return sum(weight(chunk) for chunk in chunks)


def weight(chunk: Chunk) -> int:
    return COPIED_SLICE_BYTES if isinstance(chunk, FileSlice) else len(chunk)


def release(chunks: list[Chunk]) -> None:
    """Let go of the files that an answer was to be read from."""
    for chunk in chunks:
        if isinstance(chunk, FileSlice):
            chunk.release()


def _copy_small_slices(body: list[Chunk]) -> bool:
    """Replace slices that are not worth a system call of their own; whether any others are left."""
    sliced = False
    for index, chunk in enumerate(body):
        if isinstance(chunk, FileSlice):
            is_scarce = chunk.file.files.room_in_queues < 0
            most_bytes = _COPIED_WHEN_SCARCE_BYTES if is_scarce else COPIED_SLICE_BYTES
            if len(chunk) <= most_bytes:
                if chunk.is_stale:
                    raise HangUp("the log was truncated under an answer")
                body[index] = chunk.read()
                chunk.release()
            else:
                sliced = True
    return sliced
