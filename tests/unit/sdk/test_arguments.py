"""Wrong arguments are refused at once, by the name they were given, with what to give instead. No broker is needed."""

import logging
import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from penstock import AsyncProducer, Consumer, Producer
from penstock.sdk import checks, database, sending
from penstock.sdk.errors import ConfigurationError, PenstockError, SerializationError
from penstock.sdk.librdkafka import ClosedClient, Repeats
from penstock.sdk.positions import epoch_ms
from penstock.sdk.processing import Options
from penstock.sdk.serializers import serialize, serializer
from penstock.sdk.settings import Role, in_our_words, translate

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rate_limit": 0}, "rate_limit=0; give messages a second, above 0, or None"),
        ({"rate_limit": "fast"}, "rate_limit='fast'; give a number of at least 0"),
        ({"max_block_ms": "soon"}, "max_block_ms='soon'; give a number of at least 0"),
        ({"max_block_ms": -1}, "max_block_ms=-1; give a number of at least 0"),
        ({"acks": 7}, "acks=7; give 'all', 1 or 0"),
        ({"buffer_memory": 0}, "buffer_memory=0; give a number above 0"),
        ({"key_serializer": 3}, "a serializer cannot be 3; give a function"),
        ({"split_large": True, "max_request_size": 1000}, "max_request_size=1000 leaves no room"),
        ({"compression_type": "zst"}, "Invalid value 'zst' for compression_type;"),
        ({"linger_ms": "abc"}, "Invalid value for linger_ms;"),
        ({"batch_size": 0}, "batch_size value 0 is outside allowed range"),
        ({"max_in_flight_requests": 9}, "max_in_flight_requests must be set <= 5"),
        ({"bootstrap_servers": "x"}, "it is called bootstrap, the first argument"),
        ({"auto_offset_reset": "x"}, "'auto_offset_reset' is a setting of a consumer"),
        ({"value_deserializer": "json"}, "did you mean 'value_serializer'?"),
    ],
)
def test_a_producer_refuses_what_cannot_work(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Producer(NOWHERE, **settings)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("bootstrap", ["", " ", None, ["127.0.0.1:1"]])
def test_a_bootstrap_that_names_no_broker_is_refused(bootstrap: Any) -> None:
    for make in (Producer, AsyncProducer, lambda given: Consumer(given, "t")):
        with pytest.raises(ConfigurationError, match="give 'HOST:PORT', or several with commas"):
            make(bootstrap)


@pytest.mark.parametrize(
    ("topics", "settings", "said"),
    [
        ([], {}, "topics=[]; give the name of a topic, or a list of names"),
        (None, {}, "topics=None; give"),
        (["t", 5], {}, "topics=5; give"),
        ("t", {"group_id": ""}, "group_id=''; give a name, or leave it out"),
        ("t", {"max_poll_records": 0}, "max_poll_records=0; give a number of at least 1"),
        ("t", {"max_poll_records": "many"}, "max_poll_records='many'; give a whole number"),
        ("t", {"auto_commit_interval_ms": "x"}, "auto_commit_interval_ms='x'; give a number"),
        ("t", {"enable_auto_commit": "no"}, "enable_auto_commit='no'; give True or False"),
        ("t", {"auto_offset_reset": [1]}, "[1] is no time; give a datetime, or milliseconds"),
        ("t", {"on_assign": 5}, "on_assign cannot be 5; give a function"),
        ("t", {"value_deserializer": 4}, "a deserializer cannot be 4; give a function"),
        ("t", {"isolation_level": "all"}, "Invalid value 'all' for isolation_level;"),
        ("t", {"rate_limit": 5}, "'rate_limit' is a setting of a producer, not of a consumer"),
    ],
)
def test_a_consumer_refuses_what_cannot_work(
    topics: Any, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Consumer(NOWHERE, topics, **{"group_id": "g", **settings})
    assert said in str(refused.value)


GOOD: dict[str, Any] = {
    "workers": 1,
    "order": "key",
    "retries": 0,
    "backoff": 0.1,
    "dead_letter": None,
    "retry_topics": None,
    "max_in_flight": 1,
    "drain_timeout_s": 1.0,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", 0),
        ("workers", "a"),
        ("workers", 1.5),
        ("retries", -1),
        ("max_in_flight", 0),
        ("order", "keys"),
        ("backoff", "slow"),
        ("backoff", -1),
        ("backoff", (1, "x")),
        ("dead_letter", 5),
        ("dead_letter", "orders"),  # the topic that is read
        ("retry_topics", "10"),
        ("retry_topics", ()),
        ("retry_topics", (1, -1)),
        ("drain_timeout_s", None),
    ],
)
def test_run_refuses_what_cannot_work(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name.removesuffix("_s")) as refused:
        Options.of(["orders"], **{**GOOD, name: value})
    assert refused.value.remedy


def test_delays_alone_make_retry_topics() -> None:
    options = Options.of(["orders"], **{**GOOD, "retry_topics": [1, 5]})
    assert options.retry_topics is not None
    assert options.retry_topics.names("orders") == ["orders.retry.1", "orders.retry.2"]


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        ({"topic": 5}, ConfigurationError, "topic=5; give the name of a topic"),
        ({"topic": ""}, ConfigurationError, "topic=''; give the name of a topic"),
        ({"partition": "a"}, ConfigurationError, "partition='a'; give a number, or None"),
        ({"timestamp": "now"}, ConfigurationError, "give milliseconds since 1970, or a datetime"),
        ({"value": {}}, SerializationError, "the value is of type dict; give bytes or str"),
        ({"key": 5}, SerializationError, "the key is of type int; give bytes or str, or a key_"),
        ({"headers": {"a": 5}}, SerializationError, "headers are a dict, or a list of"),
        ({"headers": [("a",)]}, SerializationError, "headers are a dict, or a list of"),
        ({"value": "é" * 600_000}, PenstockError, "a message of 1200000 bytes; max_request_size"),
    ],
)
def test_send_says_which_argument_is_wrong(
    message: dict[str, Any], kind: type[PenstockError], said: str
) -> None:
    producer = Producer(NOWHERE, librdkafka={"log_level": 0})
    with pytest.raises(kind) as refused:
        producer.send(**{"topic": "t", "value": b"", **message})
    assert said in str(refused.value)
    producer.close(0.0)


def test_a_serializer_has_to_return_bytes() -> None:
    with pytest.raises(SerializationError, match="value_serializer made list of int"):
        serialize(lambda value: [value], 5, "value")  # type: ignore[arg-type, return-value]  # on purpose
    to_json = serializer("json")
    assert to_json is not None
    with pytest.raises(SerializationError, match="not JSON compliant"):
        serialize(to_json, float("nan"), "value")


def test_a_setting_is_named_as_it_was_given() -> None:
    assert in_our_words('value "x" of "no.such.property"\n') == "value 'x' of 'no.such.property'"
    assert translate(Role.PRODUCER, {"acks": "1"}) == {"acks": "1"}


@pytest.mark.parametrize("value", [True, "1", None])
def test_what_is_no_number_is_no_number(value: Any) -> None:
    with pytest.raises(ConfigurationError):
        checks.number("x", value, at_least=0)
    with pytest.raises(ConfigurationError):
        epoch_ms(value)


def test_a_datetime_is_a_time() -> None:
    assert epoch_ms(datetime.fromtimestamp(1.5)) == 1500


@pytest.mark.parametrize(
    ("connect", "is_refused"),
    [
        (lambda: sqlite3.connect(":memory:", isolation_level=None), True),
        (lambda: sqlite3.connect(":memory:"), False),
    ],
)
def test_a_connection_that_commits_by_itself_is_refused(
    connect: Callable[[], sqlite3.Connection], is_refused: bool
) -> None:
    connection = connect()
    if is_refused:
        with pytest.raises(ConfigurationError, match="turn autocommit off"):
            database.refuse_autocommit(connection)
    else:
        database.refuse_autocommit(connection)
    connection.close()


def test_any_driver_can_say_that_it_commits_by_itself() -> None:
    class Connection:
        autocommit = True

    with pytest.raises(ConfigurationError, match="commits after each statement"):
        database.refuse_autocommit(Connection())


def test_the_same_complaint_is_logged_once_in_a_while() -> None:
    quiet = Repeats(quiet_s=10.0)

    def passes(text: str, at_s: float) -> bool:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, text, (), None)
        record.created = at_s
        return quiet.filter(record)

    assert [passes("refused", at_s) for at_s in (100.0, 101.0, 109.9, 110.0, 111.0)] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert passes("another", 101.0)


def test_a_closed_client_says_so() -> None:
    with pytest.raises(PenstockError, match="this consumer is closed; make a new one"):
        ClosedClient("consumer").assignment()


def test_a_part_leaves_room_for_what_is_around_it() -> None:
    assert sending.split_size(1025) == 1
