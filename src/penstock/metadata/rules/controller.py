"""The controller's decisions on topics, brokers and producer ids: (image, command) -> Decision, or a BrokerError. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.metadata.image import BrokerInfo, ClusterImage, TopicImage
from penstock.metadata.rules.cordons import is_cordoned
from penstock.metadata.rules.decisions import Decision, Rules, unchanged
from penstock.metadata.rules.placement import Candidate, check_replicas, place
from penstock.metadata.rules.promotions import check_may_mirror
from penstock.metadata.rules.topic_names import (
    InvalidTopicName,
    check_no_collision,
    check_topic_name,
)
from penstock.metadata.rules.topic_writes import (
    CreatedTopic,
    chunk_writes,
    creation,
    new_partitions,
    topic_row,
)
from penstock.metadata.store import Delete, DeletePrefix, Put, Write
from penstock.metadata.values import (
    CHUNK_PARTITIONS,
    PRODUCER_IDS,
    chunks_prefix,
    encode,
    tombstone_key,
    topic_config_key,
    topic_key,
)
from penstock.model.configs import check_topic_overrides, resolve_topic_config
from penstock.model.errors import BrokerError, ErrorCode, InvalidConfig, UnknownTopicOrPartition
from penstock.model.ids import TopicId, TopicName, format_topic_id

BROKER_DEFAULT: Final = -1  # in place of a count
PRODUCER_ID_BLOCK: Final = 1000


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create. Assignments (broker ids by partition) take the place of the two counts."""

    name: str
    partition_count: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    config: Mapping[str, str | None] = field(default_factory=dict)


def create_topics(
    image: ClusterImage, specs: Sequence[TopicSpec], rules: Rules, new_id: Callable[[], TopicId]
) -> list[Decision[CreatedTopic] | BrokerError]:
    """A decision or a refusal for each topic, in order. Each decision counts on those before it."""
    plan = _Plan(image, rules)
    named = Counter(spec.name for spec in specs)
    outcomes: list[Decision[CreatedTopic] | BrokerError] = []
    for spec in specs:
        try:
            if named[spec.name] > 1:
                raise _invalid_request(f"topic '{spec.name}' is named more than once")
            outcomes.append(plan.create(spec, new_id))
        except BrokerError as error:
            outcomes.append(error)
    return outcomes


class _Plan:
    """The image, and what the decisions of this request add to it."""

    def __init__(self, image: ClusterImage, rules: Rules) -> None:
        self._image = image
        self._rules = rules
        self._replica_counts = dict(image.replica_counts)
        self._partition_count = 0
        self._names_alike: dict[str, str] = {}

    def create(self, spec: TopicSpec, new_id: Callable[[], TopicId]) -> Decision[CreatedTopic]:
        self._check_name(spec.name)
        config = self._checked_config(spec.config)
        check_may_mirror(self._image, spec.name, config)
        if spec.assignments:
            replicas = self._assigned_replicas(spec)
        else:
            replicas = self._placed_replicas(spec)
        resolve_topic_config(
            config, self._rules.broker_defaults, replication_factor=len(replicas[0])
        )
        self._check_limits(replicas)
        self._names_alike[spec.name.replace(".", "_")] = spec.name
        created = CreatedTopic(
            TopicName(spec.name), new_id(), len(replicas), len(replicas[0]), config
        )
        return creation(self._image, created, replicas)

    def add_partitions(
        self, topic: TopicImage, count: int, assignments: Sequence[Sequence[int]] | None
    ) -> list[tuple[int, ...]]:
        """The replicas of the partitions from the present count up to `count`."""
        first = len(topic.partitions)
        if assignments is None:
            replicas = place(
                self._candidates(topic.replication_factor),
                seed=topic.name,
                first_partition=first,
                partition_count=count - first,
                replication_factor=topic.replication_factor,
                existing=[partition.replicas for partition in topic.partitions],
            )
        else:
            replicas = check_replicas(
                self._image,
                {first + number: brokers for number, brokers in enumerate(assignments)},
                topic.replication_factor,
            )
        self._check_limits(replicas)
        return replicas

    def _check_name(self, name: str) -> None:
        check_topic_name(name)
        if name in self._image.topics:
            raise BrokerError(f"topic '{name}' already exists", ErrorCode.TOPIC_ALREADY_EXISTS)
        check_no_collision(self._image, name)
        other = self._names_alike.get(name.replace(".", "_"))
        if other is not None:
            raise InvalidTopicName(f"topic '{name}' collides with '{other}' of the same request")

    def _checked_config(self, config: Mapping[str, str | None]) -> dict[str, str]:
        given: dict[str, str] = {}
        for name, text in config.items():
            if text is None:
                raise InvalidConfig(f"{name} has no value")
            given[name] = text
        return check_topic_overrides(given)

    def _assigned_replicas(self, spec: TopicSpec) -> list[tuple[int, ...]]:
        if spec.partition_count != BROKER_DEFAULT or spec.replication_factor != BROKER_DEFAULT:
            raise _invalid_request(
                f"topic '{spec.name}' has assignments: partition count and replication factor must be -1"
            )
        numbers = sorted(spec.assignments)
        if numbers != list(range(len(numbers))):
            raise BrokerError(
                f"the assigned partitions are {numbers[:10]}; they must be 0, 1, 2 and so on",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )
        ordered = {number: spec.assignments[number] for number in numbers}
        return check_replicas(self._image, ordered, len(ordered[0]))

    def _placed_replicas(self, spec: TopicSpec) -> list[tuple[int, ...]]:
        partitions, replication_factor = spec.partition_count, spec.replication_factor
        if partitions == BROKER_DEFAULT:
            partitions = self._rules.config.num_partitions
        if partitions < 1:
            raise BrokerError(
                f"{partitions} partitions; a topic has at least 1, and -1 asks for the default",
                ErrorCode.INVALID_PARTITIONS,
            )
        if replication_factor == BROKER_DEFAULT:
            replication_factor = default_replication_factor(self._image, self._rules)
        self._check_request(partitions)
        return place(
            self._candidates(replication_factor),
            seed=spec.name,
            first_partition=0,
            partition_count=partitions,
            replication_factor=replication_factor,
        )

    def _candidates(self, replication_factor: int) -> list[Candidate]:
        """The brokers to choose from: those that run, and the others only if those are too few. None that is cordoned."""
        if replication_factor < 1:
            raise BrokerError(
                f"replication factor {replication_factor}; it is at least 1, and -1 asks for the default",
                ErrorCode.INVALID_REPLICATION_FACTOR,
            )
        brokers = open_brokers(self._image)
        running = [broker for broker in brokers if not broker.fenced]
        chosen = brokers if 0 < len(running) < replication_factor else running
        if replication_factor > len(chosen):
            raise BrokerError(
                f"replication factor {replication_factor} asks for as many brokers; {len(chosen)} can be used",
                ErrorCode.INVALID_REPLICATION_FACTOR,
            )
        counts = self._replica_counts
        return [Candidate(it.id, it.rack, it.fenced, counts.get(it.id, 0)) for it in chosen]

    def _check_request(self, partitions: int) -> None:
        limit = self._rules.config.penstock_partitions_per_request_max
        if self._partition_count + partitions > limit:
            raise BrokerError(
                f"the request would create more than {limit} partitions"
                " (penstock.partitions.per.request.max): split it",
                ErrorCode.POLICY_VIOLATION,
            )

    def _check_limits(self, placed: Sequence[tuple[int, ...]]) -> None:
        """Also takes the new replicas into account for what follows in this request."""
        self._check_request(len(placed))
        limit = self._rules.config.penstock_partitions_per_broker_max
        counts = dict(self._replica_counts)
        for replicas in placed:
            for broker_id in replicas:
                counts[broker_id] = counts.get(broker_id, 0) + 1
                if counts[broker_id] > limit:
                    raise BrokerError(
                        f"broker {broker_id} would hold more than {limit} partitions"
                        " (penstock.partitions.per.broker.max)",
                        ErrorCode.POLICY_VIOLATION,
                    )
        self._replica_counts = counts
        self._partition_count += len(placed)


def default_replication_factor(image: ClusterImage, rules: Rules) -> int:
    """As set; unless set, a replica on each registered broker that may get some, at most three."""
    wanted = rules.config.default_replication_factor
    if wanted != BROKER_DEFAULT:
        return wanted
    return max(1, min(3, len(open_brokers(image))))


def open_brokers(image: ClusterImage) -> list[BrokerInfo]:
    """Those that may get new replicas."""
    return [broker for broker in image.brokers.values() if not is_cordoned(image, broker.id)]


def automatic_topic(image: ClusterImage, name: str, rules: Rules) -> TopicSpec:
    """What a topic is made of that is created because it was asked for. Coordinators' own are compacted."""
    config = rules.config
    match name:
        case "__consumer_offsets":
            partitions, wanted = (
                config.offsets_topic_num_partitions,
                config.offsets_topic_replication_factor,
            )
            segment_bytes, min_isr = config.offsets_topic_segment_bytes, 2
        case "__transaction_state":
            partitions = config.transaction_state_log_num_partitions
            wanted = config.transaction_state_log_replication_factor
            segment_bytes = config.transaction_state_log_segment_bytes
            min_isr = config.transaction_state_log_min_isr
        case _:
            return TopicSpec(name)
    replication_factor = min(wanted, max(1, len(image.brokers)))
    settings: dict[str, str | None] = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "min.insync.replicas": str(min(min_isr, replication_factor)),
        "segment.bytes": str(segment_bytes),
    }
    return TopicSpec(name, partitions, replication_factor, config=settings)


def delete_topics(
    image: ClusterImage, topics: Sequence[str | bytes], rules: Rules
) -> list[Decision[TopicImage] | BrokerError]:
    """A decision or a refusal for each topic, by name (text) or id (bytes)."""
    outcomes: list[Decision[TopicImage] | BrokerError] = []
    named: set[TopicId] = set()
    for name in topics:
        try:
            topic = _find(image, name)
            if topic.id in named:
                raise _invalid_request(f"topic '{topic.name}' is named more than once")
            outcomes.append(_deletion(image, topic, rules))
            named.add(topic.id)
        except BrokerError as error:
            outcomes.append(error)
    return outcomes


def _deletion(image: ClusterImage, topic: TopicImage, rules: Rules) -> Decision[TopicImage]:
    """The tombstone tells brokers that their data of this topic may go; an absent key alone never does."""
    if not rules.config.delete_topic_enable:
        raise BrokerError(
            "topics cannot be deleted here (delete.topic.enable=false)",
            ErrorCode.TOPIC_DELETION_DISABLED,
        )
    key, config_key = topic_key(topic.name), topic_config_key(topic.name)
    writes: list[Write] = [
        DeletePrefix(chunks_prefix(topic.id)),
        Delete(config_key),
        Put(tombstone_key(topic.id), encode(name=topic.name)),
        Delete(key),
    ]
    return Decision(topic, writes, [unchanged(image, key), unchanged(image, config_key)])


def create_partitions(
    image: ClusterImage,
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    rules: Rules,
) -> Decision[None]:
    """Grows a topic to `count` partitions; `assignments` are the replicas of the new ones."""
    topic = find_topic(image, name)
    present = len(topic.partitions)
    if count <= present:
        raise BrokerError(
            f"topic '{name}' has {present} partitions; {count} is not more, and none can be removed",
            ErrorCode.INVALID_PARTITIONS,
        )
    if assignments is not None and len(assignments) != count - present:
        raise BrokerError(
            f"{len(assignments)} assignments for {count - present} new partitions",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    if count - present > rules.config.penstock_partitions_per_request_max:
        raise BrokerError(
            f"{count - present} new partitions; one request may create"
            f" {rules.config.penstock_partitions_per_request_max} (penstock.partitions.per.request.max)",
            ErrorCode.POLICY_VIOLATION,
        )
    replicas = _Plan(image, rules).add_partitions(topic, count, assignments)
    partitions = [*topic.partitions, *new_partitions(image, replicas)]
    first_chunk = present // CHUNK_PARTITIONS
    writes: list[Write] = [*chunk_writes(topic.id, partitions, first_chunk)]
    writes.append(topic_row(topic.name, topic.id, count))
    keys = [write.key for write in writes if isinstance(write, Put)]
    return Decision(None, writes, [unchanged(image, key) for key in keys])


def find_topic(image: ClusterImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"topic '{name}' does not exist")
    return topic


def _find(image: ClusterImage, name: str | bytes) -> TopicImage:
    if isinstance(name, str):
        return find_topic(image, name)
    topic = image.topics_by_id.get(name)
    if topic is None:
        raise BrokerError(
            f"no topic has the id {format_topic_id(name)}", ErrorCode.UNKNOWN_TOPIC_ID
        )
    return topic


def allocate_producer_ids(image: ClusterImage) -> Decision[range]:
    first = image.next_producer_id
    block = range(first, first + PRODUCER_ID_BLOCK)
    return Decision(
        block, [Put(PRODUCER_IDS, encode(next=block.stop))], [unchanged(image, PRODUCER_IDS)]
    )


def remove_orphans(image: ClusterImage) -> list[Decision[None]]:
    """Clears what creations that were broken off left behind."""
    return [Decision(None, [DeletePrefix(chunks_prefix(topic_id))]) for topic_id in image.orphans()]


def _invalid_request(message: str) -> BrokerError:
    return BrokerError(message, ErrorCode.INVALID_REQUEST)
