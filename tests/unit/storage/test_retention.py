"""Old segments go by age, by size and with the log start; what is not replicated stays."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock.model.configs import TopicConfig
from penstock.storage.retention import count_expired
from tests.unit.storage.logs import NOW_MS, SMALL, batch, new_log, put, values

FOREVER = TopicConfig(retention_ms=-1)


@dataclass
class Facts:
    next_offset: int
    size_bytes: int
    time_ms: int

    def newest_ms(self) -> int:
        return self.time_ms


SEGMENTS = [Facts(10, 100, 1000), Facts(20, 100, 3000), Facts(30, 100, 2000), Facts(40, 50, 4000)]


def expired(config: TopicConfig, *, start: int = 0, upto: int = 40, now_ms: int = 5000) -> int:
    return count_expired(SEGMENTS, config, start_offset=start, upto_offset=upto, now_ms=now_ms)


@pytest.mark.parametrize(
    ("retention_ms", "count"), [(-1, 0), (4001, 0), (4000, 0), (3999, 1), (1999, 3), (999, 4)]
)
def test_segments_go_whose_newest_record_is_too_old(retention_ms: int, count: int) -> None:
    assert expired(TopicConfig(retention_ms=retention_ms)) == count


@pytest.mark.parametrize(
    ("retention_bytes", "count"), [(-1, 0), (350, 0), (251, 0), (250, 1), (150, 2), (0, 4)]
)
def test_segments_go_while_enough_stays(retention_bytes: int, count: int) -> None:
    assert expired(replace(FOREVER, retention_bytes=retention_bytes)) == count


def test_what_is_not_replicated_stays() -> None:
    everything = TopicConfig(retention_ms=0)
    assert [expired(everything, upto=upto) for upto in (9, 10, 29, 40)] == [0, 1, 2, 4]


def test_a_compacted_topic_only_loses_what_is_below_its_start() -> None:
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), retention_ms=0)
    assert [expired(config, start=start) for start in (9, 10, 25, 40)] == [0, 1, 2, 3]


def test_an_empty_cleanup_policy_keeps_all_that_is_not_below_the_log_start() -> None:
    config = TopicConfig(cleanup_policy=frozenset(), retention_ms=0, retention_bytes=0)
    assert [expired(config, start=start) for start in (9, 10, 25, 40)] == [0, 1, 2, 3]


def test_age_and_size_rules_hold_together() -> None:
    both = TopicConfig(retention_ms=3999, retention_bytes=150)
    assert expired(both) == 2


def test_a_log_forgets_its_oldest_records(tmp_path: Path) -> None:
    log = new_log(tmp_path, replace(SMALL, retention_ms=1000))
    for number in range(30):
        put(log, b"%040d" % number, time_ms=NOW_MS + number * 100, now_ms=NOW_MS + number * 100)
    freed = log.apply_retention(NOW_MS + 3000, upto_offset=30)

    assert freed > 0
    assert 0 < log.start_offset == log.segments[0].base_offset
    assert len(values(log, log.start_offset)) == 30 - log.start_offset
    assert log.epochs.entries() == [(1, log.start_offset)]
    assert log.apply_retention(NOW_MS + 3000, upto_offset=30) == 0


def test_a_log_whose_every_record_is_too_old_becomes_empty_and_goes_on(tmp_path: Path) -> None:
    log = new_log(tmp_path, replace(SMALL, retention_ms=1000))
    for number in range(10):
        put(log, b"%040d" % number)
    log.apply_retention(NOW_MS + 9999, upto_offset=10)

    assert (log.start_offset, log.size_bytes) == (10, 0)
    assert log.apply_retention(NOW_MS + 99999, upto_offset=10) == 0
    assert put(log, b"x").base_offset == 10


def test_records_without_a_time_are_as_old_as_their_file(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfig(retention_ms=1000))
    log.append_as_leader(batch(b"x", time_ms=-1), leader_epoch=1, now_ms=NOW_MS)
    written_ms = log.segments[0].file.modified_ms()

    assert log.apply_retention(written_ms + 1000, upto_offset=1) == 0
    assert log.apply_retention(written_ms + 1001, upto_offset=1) > 0


def test_a_log_never_written_has_nothing_to_forget(tmp_path: Path) -> None:
    assert new_log(tmp_path).apply_retention(NOW_MS, upto_offset=0) == 0
