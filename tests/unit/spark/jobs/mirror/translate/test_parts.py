"""The pure parts of `mirror --translate`: claims, records left out, and the state of a link."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.client.groups import Committed
from penstock.client.raw_transactions import Session
from penstock.model.ids import TopicPartition
from penstock.records.compression import Codec
from penstock.records.record import Record, decode_records
from penstock.spark.errors import JobError
from penstock.spark.jobs.mirror.names import Adjust, Create, Skip, Topic
from penstock.spark.jobs.mirror.translate import reproduce
from penstock.spark.jobs.mirror.translate.claims import (
    Merging,
    Verdict,
    accepted,
    decide,
    new_settings,
)
from penstock.spark.jobs.mirror.translate.links import (
    Claim,
    Copy,
    LinkState,
    claim_entry,
    dead_entries,
    map_entries,
)
from penstock.spark.jobs.mirror.translate.offset_map import Row
from penstock.spark.jobs.mirror.translate.origin import HEADER, Guard, origin
from penstock.spark.jobs.mirror.translate.reproduce import Wires, parse_report, write_task
from penstock.spark.jobs.mirror.translate.rounds import translated

ORDERS = TopicPartition("orders", 0)
COPY = Copy("orders", "0b", 0)
ONE, OTHER = bytes([1]) * 16, bytes([2]) * 16
OWN = Claim("orders", ONE.hex())


def _topic(partitions: int = 2, topic_id: bytes = ONE, mirrors: str = "", **more: str) -> Topic:
    settings = {name.replace("_", "."): value for name, value in more.items()}
    return Topic("orders", topic_id, partitions, 1, settings, mirrors)


def _decide(
    target: Topic | None,
    claim: Claim | None,
    *,
    source: Topic | None = None,
    back: Claim | None = None,
    merge: Merging = Merging(),  # noqa: B008  # a value
) -> Verdict:
    return decide(
        source or _topic(),
        target,
        name="orders",
        claims={} if claim is None else {"orders": claim},
        back={} if back is None else {"orders": back},
        target_id="west",
        merge=merge,
        known=frozenset({"retention.ms"}),
    )


def test_a_link_makes_its_topics_and_keeps_them_in_step() -> None:
    assert _decide(None, None) == Verdict(Create(2), OWN)
    assert _decide(None, OWN) == Verdict(Create(2), OWN), "deleted at the target: it begins anew"
    source = _topic(3, retention_ms="5", penstock_x="1", message_timestamp_type="LogAppendTime")
    assert _decide(_topic(2, OTHER), OWN, source=source) == Verdict(
        Adjust(3, {"retention.ms": "5"}, ()), OWN
    )
    assert _decide(_topic(4, OTHER, retention_ms="5"), OWN) == Verdict(
        Adjust(None, {}, ("retention.ms",)), OWN
    )


def test_topics_that_the_target_has_of_its_own_are_written_to_only_when_asked() -> None:
    promoted, merged = OWN._replace(promoted_at_ms=5), OWN._replace(is_merged=True)
    with pytest.raises(JobError, match=r"is its own.*--rename.*--merge"):
        _decide(_topic(), None)
    with pytest.raises(JobError, match="was promoted"):
        _decide(_topic(), promoted)
    with pytest.raises(JobError, match="was promoted"):
        _decide(_topic(), promoted, merge=Merging(own=True))
    assert _decide(_topic(), None, merge=Merging(own=True)).claim == merged
    assert _decide(_topic(), promoted, merge=Merging(own=True, promoted=True)).claim == merged
    assert _decide(_topic(1, retention_ms="5"), merged) == Verdict(Adjust(2, {}, ()), merged)


def test_copies_of_another_topic_are_refused() -> None:
    with pytest.raises(JobError, match="copy of 'payments'"):
        _decide(_topic(), Claim("payments", ONE.hex()))
    with pytest.raises(JobError, match="deleted and created again"):
        _decide(_topic(), OWN._replace(source_id=OTHER.hex()))
    with pytest.raises(JobError, match="keeps offsets"):
        _decide(_topic(mirrors="east:00:orders"), OWN)


def test_a_topic_that_came_from_the_target_is_not_copied_back() -> None:
    assert isinstance(_decide(None, None, back=OWN).decision, Skip)
    assert isinstance(_decide(None, None, source=_topic(mirrors="west:1:orders")).decision, Skip)
    for back in (OWN._replace(is_merged=True), OWN._replace(promoted_at_ms=7)):
        assert _decide(None, None, back=back).decision == Create(2), "it has records of its own"


def test_settings_that_the_target_does_not_know_are_left_out() -> None:
    settings = {"retention.ms": "1", "penstock.y": "2", "message.timestamp.type": "x", "new": "3"}
    assert accepted(settings, frozenset({"retention.ms", "message.timestamp.type"})) == {
        "retention.ms": "1"
    }
    assert accepted(settings, None) == {"retention.ms": "1", "new": "3"}
    source = _topic()._replace(settings=settings)
    made = new_settings(source, 1, frozenset({"retention.ms", "message.timestamp.type"}))
    assert made == {"retention.ms": "1", "message.timestamp.type": "CreateTime"}


def test_the_guard_knows_what_was_at_the_target() -> None:
    guard = Guard("west", ORDERS)
    own = (HEADER, origin("east", ORDERS) + b"7")
    there = (HEADER, origin("west", ORDERS) + b"9")
    elsewhere = (HEADER, origin("west", TopicPartition("orders", 1)) + b"9")
    assert not guard.was_there([own, ("other", b"west:orders:0:1"), (HEADER, None)])
    assert not guard.was_there([(HEADER, b"western:orders:0:1")])
    assert guard.was_there([own, there])
    assert guard.offset_there([own, there]) == 9
    assert guard.was_there([elsewhere])
    assert guard.offset_there([elsewhere]) is None
    assert guard.offset_there([(HEADER, origin("west", ORDERS) + b"x")]) is None


def test_a_link_is_known_again_from_what_it_wrote() -> None:
    state, again = LinkState(), LinkState()
    entries = [claim_entry("orders", OWN), *map_entries(state, COPY, [Row(3, 0, 4)], 9, {})]
    for entry in [*entries, (b'["from a later version"]', b"?")]:
        again.apply(*entry)
    assert again.claims == {"orders": OWN}
    assert again.position(COPY) == 9
    assert again.position(COPY._replace(topic_id="0c")) is None, "a topic that was created anew"
    again.apply(entries[0][0], None)
    assert again.claims == {}


def test_what_is_known_of_topics_that_are_gone_is_forgotten() -> None:
    state = LinkState()
    for copy in (COPY, COPY._replace(topic="another")):
        for key, value in map_entries(state, copy, [Row(3, 0, 4)], 9, {}):
            state.apply(key, value)
    new = COPY._replace(topic_id="0c")
    assert dead_entries(state, {COPY: 0}, at_most=10) == []
    (entry,) = dead_entries(state, {new: 0}, at_most=10)
    state.apply(*entry)
    assert state.position(COPY) is None
    assert state.position(COPY._replace(topic="another")) == 9


def test_groups_go_to_the_next_record_and_not_before_the_beginning() -> None:
    state = LinkState()
    for key, value in map_entries(state, COPY, [Row(3, 100, 4), Row(9, 110, 2)], 20, {}):
        state.apply(key, value)
    at = {n: {ORDERS: Committed(n, "m")} for n in (0, 5, 7, 8, 10, 11, 50)}
    positions = {str(n): places for n, places in at.items()}
    found = translated(positions, state, {ORDERS: COPY}, {ORDERS: 101})
    assert {int(group): places[ORDERS].offset for group, places in found.items()} == {
        **{0: 101, 5: 102, 7: 110, 8: 110, 10: 111, 11: 112, 50: 112}
    }
    assert all(places[ORDERS].metadata == "m" for places in found.values())
    assert translated({"g": {TopicPartition("x", 0): Committed(1, "")}}, state, {}, {}) == {}


class _Sent:
    """Takes the place of `sending.send`: the target's log, in which others write too."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.end = 1000

    async def __call__(
        self, batches: Any, session: Session, bootstrap: str, topic: str, told: Any
    ) -> dict[int, int]:
        assert (session.epoch, bootstrap, topic) == (2, "west:9092", "copy")
        count = 0
        for batch in batches:
            for n, record in enumerate(decode_records(batch.data)):
                self.records[self.end + n] = record
            told(batch, self.end)
            self.end += batch.records + 1  # somebody else's comes between
            count += batch.records
        return {3: count} if count else {}


def _arrow(*rows: tuple[int, bytes | None, list[tuple[str, bytes | None]]]) -> Any:
    headers = [[{"key": key, "value": value} for key, value in row[2]] or None for row in rows]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    times = [1_700_000_000_123_000 + row[0] * 1000 for row in rows]
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["orders"] * len(rows),
            "partition": [3] * len(rows),
            "offset": [row[0] for row in rows],
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "key": pa.array([None] * len(rows), pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.binary()),
            "headers": pa.array(headers, kind),
        }
    )


def test_a_task_tells_where_each_record_went(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches, gaps at both ends, and records that came from the target."""
    sent = _Sent()
    monkeypatch.setattr(reproduce, "send", sent)
    source, target = TopicPartition("orders", 3), TopicPartition("copy", 3)
    wires = Wires(Session("id", 1, 2), "west:9092", "east", "west", Codec.ZSTD, {source: target})
    large = b"x" * 300_000
    back = (HEADER, origin("west", target) + b"77")
    rows = [
        _arrow((5, b"a", [("own", b"h")]), (6, None, []), (9, large, [])),
        _arrow((10, b"back", [back]), (11, large, []), (12, b"b", [])),
    ]
    wrote = write_task(wires, rows)
    assert wrote is not None
    assert parse_report(wrote.text()) == wrote
    assert (wrote.records, wrote.returned, wrote.batches) == (5, 1, 2)
    assert wrote.rows == (Row(5, 1000, 2), Row(9, 1002, 1), Row(10, 77, 1), Row(11, 1004, 2))
    first = sent.records[1000]
    assert first.headers == (("own", b"h"), (HEADER, b"east:orders:3:5"))
    assert first.timestamp_ms == 1_700_000_000_128
    assert [record.value for record in sent.records.values()] == [b"a", None, large, large, b"b"]
    assert write_task(wires, [_arrow()]) is None


def test_a_batch_of_which_nobody_knows_the_place_ends_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forgetful(batches: Any, *rest: Any) -> dict[int, int]:
        for batch in batches:
            rest[-1](batch, -1)
        return {}

    monkeypatch.setattr(reproduce, "send", forgetful)
    places = {TopicPartition("orders", 3): TopicPartition("copy", 3)}
    wires = Wires(Session("id", 1, 2), "west:9092", "east", "west", Codec.NONE, places)
    with pytest.raises(JobError, match="does not remember where"):
        write_task(wires, [_arrow((5, b"a", []))])
