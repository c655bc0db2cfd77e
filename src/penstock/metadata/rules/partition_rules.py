"""What may become of one partition: who can lead it (E1, E2, E5), who counts as in sync, when its epochs grow (C3)."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.metadata.image import ClusterImage, TopicImage
from penstock.metadata.rules.decisions import Rules
from penstock.metadata.values import PartitionImage
from penstock.model.configs import resolve_topic_config

NOBODY = -1


class ElectionSettings(NamedTuple):
    """The settings of a topic that bear on elections."""

    min_isr: int  # as set; a partition with fewer replicas is held to those
    unclean: bool  # a replica that was not in sync may lead when no other can
    flushes_each: bool  # what was acknowledged is on disk, also after a loss of power

    def least(self, partition: PartitionImage) -> int:
        return effective_min_isr(self.min_isr, partition)


def effective_min_isr(min_isr: int, partition: PartitionImage) -> int:
    """No more can be asked for than there are replicas."""
    return min(min_isr, partition.replication_factor)


class ElectionSettingsCache:
    """Resolve each topic's election settings once. Topics with equal settings share one object."""

    def __init__(self, broker_defaults: Mapping[str, str]) -> None:
        self._defaults = broker_defaults
        self._known: dict[tuple[frozenset[tuple[str, str]], int], ElectionSettings] = {}

    def of(self, topic: TopicImage | None) -> ElectionSettings:
        """`None` means a topic that is being created."""
        overrides: Mapping[str, str] = topic.config if topic else {}
        key = frozenset(overrides.items()), topic.replication_factor if topic else 1
        settings = self._known.get(key)
        if settings is None:
            config = resolve_topic_config(overrides, self._defaults, replication_factor=key[1])
            settings = self._known[key] = ElectionSettings(
                config.min_insync_replicas,
                config.unclean_leader_election_enable,
                config.flush_messages == 1,
            )
        return settings


class ElectionContext:
    """The brokers that may lead and the settings of topics, as one decision sees them."""

    def __init__(
        self,
        image: ClusterImage,
        rules: Rules,
        *,
        joining: int | None = None,
        leaving: int | None = None,
    ) -> None:
        able = {broker.id for broker in image.brokers.values() if broker.may_lead}
        if joining is not None:
            able.add(joining)
        able.discard(NOBODY if leaving is None else leaving)
        self.able = frozenset(able)
        self.settings_cache = ElectionSettingsCache(rules.broker_defaults)

    def settings(self, topic: TopicImage | None) -> ElectionSettings:
        return self.settings_cache.of(topic)


def standing_elr(partition: PartitionImage, settings: ElectionSettings) -> tuple[int, ...]:
    """Those out of sync that lack nothing committed: none, once the ISR is large enough to commit without them.

    This also holds when the settings became milder after the ELR was written.
    """
    return () if len(partition.isr) >= settings.least(partition) else partition.elr


def without(
    partition: PartitionImage, broker_id: int, settings: ElectionSettings, *, intact: bool = True
) -> PartitionImage:
    """E2: who leaves the ISR stays eligible unless enough others are in sync, or its data is not what it was."""
    elr = standing_elr(partition, settings)
    if not intact:
        elr = tuple(member for member in elr if member != broker_id)
    elif broker_id in partition.isr:
        elr = (*elr, broker_id)
    isr = tuple(member for member in partition.isr if member != broker_id)
    return partition._replace(isr=isr, elr=elr)


def elected(partition: PartitionImage, able: frozenset[int], *, unclean: bool) -> PartitionImage:
    """The partition under the first replica that can lead it: in sync; else, with an empty ISR, eligible; else any.

    Of those that lack something, who was in sync until it lost power lacks the least.
    """
    replicas, isr, elr = partition.replicas, partition.isr, partition.elr
    for broker_id in replicas:
        if broker_id in isr and broker_id in able:
            return partition._replace(leader=broker_id)
    if isr:  # of brokers whose loss is yet to be decided upon
        return partition._replace(leader=NOBODY)
    for broker_id in replicas:
        if broker_id in elr and broker_id in able:
            return partition._replace(leader=broker_id, isr=(broker_id,))
    candidates = [broker_id for broker_id in replicas if broker_id in able]
    if unclean and candidates:
        known = [broker_id for broker_id in candidates if broker_id in partition.last_known_elr]
        best = (known or candidates)[0]
        return partition._replace(leader=best, isr=(best,), elr=(), recovering=True)
    return partition._replace(leader=NOBODY)


def settled(
    before: PartitionImage,
    after: PartitionImage,
    settings: ElectionSettings,
    *,
    reelected: bool = False,
) -> PartitionImage:
    """`after` as it is written: the ELR by E2, the epochs by C3. `before` itself if nothing changes."""
    elr = tuple(
        member
        for member in after.replicas
        if member in standing_elr(after, settings) and member not in after.isr
    )
    gone = after.last_known_elr if after.leader == NOBODY else ()
    known = tuple(member for member in after.replicas if member in gone)
    after = after._replace(elr=elr, last_known_elr=known)
    if after == before and not reelected:
        return before
    is_new_reign = (
        reelected
        or after.leader != before.leader
        or not set(before.replicas).issubset(after.replicas)
    )
    leader_epoch = before.leader_epoch + is_new_reign
    return after._replace(
        leader_epoch=leader_epoch,
        partition_epoch=before.partition_epoch + 1,
        unclean_epoch=leader_epoch if is_new_reign and after.recovering else before.unclean_epoch,
    )
