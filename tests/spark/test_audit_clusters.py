"""`audit` of topics of two clusters, and of what a producer says it wrote."""

import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from tests.spark.audits import faults, run_audit
from tests.spark.topics import KEEPS_ALL, Create, Sent, numbered, produce
from tests.support.server import Server

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("standby"), KEEPS_ALL) as server:
        yield server


@pytest.mark.long
def test_a_mirror_is_compared_offset_by_offset(
    spark: Any, broker: Server, standby: Server, topic: Create
) -> None:
    here, there = topic("mirrored", partitions=2, retention_ms=-1), "copy-1"
    standby.create_topic(there, partitions=2, retention_ms=-1)
    sent = numbered(20, partitions=2)
    produce(broker, here, sent)
    produce(standby, there, sent[:16])
    against = {"against": standby.bootstrap, "rename": ((here, there),)}
    summary = run_audit(spark, broker, here, **against)
    assert faults(summary) == {}
    assert (summary.facts["agreed"], summary.facts["behind"]) == (16, 4)
    wrong = [sent[18], sent[17]._replace(value=b"?"), sent[16], sent[19], *numbered(2)]
    produce(standby, there, wrong)
    broken = run_audit(spark, broker, here, **against)
    assert faults(broken) == {
        "reordered": {0: [8, 9]},
        "changed": {1: [8]},
        "extra": {0: [10, 11]},
    }


def test_another_topic_is_compared_by_what_records_are(
    spark: Any, broker: Server, standby: Server, topic: Create
) -> None:
    here, there = topic("translated", partitions=2, retention_ms=-1), "copy-2"
    standby.create_topic(there, partitions=2, retention_ms=-1)
    sent = [Sent(b"k%d" % (n % 4), b"value %d" % n, n % 2, 1000 + n) for n in range(24)]
    produce(broker, here, sent)
    copied = [one._replace(timestamp_ms=0, partition=1 - one.partition) for one in sent]
    kept = [*copied[:4], copied[12], *copied[4:7], *copied[8:20]]  # 12 early and twice, 7 lost
    produce(standby, there, [*kept, Sent(b"k9", b"strange", 1)])
    against = {"against": standby.bootstrap, "rename": ((here, there),), "by": "content"}
    summary = run_audit(spark, broker, here, **against)
    # Even ones are there as 0 2 12 4 6 8 10 12 14 16 18: the first 12 is before 8, and the second, at 7, one too many.
    assert faults(summary) == {
        "missing": {1: [3]},
        "reordered": {0: [6]},
        "duplicate": {1: [7]},
        "extra": {1: [11]},
    }
    assert summary.facts["behind"] == 4


@pytest.mark.long
def test_records_of_a_key_must_stay_in_order(
    spark: Any, broker: Server, standby: Server, topic: Create
) -> None:
    here, there = topic("translated", retention_ms=-1), "copy-3"
    standby.create_topic(there, retention_ms=-1)
    sent = [Sent(b"k%d" % (n % 2), b"value %d" % n, 0, 1000 + n) for n in range(8)]
    produce(broker, here, sent)
    produce(standby, there, [sent[1], sent[0], *sent[3:6], sent[2], *sent[6:]])
    against = {"against": standby.bootstrap, "rename": ((here, there),), "by": "content"}
    summary = run_audit(spark, broker, here, **against)
    assert faults(summary) == {"reordered": {0: [4]}}  # it is before 2 there; k1 is in order


@pytest.mark.long
def test_a_ledger_is_held_against_the_topic(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name = topic("ledger", partitions=2, retention_ms=-1)
    written = produce(broker, name, [*numbered(20, partitions=2), numbered(20)[8]])
    ledger = tmp_path / "sent.csv"
    with open(ledger, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["topic", "partition", "offset", "key", "hash"])
        for (partition, offset), one in sorted(written.items()):
            value = b"other" if (partition, offset) == (1, 3) else one.value
            digest = hashlib.sha256(value or b"").hexdigest()
            if (partition, offset) not in ((0, 2), (0, 10)):
                rows.writerow([name, partition, offset, (one.key or b"").decode(), digest])
        rows.writerow([name, 1, 99, "k", hashlib.sha256(b"lost").hexdigest()])
    summary = run_audit(spark, broker, name, ledger=str(ledger))
    assert faults(summary) == {"missing": {1: [99]}, "changed": {1: [3]}, "duplicate": {0: [10]}}
    assert (summary.facts["agreed"], summary.facts["unclaimed"]) == (18, 1)


@pytest.mark.long
def test_a_ledger_of_offsets_alone(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name = topic("ledger", retention_ms=-1)
    written = produce(broker, name, numbered(5))
    ledger = tmp_path / "sent.jsonl"
    lines = [{"topic": name, "partition": p, "offset": o} for p, o in written if o != 4]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[0]]))
    summary = run_audit(spark, broker, name, ledger=str(ledger), complete=True)
    assert faults(summary) == {"duplicate": {0: [0]}, "extra": {0: [4]}}
    assert "only offsets were compared" in summary.facts["notes"][0]
    ledger.write_text('{"topic": "t", "partition": 0, "offset": 1}\n')
    with pytest.raises(JobError, match=f"has no row of {name}"):
        run_audit(spark, broker, name, ledger=str(ledger))
    ledger.write_text('{"topic": "t"}\n')
    with pytest.raises(JobError, match="has no column partition, offset"):
        run_audit(spark, broker, name, ledger=str(ledger))
    with pytest.raises(JobError, match="there is no such ledger"):
        run_audit(spark, broker, name, ledger=str(tmp_path / "none.csv"))
