"""The shell around groups: written before it is told, read back after a loss, and never without an answer."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import iter_unpack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.coordinators.groups import _SWEEP_SLICE, OFFSETS_TOPIC, _slices
from penstock.broker.coordinators.shards import _known_partition, java_hash, partition_for
from penstock.broker.partitions.partition import Partition
from penstock.groups.events import Heartbeat
from penstock.groups.records import GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from penstock.kafka.apis import APIS
from penstock.kafka.handlers import list_groups, offset_commit, sync_group
from penstock.model.errors import BrokerError, DiskFull, ErrorCode
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.storage.log import Origin
from penstock.wire.api_keys import ApiKey
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from penstock.wire.schema import Message
from tests.support.clocks import ManualClock
from tests.support.context import BrokerContext, broker_context
from tests.support.groups import (
    GROUP,
    commit_codes,
    commit_request,
    committed,
    find,
    heartbeat_request,
    join_request,
    offsets_partition,
    stable_group,
    sync_request,
    written,
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerContext]:
    with broker_context(tmp_path) as started:
        started.create_topic("t")
        yield started


def begin(broker: BrokerContext, request: Message, version: int) -> Any:
    """Hand a request over, as a connection does, without waiting for its answer."""
    api = APIS[request.api_key]
    return broker.call(lambda: api.handle(request, broker.context(request.api_key, version)))


def shard_partition(broker: BrokerContext) -> Any:
    return broker.partition(OFFSETS_TOPIC, offsets_partition(broker))


def turns(broker: BrokerContext, count: int = 5) -> None:
    async def pause() -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    broker.run(pause())


def until(broker: BrokerContext, what: Callable[[], object]) -> None:
    async def wait() -> None:
        for _ in range(10_000):
            if what():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it did not come to be")

    broker.run(wait())


def until_loaded(broker: BrokerContext) -> None:
    until(broker, lambda: not broker.services.groups.is_loading)


def is_usable(broker: BrokerContext) -> bool:
    try:
        broker.services.groups.shard_of(GROUP)
    except BrokerError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
    ],
)
def test_a_groups_partition_is_found_by_the_hash_of_java(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert 0 <= partition_for(text, 50) < 50


def plain_java_hash(text: str) -> int:
    value = 0
    for (unit,) in iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = 31 * value + unit & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@given(text=st.text(st.characters()), times=st.integers(1, 300))
def test_the_hash_of_java_is_the_same_for_keys_of_any_length(text: str, times: int) -> None:
    assert java_hash(text * times) == plain_java_hash(text * times)


@pytest.mark.parametrize("length", [127, 128, 129, 256, 16_383])
def test_the_largest_characters_overflow_nothing(length: int) -> None:
    assert java_hash("\uffff" * length) == plain_java_hash("\uffff" * length)


def test_the_partition_of_a_long_key_is_found_but_not_remembered() -> None:
    before = _known_partition.cache_info().currsize
    long = "x" * 257

    assert partition_for(long, 50) == abs(java_hash(long)) % 50
    assert _known_partition.cache_info().currsize == before


def test_the_first_question_makes_the_offsets_topic_as_kafka_would(broker: BrokerContext) -> None:
    find(broker)
    topic = broker.cluster.image.topics[OFFSETS_TOPIC]

    assert len(topic.partitions) == 50
    assert topic.is_internal
    config = broker.cluster.topic_config(topic)
    assert config.cleanup_policy == {"compact"}
    assert config.segment_bytes == 104_857_600
    assert config.compression_type == "producer"


def test_a_commit_is_in_the_log_when_it_is_acknowledged(broker: BrokerContext) -> None:
    find(broker)
    assert commit_codes(broker.ask(commit_request(5))) == [ErrorCode.NONE]

    ((key, value),) = written(broker)
    assert key == OffsetCommitKey(group=GROUP, topic="t", partition=0)
    assert isinstance(value, OffsetCommitValue)
    assert (value.offset, value.metadata) == (5, "note")
    assert value.commit_timestamp == broker.services.clock.wall_ms()


def test_the_commits_of_one_tick_share_one_batch(broker: BrokerContext) -> None:
    broker.create_topic("ten", 10)
    find(broker)

    async def commit_many() -> list[Any]:
        context = broker.context(ApiKey.OFFSET_COMMIT, 9)
        asked = [
            offset_commit.handle(commit_request(n, topic="ten", partition=n), context)
            for n in range(10)
        ]
        return [await answer for answer in asked if isinstance(answer, asyncio.Future)]

    assert [commit_codes(a) for a in broker.run(commit_many())] == [[0]] * 10
    segment = shard_partition(broker).log.segments[0]
    assert segment.next_offset == 10
    assert len(written(broker)) == 10
    read = shard_partition(broker).read(0, 1, 0)
    assert read.size_bytes == segment.file.size  # it is all one batch


def test_a_stable_group_is_written_with_the_time_of_the_wall(broker: BrokerContext) -> None:
    stable_group(broker)
    values = [v for _, v in written(broker) if isinstance(v, GroupMetadataValue)]

    assert values[-1].current_state_timestamp == broker.services.clock.wall_ms()
    assert [m.assignment for m in values[-1].members] == [b"work"]


def test_groups_and_offsets_are_there_again_after_a_restart(tmp_path: Path) -> None:
    with broker_context(tmp_path) as broker:
        broker.create_topic("t")
        member = stable_group(broker)
        request = commit_request(5, generation_id_or_member_epoch=1, member_id=member)
        assert commit_codes(broker.ask(request)) == [0]
    with broker_context(tmp_path) as broker:
        until_loaded(broker)
        assert committed(broker) == 5
        assert not broker.ask(heartbeat_request(member, 1)).error_code
        (group,) = broker.ask(ListGroupsRequest()).groups
        assert (group.group_id, group.group_state) == (GROUP, "Stable")


def test_until_its_log_is_read_a_group_is_loading_and_its_members_are_not_disturbed(
    tmp_path: Path,
) -> None:
    with broker_context(tmp_path) as broker:
        broker.create_topic("t")
        member = stable_group(broker)
    with broker_context(tmp_path) as broker:
        groups = broker.services.groups
        beat = heartbeat_request(member, 1)
        assert groups.heartbeat(GROUP, lambda asked: Heartbeat(asked, beat)) == HeartbeatResponse()
        with pytest.raises(BrokerError) as refusal:
            groups.shard_of(GROUP)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert refusal.value.code is loading
        context = broker.context(ApiKey.LIST_GROUPS, 5)
        listed = list_groups.handle(ListGroupsRequest(), context)
        assert isinstance(listed, ListGroupsResponse)
        assert listed.error_code == loading
        told = sync_group.refuse(sync_request(member, 1, {}), BrokerError("", loading))
        assert told.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        until_loaded(broker)
        assert not broker.ask(heartbeat_request(member, 1)).error_code


def test_a_record_of_a_later_version_stops_its_shard_and_no_other(tmp_path: Path) -> None:
    with broker_context(tmp_path) as broker:
        broker.create_topic("t")
        find(broker)
        broker.ask(commit_request(5))
        batch = memoryview(bytearray(build_batch([Record(0, 0, b"\x00\x63", b"\x00\x00")])))
        broker.call(
            lambda: shard_partition(broker).append(batch, now_ms=0, origin=Origin.COORDINATOR)
        )
    with broker_context(tmp_path) as broker:
        until_loaded(broker)
        refused = broker.ask(commit_request(6))
        assert commit_codes(refused) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert commit_codes(broker.ask(commit_request(6, "another"))) == [ErrorCode.NONE]
        text = broker.services.metrics.registry
        stopped = next(f for f in text.families() if f.name == "penstock_group_shards_stopped")
        assert [value for _, value in stopped.samples()] == [1]  # type: ignore[union-attr] # it is read at each scrape


def test_when_the_log_refuses_a_write_those_who_wait_are_sent_away_and_the_log_is_read_again(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = stable_group(broker)
    partition = shard_partition(broker)

    def refuse(*_: object, **__: object) -> None:
        raise BrokerError("the disk is gone", ErrorCode.KAFKA_STORAGE_ERROR)

    request = commit_request(7, generation_id_or_member_epoch=1, member_id=member)
    with monkeypatch.context() as patch:
        patch.setattr(type(partition), "append", refuse)
        assert commit_codes(broker.ask(request)) == [ErrorCode.NOT_COORDINATOR]
    assert commit_codes(broker.ask(request)) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]

    until(broker, lambda: is_usable(broker))
    assert committed(broker) == -1  # what was not written is not known
    assert commit_codes(broker.ask(request)) == [ErrorCode.NONE]


def test_a_join_that_waits_is_answered_when_its_shard_is_lost(broker: BrokerContext) -> None:
    member = stable_group(broker)
    waiting = begin(broker, join_request(), 3)  # for the member that is there to come back
    assert member
    assert not waiting.done()
    shard = broker.services.groups.shard_of(GROUP)
    broker.call(lambda: shard.fail(BrokerError("moved", ErrorCode.NOT_LEADER_OR_FOLLOWER)))

    with pytest.raises(BrokerError) as refusal:
        waiting.result()
    assert refusal.value.code is ErrorCode.NOT_COORDINATOR


def test_while_the_disk_is_full_nothing_is_taken_and_heartbeats_are_answered(
    broker: BrokerContext,
) -> None:
    member = stable_group(broker)
    broker.call(lambda: broker.replicas.disk_is_full(DiskFull("no room")))

    assert commit_codes(broker.ask(commit_request(5))) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert not broker.ask(heartbeat_request(member, 1)).error_code
    broker.call(broker.replicas.disk_has_room)
    request = commit_request(5, generation_id_or_member_epoch=1, member_id=member)
    assert commit_codes(broker.ask(request)) == [ErrorCode.NONE]


def test_a_bug_in_a_group_costs_its_shard_and_not_the_truth(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    stable_group(broker)
    broker.ask(commit_request(5, "other"))

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    shard = broker.services.groups.shard_of(GROUP)
    with monkeypatch.context() as patch:
        patch.setattr(type(shard.core), "step", fail)
        with pytest.raises(ZeroDivisionError):
            begin(broker, heartbeat_request("x", 1), 4)

    assert not is_usable(broker)
    until(broker, lambda: is_usable(broker))
    assert broker.services.groups.shard_of(GROUP) is not shard


def test_what_cannot_be_written_down_costs_the_shard_too(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(broker)
    joined = broker.ask(join_request(), 3)
    shard = broker.services.groups.shard_of(GROUP)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(type(shard), "_encoded", fail)
        with pytest.raises(ZeroDivisionError):
            begin(broker, sync_request(joined.member_id, 1, {}), 5)

    assert not is_usable(broker)
    until(broker, lambda: is_usable(broker))


def test_a_deleted_topic_takes_the_offsets_in_it_along(broker: BrokerContext) -> None:
    find(broker)
    broker.create_topic("u")
    broker.ask(commit_request(5))
    broker.ask(commit_request(6, topic="u"))
    broker.run(broker.cluster.delete_topics(["t"]))
    turns(broker)

    assert (committed(broker, topic="t"), committed(broker, topic="u")) == (-1, 6)
    key, value = written(broker)[-1]
    assert (key, value) == (OffsetCommitKey(group=GROUP, topic="t", partition=0), None)


def test_when_the_offsets_topic_is_deleted_nobody_is_coordinated_until_it_is_there_again(
    broker: BrokerContext,
) -> None:
    stable_group(broker)
    broker.run(broker.cluster.delete_topics([OFFSETS_TOPIC]))
    gone = commit_codes(broker.ask(commit_request(5)))
    find(broker)

    assert gone == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert commit_codes(broker.ask(commit_request(5))) == [ErrorCode.NONE]
    assert committed(broker) == 5


def test_offsets_that_are_past_their_time_are_swept(tmp_path: Path) -> None:
    settings = {"offsets.retention.minutes": "30", "offsets.retention.check.interval.ms": "1"}
    with broker_context(tmp_path, settings) as broker:
        broker.create_topic("t")
        find(broker)
        broker.ask(commit_request(5))
        broker.services.clock.advance(30 * 60_000)  # type: ignore[attr-defined] # it is moved by hand

        until(broker, lambda: not list(broker.services.groups.groups()))
        assert committed(broker) == -1
        assert written(broker)[-1][1] is None


def fails_for(shard: object, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what this shard does has a bug."""
    real = getattr(type(shard), method)

    def work(self: object, *arguments: Any, **options: Any) -> Any:
        if self is shard:
            raise ZeroDivisionError
        return real(self, *arguments, **options)

    monkeypatch.setattr(type(shard), method, work)


def test_a_shard_that_cannot_be_swept_costs_no_other_its_sweep_nor_all_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"offsets.retention.minutes": "30", "offsets.retention.check.interval.ms": "1"}
    with broker_context(tmp_path, settings) as broker:
        broker.create_topic("t")
        find(broker)
        broker.ask(commit_request(5))
        broker.ask(commit_request(5, "other"))
        fails_for(broker.services.groups.shard_of(GROUP).core, "expire", monkeypatch)
        until(broker, lambda: not is_usable(broker))
        until(broker, lambda: is_usable(broker))
        broker.services.clock.advance(30 * 60_000)  # type: ignore[attr-defined] # it is moved by hand

        until(broker, lambda: is_usable(broker) and not list(broker.services.groups.groups()))


def test_a_shard_that_cannot_forget_a_topic_keeps_no_other_from_it(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(broker)
    for group in (GROUP, "other", "a", "b"):
        broker.ask(commit_request(5, group))
    fails_for(broker.services.groups.shard_of(GROUP).core, "forget_topic", monkeypatch)
    broker.run(broker.cluster.delete_topics(["t"]))
    turns(broker)

    assert not is_usable(broker)
    assert [committed(broker, group) for group in ("other", "a", "b")] == [-1, -1, -1]


def too_few_in_sync(partition: Partition) -> None:
    if partition.name.topic == OFFSETS_TOPIC:
        raise BrokerError("1 of 2 is in sync", ErrorCode.NOT_ENOUGH_REPLICAS)


def test_members_do_not_time_out_while_nothing_can_be_written_nor_soon_after(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = stable_group(broker)
    shard = broker.services.groups.shard_of(GROUP)
    clock = broker.services.clock
    assert isinstance(clock, ManualClock)

    def after(elapsed_ms: int) -> int:
        """How many members there are when so much time has passed."""
        clock.advance(elapsed_ms)
        broker.call(shard._timers._run)
        turns(broker)
        return len(shard.core.groups[GROUP].members)

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "check_in_sync", too_few_in_sync)
        assert [after(ms) for ms in (9_999, 1, 60_000)] == [1, 1, 1]
        assert not broker.ask(heartbeat_request(member, 1)).error_code
        assert commit_codes(broker.ask(commit_request(5))) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert committed(broker) == -1
        assert after(10_000) == 1
    assert [after(1000) for _ in range(9)] == [1] * 9
    assert not broker.ask(heartbeat_request(member, 1)).error_code
    assert after(9_999) == 1
    assert after(1) == 0
    assert broker.services.groups.shard_of(GROUP) is shard, "it was never lost"


def recreated(broker: BrokerContext, topic: str = "t") -> None:
    broker.run(broker.cluster.delete_topics([topic]))
    broker.create_topic(topic)


class Listed(dict[int, bytes]):
    """The offsets of a topic, which know whether they were listed."""

    is_listed = False

    def __iter__(self) -> Iterator[int]:
        self.is_listed = True
        return super().__iter__()


def test_a_sweep_lists_no_more_offsets_than_it_looks_at() -> None:
    """1,000,000 offsets of one group would take 70 ms."""
    offsets = {f"t{number}": Listed(dict.fromkeys(range(100), b"")) for number in range(1000)}
    assert len(next(_slices(offsets))) == _SWEEP_SLICE
    assert sum(it.is_listed for it in offsets.values()) == _SWEEP_SLICE // 100


def test_offsets_may_come_and_go_between_two_slices_of_a_sweep() -> None:
    offsets = {topic: dict.fromkeys(range(_SWEEP_SLICE), b"") for topic in "abc"}
    slices = _slices(offsets)
    assert {topic for topic, _ in next(slices)} == {"a"}
    del offsets["a"], offsets["b"]
    offsets["d"] = {0: b""}
    assert [{topic for topic, _ in it} for it in slices] == [{"c"}]
    assert list(_slices({})) == [[]]


def test_a_topic_that_is_made_anew_while_its_groups_are_not_loaded_inherits_no_offsets(
    tmp_path: Path,
) -> None:
    with broker_context(tmp_path) as broker:
        for topic in ("t", "u", "gone"):
            broker.create_topic(topic)
        find(broker)
        for topic in ("t", "u", "gone"):
            broker.ask(commit_request(5, topic=topic))
        broker.call(broker.services.groups.close)
        recreated(broker)
        broker.run(broker.cluster.delete_topics(["gone"]))
    with broker_context(tmp_path) as broker:
        until_loaded(broker)
        assert [committed(broker, topic=topic) for topic in ("t", "u", "gone")] == [-1, 5, -1]
        assert positions(broker) == {("u", 0): 5}
        broker.create_topic("gone")
        assert committed(broker, topic="gone") == -1
        assert commit_codes(broker.ask(commit_request(1))) == [ErrorCode.NONE]
        assert committed(broker) == 1
        broker.run(broker.services.groups._sweep_shard(broker.services.groups.shard_of(GROUP)))
        turns(broker)
        kept = broker.services.groups.shard_of(GROUP).core.offsets.of_group(GROUP)
        assert sorted(kept) == ["t", "u"], "the rest is swept out"
    with broker_context(tmp_path) as broker:
        until_loaded(broker)
        assert positions(broker) == {("t", 0): 1, ("u", 0): 5}


def test_a_topic_that_is_made_anew_while_nothing_can_be_written_inherits_no_offsets(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(broker)
    broker.ask(commit_request(5))
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "check_in_sync", too_few_in_sync)
        recreated(broker)
        assert committed(broker) == -1
    assert committed(broker) == -1


def positions(broker: BrokerContext) -> dict[tuple[str, int], int]:
    """Of all topics of the group, as a client asks that does not name them."""
    asked = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    (answer,) = broker.ask(OffsetFetchRequest(groups=[asked])).groups
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in answer.topics
        for part in topic.partitions
    }
