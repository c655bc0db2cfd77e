"""A cluster seen by a client: where the brokers are, who leads what, and one connection to each.

A request goes to any broker, the controller, a given broker or a partition's leader; what may succeed
later is tried again, with growing pauses, until the deadline. A broker that says nothing is left for another
where that will do: every broker passes on to the controller what only that one can do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from random import uniform
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from penstock.client.connection import Address, Connection, parse_bootstrap
from penstock.client.errors import ClientError, check
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.wire.schema import Message

T = TypeVar("T")
R = TypeVar("R", bound=Message)

NO_BROKER: Final = -1
DEFAULT_TIMEOUT_MS: Final = 30_000
_FIRST_PAUSE_MS: Final = 50
_LONGEST_PAUSE_MS: Final = 1_000
_CONNECT_MS: Final = 2_000  # to one broker, while there are others
_ANSWER_MS: Final = 5_000  # of one broker, while others may be asked the same
_SHUNNED_S: Final = 10.0  # after it said nothing


class AnyBroker(NamedTuple):
    """Whichever broker answers."""


class Controller(NamedTuple):
    """The broker that changes metadata, or, while it is out of reach, another that asks it for us."""


class Broker(NamedTuple):
    id: int


class Leader(NamedTuple):
    partition: TopicPartition


Target = AnyBroker | Controller | Broker | Leader


class Pool:
    """Not thread-safe: used by the tasks of one event loop, and closed by whoever made it."""

    def __init__(
        self,
        bootstrap: str | Sequence[Address],
        *,
        client_id: str = "penstock",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        self._bootstrap = (
            parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else list(bootstrap)
        )
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._connections: dict[Address, Connection] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._shunned_until_s: dict[Address, float] = {}
        self._brokers: dict[int, Address] = {}
        self._controller_id = NO_BROKER
        self._leaders: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            await connection.close()

    async def ask(
        self,
        target: Target,
        request: Message,
        response: type[R],
        *,
        check: Callable[[R], None] | None = None,
        repeatable: bool = True,
        at_most: int | None = None,
        timeout_ms: int | None = None,
    ) -> R:
        """The answer of `target`. `check` raises ClientError for the codes inside it."""

        async def attempt(deadline: Deadline) -> R:
            answer = await self.once(
                target, request, response, deadline, at_most=at_most, repeatable=repeatable
            )
            if check is not None:
                check(answer)
            return answer

        return await self.retry(attempt, repeatable=repeatable, timeout_ms=timeout_ms)

    async def change(
        self,
        request: Message,
        response: type[R],
        *,
        check: Callable[[R], None],
        done: ErrorCode,
        at_most: int | None = None,
    ) -> R | None:
        """The controller's answer to what cannot be done twice. When an answer was lost it is asked for again.

        None: it was refused then with `done`, for the first time had worked.
        """
        may_be_done = False

        async def attempt(deadline: Deadline) -> R | None:
            nonlocal may_be_done
            try:
                answer = await self.once(
                    Controller(), request, response, deadline, at_most=at_most, repeatable=True
                )
                check(answer)
            except ClientError as error:
                if may_be_done and error.code is done:
                    return None
                is_late = error.code is ErrorCode.REQUEST_TIMED_OUT
                may_be_done = may_be_done or error.outcome_unknown or is_late
                raise
            return answer

        return await self.retry(attempt)

    async def once(
        self,
        target: Target,
        request: Message,
        response: type[R],
        deadline: "Deadline",
        *,
        at_most: int | None = None,
        repeatable: bool = False,
    ) -> R:
        """`repeatable`: it may be asked of another broker if this one says nothing for a while."""
        try:
            connection = await self._connection_to(target, deadline)
        except ClientError as error:  # whatever was asked before, this was not
            raise ClientError(error.message, error.code) from error
        limit_ms = deadline.left_ms()
        if repeatable and isinstance(target, AnyBroker | Controller) and self._has_others():
            limit_ms = min(limit_ms, _ANSWER_MS)
        try:
            return await connection.request(request, response, timeout_ms=limit_ms, at_most=at_most)
        except ClientError as error:
            if error.code is ErrorCode.REQUEST_TIMED_OUT:
                self._shun(connection.address)
            raise

    async def retry(
        self,
        attempt: Callable[["Deadline"], Awaitable[T]],
        *,
        repeatable: bool = True,
        patient: bool = False,
        timeout_ms: int | None = None,
    ) -> T:
        """What `attempt` returns; it is made again after retriable errors, with fresh metadata.

        What is not `repeatable` is not made again when the last time may have worked. Who is `patient` also waits for
        brokers that cannot be reached: they may come back.
        """
        deadline = Deadline(self._timeout_ms if timeout_ms is None else timeout_ms)
        reason: ClientError | None = None
        for pause_ms in _pauses_ms():
            try:
                return await attempt(deadline)
            except ClientError as error:
                absent = patient and error.code is ErrorCode.BROKER_NOT_AVAILABLE
                again = absent or error.is_retriable
                again = again and (repeatable or not error.outcome_unknown)
                time_is_up = deadline.left_ms() <= pause_ms
                is_late = error.code is ErrorCode.REQUEST_TIMED_OUT
                if again and time_is_up and reason is not None and is_late:
                    raise reason from error  # why we waited says more than that time ran out
                if not again or time_is_up:
                    raise
                reason = error
            self._leaders.clear()
            self._controller_id = NO_BROKER
            await asyncio.sleep(pause_ms / 1000)
        raise AssertionError("the pauses never end")

    async def by_leader(
        self, partitions: Iterable[TopicPartition], deadline: "Deadline"
    ) -> dict[int, list[TopicPartition]]:
        """`partitions` under the broker that leads each."""
        groups: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            groups.setdefault(await self._leader(partition, deadline), []).append(partition)
        return groups

    async def metadata(
        self,
        topics: Sequence[str] | None = None,
        *,
        create_missing: bool = False,
        timeout_ms: int | None = None,
    ) -> MetadataResponse:
        """Brokers, controller, and `topics` (None: all of them); remembers where things are."""
        return await self.retry(
            lambda deadline: self._refresh(topics, deadline, create_missing=create_missing),
            timeout_ms=timeout_ms,
        )

    async def _refresh(
        self, topics: Sequence[str] | None, deadline: "Deadline", *, create_missing: bool = False
    ) -> MetadataResponse:
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=create_missing)
        answer = await self.once(AnyBroker(), request, MetadataResponse, deadline, repeatable=True)
        check(answer.error_code, None, "metadata")
        self._learn(answer)
        return answer

    async def broker_ids(self) -> list[int]:
        """All brokers that are up, asked anew."""
        await self.metadata([])
        return sorted(self._brokers)

    def _learn(self, answer: MetadataResponse) -> None:
        self._brokers = {
            broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers
        }
        self._controller_id = answer.controller_id
        for topic in answer.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name or "", partition.partition_index)
                self._leaders[key] = partition.leader_id

    async def _connection_to(self, target: Target, deadline: "Deadline") -> Connection:
        match target:
            case AnyBroker():
                return await self._any_connection(deadline)
            case Controller():
                return await self._controller_connection(deadline)
            case Leader(partition):
                broker_id = await self._leader(partition, deadline)
            case _:
                broker_id = target.id
        return await self._connect(await self._address(broker_id, deadline), deadline, broker_id)

    async def _controller_connection(self, deadline: "Deadline") -> Connection:
        broker_id = await self._controller(deadline)
        address = await self._address(broker_id, deadline)
        if not self._has_others():
            return await self._connect(address, deadline, broker_id)
        if not self._is_shunned(address):
            try:
                return await self._connect(address, deadline, broker_id, at_most_ms=_CONNECT_MS)
            except ClientError:
                self._shun(address)
        return await self._any_connection(deadline)

    def _has_others(self) -> bool:
        return len({*self._bootstrap, *self._brokers.values()}) > 1

    def _shun(self, address: Address) -> None:
        self._shunned_until_s[address] = asyncio.get_running_loop().time() + _SHUNNED_S

    def _is_shunned(self, address: Address) -> bool:
        return asyncio.get_running_loop().time() < self._shunned_until_s.get(address, 0.0)

    async def _controller(self, deadline: "Deadline") -> int:
        if self._controller_id < 0:
            await self._refresh([], deadline)
        if self._controller_id < 0:
            raise ClientError(
                "the cluster has no controller at the moment", ErrorCode.NOT_CONTROLLER
            )
        return self._controller_id

    async def _leader(self, partition: TopicPartition, deadline: "Deadline") -> int:
        if self._leaders.get(partition, -1) < 0:
            answer = await self._refresh([partition.topic], deadline)
            for topic in answer.topics:
                check(topic.error_code, None, f"topic {partition.topic!r}")
        leader = self._leaders.get(partition)
        if leader is None:
            raise ClientError(
                f"topic {partition.topic!r} has no partition {partition.partition}",
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
        if leader < 0:
            raise ClientError(
                f"{partition} has no leader at the moment", ErrorCode.LEADER_NOT_AVAILABLE
            )
        return leader

    async def _address(self, broker_id: int, deadline: "Deadline") -> Address:
        if broker_id not in self._brokers:
            await self._refresh([], deadline)
        address = self._brokers.get(broker_id)
        if address is None:
            raise ClientError(
                f"broker {broker_id} is not in the cluster", ErrorCode.BROKER_NOT_AVAILABLE
            )
        return address

    async def _any_connection(self, deadline: "Deadline") -> Connection:
        """An open connection, or the first broker that lets us in; if none does, that is final."""
        for connection in self._connections.values():
            if not connection.is_closed and not self._is_shunned(connection.address):
                return connection
        reasons = []
        places = list(dict.fromkeys((*self._bootstrap, *self._brokers.values())))
        places.sort(key=self._is_shunned)
        for address in places:
            limit_ms = _CONNECT_MS if address != places[-1] else deadline.left_ms()
            try:
                return await self._connect(address, deadline, at_most_ms=limit_ms)
            except ClientError as error:
                self._shun(address)
                reasons.append(error)
        message = "; ".join(str(reason) for reason in reasons[:3])
        code = reasons[0].code
        final = ErrorCode.BROKER_NOT_AVAILABLE if code is ErrorCode.NETWORK_EXCEPTION else code
        raise ClientError(message, final)

    async def _connect(
        self,
        address: Address,
        deadline: "Deadline",
        broker_id: int | None = None,
        *,
        at_most_ms: int | None = None,
    ) -> Connection:
        lock = self._connecting.setdefault(address, asyncio.Lock())
        async with lock:
            known = self._connections.get(address)
            if known is not None and not known.is_closed:
                return known
            opened = await Connection.open(
                address,
                client_id=self._client_id,
                timeout_ms=min(deadline.left_ms(), at_most_ms or deadline.left_ms()),
                known_as=""
                if broker_id is None
                else f", the advertised address of broker {broker_id}",
            )
            self._connections[address] = opened
            return opened


class Deadline:
    """An end on the monotonic clock, shared by everything that one call does."""

    def __init__(self, timeout_ms: int) -> None:
        self._clock = asyncio.get_running_loop().time
        self._end_s = self._clock() + timeout_ms / 1000

    def left_ms(self) -> int:
        return max(0, round((self._end_s - self._clock()) * 1000))


def _pauses_ms() -> Iterator[int]:
    """Growing, and a little random, so that clients that failed together do not come back together."""
    pause_ms = _FIRST_PAUSE_MS
    while True:
        yield round(pause_ms * uniform(0.8, 1.2))
        pause_ms = min(pause_ms * 2, _LONGEST_PAUSE_MS)
