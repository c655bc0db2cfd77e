"""The pure parts of `mirror`: options, requests, lag, and stored positions."""

import asyncio
import dataclasses
from typing import Any

import pytest

from penstock.client.mirroring import MirrorState, Position
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.spark.errors import JobError
from penstock.spark.job import Summary, run_job
from penstock.spark.jobs.mirror import actions as mirror_actions
from penstock.spark.jobs.mirror import beats, topics
from penstock.spark.jobs.mirror import copy as mirror_copy
from penstock.spark.jobs.mirror.actions import Live
from penstock.spark.jobs.mirror.beats import Beat
from penstock.spark.jobs.mirror.copy import Span, requests
from penstock.spark.jobs.mirror.job import JOB
from penstock.spark.jobs.mirror.lag import Behind, Lag, lag_of
from penstock.spark.jobs.mirror.names import Origin
from penstock.spark.jobs.mirror.options import MirrorOptions
from penstock.spark.jobs.mirror.topics import Ends, in_step
from penstock.spark.jobs.mirror.translate import actions as mirror_translate_actions
from penstock.spark.jobs.mirror.translate.links import Claim

ORDERS = TopicPartition("orders", 0)


def _options(*what: str, **more: Any) -> MirrorOptions:
    return MirrorOptions(**{"target": "west:9092", "what": what, **more})


def _behind(source_end: int, mirror_end: int, at_ms: int) -> Behind:
    return Behind(ORDERS, ORDERS, source_end, mirror_end, at_ms)


def test_the_first_word_may_say_what_to_do() -> None:
    assert (_options("orders").action, _options("orders").topics) == ("copy", ("orders",))
    assert _options("promote").topics == ()
    named = _options("copy", "status", "a")
    assert (named.action, named.topics) == ("copy", ("a", "status"))


@pytest.mark.parametrize(
    ("what", "more", "message"),
    [
        ((), {}, "needs a TOPIC"),
        (("failback",), {}, "needs a TOPIC"),
        (("status",), {"follow": True}, "--follow has no meaning"),
        (("a",), {"discard": True}, "failback only"),
        (("a",), {"target": "west:"}, "--target"),
        (("a",), {"rename": "x"}, "must contain {topic}"),
        (("a",), {"pattern": "("}, "--pattern"),
        (("a",), {"groups": "g", "no_groups": True}, "exclude each other"),
        (("a",), {"merge": True}, "with --translate only"),
        (("failback", "a"), {"translate": True, "discard": True}, "--discard has no meaning"),
        (("a",), {"translate": True, "batch_records": 0}, "at least 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    what: tuple[str, ...], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _options(*what, **more)


def test_batches_are_sent_in_order_and_in_requests_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = [
        bytes(build_batch([Record(base, 0, None, b"x" * size), Record(base + 1, 0, None, b"")], base_offset=base))
        for base, size in zip(range(0, 14, 2), [9, 10, 10, 10, 500, 10, 10], strict=True)
    ]  # fmt: skip
    monkeypatch.setattr(mirror_copy, "_REQUEST_BYTES", len(batches[1]) * 2)
    span = Span(ORDERS, ORDERS, b"", 2, 2, 12)
    sent = list(requests(memoryview(b"".join(batches) + b"cut off"), span))
    assert [bytes(one.batches) for one in sent] == [
        *(batches[1] + batches[2], batches[3], batches[4], batches[5])
    ]
    assert [(one.next_offset, one.batch_count, one.records) for one in sent] == [
        *((6, 2, 4), (8, 1, 2), (10, 1, 2), (12, 1, 2))
    ]
    assert list(requests(memoryview(batches[0] + batches[6]), span)) == []


def test_a_live_source_bounds_the_time_by_partitions_that_are_behind() -> None:
    rows = [_behind(10, 10, 1_000), _behind(30, 10, 4_000)]
    lag = lag_of(rows, {ORDERS: 2.5}, 9_000, is_live=True)
    assert lag == Lag(20, 50, 5.0)
    assert lag.line() == "20 records, about 0.0 MB, at most 5.0 s behind"
    assert lag_of(rows[:1], {}, 9_000, is_live=True).line() == "nothing behind"


def test_of_a_source_that_is_gone_only_the_past_is_known() -> None:
    assert lag_of([_behind(10, 10, 1_000)], None, 9_000, is_live=False) == Lag(0, None, 8.0)
    unknown = lag_of([_behind(10, 10, 0)], None, 9_000, is_live=False)
    assert unknown.line() == "0 records, an unknown time behind"


def test_how_many_records_are_lost_is_told_only_of_a_source_that_was_asked() -> None:
    lag = Lag(0, None, 8.0)
    assert lag.loss(is_live=True) == {"records": 0, "bytes": None, "seconds": 8.0}
    assert lag.loss(is_live=False) == {"records": None, "bytes": None, "seconds": 8.0}


def test_what_is_remembered_is_read_again() -> None:
    for beat in (Beat(5, 7, 1_700), Beat(5, 7, 1_700, "aa>bb", 1_800)):
        assert beats.parse(beat.offset, beats.text(beat)) == beat
    assert beats.parse(5, "somebody else's") == Beat(5, 5, 0)


def test_brokers_that_know_no_mirrors_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(pool: object) -> bool:  # noqa: ARG001  # whoever is asked
        return False

    async def try_it() -> None:
        async with Pool("east:9092") as source, Pool("west:9092") as target:
            await in_step(Ends(source, target), _options("orders"), change=True)

    monkeypatch.setattr(topics, "supports_mirrors", none)
    with pytest.raises(JobError, match=r"west:9092 take no mirrors.*give --translate"):
        asyncio.run(try_it())


def test_what_asks_only_brokers_starts_no_spark() -> None:
    def run(session: Any, options: MirrorOptions, progress: Any) -> Summary:  # noqa: ARG001  # as declared
        assert session is None
        return Summary({}, (options.action,))

    quick = dataclasses.replace(JOB, run=run)
    assert run_job(quick, _options("promote")).lines == ("promote",)
    assert JOB.needs_spark(_options("orders"))
    assert JOB.needs_spark(_options("failback", "orders"))


@pytest.mark.parametrize(
    ("live", "is_told"),
    [
        (Live("east", {"orders": "aa"}, {ORDERS: 30}, {ORDERS: 1.0}), True),
        (Live("east", {"orders": "bb"}, {ORDERS: 30}, {ORDERS: 1.0}), False),  # created anew
        (Live("east", {}, {}, {}), False),  # deleted
        (Live("north", {"orders": "aa"}, {ORDERS: 30}, {ORDERS: 1.0}), False),
        (None, False),
    ],
)
def test_only_a_source_that_still_has_the_topic_tells_what_is_lost(
    live: Live | None, is_told: bool
) -> None:
    state = MirrorState(b"", "east", {0: Position(0, 20, 20)})
    mirror = mirror_actions.Mirror("orders", Origin("east", "aa", "orders"), state, {})
    claim = Claim("orders", "aa")
    copy = mirror_translate_actions.Mirror("orders", "east", claim, {0: 20}, {0: 20}, {}, {})
    for own in (mirror_actions._own(mirror, live), mirror_translate_actions._own(copy, live)):
        assert own == (live if is_told else None)
