"""A cluster that is one scripted server: places of partitions, moves that end when they were looked at a few times."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.client.reassignments import Place
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import describe_configs as configs
from penstock.wire.messages import describe_topic_partitions as described
from penstock.wire.messages import elect_leaders as elect
from penstock.wire.messages import incremental_alter_configs as incremental
from penstock.wire.messages import list_partition_reassignments as listed
from penstock.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from penstock.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from penstock.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from penstock.wire.schema import Message
from tests.support.fake_broker import FakeBroker, in_a_thread

SIZE_BYTES = 2048  # of every replica
_LOOKS = 4  # after which a move has ended

Replicas = Mapping[TopicPartition, Sequence[int]]


@dataclass
class FakeCluster:
    """Every broker is at one address. What is asked of it is kept."""

    places: dict[TopicPartition, Place]
    running: list[int]
    stopped: list[int] = field(default_factory=list)
    settings: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    altered: list[dict[tuple[int, str], dict[str, str | None]]] = field(default_factory=list)
    begun: list[dict[TopicPartition, tuple[int, ...] | None]] = field(default_factory=list)
    elections: list[tuple[int, list[TopicPartition] | None]] = field(default_factory=list)
    struck_off: list[int] = field(default_factory=list)
    refuses: dict[TopicPartition, str] = field(default_factory=dict)
    frozen: bool = False  # moves do not end
    looks: dict[TopicPartition, int] = field(default_factory=dict)

    @contextmanager
    def served(self) -> Iterator[str]:
        """Its HOST:PORT."""
        broker = FakeBroker()
        broker.on(MetadataRequest, lambda _: self._metadata(broker))
        broker.on(DescribeClusterRequest, lambda _: self._cluster(broker))
        broker.on(described.DescribeTopicPartitionsRequest, self._describe)
        broker.on(listed.ListPartitionReassignmentsRequest, lambda _: self._list())
        broker.on(alter.AlterPartitionReassignmentsRequest, self._alter)
        broker.on(DescribeLogDirsRequest, lambda _: self._log_dirs())
        broker.on(configs.DescribeConfigsRequest, self._describe_configs)
        broker.on(incremental.IncrementalAlterConfigsRequest, self._alter_configs)
        broker.on(elect.ElectLeadersRequest, self._elect)
        broker.on(UnregisterBrokerRequest, self._unregister)
        with in_a_thread(broker) as address:
            yield address

    def _metadata(self, broker: FakeBroker) -> MetadataResponse:
        host, port = broker.address
        brokers = [
            MetadataResponseBroker(node_id=broker_id, host=host, port=port)
            for broker_id in self.running
        ]
        return MetadataResponse(cluster_id="c", controller_id=self.running[0], brokers=brokers)

    def _cluster(self, broker: FakeBroker) -> DescribeClusterResponse:
        host, port = broker.address
        rows = [
            DescribeClusterBroker(broker_id=broker_id, host=host, port=port)
            for broker_id in self.running
        ]
        rows += [
            DescribeClusterBroker(broker_id=broker_id, host="", port=-1, is_fenced=True)
            for broker_id in self.stopped
        ]
        return DescribeClusterResponse(
            cluster_id="c", controller_id=self.running[0], brokers=rows, error_message=None
        )

    def _describe(self, request: Message) -> described.DescribeTopicPartitionsResponse:
        assert isinstance(request, described.DescribeTopicPartitionsRequest)
        asked = {topic.name for topic in request.topics}
        topics: dict[str, described.DescribeTopicPartitionsResponseTopic] = {}
        for at, place in sorted(self.places.items()):
            if asked and at.topic not in asked:
                continue
            topic = topics.setdefault(
                at.topic, described.DescribeTopicPartitionsResponseTopic(name=at.topic)
            )
            topic.partitions.append(
                described.DescribeTopicPartitionsResponsePartition(
                    partition_index=at.partition,
                    leader_id=place.leader,
                    replica_nodes=list(place.replicas),
                    isr_nodes=list(place.isr),
                    eligible_leader_replicas=list(place.eligible),
                    last_known_elr=[],
                    offline_replicas=list(place.offline),
                )
            )
        return described.DescribeTopicPartitionsResponse(topics=list(topics.values()))

    def _list(self) -> listed.ListPartitionReassignmentsResponse:
        topics: dict[str, listed.OngoingTopicReassignment] = {}
        for at, place in sorted(self.places.items()):
            if not place.is_moving:
                continue
            self.looks[at] = self.looks.get(at, 0) + 1
            if self.looks[at] > _LOOKS and not self.frozen:
                self._complete(at)
                continue
            topic = topics.setdefault(at.topic, listed.OngoingTopicReassignment(name=at.topic))
            topic.partitions.append(
                listed.OngoingPartitionReassignment(
                    partition_index=at.partition,
                    replicas=list(place.replicas),
                    adding_replicas=list(place.adding),
                    removing_replicas=list(place.removing),
                )
            )
        return listed.ListPartitionReassignmentsResponse(
            topics=list(topics.values()), error_message=None
        )

    def _complete(self, at: TopicPartition) -> None:
        self.looks[at] = 0
        target = self.places[at].target
        self.places[at] = Place(target[0], target, target)

    def _alter(self, request: Message) -> alter.AlterPartitionReassignmentsResponse:
        assert isinstance(request, alter.AlterPartitionReassignmentsRequest)
        asked = {
            TopicPartition(topic.name, row.partition_index): None
            if row.replicas is None
            else tuple(row.replicas)
            for topic in request.topics
            for row in topic.partitions
        }
        self.begun.append(asked)
        answers = []
        for at, target in asked.items():
            code, message = ErrorCode.NONE, None
            if at in self.refuses:
                code, message = ErrorCode.INVALID_REPLICA_ASSIGNMENT, self.refuses[at]
            else:
                self._begin(at, target)
            row = alter.ReassignablePartitionResponse(
                partition_index=at.partition, error_code=code, error_message=message
            )
            answers.append(alter.ReassignableTopicResponse(name=at.topic, partitions=[row]))
        return alter.AlterPartitionReassignmentsResponse(responses=answers, error_message=None)

    def _begin(self, at: TopicPartition, target: tuple[int, ...] | None) -> None:
        place = self.places[at]
        if target is None:
            self.places[at] = Place(place.leader, place.original, place.original)
            return
        adding = tuple(member for member in target if member not in place.original)
        removing = tuple(member for member in place.original if member not in target)
        self.places[at] = place._replace(
            replicas=(*target, *removing), adding=adding, removing=removing
        )
        if not adding:
            self._complete(at)

    def _log_dirs(self) -> DescribeLogDirsResponse:
        topics = [
            DescribeLogDirsTopic(
                name=at.topic,
                partitions=[
                    DescribeLogDirsPartition(
                        partition_index=at.partition, partition_size=SIZE_BYTES
                    )
                ],
            )
            for at in self.places
        ]
        return DescribeLogDirsResponse(
            results=[DescribeLogDirsResult(log_dir="d", topics=topics, usable_bytes=10**9)]
        )

    def _describe_configs(self, request: Message) -> configs.DescribeConfigsResponse:
        assert isinstance(request, configs.DescribeConfigsRequest)
        results = []
        for resource in request.resources:
            owner = (resource.resource_type, resource.resource_name)
            source = 1 if resource.resource_type == 2 else 2
            found = {"min.insync.replicas": "2", **self.settings.get(owner, {})}
            rows = [
                configs.DescribeConfigsResourceResult(name=name, value=value, config_source=source)
                for name, value in found.items()
                if name in (resource.configuration_keys or found)
            ]
            results.append(
                configs.DescribeConfigsResult(
                    resource_type=owner[0], resource_name=owner[1], configs=rows
                )
            )
        return configs.DescribeConfigsResponse(results=results)

    def _alter_configs(self, request: Message) -> incremental.IncrementalAlterConfigsResponse:
        assert isinstance(request, incremental.IncrementalAlterConfigsRequest)
        change: dict[tuple[int, str], dict[str, str | None]] = {}
        for resource in request.resources:
            owner = (resource.resource_type, resource.resource_name)
            change[owner] = {row.name: row.value for row in resource.configs}
            settings = self.settings.setdefault(owner, {})
            for row in resource.configs:
                settings.pop(row.name, None)
                if row.config_operation == 0:
                    settings[row.name] = row.value or ""
        self.altered.append(change)
        answers = [
            incremental.AlterConfigsResourceResponse(
                error_message=None, resource_type=kind, resource_name=name
            )
            for kind, name in change
        ]
        return incremental.IncrementalAlterConfigsResponse(responses=answers)

    def _elect(self, request: Message) -> elect.ElectLeadersResponse:
        assert isinstance(request, elect.ElectLeadersRequest)
        asked = None
        if request.topic_partitions is not None:
            asked = [
                TopicPartition(row.topic, index)
                for row in request.topic_partitions
                for index in row.partitions
            ]
        self.elections.append((request.election_type, asked))
        results = []
        for at in asked or self.places:
            place = self.places[at]
            if place.leader != place.replicas[0]:
                self.places[at] = place._replace(leader=place.replicas[0])
                row = elect.PartitionResult(partition_id=at.partition, error_message=None)
                results.append(elect.ReplicaElectionResult(topic=at.topic, partition_result=[row]))
        return elect.ElectLeadersResponse(replica_election_results=results)

    def _unregister(self, request: Message) -> UnregisterBrokerResponse:
        assert isinstance(request, UnregisterBrokerRequest)
        self.struck_off.append(request.broker_id)
        self.stopped.remove(request.broker_id)
        return UnregisterBrokerResponse(error_message=None)


def at_rest(*replicas: Sequence[int], topic: str = "t") -> dict[TopicPartition, Place]:
    """A topic whose partitions are led by their first replicas, all in sync."""
    return {
        TopicPartition(topic, index): Place(members[0], tuple(members), tuple(members))
        for index, members in enumerate(replicas)
    }
