"""`penstock txn`: transactions, where they stand, those that hang, and an end for them."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from time import time_ns
from typing import Any, Final

from penstock.cli import values
from penstock.cli.arguments import (
    UsageError,
    add_bootstrap,
    add_json,
    examples,
    offset,
    partition,
    reader,
    sentence,
)
from penstock.cli.output import Output, counted, note
from penstock.cli.session import with_pool
from penstock.client import admin, transactions
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.client.transactions import Described, Listed, Open
from penstock.model.errors import ErrorCode
from penstock.transactions.state import AT_REST, PREPARED, Status

_STATES: Final = [status.title for status in sorted(AT_REST | PREPARED | {Status.ONGOING})]


def configure(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, summary: str, run: Callable[[Namespace], None], *shown: str
    ) -> ArgumentParser:
        command = commands.add_parser(
            name, help=summary, description=sentence(summary), epilog=examples(*shown)
        )
        command.set_defaults(run=run)
        add_bootstrap(command)
        add_json(command)
        return command

    _configure_list(
        add(
            "list",
            "transactional ids, or the transactions that hang",
            _list,
            "penstock txn list --state Ongoing",
            "penstock txn list --longer-than 10m",
            "penstock txn list --hanging",
        )
    )
    describe = add(
        "describe",
        "state, producer and partitions of a transactional id",
        _describe,
        "penstock txn describe payments-1",
    )
    describe.add_argument("id", metavar="ID")
    _configure_abort(
        add(
            "abort",
            "end an open transaction, by its id or in one partition",
            _abort,
            "penstock txn abort payments-1",
            "penstock txn abort --partition orders-3 --start-offset 4711",
        )
    )


def _configure_list(command: ArgumentParser) -> None:
    command.add_argument(
        "--state",
        action="append",
        default=[],
        type=reader(_parse_state),
        metavar="STATE",
        help="only in this state, such as Ongoing; repeat for more",
    )
    command.add_argument(
        "--longer-than",
        type=reader(values.parse_duration_ms),
        metavar="TIME",
        help="only those that last longer, such as 10m",
    )
    command.add_argument(
        "--hanging",
        action="store_true",
        help="what partitions hold open and no coordinator will end",
    )
    command.add_argument("--topic", metavar="NAME", help="with --hanging: look only there")


def _parse_state(text: str) -> str:
    for name in _STATES:
        if name.lower() == text.lower():
            return name
    raise ValueError(f"expected {', '.join(_STATES[:-1])} or {_STATES[-1]}, not {text!r}")


def _configure_abort(command: ArgumentParser) -> None:
    command.add_argument("id", metavar="ID", nargs="?", help="its producer is shut out by this")
    command.add_argument("--partition", type=partition, metavar="TOPIC-N", help="where it hangs")
    command.add_argument(
        "--start-offset", type=offset, metavar="OFFSET", help="of its first message there"
    )


# list --------------------------------------------------------------------------------------------


def _list(arguments: Namespace) -> None:
    output = Output(as_json=arguments.json)
    if arguments.hanging:
        if arguments.state or arguments.longer_than is not None:
            raise UsageError("--hanging goes with --topic only")
        _show_open(output, with_pool(arguments.bootstrap, lambda p: _find_hanging(p, arguments)))
        return
    if arguments.topic is not None:
        raise UsageError("--topic goes with --hanging")

    async def work(pool: Pool) -> list[Listed]:
        longer_ms = -1 if arguments.longer_than is None else arguments.longer_than
        return await transactions.list_transactions(
            pool, states=arguments.state, longer_than_ms=longer_ms
        )

    found = with_pool(arguments.bootstrap, work)
    if output.as_json:
        output.document([row._asdict() for row in found])
    else:
        output.table(["id", "state", "producer", "coordinator"], found)


async def _find_hanging(pool: Pool, arguments: Namespace) -> list[Open]:
    if arguments.topic is None:
        topics = await admin.list_topics(pool)
    else:
        topics = await admin.describe_topics(pool, [arguments.topic])
    partitions = {
        topic.name or "": [partition.partition_index for partition in topic.partitions]
        for topic in topics
    }
    return await transactions.hanging_transactions(pool, partitions)


def _show_open(output: Output, found: list[Open]) -> None:
    facts = [_open_facts(row) for row in found]
    if output.as_json:
        output.document(facts)
        return
    columns = ["partition", "start offset", "producer", "epoch", "last write"]
    output.table(columns, [list(fact.values()) for fact in facts])
    if found:
        first = found[0]
        note(
            f"end one with: penstock txn abort --partition {first.partition}"
            f" --start-offset {first.first_offset}"
        )


def _open_facts(row: Open) -> dict[str, Any]:
    return {
        "partition": str(row.partition),
        "start_offset": row.first_offset,
        "producer_id": row.producer_id,
        "epoch": row.epoch,
        "last_write": values.format_time(row.last_write_ms),
    }


# describe ----------------------------------------------------------------------------------------


def _describe(arguments: Namespace) -> None:
    found = with_pool(
        arguments.bootstrap, lambda pool: transactions.describe_transaction(pool, arguments.id)
    )
    output = Output(as_json=arguments.json)
    facts = _facts(found, time_ns() // 1_000_000)
    if output.as_json:
        output.document({**facts, "partitions": [str(name) for name in found.partitions]})
        return
    output.fields({**facts, "partitions": len(found.partitions)})
    if found.partitions:
        output.line("")
        output.table(["topic", "partition"], found.partitions)


def _facts(found: Described, now_ms: int) -> dict[str, Any]:
    unfinished = found.state in transactions.UNFINISHED
    return {
        "id": found.id,
        "state": found.state,
        "producer_id": found.producer_id,
        "epoch": found.epoch,
        "coordinator": found.coordinator,
        "timeout_ms": found.timeout_ms,
        "started": values.format_time(found.start_ms),
        "lasts_ms": max(now_ms - found.start_ms, 0) if unfinished else None,
    }


# abort -------------------------------------------------------------------------------------------


def _abort(arguments: Namespace) -> None:
    in_partition = arguments.partition is not None or arguments.start_offset is not None
    if (arguments.id is not None) is in_partition:
        raise UsageError("give either an ID, or --partition with --start-offset")
    if not in_partition:
        found = with_pool(arguments.bootstrap, lambda pool: _abort_id(pool, arguments.id))
        what = f"of {arguments.id!r} in {counted(len(found.partitions), 'partition')}"
        facts: dict[str, Any] = {
            "id": arguments.id,
            "partitions": [str(name) for name in found.partitions],
        }
    else:
        if arguments.partition is None or arguments.start_offset is None:
            raise UsageError("--partition and --start-offset go together")
        ended = with_pool(arguments.bootstrap, lambda pool: _abort_hanging(pool, arguments))
        what = f"of producer {ended.producer_id} in {ended.partition}"
        facts = _open_facts(ended)
    output = Output(as_json=arguments.json)
    if output.as_json:
        output.document(facts)
    else:
        output.line(f"aborted the transaction {what}")


async def _abort_id(pool: Pool, name: str) -> Described:
    found = await transactions.describe_transaction(pool, name)
    if found.state != transactions.ONGOING:
        raise ClientError(
            f"transactional id {name!r} has no open transaction: it is in state {found.state}",
            ErrorCode.INVALID_TXN_STATE,
        )
    await transactions.fence(pool, name)
    return found


async def _abort_hanging(pool: Pool, arguments: Namespace) -> Open:
    partition, start = arguments.partition, arguments.start_offset
    topics = {partition.topic: [partition.partition]}
    for found in await transactions.open_transactions(pool, topics):
        if found.first_offset == start:
            await _check_hangs(pool, found)
            await transactions.abort_in_partition(pool, found)
            return found
    raise ClientError(
        f"no transaction in {partition} starts at offset {start}; see: penstock txn list --hanging",
        ErrorCode.INVALID_TXN_STATE,
    )


async def _check_hangs(pool: Pool, found: Open) -> None:
    """What is only a part of a transaction must not end alone: the rest might be committed."""
    owners = await transactions.coordinated(pool, [found.producer_id])
    owner = owners.get((found.producer_id, found.partition))
    if owner is not None:
        raise ClientError(
            f"it does not hang: {found.partition} is in the transaction of {owner!r};"
            f" end all of it with: penstock txn abort {owner}",
            ErrorCode.INVALID_TXN_STATE,
        )
