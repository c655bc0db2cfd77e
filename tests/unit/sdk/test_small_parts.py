"""Partitioners, rate limits, rates, serializers, tracing and errors: each small, each exact."""

import json
import pickle
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Producer
from penstock.sdk import errors, serializers
from penstock.sdk.metrics import ConsumerMetrics, Rate, Statistics
from penstock.sdk.partitioners import builtin_hash, murmur2, partition_of, round_robin
from penstock.sdk.rate_limit import TokenBucket

JAVA_MURMUR2 = {  # org.apache.kafka.common.utils.UtilsTest
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA_MURMUR2)
def test_keys_hash_as_in_java(key: bytes) -> None:
    assert murmur2(key) == JAVA_MURMUR2[key] & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_key_always_goes_to_one_existing_partition(key: bytes, count: int) -> None:
    assert 0 <= partition_of(key, count) < count
    assert round_robin()(key, count) == partition_of(key, count)


@given(st.binary(min_size=1, max_size=40), st.integers(1, 1000))
def test_a_split_value_goes_where_librdkafka_puts_its_key(key: bytes, count: int) -> None:
    for name, theirs in (
        ("murmur2_random", confluent_kafka.murmur2),
        ("consistent_random", confluent_kafka.consistent),
        ("fnv1a_random", confluent_kafka.fnv1a),
    ):
        ours = builtin_hash(name, key)
        assert ours is not None
        assert ours % count == theirs(key, count)


def test_messages_without_a_key_take_turns() -> None:
    choose = round_robin()
    assert [choose(None, 3) for _ in range(5)] == [0, 1, 2, 0, 1]


@given(st.floats(0.5, 1000), st.lists(st.floats(0, 0.5), max_size=200))
def test_a_rate_limit_is_never_exceeded_over_the_whole_run(
    rate: float, idle_s: list[float]
) -> None:
    bucket = TokenBucket(rate, burst=1)
    now_s = 0.0
    for pause_s in idle_s:
        now_s += pause_s
        now_s += bucket.take(now_s)
    assert len(idle_s) <= 1 + rate * now_s + 1e-6


def test_a_rate_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        TokenBucket(0)


def test_a_rate_is_growth_over_the_window() -> None:
    rate = Rate(0.0, window_s=10)
    assert rate.read(100, 10.0) == 10.0
    assert rate.read(100, 20.0) == pytest.approx(0.0)


def test_statistics_are_parsed_when_asked_for() -> None:
    statistics = Statistics()
    assert statistics.latency_ms() == 0.0
    statistics(
        json.dumps(
            {
                "brokers": {
                    "a": {"rtt": {"cnt": 2, "sum": 6000}},
                    "b": {"rtt": {"cnt": 2, "sum": 2000}},
                }
            }
        )
    )
    assert statistics.latency_ms() == 2.0


def test_prometheus_text_escapes_the_client_and_has_every_metric() -> None:
    text = ConsumerMetrics(
        'a"b', Statistics(), SimpleNamespace(received=1), lambda: {("t", 0): 3, ("t", 1): 4}
    ).prometheus()
    assert 'penstock_consumer_lag{client_id="a\\"b"} 7\n' in text
    assert text.count("# TYPE") == 7


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_json_comes_back_as_it_was(value: Any) -> None:
    read = serializers.deserializer("json")
    assert read is not None
    assert read(serializers.to_json(value)) == value


def test_a_tombstone_stays_one() -> None:
    assert serializers.serialize(serializers.to_json, None, "value") is None
    assert serializers.deserialize(json.loads, None, "value", "t-0@1") is None


def test_what_cannot_be_serialized_is_named() -> None:
    with pytest.raises(errors.SerializationError, match="value of type set"):
        serializers.serialize(serializers.to_json, {1}, "value")
    with pytest.raises(errors.DeserializationError, match="key of 1 bytes"):
        serializers.deserialize(json.loads, b"{", "key", "t-0@1")
    with pytest.raises(errors.ConfigurationError, match="no serializer is called 'avro'"):
        serializers.serializer("avro")


def test_errors_say_whether_to_try_again_and_survive_a_process_boundary() -> None:
    error = errors.BufferExhausted("full", code=-184)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.retriable, copy.code) == (
        errors.BufferExhausted,
        str(error),
        True,
        -184,
    )
    assert not errors.MessageTooLarge("big").retriable


def test_all_parts_of_a_value_with_a_key_name_one_partition() -> None:
    """A partition may be added between two of them."""
    producer = Producer("127.0.0.1:1", split_large=True, max_request_size=2000)
    chosen: list[int] = []
    counts = iter([6, 60, 600])
    producer.partition_count = lambda _: next(counts)  # type: ignore[method-assign, assignment]
    producer._produce = lambda *given, **_: chosen.append(given[3])
    producer.send("films", bytes(5000), key="a-long-one")
    producer.close(0.0)
    assert chosen == [partition_of(b"a-long-one", 6)] * 6
