"""Tells partitions how transactions ended, wherever they are led: again and again, until each of them has it."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.controller.cluster import Cluster, Spawn
from penstock.broker.coordinators.markers import Ending, MarkerWriter
from penstock.broker.coordinators.remote_markers import PendingMarker, RemoteMarkers
from penstock.metadata.store import StoreError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.events import Markers

_log = logging.getLogger(__name__)

_PER_TURN: Final = 100  # markers written before others have their turn
_RETRY_S: Final = 0.1
_OVERTAKEN: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,  # someone newer has ended what this marker is about
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.POLICY_VIOLATION,  # a mirror by now: how transactions ended there comes with it
    }
)


class MarkerSender:
    """Only the event loop calls it."""

    def __init__(
        self,
        writer: MarkerWriter,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        spawn: Spawn,
    ) -> None:
        self.writer = writer
        self.remote = RemoteMarkers(cluster.peers, spawn)
        self.cluster = cluster
        self.loop = loop
        self.spawn = spawn

    def send(
        self,
        markers: Markers,
        coordinator_epoch: int,
        *,
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        """Have them all written, again and again where it fails; `done` is called when all are committed."""
        ending = Ending(markers.producer, markers.committed, coordinator_epoch, markers.ends_epoch)
        _Sending(self, markers, ending, is_wanted, done).go_on()

    def leader_of(self, name: TopicPartition) -> int | None:
        """As far as this broker knows: -1 while there is none; None when there is no such partition."""
        topic = self.cluster.image.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return None
        return topic.partitions[name.partition].leader


class _Sending:
    """The markers of one transaction on their way."""

    def __init__(
        self,
        sender: MarkerSender,
        markers: Markers,
        ending: Ending,
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        self._sender = sender
        self._transactional_id = markers.transactional_id
        self._ending = ending
        self._left = deque(markers.partitions)
        self._failed: list[TopicPartition] = []
        self._unknown: list[TopicPartition] = []
        self._waiting = 0  # for so many to be committed
        self._is_wanted = is_wanted
        self._done = done

    def go_on(self) -> None:
        if not self._is_wanted():
            return
        marker = self._sender.writer.build(self._ending)
        for _ in range(min(_PER_TURN, len(self._left))):
            self._tell(self._left.popleft(), marker)
        if self._left:
            self._sender.loop.call_soon(self.go_on)
        else:
            self._end_if_all_there()

    def _end_if_all_there(self) -> None:
        if self._left or self._waiting:
            return
        if self._unknown:
            self._waiting += 1
            self._sender.spawn(self._look_for_unknown(), "look-for-partitions")
        elif self._failed:
            self._left, self._failed = deque(self._failed), []
            self._sender.loop.call_later(_RETRY_S, self.go_on)
        else:
            self._done()

    def _tell(self, name: TopicPartition, marker: bytearray) -> None:
        leader = self._sender.leader_of(name)
        if leader is None:
            self._unknown.append(name)
        elif leader == self._sender.cluster.broker_id:
            self._write(name, marker)
        elif leader < 0:
            self._failed.append(name)
        else:
            self._waiting += 1
            pending = PendingMarker(name, self._ending, self._is_wanted, self._told)
            self._sender.remote.send(leader, pending)

    def _write(self, name: TopicPartition, marker: bytearray) -> None:
        try:
            committed = self._sender.writer.write(name, self._ending, marker)
        except BrokerError as error:
            self._refused(name, error.code)
            return
        if committed is not None:
            self._waiting += 1
            committed.add_done_callback(lambda future: self._committed(name, future))

    def _committed(self, name: TopicPartition, future: asyncio.Future[None]) -> None:
        failed = future.cancelled() or future.exception() is not None
        self._told(name, ErrorCode.NOT_LEADER_OR_FOLLOWER if failed else ErrorCode.NONE)

    def _told(self, name: TopicPartition, code: ErrorCode) -> None:
        self._waiting -= 1
        if code is not ErrorCode.NONE:
            self._refused(name, code)
        if self._is_wanted():
            self._end_if_all_there()

    def _refused(self, name: TopicPartition, code: ErrorCode) -> None:
        if code in _OVERTAKEN:
            _log.warning(
                "marker-overtaken transactional-id=%s partition=%s producer-id=%d epoch=%d code=%s",
                self._transactional_id,
                name,
                self._ending.producer.id,
                self._ending.producer.epoch,
                code.name,
            )
        else:
            self._failed.append(name)

    async def _look_for_unknown(self) -> None:
        """Deleted, and their parts of the transaction with them; or so new that this broker did not know."""
        unknown, self._unknown = self._unknown, []
        try:
            await self._sender.cluster.catch_up()
        except StoreError as error:
            _log.info("partitions-not-looked-for error=%s", error)
            self._failed += unknown
        else:
            self._failed += [it for it in unknown if self._sender.leader_of(it) is not None]
        self._waiting -= 1
        if self._is_wanted():
            self._end_if_all_there()
