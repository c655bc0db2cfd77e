"""A watch of etcd that goes on: on another member when one is silent, from where it was, nothing lost, nothing twice."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc.aio

from penstock.metadata import etcd_messages as messages
from penstock.metadata.etcd_faults import ELSEWHERE, Fault, Trouble, trouble_of
from penstock.metadata.etcd_keys import Keys
from penstock.metadata.etcd_rpc import RANGE, EtcdClient, was_cancelled
from penstock.metadata.store import Change, Changes, Reload, Revision

_log = logging.getLogger(__name__)

_TICK_S: Final = 0.4
_DEAD_TICKS: Final = 3  # without an answer
_DEAD_TICKS_BEHIND: Final = 12  # while a member reads old changes from its disk


class Watcher:
    """Silence is counted in ticks of our own loop, while we listen: a loop that hangs proves nothing of etcd."""

    def __init__(self, client: EtcdClient, keys: Keys, prefix: str, after: Revision) -> None:
        self._client = client
        self._keys = keys
        self._prefix = prefix
        self._seen = after
        self._latest = after  # of the store, when the stream was opened
        self._nudged = asyncio.Event()
        self._call: Any = None
        self._is_listening = False
        self._silent_ticks = 0

    def nudge(self) -> None:
        """There is a revision that brought no change here: ask how far we are."""
        self._nudged.set()

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def run(self) -> AsyncGenerator[Changes | Reload, None]:
        failures = 0
        while True:
            member = self._client.members.current
            try:
                async with aclosing(self._stream(member)) as stream:
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
                self._client.leave(member)
                _log.info("metadata-watch-moves revision=%d reason=%s", self._seen, trouble)

    async def _stream(self, member: str) -> AsyncGenerator[Changes | Reload | None, None]:
        """One stream, as long as it lasts. None: it answers, and there is nothing new."""
        key, end = self._keys.span(self._prefix)
        newest = await self._client.ask(
            member, RANGE, messages.RangeRequest(key=key, limit=1, keys_only=True)
        )
        self._latest = Revision(newest.header.revision)
        if self._seen > self._latest:
            yield Reload()
            return
        token = await self._client.greet(member)
        create = messages.WatchCreate(
            key=key,
            range_end=end,
            start_revision=max(self._seen, 1),  # one that exists: etcd answers nothing about others
            progress_notify=True,
            fragment=True,
        )
        self._silent_ticks = 0
        call = self._call = self._client.open_watch(member, self._requests(create), token)
        events: list[Any] = []
        try:
            while True:
                response = await self._next(member, call)
                self._client.members.accept(member, response.header)
                if response.canceled:
                    self._end(member, response, token)
                    yield Reload()
                    return
                events += response.events
                if response.fragment:
                    continue
                yield self._progress(response, events)
                events = []
        finally:
            call.cancel()

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
            limit = _DEAD_TICKS_BEHIND if self._seen < self._latest else _DEAD_TICKS
            if self._silent_ticks > limit:
                self._call.cancel()
                return
            yield messages.WatchRequest(progress=messages.WatchProgress())

    async def _next(self, member: str, call: Any) -> Any:
        self._is_listening = True
        try:
            response = await call.read()
        except grpc.aio.AioRpcError as error:
            raise trouble_of(member, error.code(), error.details() or "") from error
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            self._client.refuse_if_closed()
            raise Trouble(Fault.UNKNOWN, member, "it does not answer") from None
        finally:
            self._is_listening = False
        if response is grpc.aio.EOF:
            raise Trouble(Fault.UNKNOWN, member, "it has ended the watch")
        self._silent_ticks = 0
        return response

    def _end(self, member: str, response: Any, token: str) -> None:
        """Returns if what we want is no longer kept. A token may have ended: what is refused is tried once more."""
        if not response.compact_revision:
            self._client.forget_token(token)
            raise Trouble(Fault.NOT_DONE, member, f"watch ended: {response.cancel_reason}")

    def _progress(self, response: Any, events: list[Any]) -> Changes | None:
        """What is new. Without events it is the answer to our question, and says how far we are."""
        if response.created:
            return None
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
