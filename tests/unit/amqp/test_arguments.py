"""Arguments of queues: each is checked with RabbitMQ's error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.arguments import (
    QueueProperties,
    QueueType,
    check_consumer_arguments,
    check_queue_declaration,
)
from penstock.amqp.overflow import Overflow
from penstock.amqp.queue_settings import resolve_settings
from penstock.amqp.stream_arguments import (
    StreamOffset,
    StreamStart,
    parse_max_age,
    parse_stream_offset,
)
from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.tables import FieldTable, as_table
from tests.support.amqp_errors import refusal
from tests.support.amqp_values import tables


def check(arguments: dict[str, Any], **properties: bool) -> None:
    check_queue_declaration("q", QueueProperties(**properties, arguments=as_table(arguments)), "/")


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", -1, "{value_negative,-1}"),
        ("x-expires", "5", '"expected integer, got longstr"'),
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", 315_360_000_001, "{value_too_large,315360000001}"),
        ("x-message-ttl", 1.5, '"expected integer, got double"'),
        ("x-max-length", -5, "{value_negative,-5}"),
        ("x-max-length-bytes", True, '"expected integer, got bool"'),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-overflow", "explode", "invalid_overflow"),
        ("x-overflow", 1, "{unacceptable_type,signedint}"),
        ("x-dead-letter-exchange", 1, "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-single-active-consumer", 1, "{unacceptable_type,signedint}"),
        ("x-queue-type", "odd", "\"unsupported queue type 'odd'\""),
        ("x-queue-type", 1, "{unacceptable_type,signedint}"),
        ("x-queue-mode", "odd", "invalid_queue_mode"),
        ("x-queue-version", 3, "\"unsupported queue version '3'\""),
        ("x-queue-leader-locator", "odd", "invalid_queue_locator_arg"),
    ],
)
def test_values(name: str, value: Any, error: str) -> None:
    with refusal(
        ReplyCode.PRECONDITION_FAILED, f"invalid arg '{name}' for queue 'q' in vhost '/': {error}"
    ):
        check({name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("quorum", "x-max-priority", 5),
        ("quorum", "x-queue-mode", "lazy"),
        ("quorum", "x-max-age", "1h"),
        ("stream", "x-message-ttl", 5),
        ("stream", "x-dead-letter-exchange", "x"),
        ("classic", "x-max-age", "1h"),
        ("classic", "x-initial-cluster-size", 3),
    ],
)
def test_arguments_of_other_types(kind: str, name: str, value: Any) -> None:
    with refusal(
        ReplyCode.PRECONDITION_FAILED,
        f"invalid arg '{name}' for queue 'q' in vhost '/' of queue type {kind}",
    ):
        check({"x-queue-type": kind, name: value}, durable=True)


@pytest.mark.parametrize("kind", ["quorum", "stream"])
@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({}, "non-durable"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"exclusive": True}, "exclusive-owner"),
    ],
)
def test_replicated_types_are_durable_and_shared(
    kind: str, properties: dict[str, bool], name: str
) -> None:
    with refusal(
        ReplyCode.PRECONDITION_FAILED, f"invalid property '{name}' for queue 'q' in vhost '/'"
    ):
        check({"x-queue-type": kind}, **properties)


def test_what_celery_kombu_and_others_declare_is_accepted() -> None:
    check({"x-expires": 60000, "x-message-ttl": 60000}, auto_delete=True)
    check({"x-max-priority": 10, "x-queue-mode": "lazy", "x-queue-version": 1}, durable=True)
    check({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "r"})
    check({"x-unknown": "kept", "anything": [1, {"a": None}]})
    check({"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 5}, durable=True)
    check({"x-queue-type": "quorum", "x-delivery-limit": -1, "x-message-ttl": 1}, durable=True)


@given(tables, st.booleans())
def test_any_table_is_accepted_or_refused(table: FieldTable, durable: bool) -> None:
    names = ["x-expires", "x-queue-type", "x-overflow", "x-max-age", "x-dead-letter-routing-key"]
    renamed = {names[at % 5]: value for at, value in enumerate(table.values())}
    for arguments in (table, renamed):
        try:
            check_queue_declaration("q", QueueProperties(durable, arguments=arguments), "/")
        except AmqpError:
            continue
        resolve_settings(QueueProperties(durable, arguments=arguments), {})


@pytest.mark.parametrize(
    ("text", "age_ms"),
    [("1s", 1000), ("2m", 120_000), ("3h", 10_800_000), ("1D", 86_400_000), ("1M", 30 * 86_400_000), ("1Y", 365 * 86_400_000), ("0s", None), ("1", None), ("h", None), ("1w", None), ("-1s", None), ("1ss", None)],
)  # fmt: skip
def test_ages(text: str, age_ms: int | None) -> None:
    assert parse_max_age(text) == age_ms


@pytest.mark.parametrize(
    ("value", "offset"),
    [
        (None, StreamOffset(StreamStart.NEXT)),
        (("S", "first"), StreamOffset(StreamStart.FIRST)),
        (("S", "last"), StreamOffset(StreamStart.LAST)),
        (("l", 5), StreamOffset(StreamStart.OFFSET, 5)),
        (("T", 5), StreamOffset(StreamStart.TIMESTAMP, 5000)),
        (("S", "1h"), StreamOffset(StreamStart.INTERVAL, 3_600_000)),
        (("S", "yesterday"), None),
        (("l", -1), None),
        (("t", True), None),
    ],
)
def test_stream_offsets(value: Any, offset: StreamOffset | None) -> None:
    assert parse_stream_offset(value) == offset


def test_consumer_arguments() -> None:
    check_consumer_arguments(
        "q", QueueType.CLASSIC, as_table({"x-priority": -5, "x-other": 1}), "/"
    )
    check_consumer_arguments("q", QueueType.STREAM, as_table({"x-stream-offset": "first"}), "/")
    with pytest.raises(AmqpError, match=r"invalid_stream_offset_arg"):
        check_consumer_arguments("q", QueueType.STREAM, as_table({"x-stream-offset": "?"}), "/")


def test_settings_combine_arguments_and_policies() -> None:
    arguments = as_table({"x-message-ttl": 50, "x-max-length": 10, "x-overflow": "reject-publish"})
    policy = {
        "message-ttl": 100,
        "max-length": 5,
        "overflow": "drop-head",
        "dead-letter-exchange": "dlx",
        "max-priority": 3,
    }
    settings = resolve_settings(QueueProperties(arguments=arguments), policy)
    assert settings.message_ttl_ms == 50
    assert settings.limits == (5, None, Overflow.REJECT_PUBLISH)
    assert settings.dead_letter_exchange == "dlx"
    assert settings.max_priority == 3
    assert settings.delivery_limit is None


@pytest.mark.parametrize(("argument", "limit"), [(None, 20), (5, 5), (-1, None)])
def test_quorum_queues_have_a_delivery_limit(argument: int | None, limit: int | None) -> None:
    table = {"x-queue-type": "quorum"} | (
        {} if argument is None else {"x-delivery-limit": argument}
    )
    assert (
        resolve_settings(
            QueueProperties(durable=True, arguments=as_table(table)), {}
        ).delivery_limit
        == limit
    )
