"""What the controller does when it is told to. A command returns when its effect is in the image.

Another broker than the controller answers NOT_CONTROLLER.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from penstock.broker.controller.committer import Committer
from penstock.broker.membership.image_feed import ImageFeed
from penstock.broker.membership.view import View
from penstock.metadata.image import PartitionImage, TopicImage
from penstock.metadata.rules.config_changes import (
    ALL_BROKERS,
    BrokerLayers,
    ConfigOp,
    Resource,
    alter_configs,
    broker_layers,
    replace_configs,
)
from penstock.metadata.rules.controller import (
    TopicSpec,
    allocate_producer_ids,
    create_partitions,
    create_topics,
    delete_topics,
)
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.rules.elections import ElectionKind, elect_leaders
from penstock.metadata.rules.failed_replicas import fail_replicas
from penstock.metadata.rules.feature_levels import LevelChange, update_features
from penstock.metadata.rules.isr_changes import IsrChange, alter_partition
from penstock.metadata.rules.partition_edits import Answers
from penstock.metadata.rules.reassignment import alter_reassignments
from penstock.metadata.rules.registration import unregister_broker
from penstock.metadata.rules.tombstones import forget_tombstones
from penstock.metadata.rules.topic_writes import CreatedTopic
from penstock.metadata.store import StoreError, StoreFull
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicId, TopicPartition, format_topic_id

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS: Final = 30_000

T = TypeVar("T")


class Commands(View):
    def __init__(
        self, feed: ImageFeed, committer: Committer, broker_id: int, static: Mapping[str, str]
    ) -> None:
        super().__init__(feed, broker_id, static)
        self._committer = committer

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
            return create_topics(self.image, chosen, self.rules, new_id)

        return await self._each(len(specs), decide, validate_only, timeout_ms)

    async def delete_topics(
        self, topics: Sequence[str | bytes], *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> list[TopicImage | BrokerError]:
        """Each by name (text) or id (bytes). The outcome is the topic as it was."""

        def decide(numbers: Sequence[int]) -> list[Decision[TopicImage] | BrokerError]:
            return delete_topics(self.image, [topics[number] for number in numbers], self.rules)

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
            return create_partitions(self.image, name, count, assignments, self.rules)

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
            return alter_configs(self.image, resource, name, ops, self._layers_of(resource, name))

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
            layers = self._layers_of(resource, name)
            return replace_configs(self.image, resource, name, values, layers)

        await self._one(decide, validate_only, DEFAULT_TIMEOUT_MS)

    def _layers_of(self, resource: Resource, name: str) -> BrokerLayers:
        """What another broker was started with is known to that broker alone."""
        if resource is Resource.BROKER and name not in (ALL_BROKERS, str(self.broker_id)):
            ids = {str(broker): broker for broker in self.image.brokers}
            return broker_layers(self.image, ids[name], {}) if name in ids else _NO_LAYERS
        return self.broker_layers

    async def allocate_producer_ids(self) -> range:
        return await self._one(lambda: allocate_producer_ids(self.image), False, DEFAULT_TIMEOUT_MS)

    async def change_isrs(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[PartitionImage | BrokerError]:
        """What a leader asks for (R6): each partition as it is then, or why not."""

        def decide(numbers: Sequence[int]) -> list[Decision[PartitionImage] | BrokerError]:
            chosen = [changes[number] for number in numbers]
            return alter_partition(self.image, self.rules, broker_id, broker_epoch, chosen)

        return await self._guarded(
            self._committer.commit_each(len(changes), decide), DEFAULT_TIMEOUT_MS
        )

    async def fail_replicas(
        self, broker_id: int, broker_epoch: int, partitions: Mapping[TopicPartition, bool]
    ) -> dict[TopicPartition, BrokerError | None]:
        """What a broker says of its own logs, and whether it builds them anew: each is out of sync then, or why not."""

        def decide() -> Answers:
            return fail_replicas(self.image, self.rules, broker_id, broker_epoch, partitions)

        return await self._answered(decide, DEFAULT_TIMEOUT_MS)

    async def elect_leaders(
        self,
        kind: ElectionKind,
        partitions: Iterable[TopicPartition] | None,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> dict[TopicPartition, BrokerError | None]:
        """For each partition None, or why it was not elected; of all (None) only where there was reason to."""
        asked = None if partitions is None else list(partitions)

        def decide() -> Answers:
            return elect_leaders(self.image, self.rules, kind, asked)

        return await self._answered(decide, timeout_ms)

    async def alter_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_factor_change: bool = True,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> dict[TopicPartition, BrokerError | None]:
        """For each partition None, or why it stays; a target of None calls a move off."""

        def decide() -> Answers:
            return alter_reassignments(
                self.image, self.rules, targets, allow_factor_change=allow_factor_change
            )

        return await self._answered(decide, timeout_ms)

    async def unregister_broker(self, broker_id: int) -> None:
        def decide() -> list[Decision[None]]:
            return unregister_broker(self.image, broker_id, self.rules)

        await self._guarded(self._committer.commit_all(decide), DEFAULT_TIMEOUT_MS)

    async def update_features(
        self,
        changes: Sequence[LevelChange],
        *,
        validate_only: bool = False,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        """All of them, or none with the reasons (LevelsRefused)."""

        def decide() -> Decision[None]:
            return update_features(self.image, changes)

        await self._one(decide, validate_only, timeout_ms)
        if not validate_only:
            told = [f"{change.feature}={change.level}" for change in changes]
            _log.info("features-updated levels=%s", ",".join(told))

    async def _forget_tombstones(self, confirmed: Mapping[int, Collection[TopicId]]) -> None:
        def decide() -> list[Decision[None]]:
            return forget_tombstones(self.image, confirmed)

        if decide():
            await self._guarded(self._committer.commit_all(decide), DEFAULT_TIMEOUT_MS)

    async def _answered(
        self, ask: Callable[[], Answers], timeout_ms: int
    ) -> dict[TopicPartition, BrokerError | None]:
        answers = Answers()

        def decide() -> list[Decision[None]]:
            nonlocal answers
            answers = ask()
            return answers.decisions

        await self._guarded(self._committer.commit_fast(decide), timeout_ms)
        return answers.errors

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


_NO_LAYERS: Final = BrokerLayers({}, {}, {})


def new_id() -> TopicId:
    """Random, and never with a leading dash: tools would take its text for an option."""
    while True:
        candidate = TopicId(os.urandom(16))
        if not format_topic_id(candidate).startswith("-"):
            return candidate
