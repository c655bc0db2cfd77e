"""The cluster as one broker sees and changes it: the image, the settings in force, and the controller's commands.

A command returns when its effect is in the image. Commands are for the controller; another broker
answers NOT_CONTROLLER.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from penstock.broker.committer import Committer
from penstock.broker.image_feed import ImageFeed, Listener
from penstock.broker.membership import Identity, Membership
from penstock.metadata.config_changes import (
    BrokerLayers,
    ConfigOp,
    Resource,
    alter_configs,
    broker_layers,
    distinct_overrides,
    replace_configs,
)
from penstock.metadata.controller import (
    TopicSpec,
    allocate_producer_ids,
    automatic_topic,
    create_partitions,
    create_topics,
    delete_topics,
    forget_tombstones,
)
from penstock.metadata.decisions import Decision, Rules
from penstock.metadata.image import BrokerInfo, ClusterImage, Delta, Endpoint, TopicImage
from penstock.metadata.store import (
    NO_REVISION,
    Compare,
    MetadataStore,
    Put,
    Revision,
    StoreError,
    StoreFull,
)
from penstock.metadata.topic_names import check_topic_name
from penstock.metadata.topic_writes import CreatedTopic
from penstock.metadata.values import META, encode
from penstock.model.configs import (
    BrokerConfig,
    TopicConfig,
    resolve_broker_config,
    resolve_topic_config,
)
from penstock.model.errors import BrokerError, ErrorCode, InvalidConfig
from penstock.model.ids import TopicId, format_topic_id

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS: Final = 30_000

T = TypeVar("T")


class Spawn(Protocol):
    """Runs a coroutine beside everything else and keeps hold of it."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]: ...


class Cluster:
    """Owns the store. `load` gives the picture; `join` makes this broker a part of it; `stop` takes it out."""

    def __init__(
        self,
        store: MetadataStore,
        identity: Identity,
        spawn: Spawn,
        static: Mapping[str, str] | None = None,
    ) -> None:
        """`static` are the broker's settings that somebody set, under their Kafka names."""
        self.broker_id: Final = identity.broker_id
        self.config: BrokerConfig = resolve_broker_config(static or {})
        self._static = static or {}
        self._store = store
        self._spawn = spawn
        self._feed = ImageFeed(store)
        self._committer = Committer(store, self._feed)
        self._membership = Membership(store, self._feed, self._committer, identity)
        self._tasks: list[asyncio.Task[None]] = []
        self._topic_configs: dict[tuple[frozenset[tuple[str, str]], int], TopicConfig] = {}
        self._producer_ids = iter(range(0))
        self._producer_ids_turn = asyncio.Lock()
        self._feed.listen(self._take_settings)

    # starting and stopping

    async def load(self, *, cluster_id: str | None = None, least_revision: int = 0) -> None:
        """The present picture, kept up to date from now on.

        `cluster_id` and `least_revision` are what the data directory knows (B1): a store of another
        cluster, or one that has gone back in time, is refused.
        """
        await self._feed.load()
        if self.image.cluster_id is None:
            if cluster_id is not None:
                raise StoreError(
                    f"the metadata store is empty, and the data directory belongs to cluster {cluster_id}:"
                    " restore the store, or point to the right one"
                )
            await self._create_cluster()
        if cluster_id not in (None, self.image.cluster_id):
            raise StoreError(
                f"the data directory belongs to cluster {cluster_id}, the metadata store to"
                f" {self.image.cluster_id}: one of them is not this broker's"
            )
        if self.image.revision < least_revision:
            raise StoreError(
                f"the metadata store is at revision {self.image.revision}, and this broker has seen"
                f" {least_revision}: an old backup was restored"
            )
        self._take_settings(Delta(self.image.revision, broker_configs=True))
        self._check_topics()
        self._run(self._feed.run(), "metadata-watch")

    async def join(self, listeners: Mapping[str, Endpoint]) -> None:
        """Returns when this broker takes part. Listen before: who does not answer looks dead."""
        await self._membership.join(dict(listeners))
        await self._membership.attend()
        self._run(self._membership.do_duties(), "cluster-duties")
        self._run(self._membership.keep_session(), "session-keep-alive")
        await self._membership.admitted()

    async def stop(self) -> None:
        """Gives up session and office, and closes the store."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self._membership.leave()
        except StoreError as error:  # the session then ends by itself
            _log.warning("session-not-ended error=%s", error)
        await self._store.close()

    def _run(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(self._spawn(coroutine, name))

    async def _create_cluster(self) -> None:
        value = encode(cluster_id=format_topic_id(new_id()))
        await self._store.commit([Compare(META, mod_revision=NO_REVISION)], [Put(META, value)])
        await self._feed.load()

    def _check_topics(self) -> None:
        for name, overrides in distinct_overrides(self.image):
            try:
                resolve_topic_config(overrides, self._broker_defaults)
            except InvalidConfig as error:
                raise InvalidConfig(
                    f"topic '{name}' has settings that cannot hold: {error}"
                ) from None

    # what is known

    @property
    def image(self) -> ClusterImage:
        return self._feed.image

    @property
    def cluster_id(self) -> str:
        assert self.image.cluster_id is not None, "load() comes first"
        return self.image.cluster_id

    @property
    def is_controller(self) -> bool:
        return self._membership.is_controller

    @property
    def epoch(self) -> Revision:
        """Of this broker's session; 0 while it has none."""
        return self._membership.epoch

    @property
    def broker_layers(self) -> BrokerLayers:
        return broker_layers(self.image, self.broker_id, self._static)

    def on_change(self, listener: Listener) -> None:
        """`listener` gets a Delta after each change of the image; it must neither fail nor wait.

        With `broker_configs` in it, `config` and the configs of all topics may be others than before.
        """
        self._feed.listen(listener)

    def endpoints(self, listener: str) -> list[tuple[BrokerInfo, Endpoint]]:
        """The brokers that take part and can be reached through that listener.

        Without any, this one: a client that is told of none forgets even whom it asks.
        """
        return [
            (broker, broker.listeners[listener])
            for broker in self.image.usable_brokers() or [self._membership.own]
            if listener in broker.listeners
        ]

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """The settings in force for a topic; topics with the same settings share one object."""
        key = frozenset(topic.config.items()), topic.replication_factor
        config = self._topic_configs.get(key)
        if config is None:
            config = self._topic_configs[key] = resolve_topic_config(
                topic.config, self._broker_defaults, replication_factor=key[1]
            )
        return config

    def check_topic_name(self, name: str) -> None:
        check_topic_name(name)

    # commands

    async def create_topics(
        self,
        specs: Sequence[TopicSpec],
        *,
        validate_only: bool = False,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> list[CreatedTopic | BrokerError]:
        """An outcome for each topic, in order."""

        def decide(numbers: Sequence[int]) -> list[Decision[CreatedTopic] | BrokerError]:
            chosen = [specs[number] for number in numbers]
            return create_topics(self.image, chosen, self._rules, new_id)

        return await self._each(len(specs), decide, validate_only, timeout_ms)

    async def auto_create_topic(self, name: str) -> TopicImage:
        """The topic, which somebody else may have created meanwhile."""
        (outcome,) = await self.create_topics([automatic_topic(self.image, name, self._rules)])
        topic = self.image.topics.get(name)
        if topic is not None:
            return topic
        if isinstance(outcome, BrokerError):
            raise outcome
        raise BrokerError(
            f"topic '{name}' was deleted at once", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

    async def delete_topics(
        self, topics: Sequence[str | bytes], *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> list[TopicImage | BrokerError]:
        """Each by name (text) or id (bytes). The outcome is the topic as it was."""

        def decide(numbers: Sequence[int]) -> list[Decision[TopicImage] | BrokerError]:
            return delete_topics(self.image, [topics[number] for number in numbers], self._rules)

        return await self._each(len(topics), decide, False, timeout_ms)

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        def decide() -> Decision[None]:
            return create_partitions(self.image, name, count, assignments, self._rules)

        await self._one(decide, validate_only, timeout_ms)

    async def alter_configs(
        self,
        resource: Resource,
        name: str,
        ops: Sequence[ConfigOp],
        *,
        validate_only: bool = False,
    ) -> None:
        """IncrementalAlterConfigs."""

        def decide() -> Decision[Mapping[str, str]]:
            return alter_configs(self.image, resource, name, ops, self.broker_layers)

        await self._one(decide, validate_only, DEFAULT_TIMEOUT_MS)

    async def replace_configs(
        self,
        resource: Resource,
        name: str,
        values: Sequence[tuple[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """AlterConfigs: what is not named goes back to its default."""

        def decide() -> Decision[Mapping[str, str]]:
            return replace_configs(self.image, resource, name, values, self.broker_layers)

        await self._one(decide, validate_only, DEFAULT_TIMEOUT_MS)

    async def allocate_producer_ids(self) -> range:
        return await self._one(lambda: allocate_producer_ids(self.image), False, DEFAULT_TIMEOUT_MS)

    async def next_producer_id(self) -> int:
        """One that no producer of this cluster has had."""
        async with self._producer_ids_turn:
            found = next(self._producer_ids, None)
            if found is None:
                self._producer_ids = iter(await self.allocate_producer_ids())
                found = next(self._producer_ids)
            return found

    async def confirm_deleted(self, topic_ids: Iterable[TopicId]) -> None:
        """This broker holds no data of those topics any more; once nobody does, their tombstones go."""
        if self.is_controller and list(self.image.registrations) == [self.broker_id]:
            confirmed = list(topic_ids)
            await self._guarded(
                self._committer.commit_all(lambda: forget_tombstones(self.image, confirmed)),
                DEFAULT_TIMEOUT_MS,
            )

    async def _one(
        self, decide: Callable[[], Decision[T]], validate_only: bool, timeout_ms: int
    ) -> T:
        if validate_only:
            return decide().result
        return await self._guarded(self._committer.commit(decide), timeout_ms)

    async def _each(
        self,
        count: int,
        decide: Callable[[Sequence[int]], Sequence[Decision[T] | BrokerError]],
        validate_only: bool,
        timeout_ms: int,
    ) -> list[T | BrokerError]:
        if validate_only:
            decided = decide(range(count))
            return [it if isinstance(it, BrokerError) else it.result for it in decided]
        try:
            return await self._guarded(self._committer.commit_each(count, decide), timeout_ms)
        except BrokerError as error:
            return [error] * count

    async def _guarded(self, work: Awaitable[T], timeout_ms: int) -> T:
        """What was begun may still happen after the answer: a client that retries will find it done."""
        try:
            async with asyncio.timeout(max(timeout_ms, 1) / 1000):
                return await work
        except StoreFull as error:
            raise BrokerError(str(error), ErrorCode.KAFKA_STORAGE_ERROR) from error
        except (TimeoutError, StoreError) as error:
            reason = str(error) or f"not done within {timeout_ms} ms"
            raise BrokerError(reason, ErrorCode.REQUEST_TIMED_OUT) from error

    # settings

    @property
    def _broker_defaults(self) -> Mapping[str, str]:
        return self.broker_layers.in_force

    @property
    def _rules(self) -> Rules:
        return Rules(self.config, self._broker_defaults)

    def _take_settings(self, delta: Delta) -> None:
        if delta.broker_configs:
            try:
                self.config = resolve_broker_config(self._broker_defaults)
            except InvalidConfig as error:  # does not go with what was set for this broker alone
                _log.error("settings-refused broker=%d error=%s", self.broker_id, error)
            self._topic_configs.clear()


def new_id() -> TopicId:
    """Random, and never with a leading dash: tools would take its text for an option."""
    while True:
        candidate = TopicId(os.urandom(16))
        if not format_topic_id(candidate).startswith("-"):
            return candidate
