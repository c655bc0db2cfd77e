"""Partitions on a real disk, without a cluster or sockets: threads, time and faults are the test's to give."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.model.configs import TopicConfig, resolve_topic_config
from penstock.model.ids import TopicId
from penstock.storage.directory import DataDirectory
from penstock.storage.files import Disk
from penstock.storage.log import Appended
from tests.support.clocks import ManualClock
from tests.unit.storage.logs import batch

P = ParamSpec("P")
T = TypeVar("T")

_ENOUGH_TICKS = 5


class ManualThreads(Executor):
    """Work waits until the test has it done, in the test's own thread."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self) -> int:
        """Do what waits now; how many that were."""
        waiting, self._waiting = self._waiting, []
        for future, work in waiting:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever waits for it must hear of it
                future.set_exception(error)
        return len(waiting)


class Engine:
    """The partitions of one broker. Nothing happens between two calls of the test."""

    def __init__(self, runner: asyncio.Runner, directory: DataDirectory) -> None:
        self.runner = runner
        self.loop = runner.get_loop()
        self.clock = ManualClock()
        self.threads = ManualThreads()
        self.metrics = BrokerMetrics()
        self.directory = directory
        self.replicas = ReplicaManager(directory, self.metrics, self.loop, self.threads, self.clock)
        self.complaints: list[str] = []  # errors that nobody handled
        self.loop.set_exception_handler(lambda _, about: self.complaints.append(str(about)))
        self._next_id = 1

    def topic(self, name: str, partitions: int = 1, **settings: Any) -> list[Partition]:
        """A new topic; its settings with underscores for dots."""
        topic_id = TopicId(self._next_id.to_bytes(16, "big"))
        self._next_id += 1
        topic = self.replicas.add_topic(name, topic_id, config_of(**settings))
        for _ in range(partitions):
            self.replicas.add_partition(topic, leader_epoch=3)
        return [partition for partition in topic.partitions if partition is not None]

    def partition(self, name: str = "orders", **settings: Any) -> Partition:
        """The only one of a new topic."""
        (partition,) = self.topic(name, **settings)
        return partition

    def append(self, partition: Partition, *values: bytes, **fields: Any) -> Appended:
        now_ms = self.clock.wall_ms()
        return partition.append(
            batch(*values, time_ms=now_ms, **fields),
            now_ms=now_ms,
            transactional=fields.get("transactional", False),
        )

    def write_checkpoint(self) -> None:
        """What is durable and committed, as housekeeping writes it down."""
        ticket = self.directory.checkpoint_begin(self.replicas.high_watermarks())
        ticket.write()
        self.directory.checkpoint_end(ticket)

    def tick(self, ticks: int = _ENOUGH_TICKS) -> None:
        """Let the loop go round a few times."""
        for _ in range(ticks):
            self.runner.run(asyncio.sleep(0))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """To its end, with the threads at work."""

        async def worked() -> T:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(coroutine)
                while not task.done():
                    await asyncio.sleep(0)
                    self.threads.run()
            return task.result()

        return self.runner.run(worked())

    def settle(self) -> None:
        """Until neither the loop nor the threads have anything to do."""
        self.tick()
        while self.threads.run():
            self.tick()


def config_of(**settings: Any) -> TopicConfig:
    texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return resolve_topic_config(texts, {})


@contextmanager
def running_engine(path: Path, disk: Disk | None = None) -> Iterator[Engine]:
    with asyncio.Runner() as runner:
        directory = DataDirectory(str(path / "data"), disk=disk)
        engine = Engine(runner, directory)
        try:
            yield engine
        finally:
            engine.replicas.stop()
            directory.abandon()
        engine.settle()
        gc.collect(1)  # a future whose error nobody asked for complains when it goes
        assert engine.complaints == []
