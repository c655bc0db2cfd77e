"""`penstock produce`: every line of stdin, or of files, is one message."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from penstock.cli import values
from penstock.cli.arguments import (
    UsageError,
    add_bootstrap,
    add_json,
    add_properties,
    examples,
    non_negative,
    reader,
)
from penstock.cli.output import Output, counted, note
from penstock.cli.session import CLIENT_ID, librdkafka, reason, with_pool
from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.wire.messages.metadata import MetadataResponseTopic

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_MAX_MESSAGE_BYTES: Final = (
    1_000_000_000  # librdkafka's own limit: the topic's is the broker's to enforce
)
_FULL_QUEUE_POLL_S: Final = 0.1
_FLUSH_S: Final = 0.5


class Line(NamedTuple):
    key: bytes | None
    value: bytes | None


def configure(parser: ArgumentParser) -> None:
    parser.epilog = examples(
        "echo hello | penstock produce orders",
        "penstock produce orders -k customer-7 -H source=shop -z lz4 < lines.txt",
        "penstock produce orders --key-separator : pairs.txt more.txt",
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        default=[],  # without one argparse would name it among the missing
        help="read these, one message a line (default: stdin)",
    )
    parser.add_argument("-k", "--key", metavar="KEY", help="the key of every message")
    parser.add_argument(
        "--key-separator", metavar="TEXT", help="each line is KEY, this text, VALUE"
    )
    parser.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        type=reader(values.parse_assignment),
        metavar="KEY=VALUE",
        help="a header of every message; repeatable",
    )
    parser.add_argument(
        "--null-value", action="store_true", help="an empty value is sent as null: a tombstone"
    )
    parser.add_argument(
        "--partition", type=non_negative, metavar="N", help="default: chosen by key"
    )
    parser.add_argument("--acks", choices=("0", "1", "all"), default="all", help="default: all")
    parser.add_argument("-z", "--compression", choices=CODECS, default="none", help="default: none")
    add_properties(parser)
    add_bootstrap(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    if arguments.key is not None and arguments.key_separator is not None:
        raise UsageError("give -k or --key-separator, not both")
    if arguments.key_separator == "":
        raise UsageError("--key-separator must not be empty")
    _check_topic(arguments)
    sender = Sender(arguments)
    if not arguments.files and sys.stdin.isatty():
        note("one message a line; end with Ctrl-D")
    try:
        for line in read_lines(arguments):
            sender.send(line)
    except KeyboardInterrupt:
        pass  # the end of the input, said differently
    sender.finish()
    sender.report(Output(as_json=arguments.json))
    return 0


def read_lines(arguments: Namespace) -> Iterator[Line]:
    """Messages of all inputs, in order."""
    for name in arguments.files or ["-"]:
        if name == "-":
            yield from _lines(sys.stdin.buffer, arguments)
            continue
        with open(name, "rb") as stream:
            yield from _lines(stream, arguments)


def _lines(stream: BinaryIO, arguments: Namespace) -> Iterator[Line]:
    key = None if arguments.key is None else arguments.key.encode()
    separator = None if arguments.key_separator is None else arguments.key_separator.encode()
    for raw in stream:
        text = raw.removesuffix(b"\n")
        if separator is not None:
            key, text = split_key(text, separator)
        yield Line(key, None if arguments.null_value and not text else text)


def split_key(text: bytes, separator: bytes) -> tuple[bytes | None, bytes]:
    """Key and value; a line without the separator has no key."""
    key, found, value = text.partition(separator)
    return (key, value) if found else (None, text)


def _check_topic(arguments: Namespace) -> None:
    """Fails early and clearly, where librdkafka would wait and retry."""

    async def work(pool: Pool) -> MetadataResponseTopic:
        return await admin.ensure_topic(pool, arguments.topic, create=True)

    partitions = len(with_pool(arguments.bootstrap, work).partitions)
    if arguments.partition is not None and arguments.partition >= partitions:
        raise ClientError(
            f"topic {arguments.topic!r} has no partition {arguments.partition}; it has 0 to {partitions - 1}",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )


class Sender:
    """Hands lines to librdkafka and counts what the broker accepted; the first refusal ends it."""

    def __init__(self, arguments: Namespace) -> None:
        from confluent_kafka import Producer

        self._topic: str = arguments.topic
        self._fixed: dict[str, Any] = {"on_delivery": self._delivered}
        if arguments.partition is not None:
            self._fixed["partition"] = arguments.partition
        if arguments.header:
            self._fixed["headers"] = [(key, value.encode()) for key, value in arguments.header]
        self._producer = librdkafka(Producer, _producer_settings(arguments))
        self._sent = 0
        self._accepted = 0
        self._accepted_bytes = 0
        self._refusal: str | None = None

    def send(self, line: Line) -> None:
        self._raise_refusal()
        while True:
            try:
                self._producer.produce(self._topic, line.value, line.key, **self._fixed)
                break
            except BufferError:  # the queue is full: wait for answers
                self._producer.poll(_FULL_QUEUE_POLL_S)
        self._sent += 1
        self._producer.poll(0)

    def finish(self) -> None:
        while self._producer.flush(_FLUSH_S):  # in slices, so that Ctrl-C is heard
            self._raise_refusal()
        self._raise_refusal()

    def report(self, output: Output) -> None:
        if output.as_json:
            output.document(
                {"topic": self._topic, "messages": self._accepted, "bytes": self._accepted_bytes}
            )
        note(f"sent {counted(self._accepted, 'message')} to {self._topic}")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self._accepted += 1
            self._accepted_bytes += len(message)
        elif self._refusal is None:
            self._refusal = reason(error)

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            self._producer.purge()
            raise ClientError(
                f"message {self._accepted + 1} for topic {self._topic!r} was refused: {self._refusal}; "
                f"{self._accepted} were accepted",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )


def _producer_settings(arguments: Namespace) -> dict[str, Any]:
    return {
        "bootstrap.servers": arguments.bootstrap,
        "client.id": CLIENT_ID,
        "log_level": 0,  # errors are ours to print, once
        "acks": arguments.acks,
        "enable.idempotence": arguments.acks == "all",
        "compression.type": arguments.compression,
        "message.max.bytes": _MAX_MESSAGE_BYTES,
        **dict(arguments.properties),
    }
