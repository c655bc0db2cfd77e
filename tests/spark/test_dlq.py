"""`dlq` shows dead letters, repairs them, and sends each back once."""

import json
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock.model.errors import BrokerError
from penstock.spark.errors import JobError
from penstock.spark.job import Summary, explained
from penstock.spark.jobs.dlq import job as dlq
from penstock.spark.jobs.dlq.options import DlqOptions
from penstock.spark.jobs.dlq.sending import ensure_ledger
from penstock.spark.progress import Progress
from tests.spark.lakes import Lake
from tests.spark.topics import Create, Sent, produce
from tests.support.command import penstock_command
from tests.support.failures import DataError
from tests.support.server import PATIENCE_S, Server

pytestmark = pytest.mark.spark

REPAIR = """
SELECT topic, partition, offset, key, concat(value_text, '}') AS value, headers
FROM letters WHERE kind = 'not valid JSON'
"""


def run_dlq(spark: Any, broker: Server, **options: Any) -> Summary:
    given = DlqOptions(bootstrap=broker.bootstrap, **options)
    with explained():
        dlq.plan(given)
        return dlq.run(spark, given, Progress())


def read(spark: Any, broker: Server, topic: str) -> list[Any]:
    """What a reader of committed records sees, by offset."""
    rows = (
        spark.read.format("penstock")
        .options(**{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic})
        .options(**{"includeHeaders": "true", "kafka.isolation.level": "read_committed"})
        .load()
        .collect()
    )
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.long
def test_what_the_lake_could_not_decode_is_repaired_and_sent_back_once(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name, lake = topic("dlq", retention_ms=-1), Lake(spark, broker, tmp_path)
    bad = [b'{"id": 2', b"[3]", b'{"id": 4']
    sent = [Sent(b"k%d" % n, v, headers=(("h", b"1"),)) for n, v in enumerate([b'{"id": 1}', *bad])]
    produce(broker, name, sent)
    lake.run(name, decode="json", schema="id BIGINT")
    table = {"table": str(lake.dead_letters)}

    shown = run_dlq(spark, broker, **table, sql=REPAIR)
    assert [(kind["kind"], kind["letters"]) for kind in shown.facts["kinds"]] == [
        ("not valid JSON", 2),
        ("not one JSON object", 1),
    ]
    repaired = {one["offset"]: one["repaired"] for one in shown.facts["samples"]}
    assert repaired == {1: '{"id": 2}', 2: None, 3: '{"id": 4}'}
    assert len(read(spark, broker, name)) == 4

    ledger = {"ledger": f"{name}-ledger"}
    done = run_dlq(spark, broker, **table, **ledger, sql=REPAIR, send=True)
    assert (done.facts["sent"], done.facts["to"]) == (2, {name: 2})
    back = read(spark, broker, name)[4:]
    assert [(bytes(r["key"]), bytes(r["value"])) for r in back] == [
        (b"k1", b'{"id": 2}'),
        (b"k3", b'{"id": 4}'),
    ]
    headers = [(one["key"], bytes(one["value"])) for one in back[0]["headers"]]
    assert headers == [("h", b"1"), ("penstock-redriven", b"1")]

    second = run_dlq(spark, broker, **table, **ledger, sql=REPAIR, send=True)
    assert (second.facts["sent"], second.facts["sent_before"]) == (0, 2)
    rest = run_dlq(spark, broker, **table, **ledger, send=True)
    assert (rest.facts["sent"], rest.facts["sent_before"]) == (1, 2)
    assert [bytes(row["value"]) for row in read(spark, broker, name)[6:]] == [b"[3]"]

    again = run_dlq(spark, broker, **table, **ledger, sql=REPAIR, send=True, again=True)
    assert (again.facts["sent"], again.facts["sent_before"]) == (2, 0)
    values = [bytes(row["value"]) for row in read(spark, broker, name)[7:]]
    assert values == [b'{"id": 2}', b'{"id": 4}']
    after = run_dlq(spark, broker, **table, **ledger, sql=REPAIR, send=True)
    assert (after.facts["sent"], after.facts["sent_before"]) == (0, 2)
    with pytest.raises(ValueError, match="--to and --again need --send"):
        DlqOptions(table="t", again=True)


def letter(name: str, offset: int, value: bytes, kind: str = "ValueError") -> Sent:
    ours = {
        "origin-topic": name,
        "origin-partition": "0",
        "origin-offset": str(offset),
        "error": f"{kind} of {offset}",
        "error-type": kind,
        "attempts": "3",
        "group": "billing",
    }
    headers = tuple((f"penstock-{key}", text.encode()) for key, text in ours.items())
    return Sent(b"k%d" % offset, value, headers=(("own", b"x"), *headers))


@pytest.mark.long
def test_letters_of_the_sdk_go_back_to_their_topics(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name, dead = topic("orders"), topic("orders.dlq")
    letters = [letter(name, 5, b"five"), letter(name, 7, b"seven", "KeyError"), Sent(None, b"?")]
    produce(broker, dead, [*letters, letter(name, 5, b"five")])
    shown = run_dlq(spark, broker, topic=dead)
    assert shown.facts["letters"] == 4
    assert f"    {name}-0@7  seven" in shown.lines

    ledger = {"ledger": f"{name}-ledger"}
    leave_open(broker, ledger["ledger"], name)
    only = run_dlq(spark, broker, topic=dead, where="kind = 'ValueError'", send=True, **ledger)
    assert only.facts["sent"] == 1
    words = ("dlq", "redrive", dead, "--ledger", ledger["ledger"], "--json")
    by_command = penstock_command(*words, "-n", 1, PENSTOCK_BOOTSTRAP=broker.bootstrap).json()
    assert (by_command["sent"], by_command["sent_before"]) == (1, 1)
    produce(broker, dead, [letter(name, 9, b"nine")])
    shown = run_dlq(spark, broker, topic=dead, where="is_sent", **ledger)
    assert shown.facts["letters"] == 3
    done = run_dlq(spark, broker, topic=dead, send=True, **ledger)
    assert (done.facts["sent"], done.facts["sent_before"]) == (1, 2)
    assert done.facts["without_origin"] == 1
    assert penstock_command(*words, PENSTOCK_BOOTSTRAP=broker.bootstrap).json()["sent"] == 0
    back = read(spark, broker, name)
    if [bytes(row["value"]) for row in back] != [b"five", b"seven", b"nine"]:
        raise DataError(f"not each letter went back once: {back}")
    assert [one["key"] for one in back[0]["headers"]] == ["own", "penstock-redriven"]

    file = tmp_path / "repair.py"
    file.write_text(
        "def louder(letters):\n    return letters.selectExpr('* except (value)', 'upper(value_text) value')\n"
    )
    other = topic("repaired")
    moved = run_dlq(
        spark, broker, topic=dead, send=True, to=other, function=f"{file}:louder", **ledger
    )
    assert moved.facts["to"] == {other: 4}
    values = {bytes(row["value"]) for row in read(spark, broker, other)}
    assert values == {b"FIVE", b"SEVEN", b"NINE", b"?"}


@pytest.mark.long
def test_letters_are_chosen_by_their_text_too(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name, dead = topic("orders"), topic("orders.dlq")
    produce(broker, dead, [letter(name, 5, b"five"), letter(name, 7, b"seven")])
    where = {"where": "value_text LIKE 's%' AND key_text = 'k7'"}
    shown = run_dlq(spark, broker, topic=dead, **where, sql="SELECT * FROM letters")
    assert [(one["offset"], one["repaired"]) for one in shown.facts["samples"]] == [(7, "seven")]
    done = run_dlq(spark, broker, topic=dead, **where, send=True, ledger=f"{name}-ledger")
    assert done.facts["sent"] == 1
    assert [bytes(row["value"]) for row in read(spark, broker, name)] == [b"seven"]

    lake, source = Lake(spark, broker, tmp_path), topic("dlq", retention_ms=-1)
    produce(broker, source, [Sent(b"k", b"[1]"), Sent(b"k", b"{")])
    lake.run(source, decode="json", schema="id BIGINT")
    table = run_dlq(spark, broker, table=str(lake.dead_letters), where="value_text LIKE '[%'")
    assert [one["offset"] for one in table.facts["samples"]] == [0]


def leave_open(broker: Server, ledger: str, target: str) -> None:
    """As a run does that is killed before its transaction ends: a letter and its entry are written, and count for nothing."""
    ensure_ledger(broker.bootstrap, ledger)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": f"penstock-dlq.{ledger}"}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(target, b"five", b"k5")
    producer.produce(ledger, json.dumps({}).encode(), f"{target}/0/5/{target}".encode())
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"where": "nope = 1"}, "--where 'nope = 1'"),
        ({"sql": "SELECT 1"}, "have no column topic, partition, offset, key, value, headers"),
        ({"sql": "SELECT * EXCEPT (value), 1 AS value FROM letters"}, "the repaired value is int"),
        ({"sql": "SELECT"}, "the repair fails"),
        ({"sql": "nope.sql"}, "cannot read nope.sql"),
        ({"function": "nope.py:f"}, "cannot read nope.py"),
        (
            {"sql": "SELECT * FROM letters UNION ALL SELECT * FROM letters", "send": True},
            "makes 2 rows of",
        ),
    ],
)
def test_what_cannot_be_done_is_told_and_nothing_is_sent(
    spark: Any, broker: Server, topic: Create, options: dict[str, Any], said: str
) -> None:
    name, dead = topic("orders"), topic("orders.dlq")
    produce(broker, dead, [letter(name, 5, b"five")])
    with pytest.raises(JobError, match=said):
        run_dlq(spark, broker, topic=dead, **options)
    assert read(spark, broker, name) == []


def test_a_topic_to_send_to_must_exist(spark: Any, broker: Server, topic: Create) -> None:
    dead = topic("orders.dlq")
    produce(broker, dead, [letter("gone-for-ever", 5, b"five")])
    with pytest.raises(BrokerError, match="topic 'no-such-topic' does not exist"):
        run_dlq(spark, broker, topic=dead, to="no-such-topic", send=True)
    with pytest.raises(BrokerError, match="topic 'gone-for-ever' does not exist"):
        run_dlq(spark, broker, topic=dead, send=True)
    assert not {"no-such-topic", "gone-for-ever"} & set(broker.topics())


@pytest.mark.long
def test_a_table_that_is_not_there(spark: Any, broker: Server, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no such table"):
        run_dlq(spark, broker, table=str(tmp_path / "none"))
