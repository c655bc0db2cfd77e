"""What enters a log comes out of it, in order and under its offsets, and nothing else does."""

import os
import sys
from pathlib import Path

import pytest

from penstock.model.configs import TopicConfig
from penstock.model.errors import CorruptBatch, InvalidRecord, MessageTooLarge, OffsetOutOfRange
from penstock.records.batch import TimestampType, parse_header
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record
from penstock.storage.log import Origin
from penstock.storage.recovery import Ending
from penstock.storage.tail import Tail
from penstock.storage.timestamps import TimestampOffset
from tests.unit.storage.logs import (
    COMPACTED,
    MIRROR,
    NOW_MS,
    SMALL,
    CountingDisk,
    ForgetfulDisk,
    batch,
    fill,
    headers,
    new_log,
    paths,
    put,
    raw,
    records,
    reopened,
    values,
)

DAY_MS = 86_400_000


def test_offsets_are_given_in_order_and_records_come_back(tmp_path: Path) -> None:
    log = new_log(tmp_path)

    assert put(log, b"a", b"b")[:2] == (0, 1)
    assert put(log, b"c")[:2] == (2, 2)
    assert [(r.offset, r.value) for r in records(log)] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert (log.start_offset, log.next_offset, log.latest_epoch) == (0, 3, 1)


def test_a_log_that_was_never_written_owns_no_file_and_little_memory(tmp_path: Path) -> None:
    log = new_log(tmp_path)

    assert log.read(0, 100, upto_offset=0).slices == []
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp() is None
    assert log.aborted_transactions(0, 10) == []
    assert (log.size_bytes, list(log.segments)) == (0, [])
    log.flush()
    log.close()
    assert os.listdir(tmp_path) == []
    assert sys.getsizeof(log) < 250


def test_the_caller_s_buffer_is_stamped_and_may_be_used_again(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    given = batch(b"x")
    log.append_as_leader(given, leader_epoch=9, now_ms=NOW_MS)

    assert parse_header(given)[:3:2] == (3, 9)
    given[61:] = bytes(len(given) - 61)
    assert values(log, 3) == [b"x"]


def test_an_offset_outside_the_log_is_refused_by_name(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)

    assert log.read(3, 100, upto_offset=3).slices == []
    with pytest.raises(OffsetOutOfRange, match=r"t-0: offset 4 is outside 0\.\.3"):
        log.read(4, 100, upto_offset=3)
    log.delete_records_before(2)
    with pytest.raises(OffsetOutOfRange, match=r"t-0: offset 1 is outside 2\.\.3"):
        log.read(1, 100, upto_offset=3)


def test_a_read_stops_before_the_offset_it_may_not_reach(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig())
    for _ in range(300):
        put(log, b"a", b"b")

    for upto in (2, 3, 100, 101, 599, 600):
        assert headers(raw(log, 0, upto=upto))[-1].next_offset == upto - upto % 2
    assert log.read(4, 1 << 20, upto_offset=5).slices == []
    assert log.read(4, 1 << 20, upto_offset=3).slices == []


def test_the_first_batch_is_given_even_when_it_is_too_large(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, b"x" * 500)
    fill(log, 3)

    found = log.read(0, 1, upto_offset=4)
    assert [header.base_offset for header in headers(found.slices[0].read())] == [0]
    assert found.next_offset == 1


@pytest.mark.parametrize("place", ["memory", "file", "closed"])
def test_as_many_whole_batches_are_given_as_fit(tmp_path: Path, place: str) -> None:
    log = new_log(tmp_path, TopicConfig(index_interval_bytes=200))
    for number in range(40):
        put(log, b"v" * (number % 7 * 20))
    if place == "file":
        log.segments[0]._tail = Tail()  # none of them is remembered
    elif place == "closed":
        log.roll()
    sizes = [header.size_bytes for header in headers(raw(log))]

    for offset in (0, 1, 17, 38, 39):
        for limit in range(1, 1500, 37):
            count = 1
            while sum(sizes[offset : offset + count + 1]) <= limit and offset + count < 40:
                count += 1
            found = log.read(offset, limit, upto_offset=40)
            assert found.next_offset == offset + count
            assert found.size_bytes == sum(sizes[offset : offset + count])


def test_a_reader_who_goes_on_where_the_last_read_ended_costs_one_look_at_the_file(
    tmp_path: Path,
) -> None:
    disk = CountingDisk()
    log = new_log(tmp_path, TopicConfig(index_interval_bytes=1), disk)
    fill(log, 100)
    log.roll()
    size = log.read(0, 1, upto_offset=100).size_bytes
    offset = log.read(0, 10 * size, upto_offset=100).next_offset

    while offset < 90:
        before = disk.reads
        found = log.read(offset, 10 * size + 1, upto_offset=100)
        assert found.next_offset == offset + 10
        assert disk.reads - before == 1, "the batch that no longer fits"
        offset = found.next_offset


def test_what_was_written_anew_after_a_truncation_is_found_by_a_reader_who_goes_on(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path, TopicConfig(index_interval_bytes=1))
    fill(log, 100)
    log.segments[0]._tail = Tail()  # none of them is remembered
    size = log.read(0, 1, upto_offset=100).size_bytes
    assert log.read(0, 10 * size, upto_offset=100).next_offset == 10

    log.truncate_to(10)
    for number in range(10, 100):
        put(log, b"%0*d" % (7 * number, number))
    log.segments[0]._tail = Tail()
    assert values(log, 10) == [b"%0*d" % (7 * number, number) for number in range(10, 100)]


def test_a_flush_makes_everything_durable_that_a_log_consists_of(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    log = new_log(tmp_path, SMALL, disk)
    fill(log, 30)
    log.flush()

    hints = {f"{log.segments[-1].base_offset:020d}{suffix}" for suffix in (".index", ".timeindex")}
    for path in Path(log.path).iterdir():
        if path.name not in hints:
            assert disk.durable[str(path)] == path.read_bytes(), path.name


# Rolling ---------------------------------------------------------------------------------------


def test_a_full_segment_is_followed_by_another(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)

    assert len(log.segments) > 3
    assert all(segment.size_bytes <= 600 for segment in log.segments)
    assert len(values(log)) == 30


def test_a_segment_ends_when_records_are_segment_ms_older_than_its_first(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig(segment_ms=1000))
    put(log, b"a", time_ms=NOW_MS)
    put(log, b"b", time_ms=NOW_MS + 1000)
    assert len(log.segments) == 1
    put(log, b"c", time_ms=NOW_MS + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_the_age_of_a_segment_survives_a_restart(tmp_path: Path) -> None:
    config = TopicConfig(segment_ms=1000)
    log = new_log(tmp_path, config)
    put(log, b"a", time_ms=NOW_MS)
    log.close()
    log = reopened(tmp_path, Ending.CLEAN, 1, config=config)
    put(log, b"c", time_ms=NOW_MS + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_a_segment_rolled_by_hand_ages_from_its_first_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig(segment_ms=1000))
    put(log, b"a", time_ms=NOW_MS)
    log.roll()
    put(log, b"b", time_ms=NOW_MS + 5000)
    put(log, b"c", time_ms=NOW_MS + 6000)
    put(log, b"d", time_ms=NOW_MS + 6001)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 3]


def test_jitter_makes_segments_end_earlier_at_different_times(tmp_path: Path) -> None:
    config = TopicConfig(segment_ms=1000, segment_jitter_ms=900)
    ends = set()
    for partition in range(20):
        log = new_log(tmp_path / str(partition), config)
        log.partition = partition
        put(log, b"a")
        assert log._local is not None
        ends.add(log._local._max_timestamp_ms - NOW_MS)
    assert len(ends) > 5
    assert all(100 < end <= 1000 for end in ends)


def test_a_full_index_ends_a_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig(index_interval_bytes=0, segment_index_bytes=48))
    fill(log, 30)

    assert len(log.segments) > 3
    log.close()
    assert all(path.stat().st_size <= 48 for path in paths(log, "index"))


def test_new_settings_hold_from_the_next_append_on(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig())
    fill(log, 10)
    log.configure(SMALL)
    fill(log, 10)
    assert len(log.segments) > 1


# What produce checks ---------------------------------------------------------------------------


def test_a_batch_larger_than_the_topic_takes_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig(max_message_bytes=100))

    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes is 100"):
        put(log, b"x" * 100)
    assert os.listdir(tmp_path) == []


def test_log_append_time_is_this_brokers(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig(message_timestamp_type="LogAppendTime"))
    appended = put(log, b"a", b"b", time_ms=5, now_ms=NOW_MS)

    assert appended.append_time_ms == NOW_MS
    assert [record.timestamp_ms for record in records(log)] == [NOW_MS, NOW_MS]
    header = headers(raw(log))[0]
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert log.offset_for_timestamp(NOW_MS) == TimestampOffset(NOW_MS, 0, 1)
    log.close()
    assert reopened(tmp_path, point=2).next_offset == 2, "its checksum was renewed"


def test_a_compacted_topic_takes_no_record_without_a_key(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig(cleanup_policy=frozenset({"compact"})))
    keyless = memoryview(build_batch([Record(0, NOW_MS, None, b"v")]))

    with pytest.raises(InvalidRecord, match="no key"):
        log.append_as_leader(keyless, leader_epoch=1, now_ms=NOW_MS)
    assert put(log, b"v").base_offset == 0


def test_a_topic_with_a_codec_of_its_own_stores_that(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig(compression_type="zstd"))
    put(log, b"a" * 500, codec=Codec.GZIP)
    put(log, b"b" * 500)
    put(log, b"c" * 500, codec=Codec.ZSTD)

    assert [header.codec for header in headers(raw(log))] == [Codec.ZSTD] * 3
    assert [value[:1] for value in values(log) if value] == [b"a", b"b", b"c"]


def test_what_the_broker_writes_itself_is_not_held_to_a_clients_rules(tmp_path: Path) -> None:
    log = new_log(
        tmp_path, TopicConfig(max_message_bytes=80, cleanup_policy=frozenset({"compact"}))
    )
    given = batch(b"x" * 200)
    log.append_as_leader(given, leader_epoch=1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    given[70] ^= 1

    with pytest.raises(CorruptBatch):
        log.append_as_leader(given, leader_epoch=1, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    assert log.next_offset == 1


# By time ---------------------------------------------------------------------------------------


def test_a_time_is_found_inside_a_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, b"a", b"b", b"c", times=[100, 300, 200])
    put(log, b"d", b"e", times=[250, 400], epoch=2)

    found = [log.offset_for_timestamp(time) for time in (0, 101, 301, 400, 401)]
    assert found == [
        TimestampOffset(100, 0, 1),
        TimestampOffset(300, 1, 1),
        TimestampOffset(400, 4, 2),
        TimestampOffset(400, 4, 2),
        None,
    ]
    assert log.max_timestamp() == TimestampOffset(400, 4, 2)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_time_is_found_inside_a_compressed_batch(tmp_path: Path, codec: Codec) -> None:
    log = new_log(tmp_path)
    put(log, b"a", b"b", times=[100, 200], codec=codec)
    assert log.offset_for_timestamp(150) == TimestampOffset(200, 1, 1)


def test_the_latest_time_is_found_in_whatever_segment_it_is(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 10)
    put(log, b"x", time_ms=NOW_MS + 7)
    fill(log, 20)
    assert log.max_timestamp() == TimestampOffset(NOW_MS + 7, 10, 1)
    log.close()
    assert reopened(tmp_path, Ending.CLEAN, 31).max_timestamp() == log.max_timestamp()


def test_records_below_the_log_start_are_not_found_by_time(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig())
    put(log, b"a", b"b", b"c", times=[100, 200, 300])
    log.delete_records_before(1)
    assert log.offset_for_timestamp(0) == TimestampOffset(200, 1, 1)


# As follower -----------------------------------------------------------------------------------


def test_a_follower_has_the_same_bytes_as_its_leader(tmp_path: Path) -> None:
    leader, follower = new_log(tmp_path / "a"), new_log(tmp_path / "b")
    for number in range(40):
        put(leader, b"%040d" % number, epoch=1 + number // 15)
    follower.append_as_follower(memoryview(raw(leader, 0, upto=7)))
    follower.append_as_follower(memoryview(raw(leader, 7)))

    assert raw(follower) == raw(leader)
    assert follower.epochs.entries() == leader.epochs.entries() == [(1, 0), (2, 15), (3, 30)]
    sizes = [segment.size_bytes for segment in follower.segments]
    assert sizes == [segment.size_bytes for segment in leader.segments]


def test_a_follower_takes_all_of_a_response_or_nothing(tmp_path: Path) -> None:
    leader, follower = new_log(tmp_path / "a"), new_log(tmp_path / "b")
    fill(leader, 5)
    whole = raw(leader)
    damaged = bytearray(whole)
    damaged[-1] ^= 1

    for wrong in (bytes(damaged), whole[:-1], whole + whole, b"\0" * 80):
        with pytest.raises(CorruptBatch):
            follower.append_as_follower(memoryview(wrong))
    assert (follower.next_offset, follower.size_bytes) == (0, 0)


@pytest.mark.parametrize("config", [COMPACTED, MIRROR])
def test_a_follower_passes_over_what_compaction_took_out(
    tmp_path: Path, config: TopicConfig
) -> None:
    leader, follower = new_log(tmp_path / "a"), new_log(tmp_path / "b", config)
    fill(leader, 12)
    follower.append_as_follower(memoryview(raw(leader, 0, upto=2)))
    follower.append_as_follower(memoryview(raw(leader, 9)))

    assert follower.next_offset == 12
    assert [header.base_offset for header in headers(raw(follower, 4))] == [9, 10, 11]
    follower.flush()
    assert reopened(tmp_path / "b", point=follower.recovery_point).next_offset == 12


def test_a_follower_rejects_a_hole_where_nothing_makes_holes(tmp_path: Path) -> None:
    """It would be taken for compaction ever after, and a loss in this log would not be noticed any more."""
    leader, follower = new_log(tmp_path / "a"), new_log(tmp_path / "b")
    fill(leader, 12)
    follower.append_as_follower(memoryview(raw(leader, 0, upto=2)))
    before = raw(follower)
    for first in (9, 5, 9):  # two batches that come out of turn, and one of them again
        with pytest.raises(CorruptBatch, match=f"leave out the offsets 2 to {first - 1}"):
            follower.append_as_follower(memoryview(raw(leader, first)))
    assert (raw(follower), follower.has_gaps) == (before, False)
    follower.append_as_follower(memoryview(raw(leader, 2)))
    assert raw(follower) == raw(leader)
    follower.truncate_to(2)
    with pytest.raises(CorruptBatch):  # what was refused before the append does not count
        follower.append_as_follower(memoryview(raw(leader, 9)))
    assert not follower.has_gaps


def test_a_follower_takes_the_holes_of_a_topic_that_is_not_compacted_any_more(
    tmp_path: Path,
) -> None:
    """Only the leader knows that it once was: it sends the same hole again."""
    leader, follower = new_log(tmp_path / "a"), new_log(tmp_path / "b")
    fill(leader, 12)
    follower.append_as_follower(memoryview(raw(leader, 0, upto=2)))
    with pytest.raises(CorruptBatch):
        follower.append_as_follower(memoryview(raw(leader, 9)))
    follower.append_as_follower(memoryview(raw(leader, 9)))
    assert (follower.next_offset, follower.has_gaps) == (12, True)
    fill(leader, 4)
    follower.append_as_follower(memoryview(raw(leader, 14)))
    assert follower.next_offset == 16, "further holes are expected from now on"


# Going -----------------------------------------------------------------------------------------


def test_truncation_drops_whole_batches_and_the_log_goes_on_from_there(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(20):
        put(log, b"a" * 20, b"b" * 20)
    log.truncate_to(7)

    assert log.next_offset == 6, "a batch that reaches past it goes, to be fetched again"
    assert put(log, b"new", epoch=2).base_offset == 6
    assert values(log, 6) == [b"new"]
    assert log.epochs.entries() == [(1, 0), (2, 6)]


def test_truncation_past_the_end_still_trims_epochs(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    log.begin_epoch(7)
    assert log.latest_epoch == 7
    log.truncate_to(3)
    assert (log.latest_epoch, log.next_offset) == (1, 3)


def test_a_log_can_be_cut_to_nothing_and_begin_elsewhere(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 20)
    log.truncate_fully_and_start_at(500)

    assert (log.start_offset, log.next_offset, values(log, 500)) == (500, 500, [])
    assert put(log, b"x", epoch=2).base_offset == 500
    log.flush()
    again = reopened(tmp_path, point=log.recovery_point)
    assert (again.start_offset, values(again, 500)) == (500, [b"x"])


@pytest.mark.parametrize("again", [False, True], ids=["as it is", "opened again"])
def test_a_log_that_begins_elsewhere_knows_no_producer_of_before(
    tmp_path: Path, again: bool
) -> None:
    """What they did between, and how their transactions ended, it has not seen."""
    log = new_log(tmp_path)
    put(log, b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, b"t", producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    log.flush()
    log.truncate_fully_and_start_at(500)
    put(log, b"x", epoch=2)
    if again:
        log.flush()
        log = reopened(tmp_path, point=log.recovery_point)
    assert log.last_stable_offset(501) == 501
    later = put(log, b"b", epoch=2, producer_id=7, producer_epoch=0, base_sequence=90)
    assert later.base_offset == 501


def test_deleted_records_are_gone_and_so_are_segments_without_others(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    before = len(log.segments)
    log.delete_records_before(17)

    assert log.start_offset == 17
    assert len(log.segments) < before
    assert log.segments[0].base_offset <= 17
    assert [header.base_offset for header in headers(raw(log, 17))] == list(range(17, 30))


def test_all_records_can_be_deleted(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    log.delete_records_before(30)

    assert (log.start_offset, log.next_offset, log.size_bytes) == (30, 30, 0)
    assert put(log, b"x").base_offset == 30


def test_deleting_past_the_end_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    with pytest.raises(OffsetOutOfRange, match=r"cannot delete before 4; the log is 0\.\.3"):
        log.delete_records_before(4)


def test_files_that_left_are_removed_when_due_and_the_new_start_is_on_disk(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 30)
    first = log.segments[1].base_offset
    log._drop_first(1, delay_ms=10)
    assert log.removable(NOW_MS) == []

    assert paths(log, ".log.deleted") == [Path(log.path) / f"{0:020d}.log.deleted"]
    assert log.removable(NOW_MS + 10) == [], "a restart would take the file for lost"
    log.checkpointed(0, first)
    assert log.removable(NOW_MS + 9) == []
    assert f"{log.path}/{0:020d}.log.deleted" in log.removable(NOW_MS + 10)
    assert log.removable(NOW_MS + 10) == [], "they are given once"
