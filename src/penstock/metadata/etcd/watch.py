"""A watch of etcd that goes on: on another member when one is silent, from where it was, nothing lost, nothing twice."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc.aio

from penstock.metadata.etcd import messages
from penstock.metadata.etcd.faults import ELSEWHERE, Fault, Trouble, trouble_of
from penstock.metadata.etcd.keys import Keys
from penstock.metadata.etcd.rpc import RANGE, EtcdClient, was_cancelled
from penstock.metadata.store import Change, Changes, Reload, Revision

_log = logging.getLogger(__name__)

_TICK_S: Final = 0.4
_DEAD_TICKS: Final = 3  # without an answer
_DEAD_TICKS_BEHIND: Final = 12  # while a member reads old changes from its disk


class Watcher:
    def __init__(self, client: EtcdClient, keys: Keys, prefix: str, after: Revision) -> None:
        self._client = client
        self._keys = keys
        self._span = keys.span(prefix)
        self._seen = after
        self._stream: _Stream | None = None

    def nudge(self) -> None:
        """There is a revision that brought no change here: ask how far we are."""
        if self._stream is not None:
            self._stream.nudge()

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.end()

    async def run(self) -> AsyncGenerator[Changes | Reload, None]:
        failures = 0
        while True:
            member = self._client.members.current
            try:
                async with aclosing(self._listen(member)) as stream:
                    async for found in stream:
                        failures = 0
                        if found is not None:
                            yield found
                        if isinstance(found, Reload):
                            return
            except Trouble as trouble:
                failures += 1
                if trouble.fault not in ELSEWHERE or failures > len(self._client.members):
                    raise trouble.explained() from trouble
                self._client.leave(member, trouble)
                _log.info("metadata-watch-moves revision=%d reason=%s", self._seen, trouble)

    async def _listen(self, member: str) -> AsyncGenerator[Changes | Reload | None, None]:
        """One member, as long as it answers. None: it does, and there is nothing new."""
        question = messages.RangeRequest(key=self._span[0], limit=1, keys_only=True)
        newest = await self._client.ask(member, RANGE, question)
        if self._seen > newest.header.revision:
            yield Reload()
            return
        token = await self._client.greet(member)
        stream = self._stream = _Stream(self._client, member, self._create(), token)
        events: list[Any] = []
        try:
            while True:
                stream.is_behind = self._seen < newest.header.revision
                response = await stream.read()
                self._client.members.accept(member, response.header)
                if response.canceled:
                    self._accept_end(member, response, token)
                    yield Reload()
                    return
                events += response.events
                if not response.fragment and not response.created:
                    yield self._progress(response, events)
                    events = []
        finally:
            stream.end()

    def _create(self) -> Any:
        return messages.WatchCreate(
            key=self._span[0],
            range_end=self._span[1],
            start_revision=max(self._seen, 1),  # one that exists: etcd answers nothing about others
            fragment=True,
        )

    def _accept_end(self, member: str, response: Any, token: str) -> None:
        """Returns if what we want is no longer kept. What is refused is tried once more, with a new token."""
        if not response.compact_revision:
            self._client.forget_token(token)
            raise Trouble(Fault.NOT_DONE, member, f"watch ended: {response.cancel_reason}")

    def _progress(self, response: Any, events: list[Any]) -> Changes | None:
        """What is new. Without events it is the answer to our question, and says how far we are."""
        fresh = [event for event in events if event.kv.mod_revision > self._seen]
        reached = events[-1].kv.mod_revision if events else response.header.revision
        if reached <= self._seen:
            return None
        self._seen = Revision(reached)
        return Changes(self._seen, [self._change(event) for event in fresh])

    def _change(self, event: Any) -> Change:
        kv = event.kv
        gone = event.type == messages.EVENT_DELETE
        return Change(
            self._keys.name(kv.key),
            Revision(kv.mod_revision),
            None if gone else self._keys.entry(kv),
        )


class _Stream:
    """Silence is counted in ticks of our own loop, while we listen: a loop that hangs proves nothing of etcd."""

    def __init__(self, client: EtcdClient, member: str, create: Any, token: str) -> None:
        self.is_behind = False
        self._client = client
        self._member = member
        self._silent_ticks = 0
        self._is_listening = False
        self._has_ended = False
        self._nudged = asyncio.Event()
        self._call = client.open_watch(member, self._requests(create), token)

    def nudge(self) -> None:
        self._nudged.set()

    def end(self) -> None:
        self._has_ended = True
        self._nudged.set()
        self._call.cancel()

    async def read(self) -> Any:
        self._is_listening = True
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise trouble_of(self._member, error.code(), error.details() or "") from error
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            self._client.refuse_if_closed()
            raise Trouble(
                Fault.UNKNOWN, self._member, "it does not answer", is_silent=True
            ) from None
        finally:
            self._is_listening = False
        if response is grpc.aio.EOF:
            raise Trouble(Fault.UNKNOWN, self._member, "it has ended the watch")
        self._silent_ticks = 0
        return response

    async def _requests(self, create: Any) -> AsyncIterator[Any]:
        """The watch, then a question at every tick; too many of them unanswered end the stream."""
        yield messages.WatchRequest(create=create)
        while True:
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._nudged.wait()
                self._nudged.clear()
            except TimeoutError:
                self._silent_ticks += self._is_listening
            if self._silent_ticks > (_DEAD_TICKS_BEHIND if self.is_behind else _DEAD_TICKS):
                self.end()
            if self._has_ended:
                return
            yield messages.WatchRequest(progress=messages.WatchProgress())
