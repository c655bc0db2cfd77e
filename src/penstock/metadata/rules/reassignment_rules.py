"""What a reassignment does to one partition (O2): it gains replicas first, and loses others only when those are in sync."""

from penstock.metadata.image import TopicImage
from penstock.metadata.rules.partition_rules import Law, Laws, elected, settled
from penstock.metadata.values import PartitionImage


def is_moving(partition: PartitionImage) -> bool:
    return bool(partition.adding or partition.removing)


def target(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas that it shall have; the first is to be the preferred leader."""
    return tuple(member for member in partition.replicas if member not in partition.removing)


def completed(
    before: PartitionImage, after: PartitionImage, able: frozenset[int], law: Law
) -> PartitionImage:
    """`after` with its reassignment done, if it can be: settled against `before` in either case.

    Every added replica must be in sync, and no fewer of those that can lead may stay in sync than are
    needed to commit, unless fewer were in sync before.
    """
    if not is_moving(after):
        return settled(before, after, law)
    replicas = target(after)
    isr = tuple(member for member in after.isr if member in replicas)
    moved = after._replace(replicas=replicas, isr=isr, adding=(), removing=())
    needed = max(1, min(law.least(moved), len(after.isr)))
    if not set(after.adding).issubset(isr) or len(able.intersection(isr)) < needed:
        return settled(before, after, law)
    if after.leader not in isr:
        moved = elected(moved, able, unclean=False)
        if moved.leader < 0:
            return settled(before, after, law)
    return settled(before, moved, law)


def completed_alone(
    topic: TopicImage, number: int, after: PartitionImage, able: frozenset[int], laws: Laws
) -> PartitionImage:
    """As `completed`, for a change that writes no other partition.

    The first partition stands for its topic: with the number of its replicas the law may change. Such
    a move stays open while others are eligible by the old law; complete_reassignments ends it.
    """
    before, law = topic.partitions[number], laws.of(topic)
    done = completed(before, after, able, law)
    if number > 0 or done.replication_factor == before.replication_factor:
        return done
    others = topic.partitions[1:]
    new_law = laws.of(topic._replace(partitions=(done, *others)))
    if new_law != law and any(partition.elr for partition in others):
        return settled(before, after, law)
    return settled(before, done, new_law)
