"""`audit` of a producer's ledger: Parquet, sends that were never acknowledged, and what cannot be told."""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.spark.errors import JobError
from tests.spark.audits import faults, run_audit
from tests.spark.topics import Create, Sent, numbered, produce
from tests.support.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("hash", pa.binary()),
    ]
)
Claim = dict[str, Any]


def claim(topic: str, offset: int | None, sent: Sent) -> Claim:
    return {
        **{"topic": topic, "partition": None if offset is None else 0, "offset": offset},
        **{"key": sent.key, "hash": hashlib.sha256(sent.value or b"").digest()},
    }


def write(path: Path, claims: list[Claim], schema: pa.Schema = COLUMNS) -> str:
    pq.write_table(pa.Table.from_pylist(claims, schema), path)
    return str(path)


@pytest.mark.long
def test_a_ledger_of_parquet_and_what_is_planted_in_the_topic(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name = topic("ledger", retention_ms=-1)
    sent = numbered(8)
    produce(broker, name, [*sent, sent[5]])
    claims = [claim(name, n, one) for n, one in enumerate(sent)]
    claims[2] = claim(name, 2, Sent(sent[2].key, b"other"))
    claims[3], claims[4] = claim(name, 3, sent[4]), claim(name, 4, sent[3])
    elsewhere = {**claim(name, 1, Sent(b"k", b"in no such partition")), "partition": 7}
    lost = claim(name, 20, Sent(b"k", b"lost"))
    other = claim("other-topic", 3, Sent(b"k", b"v"))
    ledger = write(tmp_path / "sent.parquet", [*claims, elsewhere, lost, other])
    summary = run_audit(spark, broker, name, ledger=ledger)
    assert faults(summary) == {
        "missing": {0: [20], 7: [1]},
        "duplicate": {0: [8]},
        "changed": {0: [2]},
        "reordered": {0: [3, 4]},
    }
    assert summary.facts["agreed"] == 5
    (note,) = summary.facts["notes"]
    assert note == "1 rows of the ledger are of other topics, and were left out"


@pytest.mark.long
def test_what_was_never_acknowledged_is_there_once_at_most(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name = topic("ledger", retention_ms=-1)
    sent = numbered(6)
    #        0        1        2        3        4        5 again  4 again, and one of somebody else
    there = [sent[0], sent[1], sent[2], sent[4], sent[4], sent[1], Sent(b"x", b"not ours")]
    produce(broker, name, there)
    claims = [claim(name, n, sent[n]) for n in range(2)]
    claims += [claim(name, offset, sent[n]) for n, offset in ((2, None), (3, None), (4, -1))]
    ledger = write(tmp_path / "sent.parquet", claims)
    summary = run_audit(spark, broker, name, ledger=ledger)
    assert faults(summary) == {"duplicate": {0: [4, 5]}}
    facts = summary.facts
    assert (facts["agreed"], facts["unacknowledged"], facts["unclaimed"]) == (2, 2, 1)
    assert facts["notes"] == [
        "3 rows of the ledger were never acknowledged: each may be in the topic once, or not at all"
    ]
    strict = run_audit(spark, broker, name, ledger=ledger, complete=True)
    assert faults(strict) == {"duplicate": {0: [4, 5]}, "extra": {0: [6]}}
    loose = run_audit(spark, broker, name, ledger=ledger, at_least_once=True)
    assert faults(loose) == {}
    assert (loose.facts["unacknowledged"], loose.facts["repeated"]) == (2, 2)


def test_what_a_ledger_cannot_tell_is_refused_or_noted(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name = topic("ledger", retention_ms=-1)
    produce(broker, name, numbered(2))
    path = tmp_path / "sent.parquet"
    claims = [{"topic": name, "partition": 0, "offset": n} for n in (0, None)]
    ledger = write(path, claims, pa.schema(list(COLUMNS)[:3]))
    summary = run_audit(spark, broker, name, ledger=ledger)
    assert faults(summary) == {}
    assert "only offsets were compared" in summary.facts["notes"][0]
    assert "more than once was not looked at" in summary.facts["notes"][1]
    with pytest.raises(JobError, match="never acknowledged, and with --complete they must"):
        run_audit(spark, broker, name, ledger=ledger, complete=True)
    write(path, [{**claims[0], "partition": None}], pa.schema(list(COLUMNS)[:3]))
    with pytest.raises(JobError, match="1 rows have an offset and no partition"):
        run_audit(spark, broker, name, ledger=ledger)
    numbers = pa.schema([*list(COLUMNS)[:3], ("key", pa.int64())])
    write(path, [{**claims[0], "key": 7}], numbers)
    with pytest.raises(JobError, match="column key is bigint, and must be string or binary"):
        run_audit(spark, broker, name, ledger=ledger)
    odd = path.rename(tmp_path / "sent.xlsx")
    with pytest.raises(JobError, match=r"is called \.csv, \.jsonl or \.parquet"):
        run_audit(spark, broker, name, ledger=str(odd))
