"""What is to be read is settled once."""

import json

import pytest

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.survey import Ranges, ask, offsets_json

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_ranges_become_options_of_the_source() -> None:
    ranges = Ranges("c", {B0: 0, A1: 5, A0: 2}, {A0: 4, A1: 5, B0: 10})
    options = ranges.source_options("h:1")
    assert ranges.offsets == 12
    assert json.loads(options["assign"]) == {"a": [0, 1], "b": [0]}
    assert json.loads(options["startingOffsets"]) == {"a": {"0": 2, "1": 5}, "b": {"0": 0}}
    assert json.loads(options["endingOffsets"]) == {"a": {"0": 4, "1": 5}, "b": {"0": 10}}


def test_an_end_before_the_start_is_nothing_to_read() -> None:
    assert Ranges("c", {A0: 9}, {A0: 4}).offsets == 0


def test_nothing_is_read_from_beyond_the_end() -> None:
    """A time may lead into an open transaction."""
    ranges = Ranges("c", {A0: 9, A1: 2}, {A0: 4, A1: 4})
    assert ranges.readable_first == {A0: 4, A1: 2}


def test_offsets_are_written_as_spark_writes_them() -> None:
    assert offsets_json({A0: 1}) == '{"a": {"0": 1}}'


def test_an_address_that_makes_no_sense_is_named() -> None:
    async def nothing(_: object) -> None:
        raise AssertionError("it is never asked")

    with pytest.raises(JobError, match="--bootstrap: "):
        ask("nowhere:port", nothing)


def test_what_goes_wrong_in_a_question_is_no_fault_of_the_address() -> None:
    async def broken(_: object) -> None:
        raise ValueError("another")

    with pytest.raises(ValueError, match=r"^another$"):
        ask("127.0.0.1:1", broken)
