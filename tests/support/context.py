"""A broker without sockets: real cluster, real logs, and requests that go straight to a handler."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from penstock.broker.controller.cluster import Cluster
from penstock.broker.coordinators.groups import GroupCoordinator
from penstock.broker.coordinators.transactions import TransactionCoordinator
from penstock.broker.membership.session import Identity
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions.follower import Followers
from penstock.broker.partitions.metadata_applier import MetadataApplier
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.broker.partitions.throttles import Throttles
from penstock.kafka.apis import APIS
from penstock.kafka.context import Context, Services
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.leader_confirmation import LeaderConfirmations
from penstock.kafka.overtaken import Refusals
from penstock.kafka.security import ANONYMOUS, Operation, Principal, ResourceType
from penstock.metadata.image import Endpoint
from penstock.metadata.rules.config_changes import Resource
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.sqlite.store import SqliteStore
from penstock.model.errors import BrokerError
from penstock.node.tasks import Tasks
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.storage.directory import DataDirectory
from penstock.wire.api_keys import ApiKey
from penstock.wire.header import RequestHeader
from penstock.wire.schema import Message
from tests.support.clocks import ManualClock

T = TypeVar("T")

BROKER_ID = 7
LISTENER = "PLAINTEXT"
ADDRESS = Endpoint("broker.example", 9092)
LAST_BY_NAME: dict[int, int] = {ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9}


class Rules:
    """Allows everything but what was forbidden, or nothing but what was granted."""

    def __init__(self) -> None:
        self.by_default = True
        self.exceptions: set[tuple[Operation, ResourceType, str]] = set()

    def allows(
        self, _principal: Principal, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        excepted = {(operation, resource, name), (operation, resource, "*")} & self.exceptions
        return not self.by_default if excepted else self.by_default


class BrokerContext:
    """One broker. `ask` handles a request as a connection would."""

    def __init__(
        self, runner: asyncio.Runner, services: Services, rules: Rules, applier: MetadataApplier
    ) -> None:
        self.applier = applier
        self.services = services
        self.rules = rules
        self._runner = runner

    @property
    def cluster(self) -> Cluster:
        return self.services.cluster

    @property
    def replicas(self) -> ReplicaManager:
        return self.services.replicas

    def forbid(self, operation: Operation, resource: ResourceType, name: str = "*") -> None:
        self.rules.exceptions.add((operation, resource, name))

    def allow_only(self, *grants: tuple[Operation, ResourceType, str]) -> None:
        self.rules.by_default = False
        self.rules.exceptions = set(grants)

    def context(self, api_key: int, version: int) -> Context:
        header = RequestHeader(api_key, version, 1, "test")
        return Context(self.services, header, ANONYMOUS, LISTENER, "127.0.0.1")

    def ask(self, request: Message, version: int | None = None) -> Any:
        """The answer, as it arrives: what the version has no room for is gone.

        Without `version`, the newest one; of OffsetCommit and OffsetFetch the newest that names topics.
        """
        api = APIS[request.api_key]
        version = LAST_BY_NAME.get(request.api_key, api.max_version) if version is None else version
        assert api.min_version <= version <= api.max_version, "the version is not advertised"
        response = self.run(self._handled(request, version))
        return type(response).decode(memoryview(response.encode(version)), version)

    async def _handled(self, request: Message, version: int) -> Message:
        api = APIS[request.api_key]
        try:
            reply = api.handle(request, self.context(request.api_key, version))
            response = await reply if inspect.isawaitable(reply) else reply
        except BrokerError as error:
            response = api.refuse(request, error)
        assert isinstance(response, Message)
        return response

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def call(self, function: Callable[[], T]) -> T:
        """Call something that needs the event loop to run."""

        async def called() -> T:
            return function()

        return self.run(called())

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        spec = TopicSpec(name, partitions, config=dict(config or {}))
        (outcome,) = self.run(self.cluster.create_topics([spec]))
        assert not isinstance(outcome, BrokerError), outcome

    def reset(self) -> None:
        """Without topics, without settings of its own, and open to everybody."""
        self.rules.by_default = True
        self.rules.exceptions.clear()
        self.run(self.cluster.delete_topics(list(self.cluster.image.topics)))
        for name in list(self.cluster.image.broker_configs):
            self.run(self.cluster.replace_configs(Resource.BROKER, name, []))
        for name in list(self.cluster.image.group_configs):
            self.run(self.cluster.replace_configs(Resource.GROUP, name, []))

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.replicas.partition(self.replicas.topic(topic), index)

    def append(self, topic: str, index: int = 0, *, count: int = 1, **producer: int) -> None:
        """One batch of `count` records."""
        now_ms = self.services.clock.wall_ms()
        records = [Record(number, now_ms, None, b"value", ()) for number in range(count)]
        batch = memoryview(bytearray(build_batch(records, **producer)))  # type: ignore[arg-type]  # names of integers only
        self.call(lambda: self.partition(topic, index).append(batch, now_ms=now_ms))


@contextmanager
def broker_context(
    directory: Path, settings: Mapping[str, str] | None = None, clock: ManualClock | None = None
) -> Iterator[BrokerContext]:
    """Started in `directory`, and stopped at the end."""
    with asyncio.Runner() as runner:
        tasks = Tasks()
        data = DataDirectory(str(directory / "data"))
        threads = ThreadPoolExecutor(1)
        try:
            started = _started(
                runner,
                directory,
                data,
                threads,
                tasks,
                dict(settings or {}),
                clock or ManualClock(),
            )
            broker = runner.run(started)
            yield broker
            broker.services.transactions.close()
            broker.services.groups.close()
            runner.run(broker.cluster.stop())
        finally:
            runner.run(tasks.close())
            threads.shutdown()
            data.close()


async def _started(
    runner: asyncio.Runner,
    directory: Path,
    data: DataDirectory,
    threads: ThreadPoolExecutor,
    tasks: Tasks,
    settings: dict[str, str],
    clock: ManualClock,
) -> BrokerContext:
    metrics, rules = BrokerMetrics(), Rules()
    replicas = ReplicaManager(data, metrics, asyncio.get_running_loop(), threads, clock)
    identity = Identity(broker_id=BROKER_ID, directory_id="d", session_timeout_ms=60_000)
    store = SqliteStore(directory / "metadata.sqlite", clock)
    cluster = Cluster(store, identity, tasks.spawn, settings)
    await cluster.load()
    applier = MetadataApplier(
        replicas, cluster, Followers(cluster, tasks.spawn, Throttles(cluster, clock))
    )
    applier.begin()
    await cluster.join({LISTENER: ADDRESS})
    groups = GroupCoordinator(replicas, cluster, clock, tasks.spawn, metrics)
    groups.begin()
    transactions = TransactionCoordinator(replicas, cluster, groups, clock, tasks.spawn, metrics)
    transactions.begin()
    services = Services(
        broker_id=BROKER_ID,
        clock=clock,
        replicas=replicas,
        cluster=cluster,
        groups=groups,
        transactions=transactions,
        metrics=metrics,
        authorizer=rules,
        sessions=FetchSessions(10, iter(range(1, 1000)).__next__),
        refusals=Refusals(),
        confirmations=LeaderConfirmations(clock, tasks.spawn),
        spawn=tasks.spawn,
    )
    return BrokerContext(runner, services, rules, applier)
