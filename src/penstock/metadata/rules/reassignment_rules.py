"""What a reassignment does to one partition (O2): it gains replicas first, and loses others only when those are in sync."""

from penstock.metadata.image import TopicImage
from penstock.metadata.rules.partition_rules import (
    ElectionSettings,
    ElectionSettingsCache,
    elected,
    settled,
)
from penstock.metadata.values import PartitionImage


def is_moving(partition: PartitionImage) -> bool:
    return bool(partition.adding or partition.removing)


def target(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas that it shall have; the first is to be the preferred leader."""
    return tuple(member for member in partition.replicas if member not in partition.removing)


def completed(
    before: PartitionImage, after: PartitionImage, able: frozenset[int], settings: ElectionSettings
) -> PartitionImage:
    """`after` with its reassignment done, if it can be: settled against `before` in either case.

    Every added replica must be in sync, and no fewer of those that can lead may stay in sync than are
    needed to commit, unless fewer were in sync before.
    """
    if not is_moving(after):
        return settled(before, after, settings)
    replicas = target(after)
    isr = tuple(member for member in after.isr if member in replicas)
    moved = after._replace(replicas=replicas, isr=isr, adding=(), removing=())
    needed = max(1, min(settings.least(moved), len(after.isr)))
    if not set(after.adding).issubset(isr) or len(able.intersection(isr)) < needed:
        return settled(before, after, settings)
    if after.leader not in isr:
        moved = elected(moved, able, unclean=False)
        if moved.leader < 0:
            return settled(before, after, settings)
    return settled(before, moved, settings)


def completed_alone(
    topic: TopicImage,
    number: int,
    after: PartitionImage,
    able: frozenset[int],
    settings_cache: ElectionSettingsCache,
) -> PartitionImage:
    """As `completed`, for a change that writes no other partition.

    The first partition stands for its topic: its number of replicas may change the settings. Such
    a move stays open while others are eligible by the old ones; complete_reassignments ends it.
    """
    before, settings = topic.partitions[number], settings_cache.of(topic)
    done = completed(before, after, able, settings)
    if number > 0 or done.replication_factor == before.replication_factor:
        return done
    others = topic.partitions[1:]
    new_settings = settings_cache.of(topic._replace(partitions=(done, *others)))
    if new_settings != settings and any(partition.elr for partition in others):
        return settled(before, after, settings)
    return settled(before, done, new_settings)
