"""Options of `lake` that exclude each other are rejected; derived values are always the same."""

from typing import Any

import pytest

from penstock.spark.jobs.lake.options import LakeOptions


def options(**given: Any) -> LakeOptions:
    return LakeOptions(**{"topics": ("orders",), "table": "/lake/orders", **given})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"topics": ()}, "needs a TOPIC"),
        ({"name": "../x"}, "--name"),
        ({"schema": "a INT"}, "need --decode"),
        ({"evolve": True}, "need --decode"),
        ({"decode": "avro"}, "--schema FILE.avsc"),
        ({"new_only": True, "since": 5}, "exclude each other"),
        ({"follow": True, "compact_only": True}, "exclude each other"),
        ({"batch_records": 0}, "at least 1"),
        ({"format": "iceberg"}, "--iceberg-table"),
        ({"format": "iceberg", "iceberg_table": "a.b", "compact": True}, "engine"),
        ({"dead_letters": "/lake/orders/"}, "must not be the same"),
        ({"dead_letters": "/lake/orders/dead"}, "must not be the same"),
        ({"dead_letters": "/lake"}, "must not be the same"),
        ({"format": "delta", "decode": "json", "evolve": True}, "keeps its schema"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        options(**given)


def test_the_name_is_that_of_table_and_topics() -> None:
    one = options(topics=("b", "a")).layout
    assert one == options(topics=("a", "b"), table="file:///lake/orders").layout
    assert one.job.startswith("a-b-")
    assert one.job != options(topics=("a", "b"), table="/lake/other").layout.job
    assert one == options(topics=("a", "b", "a")).layout
    assert one.dead_letters == "/lake/orders_dead_letters"


def test_state_is_in_the_table_unless_told_otherwise() -> None:
    given = options(name="nightly")
    assert given.checkpoint_place == "/lake/orders/_penstock/nightly/checkpoint"
    assert options(checkpoint="/c").checkpoint_place == "/c"
    assert given.group == "penstock-lake-nightly"


def test_a_job_that_leaves_topics_out_has_a_checkpoint_of_its_own_unless_one_is_given() -> None:
    """Spark's checkpoint has a position of every topic, and one that is not read any more would be a loss."""
    given = options(topics=("b", "c"), name="n")
    assert given.continuing(["b", "c"]) is given
    less = given.continuing(["a", "b", "c"])
    assert less.checkpoint_place.startswith(f"{given.checkpoint_place}-")
    again = options(topics=("c", "b", "c"), name="n").continuing(["a", "b", "c"])
    assert again.checkpoint_place == less.checkpoint_place
    assert options(topics=("b",), name="n").continuing(["a", "b"]).checkpoint_place not in (
        given.checkpoint_place,
        less.checkpoint_place,
    )
    assert options(checkpoint="/c").continuing(["orders", "a"]).checkpoint_place == "/c"
