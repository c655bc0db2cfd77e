"""`penstock consume`: a topic's messages on stdout, alone or as a member of a group."""

import signal
import sys
from argparse import ArgumentParser, Namespace
from time import time_ns
from typing import Any, BinaryIO, Final

from penstock.cli import formats, positions, values
from penstock.cli.arguments import (
    UsageError,
    add_bootstrap,
    add_json,
    add_properties,
    count,
    examples,
    non_negative,
    reader,
)
from penstock.cli.output import counted, note
from penstock.cli.session import CLIENT_ID, librdkafka, reason, with_pool
from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.sdk.settings import FETCH_BACKOFF_MS

_POLL_S: Final = 0.2
_BATCH: Final = 500
_NO_GROUP: Final = "penstock-cli"  # librdkafka wants a name even where nothing is committed


def configure(parser: ArgumentParser) -> None:
    parser.epilog = examples(
        "penstock consume orders",
        "penstock consume orders --from -2h -e",
        "penstock consume orders --from end -f '%p:%o %k=%s\\n'",
        "penstock consume orders -g billing --json | jq .value",
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "-g", "--group", metavar="GROUP", help="share the partitions and commit what was printed"
    )
    parser.add_argument(
        "--from",
        dest="start",
        default="start",
        metavar="start|end|OFFSET|TIME",
        help="where to begin (default: start; with -g, where nothing is committed yet)",
    )
    parser.add_argument("--partition", type=non_negative, metavar="N", help="only this one")
    parser.add_argument(
        "-n", "--count", type=count, metavar="N", help="stop after so many messages"
    )
    parser.add_argument(
        "-e", "--exit-at-end", action="store_true", help="stop at the newest message"
    )
    parser.add_argument(
        "-f",
        "--format",
        default="%s\\n",
        type=reader(formats.compile_format),
        metavar="FORMAT",
        help=f"{formats.TOKEN_HELP} (default: %%s\\n)",
    )
    add_properties(parser)
    add_bootstrap(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    start = _start(arguments)
    offsets = with_pool(arguments.bootstrap, lambda pool: _first_offsets(pool, arguments, start))
    printer = Printer(arguments, sys.stdout.buffer)
    previous = [signal.signal(number, printer.stop) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        printer.consume(offsets)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), previous, strict=True):
            signal.signal(number, handler)
    note(f"consumed {counted(printer.printed, 'message')}")
    return 0


def _start(arguments: Namespace) -> values.Position:
    try:
        start = values.parse_position(arguments.start, now_ms=time_ns() // 1_000_000)
    except ValueError as error:
        raise UsageError(f"--from: {error}") from None
    if arguments.group and not isinstance(start, values.Start | values.End):
        raise UsageError(
            "with -g, --from takes start or end; move a group with: "
            f"penstock group reset {arguments.group} --to {arguments.start}"
        )
    if arguments.group and arguments.partition is not None:
        raise UsageError(
            "give -g or --partition, not both: a group shares out the partitions itself"
        )
    return start


async def _first_offsets(
    pool: Pool, arguments: Namespace, start: values.Position
) -> dict[TopicPartition, int]:
    """Where to begin in each partition; it is inside the log, so librdkafka need not guess."""
    topic = await admin.ensure_topic(pool, arguments.topic, create=False)
    indexes = sorted(partition.partition_index for partition in topic.partitions)
    if arguments.partition is not None:
        if arguments.partition not in indexes:
            raise ClientError(
                f"topic {arguments.topic!r} has no partition {arguments.partition}; "
                f"it has 0 to {indexes[-1]}",
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
        indexes = [arguments.partition]
    partitions = [TopicPartition(arguments.topic, index) for index in indexes]
    return await positions.resolve(pool, partitions, start)


class Printer:
    """Prints messages until it was told to stop, has enough, or has seen the end of every partition."""

    def __init__(self, arguments: Namespace, out: BinaryIO) -> None:
        self.printed = 0
        self._arguments = arguments
        self._limit: int | None = arguments.count
        self._format = formats.as_json if arguments.json else arguments.format
        self._out = out
        self._at_end: set[int] = set()
        self._stopped = False
        self._told_of_loss = False

    def stop(self, number: int, frame: object) -> None:  # noqa: ARG002  # a signal handler's signature
        """The first Ctrl-C ends the loop between two messages; a second one ends the process."""
        self._stopped = True
        signal.signal(number, signal.SIG_DFL)

    def consume(self, offsets: dict[TopicPartition, int]) -> None:
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as Assigned

        consumer = librdkafka(Consumer, _consumer_settings(self._arguments, self._on_error))
        try:
            if self._arguments.group:
                consumer.subscribe([self._arguments.topic])
            else:
                consumer.assign(
                    [Assigned(*partition, offset) for partition, offset in offsets.items()]
                )
            self._loop(consumer)
            self._out.flush()
        finally:
            consumer.close()

    def _loop(self, consumer: Any) -> None:
        while not (self._stopped or self._has_enough()):
            first = consumer.poll(_POLL_S)
            if first is None:
                continue
            self._take(consumer, first)  # before `consume`, which may serve a revocation
            more = consumer.consume(self._room(_BATCH), 0) if self._room(_BATCH) > 0 else []
            for message in more:
                self._take(consumer, message)
            self._out.flush()
            if self._arguments.exit_at_end and self._is_at_end(consumer):
                return

    def _take(self, consumer: Any, message: Any) -> None:
        error = message.error()
        if error is not None:
            self._take_error(message, error)
            return
        self._at_end.discard(message.partition())
        self._out.write(self._format(_consumed(message)))
        self.printed += 1
        self._told_of_loss = False
        if self._arguments.group:
            consumer.store_offsets(message)

    def _take_error(self, message: Any, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:
            self._at_end.add(message.partition())
        elif not error.retriable():
            raise ClientError(
                f"topic {self._arguments.topic!r}: {reason(error)}", ErrorCode.UNKNOWN_SERVER_ERROR
            )

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._told_of_loss:
            self._told_of_loss = True
            note(f"lost the connection to {self._arguments.bootstrap}; waiting for it to come back")

    def _has_enough(self) -> bool:
        return self._limit is not None and self.printed >= self._limit

    def _room(self, most: int) -> int:
        return most if self._limit is None else min(most, self._limit - self.printed)

    def _is_at_end(self, consumer: Any) -> bool:
        assigned = {partition.partition for partition in consumer.assignment()}
        return bool(assigned) and assigned <= self._at_end


def _consumed(message: Any) -> formats.Consumed:
    return formats.Consumed(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers() or (),
    )


def _consumer_settings(arguments: Namespace, on_error: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": arguments.bootstrap,
        "client.id": CLIENT_ID,
        "log_level": 0,  # errors are ours to print, once
        "error_cb": on_error,
        "group.id": arguments.group or _NO_GROUP,
        "enable.auto.commit": bool(arguments.group),
        "enable.auto.offset.store": False,  # stored after a message was printed
        "enable.partition.eof": arguments.exit_at_end,
        "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
        "auto.offset.reset": "latest" if arguments.start in ("end", "latest") else "earliest",
        **dict(arguments.properties),
    }
