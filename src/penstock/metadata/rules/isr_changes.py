"""What a partition's leader asks of the controller: who is in sync (AlterPartition, R6)."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.metadata.image import ChunkId, ClusterImage, TopicImage
from penstock.metadata.rules.decisions import Decision, Rules, chunk_change
from penstock.metadata.rules.partition_rules import ElectionContext, standing_elr
from penstock.metadata.rules.reassignment_rules import completed_alone
from penstock.metadata.store import Compare, Revision
from penstock.metadata.values import CHUNK_PARTITIONS, PartitionImage, live_key
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicId, format_topic_id

UNKNOWN_EPOCH = -1  # of a member, from a leader that cannot tell


class Member(NamedTuple):
    broker_id: int
    broker_epoch: int = UNKNOWN_EPOCH


class IsrChange(NamedTuple):
    """The ISR that a leader wants, on the ground of the state that it knows."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[Member, ...]
    recovering: bool = False

    @property
    def chunk(self) -> ChunkId:
        return self.topic_id, self.partition // CHUNK_PARTITIONS


Outcome = Decision[PartitionImage] | BrokerError


def alter_partition(
    image: ClusterImage,
    rules: Rules,
    broker_id: int,
    broker_epoch: int,
    changes: Sequence[IsrChange],
) -> list[Outcome]:
    """A decision or a refusal for each change, in order. The result is the partition as it will be.

    Partitions of one chunk share one write: the first of them has it, those right after it have none
    and hold if the first does. A leader other than the one that asked (a reassignment ended with this
    change) is to be answered with NEW_LEADER_ELECTED.
    """
    check_session(image, broker_id, broker_epoch)
    asked = _Asked(image, ElectionContext(image, rules), broker_id)
    outcomes: list[Outcome] = []
    written: set[ChunkId] = set()
    first = 0
    while first < len(changes):
        chunk = changes[first].chunk
        end = first
        while end < len(changes) and changes[end].chunk == chunk:
            end += 1
        run = changes[first:end]
        outcomes += asked.decide(chunk, run) if chunk not in written else _later(run)
        written.add(chunk)
        first = end
    return outcomes


def check_session(image: ClusterImage, broker_id: int, broker_epoch: int) -> None:
    broker = image.brokers.get(broker_id)
    known_epoch = broker.epoch if broker else 0
    if known_epoch != broker_epoch:
        raise BrokerError(
            f"broker {broker_id} asks with epoch {broker_epoch}; the epoch of its session is"
            f" {known_epoch}: it must register again",
            ErrorCode.STALE_BROKER_EPOCH,
        )


def _later(run: Sequence[IsrChange]) -> list[Outcome]:
    """A chunk is written once in a request; a leader asks again for what was not in a row."""
    error = BrokerError(
        "the partitions of one topic are not in order in this request: ask for this one again",
        ErrorCode.REQUEST_TIMED_OUT,
    )
    return [error.again() for _ in run]


class _Asked:
    """One leader's request."""

    def __init__(self, image: ClusterImage, context: ElectionContext, broker_id: int) -> None:
        self._image = image
        self._context = context
        self._broker_id = broker_id

    def decide(self, chunk: ChunkId, run: Sequence[IsrChange]) -> list[Outcome]:
        partitions = list(self._image.chunk(*chunk))
        compares: list[Compare] = []
        results: list[PartitionImage | BrokerError] = []
        for change in run:
            try:
                before = self._checked(change, partitions)
                after = self._altered(before, change)
                compares += self._sessions(before, change)
            except BrokerError as error:
                results.append(error)
                continue
            partitions[change.partition % CHUNK_PARTITIONS] = after
            results.append(after)
        written = chunk_change(self._image, chunk, partitions)
        outcomes: list[Outcome] = []
        is_due = tuple(partitions) != self._image.chunk(*chunk)
        for result in results:
            if isinstance(result, BrokerError):
                outcomes.append(result)
            elif is_due:
                is_due = False
                grounds = [*written.compares, *dict.fromkeys(compares)]
                outcomes.append(Decision(result, written.writes, grounds))
            else:
                outcomes.append(Decision(result))
        return outcomes

    def _checked(self, change: IsrChange, partitions: Sequence[PartitionImage]) -> PartitionImage:
        """R6: the partition that the change is about, or why the change cannot be. The order is Kafka's."""
        topic = self._topic(change)
        if not 0 <= change.partition < len(topic.partitions):
            raise BrokerError(
                f"topic '{topic.name}' has {len(topic.partitions)} partitions, not {change.partition}",
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
        partition = partitions[change.partition % CHUNK_PARTITIONS]
        name = f"{topic.name}-{change.partition}"
        self._check_reign(name, partition, change)
        if not _is_done(partition, change):  # else it holds, whatever became of its members since
            _check_version(name, partition, change)
            self._check_members(name, partition, change)
        return partition

    def _topic(self, change: IsrChange) -> TopicImage:
        topic = self._image.topics_by_id.get(change.topic_id)
        if topic is None:
            raise BrokerError(
                f"no topic has the id {format_topic_id(change.topic_id)}",
                ErrorCode.UNKNOWN_TOPIC_ID,
            )
        return topic

    def _check_reign(self, name: str, partition: PartitionImage, change: IsrChange) -> None:
        known, given = partition.leader_epoch, change.leader_epoch
        if given < known:
            raise BrokerError(
                f"{name} is at leader epoch {known}; the request has {given}: wait for the metadata",
                ErrorCode.FENCED_LEADER_EPOCH,
            )
        if given > known:
            raise _behind(f"{name} is at leader epoch {known} here; the request has {given}")
        if partition.leader != self._broker_id:
            raise BrokerError(
                f"{name} is led by broker {partition.leader}, not by broker {self._broker_id},"
                " which asks: only a leader changes the ISR",
                ErrorCode.INVALID_REQUEST,
            )

    def _check_members(self, name: str, partition: PartitionImage, change: IsrChange) -> None:
        isr = [member.broker_id for member in change.new_isr]
        _check_isr(name, partition, change, isr)
        for member in change.new_isr:
            reason = self._ineligible(partition, member)
            if reason:
                raise BrokerError(
                    f"broker {member.broker_id} cannot be in the ISR of {name}: {reason}",
                    ErrorCode.INELIGIBLE_REPLICA,
                )

    def _ineligible(self, partition: PartitionImage, member: Member) -> str:
        broker = self._image.brokers.get(member.broker_id)
        if broker is None:
            return "it is not registered"
        if member.broker_epoch not in (UNKNOWN_EPOCH, broker.epoch):
            return f"its epoch is {broker.epoch}, and the leader knows {member.broker_epoch}"
        if member.broker_id not in partition.isr:
            if broker.fenced:
                return "it is fenced"
            if broker.in_controlled_shutdown:
                return "it is shutting down"
        return ""

    def _altered(self, before: PartitionImage, change: IsrChange) -> PartitionImage:
        if _is_done(before, change):
            return before
        topic, settings_cache = self._topic(change), self._context.settings_cache
        settings = settings_cache.of(topic)
        wanted = {member.broker_id for member in change.new_isr}
        isr = tuple(broker_id for broker_id in before.replicas if broker_id in wanted)
        left = tuple(broker_id for broker_id in before.isr if broker_id not in wanted)
        after = before._replace(
            isr=isr, elr=(*standing_elr(before, settings), *left), recovering=change.recovering
        )
        return completed_alone(topic, change.partition, after, self._context.able, settings_cache)

    def _sessions(self, before: PartitionImage, change: IsrChange) -> list[Compare]:
        """C2 (c): an addition holds only for the session in which the leader saw the replica catch up."""
        return [
            Compare(
                live_key(broker_id), create_revision=Revision(self._image.brokers[broker_id].epoch)
            )
            for broker_id, _ in change.new_isr
            if broker_id not in before.isr
        ]


def _is_done(partition: PartitionImage, change: IsrChange) -> bool:
    """The answer to the same request was lost."""
    return (
        partition.partition_epoch == change.partition_epoch + 1
        and set(partition.isr) == {member.broker_id for member in change.new_isr}
        and partition.recovering == change.recovering
    )


def _check_version(name: str, partition: PartitionImage, change: IsrChange) -> None:
    known, given = partition.partition_epoch, change.partition_epoch
    if given < known:
        raise BrokerError(
            f"{name} is at partition epoch {known}; the request has {given}: wait for the metadata",
            ErrorCode.INVALID_UPDATE_VERSION,
        )
    if given > known:
        raise _behind(f"{name} is at partition epoch {known} here; the request has {given}")


def _check_isr(name: str, partition: PartitionImage, change: IsrChange, isr: Sequence[int]) -> None:
    reason = ""
    if len(set(isr)) < len(isr):
        reason = "a broker is named twice"
    elif not set(isr).issubset(partition.replicas):
        reason = f"the replicas are {list(partition.replicas)}"
    elif partition.leader not in isr:
        reason = f"the leader {partition.leader} must be in it"
    elif change.recovering and not partition.recovering:
        reason = "a partition does not begin to recover by a change of its ISR"
    elif change.recovering and len(isr) > 1:
        reason = "the leader is alone in it until it has recovered"
    if reason:
        raise BrokerError(f"{isr} cannot be the ISR of {name}: {reason}", ErrorCode.INVALID_REQUEST)


def _behind(message: str) -> BrokerError:
    return BrokerError(
        f"{message}: this controller is behind; find the current one and ask it",
        ErrorCode.NOT_CONTROLLER,
    )
