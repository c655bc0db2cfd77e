"""Topics that come and go while faults go on: created, written to, given more partitions, read, and deleted or kept."""

import asyncio
from typing import Final

from tests.simulation.clients.admin import create_topic, delete_topic_by_id
from tests.simulation.clients.operator import Operator
from tests.simulation.clients.producers import Producer
from tests.simulation.clients.readers import Reader
from tests.simulation.loop import Broken, SimLoop
from tests.simulation.workloads.workload import Cluster, Topic
from tests.support.checker import History, assert_sound

_CONFIGS: Final = {"min.insync.replicas": "2", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
_PAUSE_S: Final = 2.5
_LOOKS: Final = 10  # for a topic that was created
_DELETED: Final = 0.7  # of the topics
_WRITES_S: Final = (0.2, 2.5)


class TopicUser(Operator):
    """Creates one topic after the other. Two have the same name, one after the other: what the first had must not come back."""

    def __init__(self, loop: SimLoop, brokers: list[int], cluster: Cluster) -> None:
        super().__init__(loop, brokers, "topic-user")
        self.done = 0
        self._cluster = cluster
        self._deleted: set[bytes] = set()  # by id

    async def run(self) -> None:
        number = 0
        while not self.is_stopping:
            await asyncio.sleep(self.loop.world.pause_s(_PAUSE_S))
            is_deleted = await self._use(f"x-topic-{number}")
            self.done += 1
            number += not is_deleted or self.loop.world.rng.random() < 0.5

    async def _use(self, name: str) -> bool:
        """Whether the topic is gone again."""
        rng = self.loop.world.rng
        history = History()
        topic_id = await self._create(name)
        writers = [self._begin_writing(name, 0, history)]
        if rng.random() < 0.5:
            await self._add_partition(name, topic_id)
            writers.append(self._begin_writing(name, 1, history))
        await asyncio.sleep(rng.uniform(*_WRITES_S))
        for writer, _ in writers:
            writer.is_stopping = True
        await asyncio.gather(*(task for _, task in writers))
        await self._read(name, writers, history)
        if rng.random() >= _DELETED:
            return False
        self._deleted.add(topic_id)
        await delete_topic_by_id(self, topic_id)
        return True

    async def _create(self, name: str) -> bytes:
        """The id of a topic that is not deleted.

        A broker that was controller may take the topic before for gone, or for still there.
        """
        while True:
            await create_topic(self, name, 1, _CONFIGS)
            for _ in range(_LOOKS):
                await self.recover(name)
                if self.topic_ids.get(name) not in (None, *self._deleted):
                    return self.topic_ids[name]
            if name in self.topic_ids:
                await delete_topic_by_id(self, self.topic_ids[name])

    async def _add_partition(self, name: str, topic_id: bytes) -> None:
        """Also a broker that was controller says that there are enough: of the topic before."""
        while True:
            await self.grow(name, 2)
            await self.recover(name)
            if self.topic_ids[name] == topic_id and (name, 1) in self._leaders:
                return

    def _begin_writing(
        self, name: str, index: int, history: History
    ) -> tuple[Producer, asyncio.Task[None]]:
        title = f"{name}-{index}.{self.done}"
        writer = Producer(self.loop, self.brokers, title, (name, index), history)
        return writer, self._cluster.run_client(writer, writer.run())

    async def _read(
        self, name: str, writers: list[tuple[Producer, asyncio.Task[None]]], history: History
    ) -> None:
        """Everything that was acknowledged, and nothing else."""
        for writer, _ in writers:
            reader = Reader(self.loop, self.brokers, f"r-{writer.name}", writer.place, history)
            task = self._cluster.run_client(reader, reader.run())
            while sum(seen.partition == writer.place for seen in history.seen) < writer.acked:
                await self.pause()
            reader.is_stopping = True
            await task
            seen = [it for it in history.seen if it.partition == writer.place]
            history.logs[writer.place] = [(it.offset, it.value) for it in seen]
        try:
            assert_sound(history)
        except AssertionError as error:
            raise Broken(f"{name}: {error}") from None


class Topics:
    topics: tuple[Topic, ...] = ()

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._user = TopicUser(cluster.loop, cluster.brokers, cluster)
        self._using: asyncio.Task[None] | None = None

    @property
    def operations(self) -> int:
        return self._user.done

    @property
    def written(self) -> int:
        return 0

    def begin(self) -> None:
        self._using = self._cluster.run_client(self._user, self._user.run())

    def stop(self) -> None:
        self._user.is_stopping = True

    def is_done(self) -> bool:
        return self._using is not None and self._using.done()

    def is_caught_up(self) -> bool:
        return True

    def judge(self) -> None:
        """Each topic was judged when it had been read."""
