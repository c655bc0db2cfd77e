"""AssignReplicasToDirs between its wire form and names of partitions, both ways."""

from collections.abc import Iterable, Mapping

from penstock.metadata.image import ClusterImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    DirectoryResponse,
    PartitionData,
    PartitionResponse,
    TopicData,
    TopicResponse,
)

LOST = (1).to_bytes(16, "big")  # KIP-858's directory for what is in none

Place = tuple[bytes, int]


def request_for(
    broker_id: int, broker_epoch: int, places: Iterable[Place]
) -> AssignReplicasToDirsRequest:
    topics: dict[bytes, TopicData] = {}
    for topic_id, index in places:
        topic = topics.setdefault(topic_id, TopicData(topic_id=topic_id))
        topic.partitions.append(PartitionData(partition_index=index))
    lost = DirectoryData(id=LOST, topics=list(topics.values()))
    return AssignReplicasToDirsRequest(
        broker_id=broker_id, broker_epoch=broker_epoch, directories=[lost]
    )


def places_of(request: AssignReplicasToDirsRequest) -> list[Place]:
    return [
        (topic.topic_id, partition.partition_index)
        for directory in request.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]


def names_of(places: Iterable[Place], image: ClusterImage) -> dict[Place, TopicPartition]:
    """Those that still exist."""
    found = {}
    for topic_id, index in places:
        topic = image.topics_by_id.get(topic_id)
        if topic is not None:
            found[topic_id, index] = TopicPartition(topic.name, index)
    return found


def answer(
    request: AssignReplicasToDirsRequest, errors: Mapping[Place, BrokerError | None]
) -> AssignReplicasToDirsResponse:
    def code(place: Place) -> ErrorCode:
        if place not in errors:
            return ErrorCode.UNKNOWN_TOPIC_ID
        error = errors[place]
        return ErrorCode.NONE if error is None else error.code

    return AssignReplicasToDirsResponse(
        directories=[
            DirectoryResponse(
                id=directory.id,
                topics=[
                    TopicResponse(
                        topic_id=topic.topic_id,
                        partitions=[
                            PartitionResponse(
                                partition_index=it.partition_index,
                                error_code=code((topic.topic_id, it.partition_index)),
                            )
                            for it in topic.partitions
                        ],
                    )
                    for topic in directory.topics
                ],
            )
            for directory in request.directories
        ]
    )
