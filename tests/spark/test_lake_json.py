"""JSON that changes under a lake job: fields that its schema lacks, and fields of other types."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.progress import Progress
from tests.spark.lakes import Lake, places
from tests.spark.topics import Create, Sent, produce
from tests.support.server import Server

pytestmark = pytest.mark.spark

NESTED = "id BIGINT, who STRUCT<name: STRING>, items ARRAY<STRUCT<sku: STRING, n: INT>>, tags MAP<STRING, STRUCT<x: INT>>"


@pytest.fixture
def lake(spark: Any, broker: Server, tmp_path: Path) -> Lake:
    return Lake(spark, broker, tmp_path)


@pytest.fixture
def send(broker: Server, topic: Create) -> Any:
    def send(*values: bytes | None) -> str:
        name = topic("json", retention_ms=-1)
        produce(broker, name, [Sent(b"k%d" % n, value) for n, value in enumerate(values)])
        return name

    return send


@pytest.mark.long
def test_people_see_that_a_schema_is_looked_for(
    lake: Lake, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Progress, "show", lambda _, text: shown.append(text))
    name = send(b'{"id": 1}')
    lake.run(name, decode="json")
    assert shown[0] == "looking for a schema"
    shown.clear()
    lake.run(name, decode="json")
    assert not any("schema" in text for text in shown), "it is known"


@pytest.mark.long
def test_fields_that_the_schema_lacks_are_counted_and_named(lake: Lake, send: Any) -> None:
    name = send(b'{"id": 1}', b'{"id": 2, "b": 1, "a": null}', b'{"ID": 3}', b"{oops", None)
    summary = lake.run(name, decode="json", schema="id BIGINT", batch_records=2)
    found = {"rows": 2, "names": ["value.a", "value.b", "value.ID"]}
    assert summary.facts["unknown_fields"] == found
    assert (
        "2 rows had fields that the schema lacks, which were left out: value.a, value.b, value.ID; --evolve adds "
        "columns for them (not for names that differ from others only in case), --unknown-fields reject makes such records dead letters"
        in summary.lines
    )
    assert [row["value"] for row in lake.rows()] == [{"id": 1}, {"id": 2}, {"id": None}, None]


@pytest.mark.long
def test_fields_deep_in_a_value_are_counted_too(lake: Lake, send: Any) -> None:
    name = send(
        b'{"id": 1, "who": {"name": "a", "age": 4}}',
        b'{"id": 2, "items": [{"sku": "a"}, {"sku": "b", "color": "red"}, null]}',
        b'{"id": 3, "tags": {"any": {"x": 1}, "other": {"y": 2}}}',
        b'{"id": 4, "who": {"name": "b"}, "items": [], "tags": {}}',
        b'{"id": 5, "who": null, "items": null}',
    )
    summary = lake.run(name, decode="json", schema=NESTED)
    names = ["value.items[].color", "value.tags[].y", "value.who.age"]
    assert summary.facts["unknown_fields"] == {"rows": 3, "names": names}
    assert summary.facts["dead_letters"] == 0
    assert len(lake.rows()) == 5


def test_fields_that_the_schema_lacks_can_make_dead_letters(lake: Lake, send: Any) -> None:
    name = send(b'{"id": 1}', b'{"id": 2, "who": {"name": "a", "age": 4}}', b'{"id": "x", "y": 1}')
    summary = lake.run(name, decode="json", schema=NESTED, unknown_fields="reject")
    assert summary.facts["unknown_fields"] == {"rows": 0, "names": []}
    assert [row["value"]["id"] for row in lake.rows()] == [1]
    dead = {row["offset"]: row["error"] for row in lake.dead()}
    assert dead[1] == "has fields that the schema lacks: value.who.age"
    assert dead[2] == "does not fit the schema: OBJECT<id: STRING, y: BIGINT>"


@pytest.mark.long
def test_they_can_be_passed_over_without_a_look(lake: Lake, send: Any) -> None:
    name = send(b'{"id": 1, "b": 1}')
    summary = lake.run(name, decode="json", schema="id BIGINT", unknown_fields="ignore")
    assert summary.facts["unknown_fields"] == {"rows": 0, "names": []}
    with pytest.raises(ValueError, match="--unknown-fields needs --decode json"):
        lake.options(name, unknown_fields="reject")
    with pytest.raises(ValueError, match="reject and --evolve exclude each other"):
        lake.options(name, decode="json", unknown_fields="reject", evolve=True)


CHANGED = {
    "a number became a text": b'{"id": "1"}',
    "a whole number became another": b'{"id": 1.5}',
    "a number grew too large": b'{"id": 99999999999999999999}',
    "an object became a text": b'{"id": 1, "who": "a"}',
    "an object became an array": b'{"id": 1, "who": [{"name": "a"}]}',
    "an array became an object": b'{"id": 1, "items": {"sku": "a", "n": 1}}',
    "a number within an array": b'{"id": 1, "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": "2"}]}',
    "a number within a map": b'{"id": 1, "tags": {"a": {"x": 1}, "b": {"x": "y"}}}',
}


@pytest.mark.long
@pytest.mark.parametrize("evolve", [False, True])
def test_a_field_of_another_type_makes_a_dead_letter(lake: Lake, send: Any, evolve: bool) -> None:
    good = (
        b'{"id": 1, "who": {"name": "a"}, "items": [{"sku": "a", "n": 1}], "tags": {"a": {"x": 1}}}'
    )
    texts = b'{"id": 2, "who": {"name": 5}}'  # everything can be a text
    name = send(good, *CHANGED.values(), texts)
    lake.run(name, decode="json", schema=NESTED, evolve=evolve)
    dead = {row["offset"]: row for row in lake.dead()}
    for offset, (what, value) in enumerate(CHANGED.items(), 1):
        assert offset in dead, what
        assert dead[offset]["value"] == value
        assert dead[offset]["error"].startswith("does not fit the schema: OBJECT<"), what
    assert [row["offset"] for row in lake.rows()] == [0, 1 + len(CHANGED)]
    assert lake.rows()[1]["value"]["who"] == {"name": "5"}


@pytest.mark.long
def test_fields_that_come_deep_in_a_value_are_added_when_asked(lake: Lake, send: Any) -> None:
    name = send(b'{"id": 1, "who": {"name": "a"}, "items": [{"sku": "a", "n": 1}]}')
    lake.run(name, decode="json", schema=NESTED, partition_by="none")
    produce(
        lake.broker,
        name,
        [Sent(b"k", b'{"id": 2, "who": {"age": 4}, "items": [{"sku": "b", "size": {"w": 1.5}}]}')],
    )
    summary = lake.run(name, decode="json", evolve=True, partition_by="none")
    assert summary.facts["unknown_fields"] == {"rows": 0, "names": []}
    merged = lake.spark.read.option("mergeSchema", True).parquet(str(lake.table))
    found = merged.select("offset", "value.who.age", "value.items.size.w").orderBy("offset")
    assert [tuple(row) for row in found.collect()] == [(0, None, [None]), (1, 4, [1.5])]
    assert places(lake.rows()) == {(name, 0, 0): 1, (name, 0, 1): 1}


@pytest.mark.long
@pytest.mark.parametrize("evolve", [False, True])
def test_of_names_that_differ_only_in_case_the_usual_one_is_the_column(
    lake: Lake, send: Any, evolve: bool
) -> None:
    usual = [b'{"id": %d, "who": {"name": "a"}, "all": [{"x": 1}]}' % n for n in range(3)]
    name = send(b'{"ID": 7, "who": {"Name": "b"}, "all": [{"X": 2}]}', *usual)
    summary = lake.run(name, decode="json", evolve=evolve)
    names = ["value.ID", "value.all[].X", "value.who.Name"]
    assert summary.facts["unknown_fields"] == {"rows": 1, "names": names}
    assert [row["value"]["id"] for row in lake.rows()] == [None, 0, 1, 2]
    assert [row["value"]["who"]["name"] for row in lake.rows()] == [None, "a", "a", "a"]
    (line,) = [line for line in summary.lines if "value.ID" in line]
    assert ("--evolve adds" in line) is not evolve
    assert ("get no column, for another has the name in other case" in line) is evolve


@pytest.mark.long
def test_a_column_keeps_its_name_though_another_case_became_usual(lake: Lake, send: Any) -> None:
    name = send(b'{"ID": 1}')
    lake.run(name, decode="json", evolve=True)
    changed = [b'{"id": 2, "a": null}', b'{"id": 3, "b": 5}', b'{"ID": 4, "a": null}']
    produce(lake.broker, name, [Sent(b"k", value) for value in changed])
    summary = lake.run(name, decode="json", evolve=True)
    assert summary.facts["unknown_fields"] == {"rows": 2, "names": ["value.id"]}
    assert [row["value"]["ID"] for row in lake.rows()] == [1, None, None, 4]
    assert [row["value"].get("b") for row in lake.rows()] == [None, None, 5, None]
