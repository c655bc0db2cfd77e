"""`penstock dlq`: dead letters listed, shown, and sent back to where they came from."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.cli import formats
from penstock.cli.arguments import (
    UsageError,
    add_bootstrap,
    add_json,
    add_properties,
    count,
    examples,
    non_negative,
    offset,
    sentence,
)
from penstock.cli.output import Output, counted, note
from penstock.cli.session import CLIENT_ID, with_pool
from penstock.cli.values import format_time
from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition

if TYPE_CHECKING:
    from penstock.sdk.letters import Letters, Redriven
    from penstock.sdk.message import Message
    from penstock.sdk.redrive_ledger import Entries

_SUFFIXES: Final = (".dlq", ".DLQ", "-dlq", "_dlq", ".DLT", "-dlt")
_SHOWN_VALUE: Final = 60
_START_S: Final = 60.0
_LEDGER: Final = (
    "penstock-dlq-ledger"  # as in sdk.redrive_ledger, which loads only when it is needed
)


def configure(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, summary: str, run: Callable[[Namespace], None], *shown: str
    ) -> ArgumentParser:
        command = commands.add_parser(
            name, help=summary, description=sentence(summary), epilog=examples(*shown)
        )
        command.set_defaults(run=run)
        add_properties(command)
        add_bootstrap(command)
        add_json(command)
        return command

    listing = add(
        "list",
        "dead-letter topics, or the letters of one",
        _list,
        "penstock dlq list",
        "penstock dlq list orders.dlq -n 20",
    )
    _add_ledger(listing)
    listing.add_argument("topic", metavar="TOPIC", nargs="?")
    listing.add_argument("-n", "--count", type=count, metavar="N", help="only the first so many")
    show = add(
        "show",
        "letters in full: value, headers, error",
        _show,
        "penstock dlq show orders.dlq -n 1",
        "penstock dlq show orders.dlq --partition 0 --offset 17 --json",
    )
    _add_ledger(show)
    show.add_argument("topic", metavar="TOPIC")
    show.add_argument("-n", "--count", type=count, metavar="N", help="only the first so many")
    show.add_argument("--partition", type=non_negative, metavar="N", help="only of this partition")
    show.add_argument("--offset", type=offset, metavar="N", help="only the one at this offset")
    _configure_redrive(
        add(
            "redrive",
            "send letters back to their topics, each exactly once",
            _redrive,
            "penstock dlq redrive orders.dlq --dry-run",
            "penstock dlq redrive orders.dlq -n 100",
            "penstock dlq redrive orders.dlq --to orders.repaired",
        )
    )


def _add_ledger(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--ledger",
        metavar="TOPIC",
        default=_LEDGER,
        help=f"topic that remembers what was sent back; penstock pipeline dlq uses it too (default {_LEDGER})",
    )


def _configure_redrive(parser: ArgumentParser) -> None:
    _add_ledger(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("-n", "--count", type=count, metavar="N", help="at most so many")
    parser.add_argument("--to", metavar="TOPIC", help="another topic than the one it came from")
    parser.add_argument(
        "--again", action="store_true", help="also those that were sent back before"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be sent")


@contextmanager
def _letters(
    arguments: Namespace,
    *,
    partition: int | None = None,
    offset: int | None = None,
) -> "Iterator[Letters]":
    from penstock.sdk.errors import ConfigurationError, PenstockError
    from penstock.sdk.letters import Letters

    try:
        with Letters(
            arguments.bootstrap,
            arguments.topic,
            partition=partition,
            offset=offset,
            librdkafka=_properties(arguments),
        ) as letters:
            yield letters
    except ConfigurationError as error:
        raise UsageError(str(error)) from None
    except PenstockError as error:
        raise ClientError(str(error), ErrorCode.UNKNOWN_SERVER_ERROR) from None


def _properties(arguments: Namespace) -> dict[str, Any]:
    given = {"client.id": CLIENT_ID, **dict(arguments.properties)}
    return {"bootstrap.servers": arguments.bootstrap, **given}


def _known(arguments: Namespace) -> "Entries":
    """What the ledger says was sent back."""
    from penstock.sdk.redrive_ledger import read_entries

    return read_entries(_properties(arguments), arguments.ledger)


def _list(arguments: Namespace) -> None:
    output = Output(as_json=arguments.json)
    if arguments.topic is None:
        _list_topics(arguments, output)
        return
    with _letters(arguments) as letters:
        known = _known(arguments)
        described = [_described(message, known) for message in islice(letters, arguments.count)]
    if output.as_json:
        output.document(described)
        return
    output.table(
        ("partition", "offset", "origin", "error", "attempts", "failed at", "sent back"),
        [
            (
                one["partition"],
                one["offset"],
                _origin(one),
                _error(one)[:_SHOWN_VALUE],
                one["attempts"],
                format_time(one["failed_at_ms"]),
                one["sent_back"],
            )
            for one in described
        ],
    )
    if not described:
        note(f"{arguments.topic} has no letters")


def _list_topics(arguments: Namespace, output: Output) -> None:
    found = with_pool(arguments.bootstrap, _letter_counts)
    if output.as_json:
        output.document([{"topic": name, "messages": number} for name, number in found])
    else:
        output.table(("topic", "messages"), found)
    if not found:
        note(f"no topic is named like one of dead letters: *{', *'.join(_SUFFIXES)}")


async def _letter_counts(pool: Pool) -> list[tuple[str, int]]:
    """Topics that are named like dead-letter topics, and how many offsets they hold."""
    topics = [
        topic for topic in await admin.list_topics(pool) if str(topic.name).endswith(_SUFFIXES)
    ]
    places = [
        TopicPartition(str(topic.name), partition.partition_index)
        for topic in topics
        for partition in topic.partitions
    ]
    first = await admin.list_offsets(pool, dict.fromkeys(places, admin.EARLIEST))
    last = await admin.list_offsets(pool, dict.fromkeys(places, admin.LATEST))
    return [
        (
            str(topic.name),
            sum(last[at].offset - first[at].offset for at in places if at.topic == topic.name),
        )
        for topic in sorted(topics, key=lambda topic: str(topic.name))
    ]


def _show(arguments: Namespace) -> None:
    if arguments.offset is not None and arguments.partition is None:
        raise UsageError("--offset needs --partition: each partition counts its own")
    output = Output(as_json=arguments.json)
    shown = 0
    with _letters(arguments, partition=arguments.partition, offset=arguments.offset) as letters:
        known = _known(arguments)
        chosen = (one for one in letters if arguments.offset in (None, one.offset))
        for message in islice(chosen, arguments.count):
            _show_one(message, _described(message, known), output)
            shown += 1
    if not shown and arguments.offset is not None:
        raise ClientError(
            f"{arguments.topic}-{arguments.partition}@{arguments.offset}: there is no letter; "
            f"see: penstock dlq list {arguments.topic}",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    if not shown:
        note(f"{arguments.topic} has no letters")


def _show_one(message: "Message", described: dict[str, Any], output: Output) -> None:
    consumed = formats.Consumed(
        message.topic,
        message.partition,
        message.offset,
        message.timestamp_ms,
        message.raw_key,
        message.raw_value,
        message.headers,
    )
    if output.as_json:
        output.line(formats.as_json(consumed).decode().rstrip("\n"))
        return
    output.fields(
        {
            "letter": f"{message.topic}-{message.partition}@{message.offset}",
            "origin": _origin(described),
            "error": _error(described),
            "attempts": described["attempts"],
            "group": described["group"],
            "failed at": format_time(described["failed_at_ms"]),
            "sent back": described["sent_back"],
            "key": _text(message.raw_key),
            "headers": ", ".join(f"{name}={_text(value)}" for name, value in _own(message)) or None,
            "value": _text(message.raw_value),
        }
    )
    output.line("")


def _redrive(arguments: Namespace) -> None:
    """The order matters: other runs are shut out first, and only then the ledger is read."""
    from penstock.sdk import letters as sdk
    from penstock.sdk import redrive_ledger
    from penstock.sdk.producer import Producer

    what: dict[str, Any] = {"to": arguments.to, "limit": arguments.count}
    with _letters(arguments) as letters:
        if arguments.dry_run:
            _report(arguments, sdk.counted(letters, _known_unless_again(arguments), **what))
            return
        redrive_ledger.ensure_ledger(_properties(arguments), arguments.ledger)
        with Producer(
            arguments.bootstrap,
            transactional_id=redrive_ledger.transactional_id(arguments.ledger),
            client_id=CLIENT_ID,
            split_large=True,
            librdkafka={"log_level": 0, **dict(arguments.properties)},
        ) as producer:
            producer.ensure_transactions(_START_S)
            known = _known_unless_again(arguments)
            done = sdk.redrive(letters, producer, arguments.ledger, known, **what)
        _report(arguments, done)


def _known_unless_again(arguments: Namespace) -> "Entries":
    from penstock.sdk.redrive_ledger import Entries

    return Entries() if arguments.again else _known(arguments)


def _report(arguments: Namespace, done: "Redriven") -> None:
    output = Output(as_json=arguments.json)
    sent = done.sent.total()
    if output.as_json:
        output.document(
            {
                "topic": arguments.topic,
                "sent": sent,
                "to": dict(done.sent),
                "passed_over": done.passed_over,
                "sent_before": done.sent_before,
                "dry_run": arguments.dry_run,
            }
        )
        return
    verb = "would send" if arguments.dry_run else "sent"
    places = ", ".join(f"{number} to {topic}" for topic, number in sorted(done.sent.items()))
    output.line(
        f"{verb} {counted(sent, 'letter')} of {arguments.topic}{': ' if places else ''}{places}"
    )
    if done.passed_over:
        note(f"passed over {counted(done.passed_over, 'message')} without an origin: give --to")
    if done.sent_before:
        note(
            f"left out {counted(done.sent_before, 'letter')} sent back before: give --again to send again"
        )


def _described(message: "Message", known: "Entries") -> dict[str, Any]:
    from penstock.sdk import dead_letters

    letter = dead_letters.read(message.headers)
    return {
        "partition": message.partition,
        "offset": message.offset,
        **{f"origin_{name}": getattr(letter, name) for name in ("topic", "partition", "offset")},
        "error": letter.error,
        "error_type": letter.error_type,
        "attempts": letter.attempts,
        "group": letter.group,
        "failed_at_ms": letter.failed_at_ms,
        "redriven": letter.redriven,
        "sent_back": known.has_any(message, letter),
    }


def _own(message: "Message") -> list[tuple[str, bytes | None]]:
    from penstock.sdk import dead_letters

    return dead_letters.own_headers(message.headers)


def _origin(described: dict[str, Any]) -> str:
    if described["origin_topic"] is None:
        return "-"
    return (
        f"{described['origin_topic']}-{described['origin_partition']}@{described['origin_offset']}"
    )


def _error(described: dict[str, Any]) -> str:
    said = ": ".join(filter(None, (described["error_type"], described["error"])))
    return said or "-"


def _text(data: bytes | None) -> str:
    return "-" if data is None else data.decode(errors="backslashreplace")
