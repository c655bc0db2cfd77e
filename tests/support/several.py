"""Several whole brokers in one event loop, with real sockets between them: a test sees and stops every message."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from penstock.broker.coordinators.groups import OFFSETS_TOPIC
from penstock.broker.coordinators.shards import partition_for
from penstock.broker.coordinators.transactions import STATE_TOPIC
from penstock.broker.partitions.partition import Partition
from penstock.kafka.apis import APIS
from penstock.kafka.context import Context, Services
from penstock.kafka.security import ANONYMOUS
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.rules.elections import ElectionKind
from penstock.model.errors import BrokerError
from penstock.model.ids import TopicPartition
from penstock.node.node import Node
from penstock.node.settings import load_settings
from penstock.wire.header import RequestHeader
from penstock.wire.messages.produce import ProduceRequest
from penstock.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.schema import Message

T = TypeVar("T")
Pass = Callable[[], Awaitable[Any]]
Gate = Callable[[int, Message, Pass], Awaitable[Any]]  # to whom, what, and how to let it pass

PARTITIONS = 3
_PATIENCE_S = 60.0
_SETTINGS = {
    "broker.session.timeout.ms": "60000",
    "offsets.topic.num.partitions": str(PARTITIONS),
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "auto.leader.rebalance.enable": "false",
    "penstock.http": "off",
    "listeners": "127.0.0.1:0",
}


class Held:
    """A gate that lets through when the test says so: what was asked, or only its answer."""

    def __init__(self, *, answers: bool = False) -> None:
        self.arrived = asyncio.Event()
        self.may_pass = asyncio.Event()
        self._answers = answers

    async def __call__(self, _: int, __: Message, go: Pass) -> Any:
        answer = await go() if self._answers else None
        self.arrived.set()
        await self.may_pass.wait()
        return answer if self._answers else await go()


class OpenNode(Node):
    """Shows what it is made of."""

    services: Services

    def _build_doors(self, services: Services) -> None:
        self.services = services
        super()._build_doors(services)


class Several:
    """Brokers 1 to N. Requests go straight to the handlers of the broker that a client would ask."""

    def __init__(self, runner: asyncio.Runner, nodes: Mapping[int, OpenNode]) -> None:
        self.nodes = nodes
        self._runner = runner

    def services(self, number: int) -> Services:
        return self.nodes[number].services

    # Running ---------------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """With an end of its own: an alarm that is raised inside uvloop may be lost."""
        return self._runner.run(asyncio.wait_for(coroutine, _PATIENCE_S))

    def call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return self.run(called())

    def until(self, what: Callable[[], object]) -> None:
        for _ in range(10_000):
            if what():
                return
            self.run(asyncio.sleep(0.001))
        raise AssertionError("it did not come to be")

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs beside what follows."""
        return self.call(lambda: self.services(1).spawn(coroutine, "test"))  # type: ignore[arg-type,return-value] # a task of T

    # Asking ----------------------------------------------------------------------------------

    def ask(self, request: Message, version: int | None = None, of: int | None = None) -> Any:
        """The answer of the broker that a client would ask, or of broker `of`."""
        return self.run(self.asked(request, version, of))

    async def asked(self, request: Message, version: int | None, of: int | None = None) -> Any:
        api = APIS[request.api_key]
        version = api.max_version if version is None else version
        services = self.services(self._broker_for(request) if of is None else of)
        header = RequestHeader(request.api_key, version, 1, "test")
        context = Context(services, header, ANONYMOUS, "PLAINTEXT", "127.0.0.1")
        try:
            reply = api.handle(request, context)
            response = await reply if inspect.isawaitable(reply) else reply
        except BrokerError as error:
            response = api.refuse(request, error)
        assert isinstance(response, Message)
        return type(response).decode(memoryview(response.encode(version)), version)

    def _broker_for(self, request: Message) -> int:
        if isinstance(request, ProduceRequest):
            data = request.topic_data[0]
            return self.leader(data.name, data.partition_data[0].index)
        if isinstance(request, TxnOffsetCommitRequest):
            return self.group_coordinator(request.group_id)
        key = getattr(request, "transactional_id", None)
        key = key or getattr(request, "v3_and_below_transactional_id", None)
        return self.coordinator(key) if key else 1

    # Who leads -------------------------------------------------------------------------------

    def leader(self, topic: str, index: int = 0) -> int:
        newest = [node.services.cluster.image.topics[topic] for node in self.nodes.values()]
        return max((it.partitions[index] for it in newest), key=lambda it: it.leader_epoch).leader

    def coordinator(self, transactional_id: str) -> int:
        return self.leader(STATE_TOPIC, partition_for(transactional_id, PARTITIONS))

    def group_coordinator(self, group: str) -> int:
        return self.leader(OFFSETS_TOPIC, partition_for(group, PARTITIONS))

    def name_at(self, number: int, prefix: str = "tx") -> str:
        """A transactional id whose coordinator is that broker."""
        return self._name(prefix, lambda it: self.coordinator(it) == number)

    def group_at(self, number: int, prefix: str = "g") -> str:
        return self._name(prefix, lambda it: self.group_coordinator(it) == number)

    def _name(self, prefix: str, suits: Callable[[str], bool]) -> str:
        return next(it for it in (f"{prefix}-{n}" for n in range(10_000)) if suits(it))

    def partition(self, topic: str, index: int = 0, at: int | None = None) -> Partition:
        number = self.leader(topic, index) if at is None else at
        found = self.services(number).replicas.topic(topic).partitions[index]
        assert found is not None
        return found

    def move_leader(self, topic: str, index: int, to: int) -> None:
        """Returns when every broker knows."""
        name = TopicPartition(topic, index)
        cluster = self._controller()
        replicas = cluster.image.topics[topic].partitions[index].replicas
        wanted = (to, *(it for it in replicas if it != to))
        self._done(self.run(cluster.alter_reassignments({name: wanted})))
        self.until(lambda: self._state(1, name).replicas == wanted)
        self.until(lambda: to in self._state(1, name).isr)
        self._done(self.run(cluster.elect_leaders(ElectionKind.PREFERRED, [name])))
        self.until(lambda: all(self._state(number, name).leader == to for number in self.nodes))

    def _state(self, number: int, name: TopicPartition) -> Any:
        return self.services(number).cluster.image.topics[name.topic].partitions[name.partition]

    def _controller(self) -> Any:
        return next(
            node.services.cluster
            for node in self.nodes.values()
            if node.services.cluster.is_controller
        )

    def _done(self, outcomes: Mapping[TopicPartition, BrokerError | None]) -> None:
        assert not any(outcomes.values()), outcomes

    # Topics ----------------------------------------------------------------------------------

    def create_topic(self, name: str, assignments: Sequence[Sequence[int]]) -> None:
        spec = TopicSpec(name, assignments=dict(enumerate(assignments)))
        (outcome,) = self.run(self._controller().create_topics([spec]))
        assert not isinstance(outcome, BrokerError), outcome
        self.wait_topic(name)

    def wait_topic(self, name: str) -> None:
        """Until every broker knows it."""
        self.until(lambda: all(name in it.services.replicas.topics for it in self.nodes.values()))

    def delete_topic(self, name: str) -> None:
        self.run(self._controller().delete_topics([name]))

    # Between brokers -------------------------------------------------------------------------

    @contextmanager
    def gate(self, number: int, kind: type[Message], gate: Gate) -> Iterator[list[Message]]:
        """Whatever of that kind the broker sends to others goes through `gate`. What was sent."""
        peers: Any = self.services(number).cluster.peers
        sent: list[Message] = []
        send = peers.request

        async def request(broker_id: int, message: Message, *rest: Any, **options: Any) -> Any:
            if not isinstance(message, kind):
                return await send(broker_id, message, *rest, **options)
            sent.append(message)
            return await gate(
                broker_id, message, lambda: send(broker_id, message, *rest, **options)
            )

        peers.request = request
        try:
            yield sent
        finally:
            del peers.request
            if isinstance(gate, Held):
                gate.may_pass.set()  # nobody is left waiting when a test fails


async def passing(_: int, __: Message, go: Pass) -> Any:
    """A gate that is open."""
    return await go()


@contextmanager
def several_brokers(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[Several]:
    """Three, with all coordinators at work."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        nodes = {number: _node(home, number, settings or {}) for number in (1, 2, 3)}
        for node in nodes.values():
            runner.run(node.start())
        brokers = Several(runner, nodes)
        try:
            _make_coordinators(brokers)
            yield brokers
        finally:
            for node in nodes.values():
                runner.run(_shut_down(node))


def _node(home: Path, number: int, settings: Mapping[str, str]) -> OpenNode:
    own = {
        "broker.id": str(number),
        "log.dirs": str(home / f"broker-{number}"),
        "penstock.metadata": f"sqlite:{home / 'metadata.sqlite'}",
    }
    given = {**_SETTINGS, **settings, **own}
    return OpenNode(load_settings(options=[f"{name}={value}" for name, value in given.items()]))


async def _shut_down(node: OpenNode) -> None:
    await node._shut_down()


def _make_coordinators(brokers: Several) -> None:
    """Each broker leads one partition of either internal topic."""
    services = brokers.services(1)
    brokers.run(services.groups.coordinator_of("g"))
    brokers.run(services.transactions.coordinator_of("t"))
    for topic in (OFFSETS_TOPIC, STATE_TOPIC):
        brokers.wait_topic(topic)
        leaders = [brokers.leader(topic, index) for index in range(PARTITIONS)]
        assert sorted(leaders) == [1, 2, 3], leaders
