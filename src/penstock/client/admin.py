"""What people ask of a cluster, one function each: topics, settings, offsets and sizes. Refusals are ClientErrors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.errors import ClientError, check, error_code
from penstock.client.pool import AnyBroker, Broker, Controller, Deadline, Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages import describe_configs as configs
from penstock.wire.messages import incremental_alter_configs as alter
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponseTopic

EARLIEST: Final = -2  # timestamps that ListOffsets understands as places
LATEST: Final = -1

_TOPIC_RESOURCE: Final = 2
_SET: Final = 0
_DELETE: Final = 1
_DYNAMIC_TOPIC_CONFIG: Final = 1
_NAMES_ONLY: Final = 5  # DeleteTopics 6 and later want topic ids beside the names
_TIMEOUT_MS: Final = 30_000


class CreatedTopic(NamedTuple):
    name: str
    partitions: int
    replication_factor: int


class OffsetAt(NamedTuple):
    """An offset of -1 means that no record is that young."""

    offset: int
    timestamp_ms: int


class Config(NamedTuple):
    name: str
    value: str | None
    is_overridden: bool  # set for this topic, and not inherited from the broker or a default


async def describe_topics(pool: Pool, names: Sequence[str]) -> list[MetadataResponseTopic]:
    """The partitions of each topic; raises for one that does not exist or cannot be shown."""
    answer = await pool.metadata(names)
    return [_existing(topic) for topic in answer.topics]


async def list_topics(pool: Pool) -> list[MetadataResponseTopic]:
    answer = await pool.metadata(None)
    return sorted(answer.topics, key=lambda topic: topic.name or "")


async def ensure_topic(pool: Pool, name: str, *, create: bool) -> MetadataResponseTopic:
    """The topic with a leader on every partition; made by the broker if it does so for producers."""

    async def attempt(deadline: Deadline) -> MetadataResponseTopic:
        answer = await pool.metadata([name], create_missing=create, timeout_ms=deadline.left_ms())
        topic = _existing(answer.topics[0])
        for partition in topic.partitions:
            check(partition.error_code, None, f"{name}-{partition.partition_index}")
        return topic

    return await pool.retry(attempt)


async def create_topic(
    pool: Pool,
    name: str,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> CreatedTopic:
    """None leaves the number to the broker's settings."""
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replication_factor is None else replication_factor,
        configs=[
            CreatableTopicConfig(name=key, value=value) for key, value in (settings or {}).items()
        ],
    )

    def accept(answer: CreateTopicsResponse) -> None:
        for result in answer.topics:
            if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                raise ClientError(f"topic {name!r} exists already", ErrorCode.TOPIC_ALREADY_EXISTS)
            check(result.error_code, result.error_message, f"topic {name!r}")

    answer = await pool.change(
        CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS),
        CreateTopicsResponse,
        check=accept,
        done=ErrorCode.TOPIC_ALREADY_EXISTS,
    )
    if answer is None:
        return await _created(pool, topic)
    made = answer.topics[0]
    return CreatedTopic(name, made.num_partitions, made.replication_factor)


async def _created(pool: Pool, asked: CreatableTopic) -> CreatedTopic:
    """The topic that we asked for, and were not told that we got; unless it is another's of that name."""
    found = await ensure_topic(pool, asked.name, create=False)
    made = CreatedTopic(asked.name, len(found.partitions), len(found.partitions[0].replica_nodes))
    wanted = asked.num_partitions, asked.replication_factor
    if any(number not in (-1, got) for number, got in zip(wanted, made[1:], strict=True)):
        raise ClientError(f"topic {asked.name!r} exists already", ErrorCode.TOPIC_ALREADY_EXISTS)
    return made


async def delete_topic(pool: Pool, name: str) -> None:
    def accept(answer: DeleteTopicsResponse) -> None:
        for result in answer.responses:
            _check_topic(result.error_code, result.error_message, name)

    await pool.change(
        DeleteTopicsRequest(topic_names=[name], timeout_ms=_TIMEOUT_MS),
        DeleteTopicsResponse,
        check=accept,
        done=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        at_most=_NAMES_ONLY,
    )


async def grow_topic(pool: Pool, name: str, partitions: int) -> None:
    """Gives the topic `partitions` partitions in all; it can only grow."""

    def accept(answer: CreatePartitionsResponse) -> None:
        for result in answer.results:
            _check_topic(result.error_code, result.error_message, name)

    topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    answer = await pool.change(
        CreatePartitionsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS),
        CreatePartitionsResponse,
        check=accept,
        done=ErrorCode.INVALID_PARTITIONS,
    )
    if answer is None:
        count = len((await ensure_topic(pool, name, create=False)).partitions)
        if count != partitions:
            raise ClientError(
                f"topic {name!r} has {count} partitions", ErrorCode.INVALID_PARTITIONS
            )


async def topic_configs(pool: Pool, name: str) -> list[Config]:
    def accept(answer: configs.DescribeConfigsResponse) -> None:
        for result in answer.results:
            _check_topic(result.error_code, result.error_message, name)

    resource = configs.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
    )
    answer = await pool.ask(
        AnyBroker(),
        configs.DescribeConfigsRequest(resources=[resource]),
        configs.DescribeConfigsResponse,
        check=accept,
    )
    return [
        Config(row.name, row.value, row.config_source == _DYNAMIC_TOPIC_CONFIG)
        for result in answer.results
        for row in result.configs
    ]


async def alter_topic_configs(
    pool: Pool, name: str, *, set_to: Mapping[str, str], reset: Iterable[str] = ()
) -> None:
    """Sets some settings and returns others to their defaults; those not named stay as they are."""
    changes = [
        alter.AlterableConfig(name=key, config_operation=_SET, value=value)
        for key, value in set_to.items()
    ]
    changes += [
        alter.AlterableConfig(name=key, config_operation=_DELETE, value=None) for key in reset
    ]

    def accept(answer: alter.IncrementalAlterConfigsResponse) -> None:
        for result in answer.responses:
            _check_topic(result.error_code, result.error_message, name)

    resource = alter.AlterConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=name, configs=changes
    )
    await pool.ask(
        Controller(),
        alter.IncrementalAlterConfigsRequest(resources=[resource]),
        alter.IncrementalAlterConfigsResponse,
        check=accept,
    )


async def list_offsets(
    pool: Pool, timestamps_ms: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> dict[TopicPartition, OffsetAt]:
    """The first offset at or after each timestamp; EARLIEST and LATEST are the ends.

    `read_committed`: nothing from the first open transaction on.
    """
    found: dict[TopicPartition, OffsetAt] = {}

    async def attempt(deadline: Deadline) -> None:
        missing = [partition for partition in timestamps_ms if partition not in found]
        for broker_id, partitions in (await pool.by_leader(missing, deadline)).items():
            topics = [
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=index,
                            timestamp=timestamps_ms[TopicPartition(topic, index)],
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in _by_topic(partitions).items()
            ]
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(read_committed),
                topics=topics,
                timeout_ms=_TIMEOUT_MS,
            )
            answer = await pool.once(Broker(broker_id), request, ListOffsetsResponse, deadline)
            found.update(_offsets(answer))

    await pool.retry(attempt)
    return found


async def delete_records(
    pool: Pool, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Moves the start of each partition to its offset (LATEST: the end); the new starts."""
    starts: dict[TopicPartition, int] = {}

    def accept(answer: DeleteRecordsResponse) -> None:
        for topic in answer.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise ClientError(
                        f"{partition}: offset {before[partition]} is beyond the last record",
                        ErrorCode.OFFSET_OUT_OF_RANGE,
                    )
                check(row.error_code, None, str(partition))
                starts[partition] = row.low_watermark

    async def attempt(deadline: Deadline) -> None:
        missing = [partition for partition in before if partition not in starts]
        for broker_id, partitions in (await pool.by_leader(missing, deadline)).items():
            topics = [
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(
                            partition_index=index, offset=before[TopicPartition(topic, index)]
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in _by_topic(partitions).items()
            ]
            request = DeleteRecordsRequest(topics=topics, timeout_ms=_TIMEOUT_MS)
            accept(await pool.once(Broker(broker_id), request, DeleteRecordsResponse, deadline))

    await pool.retry(attempt)
    return starts


async def log_sizes(
    pool: Pool, topics: Mapping[str, Sequence[int]] | None = None
) -> dict[int, dict[TopicPartition, int]]:
    """Bytes on disk of every replica, by broker (None: of all topics)."""
    wanted = None
    if topics is not None:
        wanted = [
            DescribableLogDirTopic(topic=name, partitions=list(indexes))
            for name, indexes in topics.items()
        ]
    request = DescribeLogDirsRequest(topics=wanted)
    sizes: dict[int, dict[TopicPartition, int]] = {}
    for broker_id in await pool.broker_ids():
        answer = await pool.ask(Broker(broker_id), request, DescribeLogDirsResponse)
        sizes[broker_id] = {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for directory in answer.results
            for topic in directory.topics
            for partition in topic.partitions
        }
    return sizes


async def describe_cluster(pool: Pool) -> MetadataResponse:
    """Brokers, controller and all topics, as one broker sees them."""
    return await pool.metadata(None)


def _existing(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    _check_topic(topic.error_code, None, topic.name or "")
    return topic


def _check_topic(number: int, message: str | None, name: str) -> None:
    if error_code(number) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise ClientError(
            f"topic {name!r} does not exist; create it with: penstock topic create {name}",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    check(number, message, f"topic {name!r}")


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for topic, index in partitions:
        groups.setdefault(topic, []).append(index)
    return groups


def _offsets(answer: ListOffsetsResponse) -> dict[TopicPartition, OffsetAt]:
    offsets = {}
    for topic in answer.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.name, row.partition_index)
            check(row.error_code, None, str(partition))
            offsets[partition] = OffsetAt(row.offset, row.timestamp)
    return offsets
