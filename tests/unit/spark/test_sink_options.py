"""What the sink takes is Spark's; what it refuses, it names."""

import pytest

from penstock.spark.sink_options import SinkError, plan_sink, producer_settings

BROKER = {"kafka.bootstrap.servers": "h:9092"}
HEADERS = "array<struct<key:string,value:binary>>"


def test_a_value_and_a_topic_are_enough() -> None:
    plan = plan_sink({"value": "string"}, {**BROKER, "topic": " t "})
    assert (plan.topic, plan.columns) == ("t", ("value",))


def test_the_option_overrides_the_column() -> None:
    types = {"topic": "string", "key": "binary", "value": "binary", "partition": "int"}
    assert plan_sink(types, BROKER).columns == ("topic", "key", "value", "partition")
    assert plan_sink(types, {**BROKER, "Topic": "t"}).columns == ("key", "value", "partition")
    assert plan_sink({**types, "topic": "int"}, {**BROKER, "topic": "t"}).topic == "t"


def test_columns_of_a_source_that_mean_nothing_to_a_sink_are_ignored() -> None:
    types = {"value": "binary", "offset": "bigint", "timestamp": "timestamp", "headers": HEADERS}
    assert plan_sink(types, {**BROKER, "topic": "t"}).columns == ("value", "headers")


@pytest.mark.parametrize(
    ("types", "options", "said"),
    [
        ({"value": "string"}, {}, "no topic to write to; give the option topic, or a column"),
        ({"value": "string"}, {"topic": " "}, "option topic is empty"),
        ({"v": "string"}, {"topic": "t"}, "no column named value; the columns are v"),
        ({"value": "int"}, {"topic": "t"}, "column value is int, and must be string or binary"),
        ({"value": "string", "topic": "int"}, {}, "column topic is int, and must be string"),
        (
            {"value": "string", "partition": "bigint"},
            {"topic": "t"},
            "column partition is bigint, and must be int",
        ),
        (
            {"value": "string", "headers": "map<string,string>"},
            {"topic": "t"},
            r"column headers is map<string,string>, and must be array<struct<key",
        ),
        ({"value": "string"}, {"topics": "t"}, "option topics is not .*; did you mean topic"),
        (
            {"value": "string"},
            {"subscribe": "t"},
            "option subscribe is not one of the penstock sink",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_with_its_name(
    types: dict[str, str], options: dict[str, str], said: str
) -> None:
    with pytest.raises(SinkError, match=said):
        plan_sink(types, {**BROKER, **options})


def test_options_that_spark_adds_are_accepted() -> None:
    plan_sink({"value": "string"}, {**BROKER, "topic": "t", "checkpointLocation": "/x"})


@pytest.mark.parametrize(
    "name",
    [
        "key.serializer",
        "value.serializer",
        "transactional.id",
        "partitioner.class",
        "sasl.jaas.config",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.truststore.location",
        "auto.offset.reset",
        "group.id",
        "isolation.level",
        "on_delivery",
    ],
)
def test_producer_settings_that_cannot_be_honoured_are_refused(name: str) -> None:
    with pytest.raises(SinkError, match=f"option kafka.{name} is not supported: "):
        producer_settings({**BROKER, f"kafka.{name}": "x"})


def test_a_missing_broker_address_is_named() -> None:
    with pytest.raises(SinkError, match=r"kafka\.bootstrap\.servers is missing"):
        producer_settings({})


def test_the_producer_is_idempotent_unless_told_otherwise() -> None:
    assert producer_settings(BROKER)["enable.idempotence"] is True
    assert producer_settings({**BROKER, "kafka.acks": "1"})["enable.idempotence"] is False
    assert producer_settings({**BROKER, "kafka.acks": "-1"})["enable.idempotence"] is True
    told = producer_settings({**BROKER, "kafka.enable.idempotence": "false"})
    assert told["enable.idempotence"] == "false"


def test_javas_names_become_librdkafkas() -> None:
    found = producer_settings(
        {
            **BROKER,
            "kafka.max.request.size": "2000000",
            "kafka.buffer.memory": "33554432",
            "kafka.max.block.ms": "1",
            "kafka.linger.ms": "5",
        }
    )
    assert found["message.max.bytes"] == "2000000"
    assert found["queue.buffering.max.kbytes"] == 32768
    assert found["linger.ms"] == "5"
    assert not {"max.block.ms", "buffer.memory", "max.request.size"} & set(found)


def test_how_long_to_look_for_a_broker_is_javas_setting() -> None:
    options = {**BROKER, "topic": "t"}
    assert plan_sink({"value": "string"}, options).reach_ms == 10_000
    options["kafka.max.block.ms"] = " 2500 "
    assert plan_sink({"value": "string"}, options).reach_ms == 2500
    options["kafka.max.block.ms"] = str(2**63 - 1)  # Java's for ever
    assert plan_sink({"value": "string"}, options).reach_ms == 2**31 - 1
    options["kafka.max.block.ms"] = "soon"
    with pytest.raises(SinkError, match=r"kafka\.max\.block\.ms: expected a number of millisec"):
        plan_sink({"value": "string"}, options)


def test_what_only_tunes_javas_client_is_told_as_ignored() -> None:
    options = {**BROKER, "topic": "t", "kafka.metrics.num.samples": "3", "kafka.linger.ms": "5"}
    plan = plan_sink({"value": "string"}, options)
    assert plan.ignored == ("kafka.metrics.num.samples",)
    assert "metrics.num.samples" not in plan.producer


def test_a_wrong_buffer_size_is_named() -> None:
    with pytest.raises(SinkError, match=r"kafka\.buffer\.memory: expected a number of bytes"):
        producer_settings({**BROKER, "kafka.buffer.memory": "lots"})
