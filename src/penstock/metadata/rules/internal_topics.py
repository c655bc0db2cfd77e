"""Internal topics get the replicas that they should have once there are brokers for them (O7)."""

from collections import Counter
from collections.abc import Mapping

from penstock.metadata.image import INTERNAL_TOPICS, ClusterImage, TopicImage
from penstock.metadata.rules.controller import automatic_topic, open_brokers
from penstock.metadata.rules.decisions import Decision, Rules, unchanged
from penstock.metadata.rules.reassignment import alter_reassignments
from penstock.metadata.rules.reassignment_rules import is_moving
from penstock.metadata.store import Put
from penstock.metadata.values import PartitionImage, encode, topic_config_key
from penstock.model.ids import TopicPartition

_MIN_ISR = "min.insync.replicas"


def raise_internal_replication(image: ClusterImage, rules: Rules) -> list[Decision[None]]:
    """Adds replicas by reassignment, in order: the setting that asks for more in sync is written first.

    It counts only as far as there are replicas, so nothing stops in between; and what an operator sets
    later, when the replicas are there, stays.
    """
    decisions: list[Decision[None]] = []
    for name in sorted(INTERNAL_TOPICS):
        topic = image.topics.get(name)
        if topic is None:
            continue
        spec = automatic_topic(image, name, rules)
        targets = _Growth(image, topic).targets(spec.replication_factor)
        if targets:
            decisions += _min_isr_raised(image, topic, spec.config.get(_MIN_ISR))
            decisions += alter_reassignments(image, rules, targets).decisions
    return decisions


def _min_isr_raised(
    image: ClusterImage, topic: TopicImage, wanted: str | None
) -> list[Decision[None]]:
    present = topic.config.get(_MIN_ISR)
    if wanted is None or (present is not None and int(present) >= int(wanted)):
        return []
    key = topic_config_key(topic.name)
    settings = {**topic.config, _MIN_ISR: wanted}
    return [Decision(None, [Put(key, encode(set=settings))], [unchanged(image, key)])]


class _Growth:
    """New replicas of one topic: on other racks, then on brokers with few of the topic, then with few at all."""

    def __init__(self, image: ClusterImage, topic: TopicImage) -> None:
        self._image = image
        self._topic = topic
        self._able = [broker for broker in open_brokers(image) if broker.may_lead]
        self._held: Counter[int] = Counter()
        self._preferred: Counter[int] = Counter()
        for partition in topic.partitions:
            self._held.update(partition.replicas)
            self._preferred[partition.replicas[0]] += 1

    def targets(self, replication_factor: int) -> Mapping[TopicPartition, tuple[int, ...]]:
        found: dict[TopicPartition, tuple[int, ...]] = {}
        for number, partition in enumerate(self._topic.partitions):
            missing = replication_factor - len(partition.replicas)
            if missing > 0 and not is_moving(partition):
                replicas = self._grown(partition, missing)
                if len(replicas) > len(partition.replicas):
                    found[TopicPartition(self._topic.name, number)] = replicas
        return found

    def _grown(self, partition: PartitionImage, missing: int) -> tuple[int, ...]:
        replicas = list(partition.replicas)
        for _ in range(missing):
            racks = Counter(self._rack(broker_id) for broker_id in replicas)
            costs = [
                (racks[it.rack], self._held[it.id], self._image.replica_counts.get(it.id, 0), it.id)
                for it in self._able
                if it.id not in replicas
            ]
            if not costs:
                break
            chosen = min(costs)[-1]
            self._held[chosen] += 1
            replicas.append(chosen)
        return self._led_by_the_least(replicas)

    def _led_by_the_least(self, replicas: list[int]) -> tuple[int, ...]:
        """So that not one broker is preferred by every partition, as when it was alone."""
        old, best = replicas[0], min(replicas, key=lambda member: self._preferred[member])
        if self._preferred[old] - self._preferred[best] > 1:
            self._preferred[old] -= 1
            self._preferred[best] += 1
            replicas.remove(best)
            replicas.insert(0, best)
        return tuple(replicas)

    def _rack(self, broker_id: int) -> str | None:
        broker = self._image.brokers.get(broker_id)
        return broker.rack if broker else None
