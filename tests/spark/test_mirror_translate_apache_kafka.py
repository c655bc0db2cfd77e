"""`mirror --translate` to Apache Kafka, which is fetched from Maven Central; skipped where that is out of reach.

The driver does the tasks' work: planning, transactions, the map and groups are what meets another broker.
"""

import io
from collections.abc import Iterator
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.job import Summary
from penstock.spark.jobs.mirror.job import JOB
from penstock.spark.jobs.mirror.options import MirrorOptions
from penstock.spark.jobs.mirror.translate import copy as mirror_translate_copy
from penstock.spark.progress import Progress
from tests.conformance.test_other_clients import fresh
from tests.conformance.test_sdk_apache_kafka import bootstrap
from tests.spark.mirror_without_spark import send_all
from tests.spark.mirrors import grow
from tests.spark.topics import KEEPS_ALL, numbered, produce
from tests.spark.translated import (
    Foreign,
    Side,
    a_group_for_every_offset,
    assert_exact,
    assert_groups_go_on,
    groups_at,
    kept,
    next_of,
    rows_at,
    set_groups,
)
from tests.support.mirrors import write_transactions
from tests.support.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["bootstrap"]  # the fixture


@pytest.fixture(scope="module")
def east(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("east"), KEEPS_ALL) as server:
        yield server


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_translate_copy, "send_all", send_all)
    monkeypatch.setattr(Progress, "tasks", lambda *_: nullcontext())


def _mirror(source: Side, target: Side, *what: str, **more: Any) -> Summary:
    options = MirrorOptions(
        bootstrap=source.bootstrap,
        target=target.bootstrap,
        what=what,
        **{"translate": True, **more},
    )
    JOB.plan(options)
    return JOB.run(None, options, Progress(io.StringIO()))


def test_a_copy_in_apache_kafka_is_exact_and_so_are_groups(east: Server, bootstrap: str) -> None:
    kafka = Foreign(bootstrap)
    name = east.create_topic(fresh("mirror"), partitions=2, retention_ms=-1, segment_bytes=10**7)
    with pytest.raises(JobError, match=r"take no mirrors.*give --translate"):
        _mirror(east, kafka, name, translate=False)
    with pytest.raises(JobError, match="--translate"):
        _mirror(east, kafka, "status", translate=False)
    produce(east, name, numbered(100, 2), compression_type="lz4")
    first = _mirror(east, kafka, name, batch_records=30).facts
    assert (first["records"], first["translated"]["transactions"]) == (100, 4)
    left_open = write_transactions(east, name, Random(2), 10)
    left_open.end(committed=False)
    left_open.disconnect()
    at = a_group_for_every_offset(east, name, name)
    grow(east, name, 3)
    produce(east, name, numbered(30, 3, start=100))
    assert _mirror(east, kafka, name).facts["behind"]["records"] == 0
    assert kafka.topics()[name] == 3
    assert_exact(east, kafka, name)
    assert_groups_go_on(east, kafka, name, at)
    assert _mirror(east, kafka, name).facts["records"] == 0
    assert _mirror(east, kafka, "status", name).facts["mirrors"][0]["behind"]["records"] == 0


@pytest.mark.long
def test_promoted_in_apache_kafka_and_back(east: Server, bootstrap: str) -> None:
    kafka = Foreign(bootstrap)
    name = east.create_topic(fresh("money"), retention_ms=-1)
    produce(east, name, numbered(10))
    set_groups(east, name, {name: {0: 8}})
    _mirror(east, kafka, name)
    assert _mirror(east, kafka, "promote", name).facts["topics"][0]["mirrored_upto"] == {"0": 10}
    with pytest.raises(JobError, match="was promoted"):
        _mirror(east, kafka, name)
    produce(kafka, name, numbered(5, start=100))  # type: ignore[arg-type]  # it has a bootstrap
    assert next_of(kafka, name, name, 7)[:3] == [b"value 8", b"value 9", b"value 100"]
    back = _mirror(kafka, east, "failback", name).facts
    assert (back["records"], back["translated"]["returned"]) == (5, 10)
    assert [row.value for row in kept(rows_at(east, name))][10:] == [
        b"value %d" % n for n in range(100, 105)
    ]
    assert groups_at(east, name, [name])[name][0] >= 15
