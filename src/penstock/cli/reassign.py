"""`penstock reassign`: moves of partitions between brokers, planned, carried out in steps, watched, called off."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Any

from penstock.cli import moving, plans, values
from penstock.cli.arguments import Subcommands, UsageError, count, non_negative, partition
from penstock.cli.output import Output, counted, note
from penstock.cli.session import with_pool
from penstock.client import cordons, reassignments, throttles
from penstock.client.errors import ClientError
from penstock.client.mover import Summary
from penstock.client.pool import Pool
from penstock.client.reassignment_plan import (
    Plan,
    TooFewBrokers,
    plan_balance,
    plan_factor,
    plan_leaving,
    plan_placement,
)
from penstock.client.reassignments import Members, Place, Places
from penstock.client.throttles import Throttles
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition


def configure(parser: ArgumentParser) -> None:
    add = Subcommands(parser).add
    _configure_plan(
        add(
            "plan",
            "where replicas should go; without options: even over all brokers, by the fewest copies",
            _plan,
            "penstock reassign plan --out plan.json",
            "penstock reassign plan --without 3",
            "penstock reassign plan --topic orders --brokers 4,5,6",
            "penstock reassign plan --topic orders --replication-factor 3",
        )
    )
    execute = add(
        "execute",
        "carry a plan out in steps; run it again to go on after an interruption",
        _execute,
        "penstock reassign execute plan.json --throttle 50MB/s",
        "penstock reassign execute plan.json --concurrent 10",
    )
    execute.add_argument("file", metavar="FILE", help="the plan, or - for stdin")
    moving.add_speed(execute)
    add(
        "status",
        "moves under way with what is left to copy, and throttles in force",
        _status,
        "penstock reassign status",
        "penstock reassign status --json",
    )
    cancel = add(
        "cancel",
        "call moves off, all or some: replicas stay where they were; throttles are removed",
        _cancel,
        "penstock reassign cancel",
        "penstock reassign cancel orders-3 orders-4",
    )
    cancel.add_argument(
        "partitions", nargs="*", type=partition, metavar="TOPIC-N", help="which (default: all)"
    )


def _configure_plan(command: ArgumentParser) -> None:
    command.add_argument(
        "--topic", action="append", metavar="NAME", help="only this one; repeat for more"
    )
    command.add_argument(
        "--brokers", type=_broker_ids, metavar="N,N,…", help="on these brokers and nowhere else"
    )
    command.add_argument(
        "--without",
        action="append",
        type=non_negative,
        metavar="N",
        help="leave this broker, and move nothing else; repeatable",
    )
    command.add_argument(
        "--replication-factor", type=count, metavar="N", help="so many replicas of each partition"
    )
    command.add_argument(
        "--out", metavar="FILE", help="write the plan there, and show what it does"
    )


def _broker_ids(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ArgumentTypeError(f"expected broker ids such as 1,2,3, not {text!r}")
    return [int(word) for word in words]


# plan --------------------------------------------------------------------------------------------


def _plan(arguments: Namespace) -> None:
    if arguments.without and (arguments.brokers or arguments.replication_factor):
        raise UsageError("--without goes with --topic only")

    async def work(pool: Pool) -> plans.Outlook:
        members = await cordons.members(pool)
        places = await reassignments.places(pool)
        return await plans.outlook(pool, members, places, _made(arguments, members, places))

    found = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if arguments.out is None:
        output.document(plans.document(found.plan))
        note(found.sentence())
        return
    with open(arguments.out, "w") as file:
        Output(stream=file).document(plans.document(found.plan))
    found.show(output)
    if found.plan:
        note(f"carry it out with: penstock reassign execute {quote(arguments.out)}")


def _made(arguments: Namespace, members: Members, places: Places) -> Plan:
    _check_names(arguments, members, places)
    replicas = {at: place.target for at, place in places.items()}
    topics, factor = arguments.topic, arguments.replication_factor
    nodes = members.open
    if arguments.brokers:
        nodes = [node for node in nodes if node.id in arguments.brokers]
    try:
        if arguments.without:
            nodes = [node for node in nodes if node.id not in arguments.without]
            chosen = {at: it for at, it in replicas.items() if not topics or at.topic in topics}
            return plan_leaving(chosen, nodes, arguments.without)
        if arguments.brokers:
            return plan_placement(replicas, nodes, topics=topics, replication_factor=factor)
        if factor:
            return plan_factor(replicas, nodes, factor, topics)
        return plan_balance(replicas, nodes, topics)
    except TooFewBrokers as error:
        fewer = f"--topic {error.partition.topic} --replication-factor {max(1, len(nodes))}"
        remedy = f"ask for fewer replicas with: penstock reassign plan {fewer}"
        raise plans.too_few(error, [node.id for node in nodes], remedy) from None


def _check_names(arguments: Namespace, members: Members, places: Places) -> None:
    known = {at.topic for at in places}
    for topic in arguments.topic or ():
        if topic not in known:
            raise ClientError(
                f"topic {topic!r} does not exist; see: penstock topic list",
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
    running = {node.id for node in members.running}
    for broker_id in arguments.brokers or ():
        if broker_id not in running:
            raise ClientError(
                f"broker {broker_id} does not run, so nothing can be moved there;"
                " see: penstock broker list",
                ErrorCode.BROKER_NOT_AVAILABLE,
            )
        if broker_id in members.cordoned:
            raise ClientError(
                f"broker {broker_id} is to leave, so nothing can be moved there; let it stay with:"
                f" penstock broker decommission {broker_id} --cancel",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )


# execute -----------------------------------------------------------------------------------------


def _execute(arguments: Namespace) -> int:
    from_stdin = arguments.file == "-"
    text = sys.stdin.read() if from_stdin else Path(arguments.file).read_text()
    plan = plans.parse(text, "stdin" if from_stdin else arguments.file)

    async def work(pool: Pool) -> Summary:
        return await moving.carry_out(pool, plan, moving.options(arguments))

    again = f"penstock reassign execute {quote(arguments.file)}"
    summary = moving.resumable(arguments.bootstrap, work, again)
    return 1 if summary is None else moving.show(Output(as_json=arguments.json), summary)


# status ------------------------------------------------------------------------------------------


def _status(arguments: Namespace) -> None:
    async def work(pool: Pool) -> tuple[list[dict[str, Any]], Throttles]:
        members = await reassignments.members(pool)
        places = await reassignments.places(pool)
        under_way = {at: place for at, place in places.items() if place.is_moving}
        rows = await _rows(pool, members, under_way)
        return rows, await _in_force(pool, members, places)

    rows, found = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document({"moves": rows, "throttles": _throttle_facts(found)})
        return
    if rows:
        sizes = [values.format_size(row["left_bytes"]) for row in rows]
        columns = ["partition", "from", "to", "leader", "in sync", "left", "waits for"]
        shown = [
            [
                row["partition"],
                row["from"],
                row["to"],
                row["leader"],
                row["isr"],
                size,
                row["waits_for"],
            ]
            for row, size in zip(rows, sizes, strict=True)
        ]
        output.table(columns, shown)
    left = values.format_size(sum(row["left_bytes"] for row in rows))
    output.line(f"{counted(len(rows), 'move')} under way" + (f", {left} left" if rows else ""))
    _show_throttles(output, found, is_moving=bool(rows))


async def _rows(
    pool: Pool, members: Members, under_way: dict[TopicPartition, Place]
) -> list[dict[str, Any]]:
    running = [node.id for node in members.running]
    disks = await reassignments.disks(pool, running, under_way) if under_way else {}
    rows = []
    for at, place in under_way.items():
        sizes = {member: disk.sizes_bytes.get(at, 0) for member, disk in disks.items()}
        whole = sizes.get(place.leader, 0)
        left = sum(
            max(0, whole - sizes.get(member, 0))
            for member in place.adding
            if member not in place.isr
        )
        rows.append(
            {
                "partition": str(at),
                "from": place.original,
                "to": place.target,
                "leader": place.leader if place.leader >= 0 else None,
                "isr": place.isr,
                "left_bytes": left,
                "waits_for": [member for member in place.adding if member not in running],
            }
        )
    return rows


async def _in_force(pool: Pool, members: Members, places: Places) -> Throttles:
    running = [node.id for node in members.running]
    return await throttles.throttles(pool, running, sorted({at.topic for at in places}))


def _throttle_facts(found: Throttles) -> dict[str, Any]:
    return {
        "bytes_per_second": {str(broker_id): it for broker_id, it in found.rates.items()},
        "topics": found.topics,
    }


def _show_throttles(output: Output, found: Throttles, *, is_moving: bool) -> None:
    for broker_id, bytes_per_s in found.rates.items():
        output.line(f"broker {broker_id} is throttled to {values.format_size(bytes_per_s)}/s")
    if found.topics:
        output.line(f"throttled topics: {', '.join(found.topics)}")
    if found and not is_moving:
        note(
            "nothing moves, and throttles are in force; remove them with: penstock reassign cancel"
        )


# cancel ------------------------------------------------------------------------------------------


def _cancel(arguments: Namespace) -> int:
    async def work(pool: Pool) -> tuple[list[TopicPartition], reassignments.Refusals, bool]:
        under_way = await reassignments.moves(pool)
        asked = arguments.partitions or list(under_way)
        refused = await reassignments.move(pool, dict.fromkeys(asked))
        gone = [at for at in asked if at not in refused]
        removed = await _remove_throttles(pool, set(under_way).difference(gone))
        return gone, refused, removed

    gone, refused, removed = with_pool(arguments.bootstrap, work)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(
            {
                "cancelled": [str(at) for at in gone],
                "refused": [
                    {"partition": str(at), "error": str(error)} for at, error in refused.items()
                ],
                "throttles_removed": removed,
            }
        )
    else:
        suffix = ", throttles are removed" if removed else ""
        output.line(f"called off {counted(len(gone), 'move')}{suffix}")
        for error in refused.values():
            note(f"penstock: {error}")
    return 1 if refused else 0


async def _remove_throttles(pool: Pool, still_moving: Iterable[TopicPartition]) -> bool:
    """Those of topics and brokers that nothing needs any more; whether there were any."""
    members = await reassignments.members(pool)
    busy = {at.topic for at in still_moving}
    found = await _in_force(pool, members, await reassignments.places(pool))
    topics = [topic for topic in found.topics if topic not in busy]
    brokers = [] if busy else [member.id for member in members.brokers]
    if not topics and (busy or not found.brokers):
        return False
    await throttles.remove_throttles(pool, brokers, topics)
    return True
