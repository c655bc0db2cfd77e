"""Any history of a classic group: every request is answered once, and what was promised is in the log."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.groups.entries import classic_group
from penstock.groups.records import encode_value
from penstock.groups.state import ClassicGroup, Rules, State
from penstock.model.errors import ErrorCode
from penstock.wire.messages.join_group import JoinGroupResponse
from tests.unit.groups.stage import GROUP, Stage

INSTANCES = {"stat": "i-1", "stat2": "i-1", "solid": "i-2"}
NAMES = ["ann", "bob", "cat", *INSTANCES]
names = st.sampled_from(NAMES)
mostly_current = st.sampled_from([0, 0, 0, 0, 1])  # how many generations behind a member is
waits = st.sampled_from([0, 1, 500, 5999, 6000, 10_000, 60_000, 300_000])


class ClassicHistory(RuleBasedStateMachine):
    """Drawn against the current group, so that deep states are reached often, not by luck."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(Rules(initial_rebalance_delay_ms=500, max_size=4), t=3)
        self.generation = 0

    @property
    def group(self) -> ClassicGroup | None:
        group = self.stage.shard.groups.get(GROUP)
        assert group is None or isinstance(group, ClassicGroup)
        return group

    @property
    def current(self) -> int:
        return 0 if self.group is None else self.group.generation

    # What members do ---------------------------------------------------------------------------

    @rule(name=names, version=st.sampled_from([3, 4, 9]), topics=st.sampled_from(["t", "u"]))
    def newcomer(self, name: str, version: int, topics: str) -> None:
        group = self.group
        if group is None or (name not in group.members and name not in group.pending):
            instance = INSTANCES.get(name)
            self.stage.join(
                fresh=name, version=version, instance=instance, topics=(topics,), session_ms=6000
            )

    @rule(name=names, topics=st.sampled_from(["t", "t", "u"]))
    def rejoin(self, name: str, topics: str) -> None:
        instance = INSTANCES.get(name)
        self.stage.join(name, version=5, instance=instance, topics=(topics,), session_ms=6000)

    @precondition(lambda self: self.group is not None and self.group.state is State.PREPARING)
    @rule()
    def everyone_comes_back(self) -> None:
        """As clients do, when a heartbeat told them."""
        assert self.group is not None
        for name in [*self.group.members, *sorted(self.group.pending)]:
            member = self.group.members.get(name)
            if member is None or member.join is None:
                self.rejoin(name, "t")
        self.stage.pass_time(500)

    @rule(name=names, behind=mostly_current)
    def sync(self, name: str, behind: int) -> None:
        given = {other: other.encode() for other in NAMES}
        self.stage.sync(name, self.current - behind, given, instance=INSTANCES.get(name))

    @precondition(lambda self: self.group is not None and self.group.state is State.COMPLETING)
    @rule()
    def everyone_syncs(self) -> None:
        assert self.group is not None
        for name in list(self.group.members):
            self.sync(name, 0)

    @precondition(lambda self: self.group is not None and self.group.state is State.COMPLETING)
    @rule()
    def followers_sync(self) -> None:
        assert self.group is not None
        for name in list(self.group.members):
            if name != self.group.leader:
                self.sync(name, 0)

    @rule(name=names, behind=mostly_current)
    def heartbeat(self, name: str, behind: int) -> None:
        self.stage.heartbeat(name, self.current - behind, instance=INSTANCES.get(name))

    @rule(leaving=st.lists(names, min_size=1, max_size=3))
    def leave(self, leaving: list[str]) -> None:
        self.stage.leave(*leaving)

    @rule(ms=waits)
    def pass_time(self, ms: int) -> None:
        self.stage.pass_time(ms)

    @precondition(lambda self: self.group is not None and self.group.state is State.STABLE)
    @rule()
    def crash(self) -> None:
        """The coordinator moves. A stable group is found again exactly as it was."""
        assert self.group is not None
        before = encoded(self.group)
        self.stage.crash()
        assert self.group is not None
        assert encoded(self.group) == before

    # What holds --------------------------------------------------------------------------------

    @invariant()
    def every_request_is_answered_once_or_still_waits(self) -> None:
        waiting = [
            request
            for member in (self.group.members.values() if self.group else ())
            for request in (member.join, member.sync)
            if isinstance(request, int)
        ]
        assert sorted([*self.stage.replies, *waiting]) == list(range(1, self.stage.asked + 1))

    @invariant()
    def state_and_members_agree(self) -> None:
        group = self.group
        if group is None:
            return
        if group.state is State.EMPTY:
            assert not group.members
        if group.state in (State.COMPLETING, State.STABLE):
            assert group.leader in group.members
            assert group.chosen_protocol() == group.protocol
            assert all(member.join is None for member in group.members.values())
        if group.state is not State.COMPLETING:
            assert all(member.sync is None for member in group.members.values())
        assert group.awaited == sum(m.join is None for m in group.members.values())
        assert group.static == {
            m.instance_id: m.id for m in group.members.values() if m.instance_id
        }
        assert not group.pending & group.members.keys()
        assert group.unsynced <= group.members.keys()

    @invariant()
    def someone_will_move_the_group_on(self) -> None:
        """Nobody waits for ever: while a group is not at rest, a timer is set that will end it."""
        group = self.group
        if group is None:
            return
        if group.state is State.PREPARING:
            assert (GROUP, ("join", "")) in self.stage.timers
        if group.state is State.COMPLETING:
            assert (GROUP, ("sync", "")) in self.stage.timers or not group.unsynced
        for member in group.members.values():
            has_timer = (GROUP, ("session", member.id)) in self.stage.timers
            assert has_timer or member.is_excused
        for name in group.pending:
            assert (GROUP, ("session", name)) in self.stage.timers

    @invariant()
    def a_generation_never_comes_back(self) -> None:
        if self.group is None:
            self.generation = 0
        elif self.group.state is not State.STABLE:
            assert self.group.generation >= self.generation
            self.generation = self.group.generation

    @invariant()
    def one_member_leads_a_generation(self) -> None:
        leaders: dict[int, set[str]] = {}
        for reply in self.stage.replies.values():
            if isinstance(reply, JoinGroupResponse) and reply.members and not reply.error_code:
                leaders.setdefault(reply.generation_id, set()).add(reply.leader)
        for generation, found in leaders.items():
            static = {name for name in found if name in INSTANCES}
            assert len(found) == 1 or static, (generation, found)

    @invariant()
    def the_log_can_always_be_read(self) -> None:
        for shard in (self.stage.replayed(), self.stage.replayed(self.stage.compacted())):
            group = self.group
            if group is not None and group.state is State.STABLE:
                assert encoded(shard.groups[GROUP]) == encoded(group)


def encoded(group: object) -> bytes:
    assert isinstance(group, ClassicGroup)
    key, value = classic_group(group)
    assert value is not None
    return encode_value(key, value)


TestClassicHistory = ClassicHistory.TestCase
TestClassicHistory.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_a_member_is_never_told_no_error_after_it_was_removed() -> None:
    stage = Stage()
    stage.join(fresh="ann", session_ms=6000)
    stage.settle()
    stage.sync("ann", 1, {})
    stage.pass_time(6000)

    assert stage.replies[stage.heartbeat("ann", 1)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
