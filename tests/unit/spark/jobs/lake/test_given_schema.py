"""A schema that no table can hold is rejected before Spark starts.

The error is one line that names the limit, however deep the schema is.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import BadOption
from penstock.spark.jobs.lake.given_schema import check_given, ddl_depth
from penstock.spark.jobs.table.decode import DEEPEST

DEPTHS = (DEEPEST + 1, 48, 1000, 20_000)
LIMIT = f"structs, arrays and maps in each other; the limit is {DEEPEST}: "


def ddl(depth: int) -> str:
    return "a " + "STRUCT<a: " * (depth - 1) + "INT" + ">" * (depth - 1)


def spark_json(depth: int) -> str:
    field = '{"name": "a", "nullable": true, "metadata": {}, "type": '
    struct = '{"type": "struct", "fields": [' + field
    return struct * depth + '"long"' + "}]}" * depth


def avro(depth: int) -> str:
    text = '"long"'
    for level in range(min(depth, 2000)):
        field = f'{{"name": "a", "type": {text}}}'
        text = f'{{"type": "record", "name": "r{level}", "fields": [{field}]}}'
    return text


@pytest.mark.parametrize("depth", DEPTHS)
def test_too_deep_a_schema_is_refused_in_one_line(tmp_path: Path, depth: int) -> None:
    given = {"a.ddl": ddl(depth), "a.json": spark_json(depth)}
    for name, text in given.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(BadOption, match=LIMIT + "make a STRING"):
            check_given("json", str(tmp_path / name))
    with pytest.raises(BadOption, match=LIMIT + "make a STRING") as caught:
        check_given("json", ddl(depth))
    assert str(caught.value).startswith("--schema 'a STRUCT<a: STRUCT<a: ")
    assert f": {depth} structs" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("depth", DEPTHS)
def test_too_deep_an_avro_schema_is_refused_too(tmp_path: Path, depth: int) -> None:
    (tmp_path / "a.avsc").write_text(avro(depth))
    with pytest.raises(BadOption, match=LIMIT + "give a flatter one"):
        check_given("avro", str(tmp_path / "a.avsc"))


def test_what_is_just_deep_enough_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(spark_json(DEEPEST))
    (tmp_path / "a.avsc").write_text(avro(DEEPEST))
    check_given("json", ddl(DEEPEST))
    check_given("json", str(tmp_path / "a.json"))
    check_given("avro", str(tmp_path / "a.avsc"))


def test_a_schema_of_many_columns_is_no_name_of_a_file() -> None:
    check_given("json", ", ".join(f"column_{n} ARRAY<STRING>" for n in range(1000)))


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("a INT", 1),
        ("a MAP<STRING, ARRAY<INT>>, b STRUCT<c: INT>", 3),
        ('`<<<<` INT COMMENT \'<<<<\', b STRUCT<c: INT COMMENT "it\\"s <">', 2),
    ],
)
def test_names_and_comments_are_not_deep(text: str, depth: int) -> None:
    assert ddl_depth(text) == depth


@pytest.mark.parametrize(
    "wrong", [{}, {"type": "array"}, {"type": "struct"}, {"type": "struct", "fields": {}}]
)
def test_json_that_is_no_struct_is_refused(tmp_path: Path, wrong: Any) -> None:
    (tmp_path / "a.json").write_text(json.dumps(wrong))
    with pytest.raises(BadOption, match="as Spark writes a schema"):
        check_given("json", str(tmp_path / "a.json"))


def test_a_file_that_is_neither_text_nor_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.ddl").write_bytes(b"\xff\xfe")
    with pytest.raises(BadOption, match=r"a\.ddl is not UTF-8"):
        check_given("json", str(tmp_path / "a.ddl"))
    with pytest.raises(BadOption, match=r"--schema .\{oops."):
        check_given("json", "{oops")
