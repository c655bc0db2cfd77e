"""A schema only grows."""

from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.table import schema as schemas


def struct(**fields: Any) -> dict[str, Any]:
    entries = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in fields.items()
    ]
    return {"type": "struct", "fields": entries}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def test_new_fields_come_last_and_old_ones_stay() -> None:
    old = struct(id="long", gone="string", who=struct(name="string"), all=array(struct(x="long")))
    new = struct(
        id="long", more="double", who=struct(name="string", age="long"), all=array(struct(y="long"))
    )
    merged = schemas.merge(old, new)
    assert merged.added == ("value.who.age", "value.all[].y", "value.more")
    assert merged.conflicts == ()
    assert schemas.show(merged.schema) == (
        "struct<id: bigint, gone: string, who: struct<name: string, age: bigint>, "
        "all: array<struct<x: bigint, y: bigint>>, more: double>"
    )


def test_another_type_is_a_conflict_and_the_old_one_stays() -> None:
    merged = schemas.merge(struct(id="long"), struct(id=struct(x="long")))
    assert merged.schema == struct(id="long")
    assert merged.conflicts == (schemas.Conflict("value.id", "bigint", "struct<x: bigint>"),)


def test_names_that_differ_in_case_only_are_one() -> None:
    assert schemas.merge(struct(id="long"), struct(ID="long")).added == ()
    assert schemas.nullable(struct(id="long", ID="string")) == struct(id="long")


RIVALS = struct(
    ID="long",
    id="string",
    who=struct(Name="long", name="long"),
    all=array(struct(X="long", x="long")),
)


def test_of_names_that_differ_in_case_only_that_of_the_most_records_stays() -> None:
    counts = {"value.ID": 1, "value.id": 2, "value.who.name": 1, "value.all[].X": 1}
    found = schemas.settled(RIVALS, counts)
    assert found == struct(id="string", who=struct(name="long"), all=array(struct(X="long")))
    assert schemas.has_rivals(RIVALS)
    assert not schemas.has_rivals(found)
    assert schemas.settled(found, {}) == found


def test_the_name_that_the_table_has_wins_over_any_number_of_records() -> None:
    old = struct(ID="long", who=struct(Name="long"), all=array(struct(X="long")))
    counts = {"value.id": 9, "value.who.name": 9, "value.all[].x": 9}
    assert schemas.settled(RIVALS, counts, old) == old


def test_what_is_within_such_a_field_is_settled_after_it() -> None:
    found = struct(Who=struct(a="long", A="long"), who=struct(b="long", B="long"))
    once = schemas.settled(found, {"value.who": 1})
    assert once == struct(who=struct(b="long", B="long"))
    assert schemas.settled(once, {"value.who.b": 1}) == struct(who=struct(b="long"))


def test_only_names_that_are_like_no_other_need_no_count() -> None:
    assert schemas.without_rivals(RIVALS) == struct(who=struct(), all=array(struct()))


def test_a_table_that_has_no_schema_takes_any() -> None:
    assert schemas.accepted(None, struct(a="long"), may_grow=False, where="t") == struct(a="long")


def test_growing_must_be_asked_for() -> None:
    old, new = struct(a="long"), struct(a="long", b="string")
    with pytest.raises(JobError, match=r"value\.b, which t lacks; --evolve"):
        schemas.accepted(old, new, may_grow=False, where="t")
    assert schemas.accepted(old, new, may_grow=True, where="t") == new


def test_a_narrower_schema_takes_nothing_away() -> None:
    old = struct(a="long", b="string")
    assert schemas.accepted(old, struct(a="long"), may_grow=False, where="t") == old


def test_a_changed_type_is_refused_even_when_growing() -> None:
    with pytest.raises(JobError, match=r"t has value\.a as bigint.*string"):
        schemas.accepted(struct(a="long"), struct(a="string"), may_grow=True, where="t")
