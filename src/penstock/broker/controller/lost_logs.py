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

KEPT = bytes(16)  # KIP-858's directory of what is in no certain one: the log stays, others lead
LOST = (1).to_bytes(16, "big")  # and of what is in none: the log is built anew

Place = tuple[bytes, int]


def request_for(
    broker_id: int, broker_epoch: int, places: Mapping[bytes, Iterable[Place]]
) -> AssignReplicasToDirsRequest:
    """`places` by directory."""
    directories = [DirectoryData(id=it, topics=_topics(found)) for it, found in places.items()]
    return AssignReplicasToDirsRequest(
        broker_id=broker_id, broker_epoch=broker_epoch, directories=directories
    )


def _topics(places: Iterable[Place]) -> list[TopicData]:
    topics: dict[bytes, TopicData] = {}
    for topic_id, index in places:
        topic = topics.setdefault(topic_id, TopicData(topic_id=topic_id))
        topic.partitions.append(PartitionData(partition_index=index))
    return list(topics.values())


def places_of(request: AssignReplicasToDirsRequest) -> dict[Place, bool]:
    """Whether each is built anew."""
    return {
        (topic.topic_id, partition.partition_index): directory.id != KEPT
        for directory in request.directories
        for topic in directory.topics
        for partition in topic.partitions
    }


def names_of(places: Iterable[Place], image: ClusterImage) -> dict[Place, TopicPartition]:
    """Those that still exist."""
    found = {}
    for topic_id, index in places:
        topic = image.topics_by_id.get(topic_id)
        if topic is not None:
            found[topic_id, index] = TopicPartition(topic.name, index)
    return found


def accepted_places(answered: AssignReplicasToDirsResponse) -> set[Place]:
    """Those that the controller has dealt with."""
    return {
        (topic.topic_id, partition.partition_index)
        for directory in answered.directories
        for topic in directory.topics
        for partition in topic.partitions
        if not answered.error_code and not partition.error_code
    }


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
