"""Any history of a consumer group: no partition is ever worked on twice, all are in the end, and the log knows it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.groups.consumer import ConsumerGroup
from penstock.groups.entries import whole_consumer_group
from penstock.groups.records import encode_key, encode_value
from tests.unit.groups.stage import GROUP, Stage, topic_id

NAMES = ["ann", "bob", "cat", "dan"]
TOPICS = ["t", "u", "v"]
names = st.sampled_from(NAMES)
Partition = tuple[bytes, int]


class ConsumerHistory(RuleBasedStateMachine):
    """Clients here are slow: they hear an assignment, and give up what is not in it some time later."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(t=3, u=2)
        self.epochs: dict[str, int] = {}
        self.works_on: dict[str, set[Partition]] = {}
        self.must_stop: dict[str, set[Partition]] = {}
        self.wants: dict[str, dict[str, object]] = {}
        self.lost: set[str] = set()  # those who say everything next time, as their answer was lost
        self.group_epoch = 0

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.stage.shard.groups.get(GROUP)
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    # What members do ---------------------------------------------------------------------------

    @rule(name=names, topics=st.sets(st.sampled_from(TOPICS), min_size=1), by_pattern=st.booleans())
    def join(self, name: str, topics: set[str], by_pattern: bool) -> None:
        self.works_on.pop(name, None)  # who joins has given up everything
        if by_pattern:
            self.wants[name] = {"pattern": "|".join(sorted(topics))}
        else:
            self.wants[name] = {"topics": sorted(topics)}
        self._hear(name, 0, owned={}, **self.wants[name])

    @rule(name=names)
    def heartbeat(self, name: str) -> None:
        if name in self.epochs:
            self._hear(name, self.epochs[name], owned=self._owned(name))

    @rule(name=names)
    def short_heartbeat(self, name: str) -> None:
        if name in self.epochs:
            self._hear(name, self.epochs[name])

    @rule(name=names)
    def lost_answer(self, name: str) -> None:
        """The coordinator hears it, and the member does not hear the coordinator."""
        if name in self.epochs:
            self.stage.beat(name, self.epochs[name], owned=self._owned(name))
            self.lost.add(name)

    @rule(name=names, topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    def subscribe(self, name: str, topics: set[str]) -> None:
        if name in self.epochs:
            self.wants[name] = {"topics": sorted(topics), "pattern": ""}
            self._hear(name, self.epochs[name], owned=self._owned(name), **self.wants[name])

    @rule(name=names)
    def give_up(self, name: str) -> None:
        self.works_on.get(name, set()).difference_update(self.must_stop.pop(name, ()))

    @rule(name=names)
    def leave(self, name: str) -> None:
        if name in self.epochs:
            self._forget(name)
            self.stage.beat(name, -1)

    # What happens to them ----------------------------------------------------------------------

    @rule(ms=st.sampled_from([100, 5000, 30_000]))
    def pass_time(self, ms: int) -> None:
        self.stage.pass_time(ms)
        for name in list(self.epochs):  # a client stops its work when it has heard nothing for long
            if self.group is None or name not in self.group.members:
                self._forget(name)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(0, 4))
    def change_topic(self, topic: str, count: int) -> None:
        if count:
            self.stage.topics.put(topic, topic_id(topic), count)
        else:
            self.stage.topics.drop(topic)

    @rule()
    def crash(self) -> None:
        before = state_of(self.group)
        self.stage.crash()
        assert state_of(self.group) == before

    @rule()
    def everyone_settles(self) -> None:
        """When clients do as they are told, every partition is worked on by one who wants it."""
        for name in list(self.epochs):
            self._hear(name, self.epochs[name], owned=self._owned(name))
        for _ in range(8):
            for name in list(self.epochs):
                self.give_up(name)
                self._hear(name, self.epochs[name], owned=self._owned(name))
        group = self.group
        if group is None or not group.members:
            return
        wanted = {
            (shape.id, number)
            for name in group.subscribed
            if (shape := self.stage.topics.get(name)) is not None
            for number in range(shape.partition_count)
        }
        assert set().union(*self.works_on.values()) == wanted
        assert all(member.is_at(group.epoch) for member in group.members.values())

    def _hear(self, name: str, epoch: int, **options: object) -> None:
        if name in self.lost:
            self.lost.discard(name)
            options = {"rebalance_ms": 30_000, "owned": self._owned(name), **self.wants[name]}
        response = self.stage.beat(name, epoch, **options)  # type: ignore[arg-type] # the options of Stage.beat
        if response.error_code:  # fenced, or gone for too long: it drops everything and joins again
            assert epoch != 0
            self._forget(name)
            self._hear(name, 0, owned={}, **self.wants[name])
            return
        self.epochs[name] = response.member_epoch
        if response.assignment is not None:
            given = {
                (topic.topic_id, number)
                for topic in response.assignment.topic_partitions
                for number in topic.partitions
            }
            works_on = self.works_on.setdefault(name, set())
            self.must_stop[name] = works_on - given
            works_on |= given

    def _owned(self, name: str) -> dict[str, list[int]]:
        owned: dict[str, list[int]] = {}
        for topic, number in sorted(self.works_on.get(name, ())):
            owned.setdefault(topic.rstrip(b"\0").decode(), []).append(number)
        return owned

    def _forget(self, name: str) -> None:
        self.epochs.pop(name, None)
        self.works_on.pop(name, None)
        self.must_stop.pop(name, None)
        self.lost.discard(name)

    # What holds --------------------------------------------------------------------------------

    @invariant()
    def no_partition_is_worked_on_twice(self) -> None:
        everything = [partition for works_on in self.works_on.values() for partition in works_on]
        assert len(everything) == len(set(everything))

    @invariant()
    def every_request_is_answered(self) -> None:
        assert sorted(self.stage.replies) == list(range(1, self.stage.asked + 1))

    @invariant()
    def owners_are_who_holds(self) -> None:
        if self.group is not None:
            held = [(p, m.id) for m in self.group.members.values() for p in m.holds]
            assert len(held) == len(dict(held))
            assert self.group.owners == dict(held)

    @invariant()
    def epochs_never_go_back(self) -> None:
        if self.group is not None:
            assert self.group.epoch >= self.group_epoch
            assert self.group.assignment_epoch <= self.group.epoch
            self.group_epoch = self.group.epoch

    @invariant()
    def every_member_has_a_session(self) -> None:
        for name in self.group.members if self.group is not None else ():
            assert (GROUP, ("session", name)) in self.stage.timers

    @invariant()
    def the_log_says_the_same(self) -> None:
        for shard in (self.stage.replayed(), self.stage.replayed(self.stage.compacted())):
            assert state_of(shard.groups.get(GROUP)) == state_of(self.group)


def state_of(group: object) -> object:
    if group is None:
        return None
    assert isinstance(group, ConsumerGroup)
    records = {
        encode_key(key): None if value is None else encode_value(key, value)
        for key, value in whole_consumer_group(group)
    }
    return records, group.owners, group.shapes, group.matches, group.static


TestConsumerHistory = ConsumerHistory.TestCase
TestConsumerHistory.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
