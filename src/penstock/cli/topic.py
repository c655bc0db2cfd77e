"""`penstock topic`: create, list, describe, alter, trim and delete topics."""

from argparse import ArgumentParser, Namespace
from time import time_ns
from typing import Any

from penstock.cli import values
from penstock.cli.arguments import (
    Subcommands,
    UsageError,
    count,
    non_negative,
    reader,
)
from penstock.cli.output import Output, counted
from penstock.cli.session import with_pool
from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition, format_topic_id
from penstock.wire.messages.metadata import MetadataResponsePartition, MetadataResponseTopic


def configure(parser: ArgumentParser) -> None:
    add = Subcommands(parser).add
    _configure_create(add("create", "make a topic", _create, *_CREATE_EXAMPLES))
    listing = add("list", "all topics", _list, "penstock topic list", "penstock topic list --json")
    listing.add_argument("--internal", action="store_true", help="show the brokers' own topics too")
    describe = add(
        "describe",
        "partitions, leaders, offsets, sizes and settings of a topic",
        _describe,
        "penstock topic describe orders",
    )
    describe.add_argument("name", metavar="NAME")
    describe.add_argument(
        "--all", action="store_true", help="show settings with default values too"
    )
    _configure_alter(add("alter", "add partitions, change settings", _alter, *_ALTER_EXAMPLES))
    _configure_trim(add("trim", "delete a topic's oldest messages", _trim, *_TRIM_EXAMPLES))
    delete = add("delete", "delete a topic and its data", _delete, "penstock topic delete orders")
    delete.add_argument("name", metavar="NAME")
    delete.add_argument(
        "--if-exists", action="store_true", help="succeed if there is no such topic"
    )


_CREATE_EXAMPLES = (
    "penstock topic create orders",
    "penstock topic create orders -p 12 -r 3 -c retention.ms=7d -c segment.bytes=256MiB",
)
_ALTER_EXAMPLES = (
    "penstock topic alter orders -p 24",
    "penstock topic alter orders -c retention.ms=30d --reset segment.bytes",
)
_TRIM_EXAMPLES = (
    "penstock topic trim orders --before -7d",
    "penstock topic trim orders --before 2026-11-15T08:00:00Z",
    "penstock topic trim orders --partition 3 --before 1200000",
)


def _configure_create(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "-p", "--partitions", type=count, metavar="N", help="how many (default: num.partitions)"
    )
    parser.add_argument(
        "-r",
        "--replication-factor",
        type=count,
        metavar="RF",
        help="replicas of each partition (default: default.replication.factor)",
    )
    _add_configs(parser)
    parser.add_argument(
        "--if-not-exists", action="store_true", help="succeed if the topic is there already"
    )


def _configure_alter(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "-p",
        "--partitions",
        type=count,
        metavar="N",
        help="the new number in all; it can only grow",
    )
    _add_configs(parser)
    parser.add_argument(
        "--reset",
        action="append",
        default=[],
        metavar="KEY",
        help="return a setting to its default; repeatable",
    )


def _configure_trim(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--before",
        required=True,
        metavar="OFFSET|TIME|end",
        help="keep from here on: an offset (with --partition), a time (2026-11-15T08:00:00Z, -7d, @ms) or end",
    )
    parser.add_argument(
        "--partition", type=non_negative, metavar="N", help="only this one (default: all)"
    )


def _add_configs(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--config",
        action="append",
        default=[],
        type=reader(values.parse_assignment),
        metavar="KEY=VALUE",
        help="a topic setting by Kafka's name, such as retention.ms=7d; repeatable",
    )


def _settings(arguments: Namespace) -> dict[str, str]:
    return {key: values.config_value(key, value) for key, value in arguments.config}


def _create(arguments: Namespace) -> None:
    async def work(pool: Pool) -> admin.CreatedTopic:
        return await admin.create_topic(
            pool,
            arguments.name,
            partitions=arguments.partitions,
            replication_factor=arguments.replication_factor,
            settings=_settings(arguments),
        )

    output = Output(as_json=arguments.json)
    try:
        made = with_pool(arguments.bootstrap, work)
    except ClientError as error:
        if not (arguments.if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
            raise
        _done(output, {"name": arguments.name, "created": False}, f"topic {arguments.name} exists")
        return
    facts = {"name": made.name, "created": True, **made._asdict()}
    _done(
        output,
        facts,
        f"created topic {made.name}: {counted(made.partitions, 'partition')}, "
        f"replication factor {made.replication_factor}",
    )


def _list(arguments: Namespace) -> None:
    topics = with_pool(arguments.bootstrap, admin.list_topics)
    shown = [topic for topic in topics if arguments.internal or not topic.is_internal]
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document([_topic_facts(topic) for topic in shown])
        return
    columns = ["name", "partitions", "replicas", "internal"]
    output.table(columns, [list(_topic_facts(topic).values()) for topic in shown])


def _topic_facts(topic: MetadataResponseTopic) -> dict[str, Any]:
    replicas = max((len(partition.replica_nodes) for partition in topic.partitions), default=0)
    return {
        "name": topic.name,
        "partitions": len(topic.partitions),
        "replication_factor": replicas,
        "internal": topic.is_internal,
    }


def _describe(arguments: Namespace) -> None:
    async def work(pool: Pool) -> dict[str, Any]:
        return await _description(pool, arguments.name, all_settings=arguments.all)

    facts = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(facts)
        return
    partitions = facts.pop("partitions")
    settings = facts.pop("settings")
    size = values.format_size(facts.pop("size_bytes"))
    output.fields({**facts, "size": size})
    if settings:
        output.line("settings")
        output.fields({f"  {key}": value for key, value in settings.items()})
    output.line("")
    columns = ["partition", "leader", "epoch", "replicas", "isr", "start", "end", "size"]
    rows = [
        [
            *list(row.values())[:-1],
            None if row["size_bytes"] is None else values.format_size(row["size_bytes"]),
        ]
        for row in partitions
    ]
    output.table(columns, rows)


async def _description(pool: Pool, name: str, *, all_settings: bool) -> dict[str, Any]:
    [topic] = await admin.describe_topics(pool, [name])
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    led = [
        TopicPartition(name, partition.partition_index)
        for partition in partitions
        if partition.leader_id >= 0 and partition.leader_id not in partition.offline_replicas
    ]
    starts = await admin.list_offsets(pool, dict.fromkeys(led, admin.EARLIEST))
    ends = await admin.list_offsets(pool, dict.fromkeys(led, admin.LATEST))
    sizes = await admin.log_sizes(pool, {name: [part.partition_index for part in partitions]})
    settings = await admin.topic_configs(pool, name)

    def row(partition: MetadataResponsePartition) -> dict[str, Any]:
        key = TopicPartition(name, partition.partition_index)
        return {
            "partition": partition.partition_index,
            "leader": partition.leader_id if key in starts else None,
            "leader_epoch": partition.leader_epoch,
            "replicas": partition.replica_nodes,
            "isr": partition.isr_nodes,
            "start_offset": starts[key].offset if key in starts else None,
            "end_offset": ends[key].offset if key in ends else None,
            "size_bytes": sizes.get(partition.leader_id, {}).get(key),
        }

    rows = [row(partition) for partition in partitions]
    return {
        "name": name,
        "id": format_topic_id(topic.topic_id),
        "internal": topic.is_internal,
        "replication_factor": _topic_facts(topic)["replication_factor"],
        "size_bytes": sum(row["size_bytes"] or 0 for row in rows),
        "settings": {
            setting.name: setting.value
            for setting in settings
            if all_settings or setting.is_overridden
        },
        "partitions": rows,
    }


def _alter(arguments: Namespace) -> None:
    settings = _settings(arguments)
    if not (settings or arguments.reset or arguments.partitions):
        raise UsageError("nothing to alter: give -p N, -c KEY=VALUE or --reset KEY")

    async def work(pool: Pool) -> None:
        if settings or arguments.reset:
            await admin.alter_topic_configs(
                pool, arguments.name, set_to=settings, reset=arguments.reset
            )
        if arguments.partitions:
            await admin.grow_topic(pool, arguments.name, arguments.partitions)

    with_pool(arguments.bootstrap, work)
    facts = {
        "name": arguments.name,
        "partitions": arguments.partitions,
        "set": settings,
        "reset": arguments.reset,
    }
    _done(Output(as_json=arguments.json), facts, f"altered topic {arguments.name}")


def _trim(arguments: Namespace) -> None:
    try:
        before = values.parse_position(arguments.before, now_ms=time_ns() // 1_000_000)
    except ValueError as error:
        raise UsageError(f"--before: {error}") from None

    async def work(pool: Pool) -> list[dict[str, int]]:
        partitions = await _partitions_to_trim(pool, arguments.name, arguments.partition)
        if isinstance(before, values.Offset) and len(partitions) > 1:
            raise UsageError(
                f"an offset means one partition and topic {arguments.name!r} has "
                f"{len(partitions)}: add --partition N, or give a time"
            )
        return await _trim_partitions(pool, partitions, before)

    rows = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(rows)
    else:
        output.table(["partition", "start", "removed"], [list(row.values()) for row in rows])


async def _partitions_to_trim(pool: Pool, name: str, only: int | None) -> list[TopicPartition]:
    [topic] = await admin.describe_topics(pool, [name])
    indexes = sorted(partition.partition_index for partition in topic.partitions)
    if only is None:
        return [TopicPartition(name, index) for index in indexes]
    if only not in indexes:
        raise ClientError(
            f"topic {name!r} has no partition {only}; it has 0 to {indexes[-1]}",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    return [TopicPartition(name, only)]


async def _trim_partitions(
    pool: Pool, partitions: list[TopicPartition], before: values.Position
) -> list[dict[str, int]]:
    old = await admin.list_offsets(pool, dict.fromkeys(partitions, admin.EARLIEST))
    targets = dict.fromkeys(partitions, admin.LATEST)
    match before:
        case values.Offset(offset):
            targets = dict.fromkeys(partitions, offset)
        case values.Instant(timestamp_ms):
            found = await admin.list_offsets(pool, dict.fromkeys(partitions, timestamp_ms))
            targets = {partition: found[partition].offset for partition in partitions}
        case values.Start():
            targets = {partition: old[partition].offset for partition in partitions}
        case values.End():
            pass
    new = await admin.delete_records(pool, targets)
    return [
        {
            "partition": partition.partition,
            "start_offset": new[partition],
            "removed": max(0, new[partition] - old[partition].offset),
        }
        for partition in partitions
    ]


def _delete(arguments: Namespace) -> None:
    async def work(pool: Pool) -> bool:
        try:
            await admin.delete_topic(pool, arguments.name)
        except ClientError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            if not arguments.if_exists:
                raise ClientError(
                    f"topic {arguments.name!r} does not exist; see: penstock topic list", error.code
                ) from None
            return False
        return True

    deleted = with_pool(arguments.bootstrap, work)
    text = f"deleted topic {arguments.name}" if deleted else f"there is no topic {arguments.name}"
    _done(Output(as_json=arguments.json), {"name": arguments.name, "deleted": deleted}, text)


def _done(output: Output, facts: dict[str, Any], text: str) -> None:
    if output.as_json:
        output.document(facts)
    else:
        output.line(text)
