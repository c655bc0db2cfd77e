"""`penstock group`: list, describe, reset and delete consumer groups."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from time import time_ns
from typing import Any, NamedTuple

from penstock.cli import positions, values
from penstock.cli.arguments import Subcommands, UsageError, reader
from penstock.cli.output import Output, counted
from penstock.cli.session import with_pool
from penstock.client import admin, groups
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition


class Chosen(NamedTuple):
    """A topic, and which of its partitions; None for all."""

    topic: str
    partitions: tuple[int, ...] | None


def configure(parser: ArgumentParser) -> None:
    add = Subcommands(parser).add
    listing = add("list", "all groups", _list, *_LIST_EXAMPLES)
    for option, what in (("--state", "Stable"), ("--type", "consumer")):
        listing.add_argument(
            option, action="append", default=[], metavar=what, help="only these; repeatable"
        )
    describe = add("describe", _DESCRIBE_SUMMARY, _describe, "penstock group describe billing")
    describe.add_argument("name", metavar="NAME")
    _configure_reset(add("reset", "move a group without members", _reset, *_RESET_EXAMPLES))
    delete = add(
        "delete", "delete a group and its offsets", _delete, "penstock group delete billing"
    )
    delete.add_argument("name", metavar="NAME")
    delete.add_argument(
        "--if-exists", action="store_true", help="succeed if there is no such group"
    )


_DESCRIBE_SUMMARY = "members, their partitions, and the lag of each partition and in total"
_LIST_EXAMPLES = ("penstock group list", "penstock group list --state Stable --type consumer")
_RESET_EXAMPLES = (
    "penstock group reset billing --to start --dry-run",
    "penstock group reset billing --to -2h",
    "penstock group reset billing --to 2026-11-15T08:00:00Z --topic orders",
    "penstock group reset billing --to 1200 --topic orders:3",
)


def _configure_reset(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--to",
        required=True,
        metavar="start|end|OFFSET|TIME",
        help="an offset, a time (2026-11-15T08:00:00Z, @ms) or a time ago (-2h); "
        "an offset outside a partition becomes its nearest end",
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=reader(_parse_chosen),
        metavar="NAME[:N,N]",
        help="only these topics or partitions, also such that the group has not committed yet; "
        "repeatable (default: all that it has committed)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show it, and change nothing")


def _parse_chosen(text: str) -> Chosen:
    """`orders`, or `orders:0,3`."""
    topic, colon, numbers = text.partition(":")
    words = numbers.split(",")
    if not topic or (colon and not all(word.isascii() and word.isdigit() for word in words)):
        raise ValueError(f"expected a topic, or topic:0,3 for some partitions, not {text!r}")
    return Chosen(topic, tuple(map(int, words)) if colon else None)


# List and describe -------------------------------------------------------------------------------


def _list(arguments: Namespace) -> None:
    async def work(pool: Pool) -> list[groups.Listed]:
        return await groups.list_groups(pool, states=arguments.state, types=arguments.type)

    found = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document([group._asdict() for group in found])
    else:
        output.table(["name", "type", "state", "protocol"], [list(group) for group in found])


def _describe(arguments: Namespace) -> None:
    async def work(pool: Pool) -> dict[str, Any]:
        return await _description(pool, arguments.name)

    facts = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(facts)
        return
    members, partitions = facts.pop("members"), facts.pop("partitions")
    output.fields({**facts, "members": len(members)})
    if members:
        output.line("")
        columns = ["member", "instance", "client", "host", "partitions"]
        output.table(columns, [_member_row(member) for member in members])
    if partitions:
        output.line("")
        columns = ["topic", "partition", "committed", "start", "end", "lag", "member"]
        output.table(columns, [list(row.values()) for row in partitions])


async def _description(pool: Pool, name: str) -> dict[str, Any]:
    described = await groups.describe_group(pool, name)
    committed = await groups.committed(pool, name)
    owners = {p: member.id for member in described.members for p in member.partitions}
    known = await _existing(pool, sorted({*committed, *owners}))
    starts = await admin.list_offsets(pool, dict.fromkeys(known, admin.EARLIEST))
    ends = await admin.list_offsets(pool, dict.fromkeys(known, admin.LATEST))

    def row(partition: TopicPartition) -> dict[str, Any]:
        position = committed.get(partition, -1)
        end = ends[partition].offset
        return {
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": position if position >= 0 else None,
            "start": starts[partition].offset,
            "end": end,
            "lag": max(0, end - position) if position >= 0 else None,
            "member": owners.get(partition),
        }

    rows = [row(partition) for partition in known]
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    return {
        "name": name,
        "type": described.type,
        "state": described.state,
        "coordinator": described.coordinator,
        "assignor": described.assignor or None,
        "epoch": described.epoch,
        "lag": sum(lags) if lags else None,
        "members": [_member_facts(member) for member in described.members],
        "partitions": rows,
    }


def _member_facts(member: groups.Member) -> dict[str, Any]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(member.partitions):
        by_topic.setdefault(topic, []).append(index)
    return {
        "id": member.id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host.removeprefix("/"),
        "partitions": by_topic,
    }


def _member_row(member: dict[str, Any]) -> list[object]:
    *front, partitions = member.values()
    texts = [f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in partitions.items()]
    return [*front, " ".join(texts) or None]


async def _existing(pool: Pool, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those that are (still) there: a group may have been on a topic that is gone."""
    wanted = list(partitions)
    names = sorted({partition.topic for partition in wanted})
    if not names:
        return []
    answer = await pool.metadata(names)
    counts = {
        topic.name: len(topic.partitions)
        for topic in answer.topics
        if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    return [p for p in wanted if p.partition < counts.get(p.topic, 0)]


# Reset -------------------------------------------------------------------------------------------


def _reset(arguments: Namespace) -> None:
    try:
        to = values.parse_position(arguments.to, now_ms=time_ns() // 1_000_000)
    except ValueError as error:
        raise UsageError(f"--to: {error}") from None

    async def work(pool: Pool) -> list[dict[str, Any]]:
        return await _move(pool, arguments.name, to, arguments.topic, dry_run=arguments.dry_run)

    rows = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(rows)
        return
    output.table(["topic", "partition", "from", "to", "lag"], [list(row.values()) for row in rows])
    done = "would move" if arguments.dry_run else "moved"
    output.line(f"{done} group {arguments.name} in {counted(len(rows), 'partition')}")


async def _move(
    pool: Pool, name: str, to: values.Position, chosen: list[Chosen], *, dry_run: bool
) -> list[dict[str, Any]]:
    await _check_idle(pool, name, may_be_new=bool(chosen))
    before = await groups.committed(pool, name)
    partitions = await _chosen_partitions(pool, name, chosen, before)
    targets = await positions.resolve(pool, partitions, to)
    ends = await admin.list_offsets(pool, dict.fromkeys(partitions, admin.LATEST))
    if not dry_run:
        await groups.set_offsets(pool, name, targets)
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "from": before.get(partition),
            "to": targets[partition],
            "lag": ends[partition].offset - targets[partition],
        }
        for partition in partitions
    ]


async def _check_idle(pool: Pool, name: str, *, may_be_new: bool) -> None:
    """Before anything is shown, also in a dry run: what would be refused is refused."""
    try:
        described = await groups.describe_group(pool, name)
    except ClientError as error:
        if may_be_new and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return
        raise
    if described.members:
        raise ClientError(
            f"group {name!r} is active: it has {counted(len(described.members), 'member')}; "
            "stop them first",
            ErrorCode.NON_EMPTY_GROUP,
        )


async def _chosen_partitions(
    pool: Pool, name: str, chosen: list[Chosen], before: dict[TopicPartition, int]
) -> list[TopicPartition]:
    if not chosen:
        found = await _existing(pool, before)
        if not found:
            raise ClientError(
                f"group {name!r} has committed nothing; say where it should begin: --topic NAME",
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
        return found
    partitions: set[TopicPartition] = set()
    for topic, numbers in chosen:
        [described] = await admin.describe_topics(pool, [topic])
        count = len(described.partitions)
        for number in range(count) if numbers is None else numbers:
            if number >= count:
                raise ClientError(
                    f"topic {topic!r} has no partition {number}; it has 0 to {count - 1}",
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )
            partitions.add(TopicPartition(topic, number))
    return sorted(partitions)


# Delete ------------------------------------------------------------------------------------------


def _delete(arguments: Namespace) -> None:
    async def work(pool: Pool) -> bool:
        try:
            await groups.delete_group(pool, arguments.name)
        except ClientError as error:
            if arguments.if_exists and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return False
            raise
        return True

    deleted = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document({"name": arguments.name, "deleted": deleted})
    elif deleted:
        output.line(f"deleted group {arguments.name}")
    else:
        output.line(f"there is no group {arguments.name}")
