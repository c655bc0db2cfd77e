"""Every option of the source is read as Spark's own source reads it, or refused by its name."""

import pytest

from penstock.model.ids import TopicPartition
from penstock.spark import kafka_options
from penstock.spark.options import (
    COLUMNS,
    RAW_COLUMNS,
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    End,
    OptionError,
    Pattern,
    Shape,
    Subscribe,
    parse_batch,
    parse_shape,
    parse_stream,
)

BASE = {"kafka.bootstrap.servers": "host:9092", "subscribe": "t"}
T0 = TopicPartition("t", 0)


def refused(parse: object, **options: str) -> str:
    given = {**BASE, **{name.replace("__", "."): value for name, value in options.items()}}
    with pytest.raises(OptionError) as caught:
        parse(given)  # type: ignore[operator]  # one of the three parsers
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_little_is_needed_and_the_rest_has_sparks_defaults() -> None:
    batch, stream = parse_batch(BASE), parse_stream(BASE)

    assert (batch.starting, batch.ending) == (End.EARLIEST, End.LATEST)
    assert stream.starting is End.LATEST
    assert batch.subscription == Subscribe(("t",))
    assert batch.fetching.bootstrap == "host:9092"
    assert batch.fetching.fail_on_data_loss
    assert not batch.fetching.read_committed
    assert stream.max_trigger_delay_ms == 15 * 60_000
    assert stream.max_offsets_per_trigger is stream.min_offsets_per_trigger is None
    assert (batch.fetching.offset_attempts, batch.fetching.poll_timeout_ms) == (3, 120_000)
    assert stream.group is None
    assert stream.ignored == ()


def test_names_are_read_in_any_case() -> None:
    options = {"KAFKA.Bootstrap.Servers": "h:1", "SubscribePattern": "a.*", "MINPARTITIONS": "7"}

    parsed = parse_batch(options)

    assert parsed.subscription == Pattern("a.*")
    assert parsed.min_partitions == 7


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("subscribe", " a, b ,,a", Subscribe(("a", "b"))),
        ("subscribePattern", "orders-\\d+", Pattern("orders-\\d+")),
        (
            "assign",
            '{"t":[1,0],"u":[2]}',
            Assign((T0, TopicPartition("t", 1), TopicPartition("u", 2))),
        ),
    ],
)
def test_topics_are_named_in_three_ways(name: str, value: str, expected: object) -> None:
    assert parse_batch({"kafka.bootstrap.servers": "h", name: value}).subscription == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "one of the options assign, subscribe, subscribePattern must be given"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "only one of the options"),
        ({"subscribe": " , "}, "option subscribe: it names no topic"),
        ({"subscribePattern": " "}, "option subscribePattern: it is empty"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"assign": "t"}, "option assign: expected JSON such as"),
        ({"assign": "{}"}, "it names no partition"),
        ({"assign": '{"t":["x"]}'}, "expected JSON such as"),
    ],
)
def test_topics_are_named_in_exactly_one_way(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says.replace("(", "\\(")):
        parse_batch({"kafka.bootstrap.servers": "h", **options})


def test_a_broker_must_be_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_batch({"subscribe": "t"})


@pytest.mark.parametrize("parse", [parse_batch, parse_stream])
def test_one_timestamp_comes_before_those_of_partitions_and_they_before_offsets(
    parse: object,
) -> None:
    options = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"t":{"0":5}}',
        "startingTimestamp": "7",
    }

    limits = []
    for name in ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"):
        limits.append(parse({**BASE, **options}).starting)  # type: ignore[operator]  # a parser
        del options[name]

    assert limits == [AtTimestamp(7), AtTimestamps({T0: 5}), End.EARLIEST]


@pytest.mark.parametrize("number", [-3, -4, -(2**63)])
@pytest.mark.parametrize("parse", [parse_batch, parse_stream])
def test_an_offset_below_those_that_mean_an_end_is_refused_by_name(
    parse: object, number: int
) -> None:
    assert refused(parse, startingOffsets=f'{{"t":{{"0":{number}}}}}') == (
        f"option startingOffsets: expected an offset, -1 (latest) or -2 (earliest) for t-0, not {number}"
    )


def test_what_no_end_can_be_is_refused_by_name() -> None:
    assert "option endingOffsets: expected an offset" in refused(
        parse_batch, endingOffsets='{"t":{"0":-3}}'
    )
    for name in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        said = refused(parse_batch, **{name: '{"t":{"0":-1}}'})
        assert said == f"option {name}: expected milliseconds since 1970 for t-0, not -1"


def test_ends_have_the_same_precedence() -> None:
    options = {
        "endingOffsets": '{"t":{"0":9}}',
        "endingOffsetsByTimestamp": '{"t":{"0":5}}',
        "endingTimestamp": "7",
    }

    limits = []
    for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"):
        limits.append(parse_batch({**BASE, **options}).ending)
        del options[name]

    assert limits == [AtTimestamp(7), AtTimestamps({T0: 5}), AtOffsets({T0: 9})]


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert name in refused(parse_stream, **{name: "latest"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets cannot be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets cannot be earliest"),
        ({"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":3}}'}, "t-0"),
        ({"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"u":{"0":9}}'}, "same partitions"),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":9}}',
                "endingOffsetsByTimestamp": '{"t":{"0":3}}',
            },
            "startingOffsetsByTimestamp of t-0",
        ),
        ({"startingOffsets": "soon"}, "option startingOffsets: expected JSON"),
        ({"startingTimestamp": "soon"}, "option startingTimestamp: expected an integer"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "expected latest or error"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(options: dict[str, str], says: str) -> None:
    assert says in refused(parse_batch, **options)


def test_a_batch_may_end_at_latest_for_some_partitions() -> None:
    given = {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":-1}}'}

    assert parse_batch({**BASE, **given}).ending == AtOffsets({T0: -1})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("failOnDataLoss", "yes", "expected true or false"),
        ("includeHeaders", "1", "expected true or false"),
        ("minPartitions", "0", "must be positive"),
        ("maxRecordsPerPartition", "-1", "must be positive"),
        ("maxOffsetsPerTrigger", "many", "expected an integer"),
        ("maxTriggerDelay", "soon", "expected a duration"),
        ("partition.metadata.cache.ttl.ms", "0", "must be positive"),
        ("fetchOffset.numRetries", "x", "expected an integer"),
        ("kafkaConsumer.pollTimeoutMs", "-5", "must be positive"),
        ("kafka.isolation.level", "dirty", "expected read_committed or read_uncommitted"),
        ("mode", "fast", "expected rawbatches or records"),
    ],
)
def test_a_value_that_cannot_be_read_names_its_option(name: str, value: str, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_stream({**BASE, name: value})

    assert str(caught.value).startswith(f"option {name}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("15m", 900_000),
        ("30s", 30_000),
        ("250", 250),
        ("250ms", 250),
        ("2min", 120_000),
        ("1h", 3_600_000),
    ],
)
def test_durations_have_units(text: str, expected_ms: int) -> None:
    assert parse_stream({**BASE, "maxTriggerDelay": text}).max_trigger_delay_ms == expected_ms


def test_a_least_above_the_most_is_refused() -> None:
    said = refused(parse_stream, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="5")

    assert "minOffsetsPerTrigger (10) is higher than maxOffsetsPerTrigger (5)" in said


def test_limits_of_a_stream_have_no_effect_on_a_batch_and_that_is_said() -> None:
    assert parse_batch({**BASE, "maxOffsetsPerTrigger": "5"}).ignored == ("maxOffsetsPerTrigger",)


def test_a_misspelt_option_is_refused_with_the_one_that_was_meant() -> None:
    said = refused(parse_stream, startingOffset="earliest")

    assert said.endswith("did you mean startingOffsets?")


@pytest.mark.parametrize(
    "name",
    ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"],
)  # fmt: skip
def test_what_sparks_source_refuses_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"option kafka.{name} is not supported: "):
        parse_stream({**BASE, f"kafka.{name}": "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("security.protocol", "SASL_SSL"),
        ("ssl.truststore.location", "f"),
        ("sasl.mechanism", "PLAIN"),
        ("security.providers", "p"),
        ("made.up", "x"),
    ],
)
def test_security_that_is_not_there_and_unknown_settings_are_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"option kafka.{name}.* is not supported: "):
        parse_stream({**BASE, f"kafka.{name}": value})


def test_a_secret_is_not_repeated() -> None:
    assert "hunter2" not in refused(parse_batch, kafka__sasl__jaas__config="password=hunter2")


def test_plaintext_is_what_is_spoken() -> None:
    assert parse_stream({**BASE, "kafka.security.protocol": "plaintext"}).ignored == ()


@pytest.mark.parametrize("name", sorted(kafka_options.WITHOUT_EFFECT))
def test_tuning_of_another_client_is_accepted_and_named(name: str) -> None:
    assert parse_stream({**BASE, f"kafka.{name}": "1"}).ignored == (f"kafka.{name}",)


def test_settings_of_fetches_are_honoured() -> None:
    fetching = parse_batch(
        {
            **BASE,
            "kafka.isolation.level": "READ_COMMITTED",
            "kafka.fetch.max.bytes": "2000000",
            "kafka.max.partition.fetch.bytes": "1000000",
            "kafka.client.id": "me",
            "kafka.client.rack": "east",
            "kafka.request.timeout.ms": "5000",
            "kafka.receive.buffer.bytes": "-1",
            "failOnDataLoss": "FALSE",
        }
    ).fetching

    assert fetching.read_committed
    assert not fetching.fail_on_data_loss
    assert fetching.fetch_bytes == 1_000_000
    assert (fetching.client_id, fetching.rack) == ("me", "east")
    assert fetching.request_timeout_ms == 5000
    assert fetching.receive_buffer_bytes is None


def test_progress_is_published_only_under_a_name_that_is_given() -> None:
    assert parse_stream({**BASE, "kafka.group.id": "g"}).group == "g"
    assert parse_stream({**BASE, "groupId": "h", "kafka.group.id": "g"}).group == "h"
    prefixed = parse_stream({**BASE, "groupIdPrefix": "p"}).group
    assert prefixed == parse_stream({**BASE, "groupIdPrefix": "p"}).group
    assert prefixed is not None
    assert prefixed.startswith("p-")
    assert prefixed != parse_stream({**BASE, "subscribe": "u", "groupIdPrefix": "p"}).group


def test_a_prefix_beside_a_name_has_no_effect() -> None:
    parsed = parse_stream({**BASE, "kafka.group.id": "g", "groupIdPrefix": "p"})

    assert (parsed.group, parsed.ignored) == ("g", ("groupIdPrefix",))


def test_the_columns_are_those_of_spark_unless_some_are_chosen() -> None:
    assert parse_shape(BASE) == Shape(False, COLUMNS)
    assert parse_shape({**BASE, "includeHeaders": "true"}).columns == (*COLUMNS, "headers")
    assert parse_shape({**BASE, "columns": "offset, value"}).columns == ("offset", "value")
    assert parse_shape({**BASE, "mode": "rawBatches"}) == Shape(True, RAW_COLUMNS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"columns": "value,price"}, "there is no column 'price'"),
        ({"columns": "value,value"}, "names a column twice"),
        ({"mode": "rawbatches", "columns": "value"}, "there is no column 'value'"),
        ({"mode": "rawbatches", "includeHeaders": "true"}, "includeHeaders has no meaning"),
    ],
)
def test_columns_that_are_not_there_are_refused(options: dict[str, str], says: str) -> None:
    assert says in refused(parse_shape, **options)
    assert says in refused(parse_batch, **options)
