"""Python's names reach librdkafka under its own; what is unknown is refused with a better name."""

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.errors import ConfigurationError
from penstock.sdk.settings import Role, known, translate

NAMES_OF_THE_ISSUE = {
    "acks": "all",
    "batch_size": 16_384,
    "linger_ms": 5,
    "buffer_memory": 33_554_432,
    "compression_type": "lz4",
    "retries": 3,
    "retry_backoff_ms": 100,
    "request_timeout_ms": 30_000,
    "max_in_flight_requests": 5,
    "enable_idempotence": True,
    "transactional_id": "t",
}


def test_the_names_that_java_knows_are_taken() -> None:
    made = translate(Role.PRODUCER, NAMES_OF_THE_ISSUE)
    assert made["queue.buffering.max.kbytes"] == 32_768
    assert made["max.in.flight.requests.per.connection"] == 5
    confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **made})


@pytest.mark.parametrize("role", Role)
def test_librdkafka_knows_every_property_of_the_table(role: Role) -> None:
    make = confluent_kafka.Producer if role is Role.PRODUCER else confluent_kafka.Consumer
    for name in known(role):
        target = next(iter(translate(role, {name: 1})))
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            make({"group.id": "g", target: "1", "no.such.property": "1"})  # so that nothing starts
        assert f'No such configuration property: "{target}"' not in str(refused.value), name


@pytest.mark.parametrize(
    ("given_name", "near"),
    [
        ("linger", "linger_ms"),
        ("ack", "acks"),
        ("batch.size", "batch_size"),
        ("compresion_type", "compression_type"),
        ("bufer_memory", "buffer_memory"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(given_name: str, near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"did you mean {near!r}"):
        translate(Role.PRODUCER, {given_name: 1})


def test_a_setting_of_the_other_side_is_said_to_be_so() -> None:
    with pytest.raises(ConfigurationError, match="is a setting of a consumer, not of a producer"):
        translate(Role.PRODUCER, {"fetch_min_bytes": 1})


def test_two_names_of_one_setting_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="are the same setting"):
        translate(Role.PRODUCER, {"max_request_size": 1, "message_max_bytes": 2})


def test_a_number_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="buffer_memory='much'"):
        translate(Role.PRODUCER, {"buffer_memory": "much"})


@given(st.text(max_size=30))
def test_any_name_is_either_known_or_refused_with_a_sentence(name: str) -> None:
    for role in Role:
        if name not in known(role):
            with pytest.raises(ConfigurationError, match="setting"):
                translate(role, {name: 1})
