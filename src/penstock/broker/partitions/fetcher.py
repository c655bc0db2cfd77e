"""Fetches from one leader what it has for this broker, and cuts what it does not have.

A fetch that waits at its leader is overtaken by another when there is something new to ask for: after a
change of leaders nobody waits for a fetch that knows nothing of it. What an answer says is taken only as of
what its own request asked for, never as of a later one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.controller.cluster import Cluster, Spawn
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.throttles import Throttles
from penstock.client.connection import Connection
from penstock.client.errors import ClientError
from penstock.model.configs import BrokerConfig
from penstock.model.errors import BrokerError, ErrorCode
from penstock.replication.follower import Position, is_current, truncation_point
from penstock.storage.log import Log
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

_log = logging.getLogger(__name__)

_CONNECT_MS: Final = 2000
_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 1.0
FETCHES_IN_FLIGHT: Final = 2  # to one leader; see kafka/leader_confirmation.py
_ASKED_TOGETHER: Final = (
    1000  # partitions of one request: of very many, others have their turn in between
)
_PARTITION_S: Final = 0.000_2
_LAST_SESSION_EPOCH: Final = (1 << 31) - 1
_OUT_OF_DATE: Final = frozenset(  # metadata is on its way to one of the two brokers
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.STALE_BROKER_EPOCH,
    }
)


class _Sent(NamedTuple):
    """A request that is not answered yet."""

    number: int
    at_s: float


class _Followed:
    """One partition in a fetcher's hands.

    Two requests may be under way, and the leader reads from where the last one that it has seen said: an answer to a
    request before `asked_in` tells of another place, maybe of another log, or as of another leader epoch.
    """

    __slots__ = ("_asked", "_asked_log", "asked_in", "in_session", "partition", "retries")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._asked: Position | None = None
        self._asked_log: Log | None = None
        self.asked_in = 0  # the first request that asked for it from there
        self.in_session = False
        self.retries = 0

    def ask(self, log: Log, number: int) -> None:
        """The request of that number goes on from the end of `log`."""
        asked = Position(self.partition.leader_epoch, log.next_offset)
        if asked != self._asked or log is not self._asked_log:
            self._asked, self._asked_log, self.asked_in = asked, log, number

    def is_told_by(self, number: int) -> bool:
        """Whether the answer to that request is to what was asked last."""
        return self._asked is not None and number >= self.asked_in

    @property
    def is_current(self) -> bool:
        """F2, for the same log. Raises BrokerError if there is none."""
        log, epoch = self.partition.log, self.partition.leader_epoch
        return (
            self._asked is not None
            and log is self._asked_log
            and is_current(self._asked, epoch, log.next_offset)
        )


class Fetcher:
    """Everything that one leader has for this broker, over one connection. The event loop is its only caller."""

    def __init__(self, leader_id: int, cluster: Cluster, throttles: Throttles) -> None:
        self.leader_id = leader_id
        self._throttles = throttles
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[Partition, _Followed] = {}
        self._by_place: dict[tuple[bytes, int], _Followed] = {}
        self._to_ask: dict[_Followed, None] = {}  # what the next request names
        self._to_forget: dict[tuple[bytes, int], None] = {}
        self._connection: Connection | None = None
        self._lost: asyncio.Future[BrokerError] | None = None
        self._in_flight: deque[_Sent] = deque()  # answered in this order
        self._number = 0  # of the latest request
        self._watch: asyncio.TimerHandle | None = None  # over the first of them
        self._version = 0  # of Fetch, on this connection
        self._session_id = self._session_epoch = 0
        self._task: asyncio.Task[None] | None = None
        self._retries = 0
        self._unanswered_since_s: float | None = None

    @property
    def is_idle(self) -> bool:
        return not self._partitions

    @property
    def is_unanswered(self) -> bool:
        """Whether the leader has said nothing for so long that it must be out of reach.

        One that leads many partitions for us is given time for them.
        """
        since_s = self._unanswered_since_s
        if since_s is None:
            return False
        config = self._config
        patience_ms = max(config.broker_session_timeout_ms, 3 * config.replica_fetch_wait_max_ms)
        patience_s = patience_ms / 1000 + _PARTITION_S * len(self._partitions)
        return self._loop.time() - since_s > patience_s

    def give_time(self) -> None:
        """We stood still ourselves: the silence up to now says nothing of the leader."""
        if self._unanswered_since_s is not None:
            self._unanswered_since_s = self._loop.time()

    def add(self, partition: Partition) -> None:
        followed = self._partitions.get(partition)
        if followed is None:
            followed = self._partitions[partition] = _Followed(partition)
            self._by_place[_place(partition)] = followed
            self._to_forget.pop(_place(partition), None)
        followed.retries = 0
        self._ask(followed)

    def remove(self, partition: Partition) -> None:
        followed = self._partitions.pop(partition)
        self._to_ask.pop(followed, None)
        self._by_place.pop(_place(partition), None)
        if followed.in_session:
            self._to_forget[_place(partition)] = None

    def ask_for(self, partition: Partition) -> None:
        followed = self._partitions.get(partition)
        if followed is not None:
            self._ask(followed)

    def start(self, spawn: Spawn) -> None:
        self._task = spawn(self._run(), f"follow-{self.leader_id}")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # The connection ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """For ever: a connection, and when it is lost, another after a pause."""
        try:
            while True:
                error = await self._follow()
                _log.info("leader-unreachable broker=%d error=%s", self.leader_id, error)
                self._retries += 1
                await asyncio.sleep(min(_RETRY_S * self._retries, _LONGEST_RETRY_S))
        finally:
            await self._hang_up()

    async def _follow(self) -> BrokerError:
        """Until the connection is lost; why it was."""
        self._begin_waiting()
        try:
            self._connection = await self._cluster.peers.connection(
                self.leader_id, timeout_ms=_CONNECT_MS
            )
        except BrokerError as error:
            return error
        self._unanswered_since_s = None
        self._lost = self._loop.create_future()
        self._version = self._connection.version_for(FetchRequest)
        self._begin_session()
        self._send()
        try:
            return await self._lost
        finally:
            await self._hang_up()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._in_flight.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if connection is not None:
            await connection.close()

    # Asking ------------------------------------------------------------------------------------

    def _ask(self, followed: _Followed) -> None:
        self._to_ask[followed] = None
        if len(self._to_ask) == 1:
            self._loop.call_soon(self._send)  # with what else this tick brings

    def _begin_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._to_forget.clear()
        for followed in self._partitions.values():
            followed.in_session = False
            self._to_ask[followed] = None

    def _send(self) -> None:
        """The next request, if the leader can have one more."""
        in_flight = len(self._in_flight)
        nothing_new = in_flight and not self._to_ask
        if self._connection is None or nothing_new or in_flight >= FETCHES_IN_FLIGHT:
            return
        if self._session_epoch == 0 and in_flight:
            return  # the session begins with the answer
        request = self._request()
        if request is None:
            return
        connection = self._connection
        try:
            connection.post(request, self._version, partial(self._answered, connection))
        except BrokerError as error:
            self._end(error)
            return
        self._in_flight.append(_Sent(self._number, self._loop.time()))
        self._begin_waiting()
        if self._watch is None:
            self._look_for_answer()
        if self._to_ask:
            self._send()

    def _look_for_answer(self) -> None:
        """A leader that is silent for too long is left. One timer for all requests: most are answered soon."""
        timeout_s = self._config.replica_socket_timeout_ms / 1000
        oldest_s = self._in_flight[0].at_s if self._in_flight else self._loop.time()
        if self._loop.time() - oldest_s >= timeout_s:
            self._end(_silent(self.leader_id))
        else:
            self._watch = self._loop.call_at(oldest_s + timeout_s, self._look_for_answer)

    def _begin_waiting(self) -> None:
        if self._unanswered_since_s is None:
            self._unanswered_since_s = self._loop.time()

    def _request(self) -> FetchRequest | None:
        config = self._config
        epoch = self._cluster.epoch
        if not self._partitions or not epoch or not self._has_room:
            self._unanswered_since_s = None
            if self._partitions:  # no session that would let us, or no room for what we would get
                self._loop.call_later(_RETRY_S if not epoch else _LONGEST_RETRY_S, self._send)
            return None
        self._number += 1
        wanted = list(self._to_ask)
        self._to_ask = dict.fromkeys(wanted[_ASKED_TOGETHER:])
        topics = self._topics(wanted[:_ASKED_TOGETHER])
        if not topics and not self._session_id:  # a session begins with something to fetch
            if self._to_ask:
                self._loop.call_soon(self._send)
            return None
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._cluster.broker_id, replica_epoch=epoch),
            max_wait_ms=0 if self._to_ask else config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=topics,
            forgotten_topics_data=_forgotten(self._to_forget) if self._session_id else [],
        )
        self._to_forget.clear()
        if self._session_id:
            self._session_epoch = _epoch_after(self._session_epoch)
        return request

    @property
    def _has_room(self) -> bool:
        """Who asks is taken for one that keeps up, and holds producers up again when it does not (L4)."""
        return next(iter(self._partitions)).has_room

    def _topics(self, wanted: Iterable[_Followed]) -> list[FetchTopic]:
        topics: dict[bytes, FetchTopic] = {}
        for followed in wanted:
            asked = self._asked(followed)
            if asked is not None:
                topic_id = followed.partition.topic.id
                topic = topics.get(topic_id)
                if topic is None:
                    topic = topics[topic_id] = FetchTopic(topic_id=topic_id)
                topic.partitions.append(asked)
        return list(topics.values())

    def _asked(self, followed: _Followed) -> FetchPartition | None:
        """None: it cannot be fetched now; something will say when it can."""
        partition = followed.partition
        try:
            log = partition.log
        except BrokerError:  # it has said so itself
            if partition.failure is None:  # no descriptor or no room to open it: that passes
                self._ask_later(followed)
            return None
        if partition.fetch_offset < log.next_offset:  # until what is here is durable
            self._leave_session(followed)  # or the same records come again, and again
            return None
        pause_ms = self._pause_ms(partition)
        if pause_ms:
            self._leave_session(followed)
            self._loop.call_later(pause_ms / 1000, self.ask_for, partition)
            return None
        self._to_forget.pop(_place(partition), None)
        followed.ask(log, self._number)
        followed.in_session = True
        return FetchPartition(
            partition=partition.index,
            current_leader_epoch=partition.leader_epoch,
            fetch_offset=log.next_offset,
            last_fetched_epoch=log.epochs.latest,
            log_start_offset=log.start_offset,
            partition_max_bytes=self._config.replica_fetch_max_bytes,
        )

    def _pause_ms(self, partition: Partition) -> int:
        """Of one that is throttled. Who is in sync never is."""
        if not partition.topic.config.follower_replication_throttled_replicas:
            return 0
        topic = self._cluster.image.topics_by_id.get(partition.topic.id)
        if topic is None or self._cluster.broker_id in topic.partitions[partition.index].isr:
            return 0
        return self._throttles.fetch_pause_ms(partition.topic, partition.index)

    @property
    def _config(self) -> BrokerConfig:
        return self._cluster.config

    # Answers -----------------------------------------------------------------------------------

    def _answered(self, connection: Connection, answer: memoryview | ClientError) -> None:
        if connection is not self._connection:
            return
        if isinstance(answer, ClientError):
            self._end(answer)
            return
        number = self._in_flight.popleft().number
        try:
            response = connection.decode(answer, FetchResponse, self._version)
        except BrokerError as error:
            self._end(error)
            return
        self._unanswered_since_s = self._loop.time() if self._in_flight else None
        if response.error_code:
            self._refused(ErrorCode(response.error_code))
            return
        self._retries = 0
        if self._session_id != response.session_id:
            self._session_id = response.session_id
            self._session_epoch = 1 if response.session_id else 0
        for topic in response.responses:
            for data in topic.partitions:
                followed = self._by_place.get((topic.topic_id, data.partition_index))
                if followed is not None and followed.is_told_by(number):
                    self._take(followed, data)
        if not self._session_id:
            self._begin_session()
        self._send()

    def _refused(self, code: ErrorCode) -> None:
        if code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            if not self._in_flight:
                self._begin_session()
                self._send()
            return
        self._end(BrokerError(f"broker {self.leader_id} refuses to be followed: {code.name}", code))

    def _end(self, error: BrokerError) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(error)

    def _take(self, followed: _Followed, data: PartitionData) -> None:
        partition = followed.partition
        try:
            if data.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
                self._take_error(followed, data)
            elif not followed.is_current:  # of an earlier leader, or of a log that was cut since
                self._to_ask[followed] = None
            elif data.error_code:
                self._restart(followed, data)
            else:
                followed.retries = 0
                if self._take_data(partition, data):
                    self._to_ask[followed] = None
        except BrokerError as error:
            _log.warning("replication-stopped partition=%s error=%s", partition, error)
            self._ask_later(followed)
        except Exception:  # noqa: BLE001 # a bug, and no reason for all others to wait for ever
            _log.exception("replication-failed partition=%s", partition)
            self._ask_later(followed)

    def _take_data(self, partition: Partition, data: PartitionData) -> bool:
        """Whether there is something to ask for at once."""
        diverging = data.diverging_epoch
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            end = partition.log.next_offset
            point = truncation_point(partition.log, diverging.epoch, diverging.end_offset)
            partition.cut(point)
            _log.warning(
                "log-cut partition=%s from=%d to=%d leader=%d epoch=%d",
                partition, end, point, self.leader_id, partition.leader_epoch,
            )  # fmt: skip
            return True
        records = data.records
        if records:
            assert isinstance(records, memoryview), "as the decoder gives them"
            partition.append_replicated(records)
            self._throttles.fetched(partition.topic, partition.index, len(records))
        partition.learn(data.high_watermark, data.log_start_offset)
        return bool(records)

    def _take_error(self, followed: _Followed, data: PartitionData) -> None:
        code = data.error_code
        if code not in _OUT_OF_DATE:
            _log.warning(
                "not-replicated partition=%s leader=%d code=%s",
                followed.partition, self.leader_id, code,
            )  # fmt: skip
        self._ask_later(followed)

    def _restart(self, followed: _Followed, data: PartitionData) -> None:
        """The leader has nothing that goes on where this log ends."""
        partition = followed.partition
        _log.warning(
            "log-restarted partition=%s from=%d to=%d leader=%d",
            partition, partition.log.next_offset, data.log_start_offset, self.leader_id,
        )  # fmt: skip
        partition.restart_at(max(data.log_start_offset, 0))
        self._to_ask[followed] = None

    def _ask_later(self, followed: _Followed) -> None:
        """Out of the session until then, or the leader would tell of the same error without a pause."""
        followed.retries += 1
        self._leave_session(followed)
        pause_s = min(_RETRY_S * followed.retries, _LONGEST_RETRY_S)
        self._loop.call_later(pause_s, self.ask_for, followed.partition)

    def _leave_session(self, followed: _Followed) -> None:
        self._to_ask.pop(followed, None)
        if followed.in_session:
            followed.in_session = False
            self._to_forget[_place(followed.partition)] = None


def _silent(leader_id: int) -> BrokerError:
    return BrokerError(f"broker {leader_id} does not answer", ErrorCode.REQUEST_TIMED_OUT)


def _epoch_after(session_epoch: int) -> int:
    """As the leader counts: 0 would begin a session."""
    return 1 if session_epoch == _LAST_SESSION_EPOCH else session_epoch + 1


def _place(partition: Partition) -> tuple[bytes, int]:
    return partition.topic.id, partition.index


def _forgotten(places: Iterable[tuple[bytes, int]]) -> list[ForgottenTopic]:
    topics: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in places:
        topic = topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id))
        topic.partitions.append(index)
    return list(topics.values())
