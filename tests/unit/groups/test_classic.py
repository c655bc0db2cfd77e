"""The classic protocol, by scenario: who is let in, who must rejoin, who is answered what."""

import pytest

from penstock.groups.events import Reply, SetTimer, Write
from penstock.groups.rebalance import complete_join, prepare
from penstock.groups.state import ClassicGroup, Rules, State
from penstock.model.errors import ErrorCode
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.messages.join_group import JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupResponse
from penstock.wire.messages.sync_group import SyncGroupResponse
from tests.unit.groups.stage import GROUP, Stage, subscription


def group_of(stage: Stage) -> ClassicGroup:
    group = stage.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    return group


def joined(stage: Stage, number: int) -> JoinGroupResponse:
    return stage.reply(number, JoinGroupResponse)


def code(stage: Stage, number: int) -> ErrorCode:
    return ErrorCode(stage.replies[number].error_code)


def stable(*members: str, stage: Stage | None = None, instances: bool = False) -> Stage:
    """A group of these members at rest; the first is the leader, each is assigned its own name."""
    stage = stage or Stage(t=4)
    numbers = [stage.join(fresh=m, instance=f"i-{m}" if instances else None) for m in members]
    stage.settle()
    generation = joined(stage, numbers[0]).generation_id
    for member in reversed(members):
        assignments = {m: m.encode() for m in members} if member == members[0] else None
        stage.sync(member, generation, assignments)
    assert group_of(stage).state is State.STABLE
    return stage


def generation_of(stage: Stage) -> int:
    return group_of(stage).generation


# Joining -----------------------------------------------------------------------------------------


def test_one_member_joins_syncs_and_rests() -> None:
    stage = Stage()
    join = stage.join(fresh="ann")
    stage.settle()
    sync = stage.sync("ann", 1, {"ann": b"p0,p1"})
    beat = stage.heartbeat("ann", 1)

    assert joined(stage, join).leader == joined(stage, join).member_id == "ann"
    assert stage.reply(sync, SyncGroupResponse).assignment == b"p0,p1"
    assert code(stage, beat) is ErrorCode.NONE
    assert group_of(stage).state is State.STABLE


def test_the_assignment_is_written_before_anyone_hears_of_it() -> None:
    stage = stable("ann")
    stage.sync("ann", 1)
    stage.leave("ann")
    stage.join(fresh="bob")
    stage.settle()

    stage.sync("bob", generation_of(stage), {"bob": b"p0"})

    kinds = [type(effect) for effect in stage.effects if isinstance(effect, Write | Reply)]
    assert kinds == [Write, Reply]


def test_members_that_join_together_share_the_first_generation_and_one_leads() -> None:
    stage = Stage()
    first, second = stage.join(fresh="ann"), stage.join(fresh="bob")
    stage.settle()

    assert joined(stage, first).generation_id == joined(stage, second).generation_id == 1
    assert [m.member_id for m in joined(stage, first).members] == ["ann", "bob"]
    assert joined(stage, second).members == []
    assert joined(stage, second).leader == "ann"


def test_the_initial_delay_is_extended_while_members_come_but_not_beyond_the_rebalance_timeout() -> (
    None
):
    stage = Stage(Rules(initial_rebalance_delay_ms=3000))
    stage.join(fresh="ann", rebalance_ms=8000)
    for member in ("bob", "cat"):
        stage.pass_time(2500)
        stage.join(fresh=member, rebalance_ms=8000)
    assert not stage.replies

    stage.pass_time(3000)

    assert len(stage.replies) == 3
    assert group_of(stage).generation == 1


def test_a_newcomer_makes_the_others_rejoin() -> None:
    stage = stable("ann")
    newcomer = stage.join(fresh="bob")
    beat = stage.heartbeat("ann", 1)
    assert code(stage, beat) is ErrorCode.REBALANCE_IN_PROGRESS
    assert newcomer not in stage.replies

    rejoin = stage.join("ann")

    assert joined(stage, rejoin).generation_id == joined(stage, newcomer).generation_id == 2


def test_a_dynamic_member_is_told_its_id_before_it_may_join() -> None:
    stage = Stage()
    first = stage.join(version=4, fresh="ann")
    assert code(stage, first) is ErrorCode.MEMBER_ID_REQUIRED
    assert joined(stage, first).member_id == "ann"

    second = stage.join("ann", version=4)
    stage.settle()

    assert code(stage, second) is ErrorCode.NONE


def test_an_id_that_was_given_out_is_forgotten_after_a_session() -> None:
    stage = Stage()
    stage.join(version=4, fresh="ann", session_ms=10_000)
    stage.pass_time(10_000)

    assert GROUP not in stage.shard.groups  # nothing of it is left
    assert code(stage, stage.join("ann", version=4)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_those_who_were_promised_a_place() -> None:
    stage = stable("ann")
    stage.join(version=4, fresh="bob")
    stage.join(fresh="cat")
    rejoin = stage.join("ann")
    assert rejoin not in stage.replies

    stage.join("bob", version=4)

    assert joined(stage, rejoin).generation_id == 2
    assert set(group_of(stage).members) == {"ann", "bob", "cat"}


def test_who_does_not_come_back_in_time_is_left_behind() -> None:
    stage = stable("ann", "bob")
    newcomer = stage.join(fresh="cat", rebalance_ms=60_000)
    for _ in range(12):
        stage.pass_time(5000)
        stage.heartbeat("ann", 1)  # alive, but it does not rejoin
        stage.heartbeat("bob", 1)

    assert joined(stage, newcomer).generation_id == 2
    assert set(group_of(stage).members) == {"cat"}
    assert code(stage, stage.heartbeat("ann", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_join_that_is_sent_again_replaces_the_first_which_is_answered_too() -> None:
    stage = stable("ann", "bob")
    first = stage.join("ann")
    second = stage.join("ann")

    assert code(stage, first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in stage.replies


def test_a_follower_that_rejoins_unchanged_disturbs_nobody() -> None:
    stage = stable("ann", "bob")
    again = stage.join("bob")

    assert joined(stage, again).generation_id == 1
    assert group_of(stage).state is State.STABLE


@pytest.mark.parametrize(("member", "topics"), [("ann", ("t",)), ("bob", ("t", "u"))])
def test_a_leader_that_rejoins_or_a_new_subscription_means_a_rebalance(
    member: str, topics: tuple[str, ...]
) -> None:
    stage = stable("ann", "bob")
    stage.join(member, topics=topics)

    assert group_of(stage).state is State.PREPARING


def test_the_protocol_that_all_support_and_most_prefer_is_chosen() -> None:
    stage = Stage()
    both = {"range": b"1", "sticky": b"2"}
    first = stage.join(fresh="ann", protocols=both)
    stage.join(fresh="bob", protocols=dict(reversed(both.items())))
    stage.join(fresh="cat", protocols={"sticky": b"3", "range": b"4", "odd": b"5"})
    stage.settle()

    assert joined(stage, first).protocol_name == "sticky"
    assert [m.metadata for m in joined(stage, first).members] == [b"2", b"2", b"3"]


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", None), ("consumer", {"odd": b""}), ("consumer", {}), ("", None)],
)
def test_a_member_with_nothing_in_common_is_refused_and_the_group_goes_on(
    protocol_type: str, protocols: dict[str, bytes] | None
) -> None:
    stage = stable("ann")
    refused = stage.join(protocol_type=protocol_type, protocols=protocols)

    assert code(stage, refused) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(stage, stage.heartbeat("ann", 1)) is ErrorCode.NONE


def test_a_full_group_takes_nobody_in_and_keeps_its_members() -> None:
    stage = stable("ann", "bob", stage=Stage(Rules(max_size=2)))
    refused = stage.join(fresh="cat")

    assert code(stage, refused) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert set(group_of(stage).members) == {"ann", "bob"}
    assert code(stage, stage.heartbeat("bob", 1)) is ErrorCode.NONE


def test_a_newcomer_that_finds_the_group_full_is_awaited_no_longer() -> None:
    stage = stable("ann", "bob", stage=Stage(Rules(max_size=2)))
    leader = stage.join("ann")
    stage.join(version=4, fresh="cat")  # told its id, and so awaited
    follower = stage.join("bob")
    refused = stage.join("cat", version=4)

    assert code(stage, refused) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [joined(stage, n).generation_id for n in (leader, follower)] == [2, 2]


# Bad input ---------------------------------------------------------------------------------------


def test_requests_to_a_group_that_does_not_exist_come_from_unknown_members() -> None:
    stage = Stage()
    numbers = [
        stage.join("ann"),
        stage.sync("ann", 1),
        stage.heartbeat("ann", 1),
        stage.leave("ann"),
    ]

    assert [code(stage, n) for n in numbers] == [ErrorCode.UNKNOWN_MEMBER_ID] * 4
    assert not stage.shard.groups


def test_a_stale_generation_and_an_unknown_member_change_nothing() -> None:
    stage = stable("ann", "bob")
    assert code(stage, stage.heartbeat("ann", 0)) is ErrorCode.ILLEGAL_GENERATION
    assert code(stage, stage.sync("ann", 2)) is ErrorCode.ILLEGAL_GENERATION
    assert code(stage, stage.heartbeat("eve", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(stage, stage.sync("eve", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(stage, stage.join("eve")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group_of(stage).state is State.STABLE


def test_a_sync_that_names_another_protocol_is_refused() -> None:
    stage = stable("ann")

    wrong = stage.sync("ann", 1, protocol_type="consumer", protocol="sticky")
    right = stage.sync("ann", 1, protocol_type="consumer", protocol="range")

    assert code(stage, wrong) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert stage.reply(right, SyncGroupResponse).assignment == b"ann"


# Leaving, silence, and members that never sync ---------------------------------------------------


def test_members_leave_together_and_the_rest_rejoin_once() -> None:
    stage = stable("ann", "bob", "cat")
    left = stage.leave("ann", "cat", "eve")

    answers = [m.error_code for m in stage.reply(left, LeaveGroupResponse).members]
    assert answers == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert joined(stage, stage.join("bob")).leader == "bob"
    assert generation_of(stage) == 2


def test_the_last_member_that_leaves_leaves_an_empty_group_in_the_log() -> None:
    stage = stable("ann")
    stage.leave("ann")

    assert group_of(stage).state is State.EMPTY
    assert stage.replayed().groups[GROUP].is_empty


def test_a_silent_member_is_removed_after_its_session_and_the_others_rejoin() -> None:
    stage = stable("ann", "bob")
    stage.pass_time(9000)
    stage.heartbeat("ann", 1)
    stage.pass_time(1000)

    assert set(group_of(stage).members) == {"ann"}
    assert code(stage, stage.heartbeat("ann", 1)) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_waits_for_an_answer_from_us_is_not_silent() -> None:
    stage = stable("ann", "bob")
    waiting = stage.join("ann")
    for _ in range(5):
        stage.pass_time(9000)
        stage.heartbeat("bob", 1)
    stage.join("bob")

    assert code(stage, waiting) is ErrorCode.NONE


def test_members_that_never_ask_for_their_assignment_are_removed() -> None:
    stage = stable("ann", "bob")
    stage.join(fresh="cat", rebalance_ms=60_000)
    stage.join("ann")
    stage.join("bob")
    stage.sync("ann", 2, {"ann": b"1", "cat": b"2"})
    stage.sync("bob", 2)
    for _ in range(12):
        stage.pass_time(5000)
        for member in ("ann", "bob", "cat"):
            stage.heartbeat(member, 2)

    assert set(group_of(stage).members) == {"ann", "bob"}
    assert group_of(stage).state is State.PREPARING


def test_a_parked_sync_is_sent_back_to_join_when_the_group_reopens() -> None:
    stage = stable("ann", "bob")
    stage.leave("ann")
    stage.join(fresh="cat")
    stage.join("bob")
    parked = stage.sync("cat", 2)

    stage.join(fresh="dan")

    assert code(stage, parked) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_dies_before_it_has_assigned_is_replaced() -> None:
    stage = Stage()
    stage.join(fresh="ann", session_ms=6000)
    stage.join(fresh="bob", session_ms=60_000)
    stage.settle()
    parked = stage.sync("bob", 1)
    stage.pass_time(6000)

    assert code(stage, parked) is ErrorCode.REBALANCE_IN_PROGRESS
    assert joined(stage, stage.join("bob")).leader == "bob"


def test_a_member_that_leaves_while_its_sync_waits_is_answered() -> None:
    stage = Stage()
    stage.join(fresh="ann")
    stage.join(fresh="bob")
    stage.settle()
    parked = stage.sync("bob", 1)
    stage.leave("bob")

    assert code(stage, parked) is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_members_that_are_all_late_are_waited_for_again_but_not_for_ever() -> None:
    stage = stable("ann", "bob", instances=True)
    stage.join(fresh="cat", session_ms=300_000)
    for member in ("ann", "bob"):
        stage.join(member, instance=f"i-{member}")
    for member in ("ann", "bob", "cat"):
        stage.sync(member, 2, {})
    stage.leave("cat")

    def live(seconds: int) -> None:
        for _ in range(seconds // 5):
            stage.pass_time(5000)
            for member in ("ann", "bob"):
                stage.heartbeat(member, 2, instance=f"i-{member}")

    live(65)  # longer than the rebalance timeout, and nobody is back
    assert group_of(stage).state is State.PREPARING
    back = stage.join("ann", instance="i-ann")
    live(65)

    assert joined(stage, back).generation_id == 3


@pytest.mark.parametrize("rebalance_ms", [-2_000_000, 0, 1])
def test_static_members_that_are_all_late_are_not_asked_for_without_a_pause(
    rebalance_ms: int,
) -> None:
    stage = Stage()
    ann = stage.join(fresh="ann", instance="i-ann", rebalance_ms=rebalance_ms)
    bob = stage.join(fresh="bob", instance="i-bob", rebalance_ms=rebalance_ms)
    stage.timers.clear()
    stage.do(GROUP, complete_join(group_of(stage), stage.now_ms))
    assert {joined(stage, n).generation_id for n in (ann, bob)} == {1}
    effects = prepare(group_of(stage), stage.now_ms) + complete_join(group_of(stage), stage.now_ms)

    (at_ms,) = (e.at_ms for e in effects[-1:] if isinstance(e, SetTimer))
    assert at_ms >= stage.now_ms + 1000


# Static members ----------------------------------------------------------------------------------


def test_a_static_member_that_restarts_takes_its_place_without_a_rebalance() -> None:
    stage = stable("ann", "bob", instances=True)
    back = stage.join(instance="i-bob", fresh="bob2")
    sync = stage.sync("bob2", 1, instance="i-bob")

    assert joined(stage, back).generation_id == 1
    assert stage.reply(sync, SyncGroupResponse).assignment == b"bob"
    assert code(stage, stage.heartbeat("ann", 1)) is ErrorCode.NONE
    assert set(stage.replayed().groups[GROUP].members) == {"ann", "bob2"}


def test_the_old_self_of_a_static_member_is_fenced() -> None:
    stage = stable("ann", "bob", instances=True)
    stage.join(instance="i-bob", fresh="bob2")

    assert code(stage, stage.heartbeat("bob", 1, instance="i-bob")) is ErrorCode.FENCED_INSTANCE_ID
    assert code(stage, stage.sync("bob", 1, instance="i-bob")) is ErrorCode.FENCED_INSTANCE_ID
    assert code(stage, stage.join("bob", instance="i-bob")) is ErrorCode.FENCED_INSTANCE_ID
    assert code(stage, stage.heartbeat("bob2", 1, instance="i-bob")) is ErrorCode.NONE


@pytest.mark.parametrize(("version", "leader"), [(5, "ann"), (9, "ann2")])
def test_a_static_leader_that_restarts_does_not_assign_anew(version: int, leader: str) -> None:
    stage = stable("ann", "bob", instances=True)
    back = joined(stage, stage.join(instance="i-ann", fresh="ann2", version=version))

    assert back.leader == leader
    assert back.skip_assignment == (version >= 9)
    assert group_of(stage).leader == "ann2"


def test_a_static_member_that_restarts_and_prefers_another_protocol_means_a_rebalance() -> None:
    stage = Stage()
    both = {"range": subscription("t"), "sticky": subscription("t")}
    stage.join(instance="i-ann", fresh="ann", protocols=both)
    stage.settle()
    stage.sync("ann", 1, {"ann": b"p0"})

    stage.join(instance="i-ann", fresh="ann2", protocols=dict(reversed(both.items())))

    assert group_of(stage).protocol == "sticky"
    assert group_of(stage).generation == 2


def test_a_parked_join_of_a_fenced_static_member_is_answered() -> None:
    stage = stable("ann", "bob", instances=True)
    stage.join(fresh="cat")
    parked = stage.join("bob", instance="i-bob")
    stage.join(instance="i-bob", fresh="bob2")

    assert code(stage, parked) is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_keeps_its_place_when_it_misses_a_rebalance() -> None:
    stage = stable("ann", "bob", instances=True)
    stage.join(fresh="cat", rebalance_ms=20_000, session_ms=60_000)
    stage.join("ann", instance="i-ann", rebalance_ms=20_000)
    for _ in range(12):
        stage.pass_time(5000)
        stage.heartbeat("bob", 1, instance="i-bob")

    assert set(group_of(stage).members) == {"ann", "bob", "cat"}


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    stage = stable("ann", "bob", instances=True)
    left = stage.leave(instances=("i-bob", "i-eve"))

    codes = [m.error_code for m in stage.reply(left, LeaveGroupResponse).members]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert set(group_of(stage).members) == {"ann"}


# After a crash -----------------------------------------------------------------------------------


def test_members_go_on_in_their_generation_after_the_coordinator_was_lost() -> None:
    stage = stable("ann", "bob")
    stage.crash()

    assert code(stage, stage.heartbeat("bob", 1)) is ErrorCode.NONE
    assert stage.reply(stage.sync("ann", 1), SyncGroupResponse).assignment == b"ann"
    stage.pass_time(10_000)
    assert not group_of(stage).members


def test_a_group_over_a_lowered_limit_is_rebalanced_when_it_is_loaded() -> None:
    stage = stable("ann", "bob", "cat")
    object.__setattr__(stage.context.rules, "max_size", 2)
    stage.crash()
    first, second = stage.join("ann"), stage.join("bob")
    third = stage.join("cat")

    assert code(stage, third) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert code(stage, first) is code(stage, second) is ErrorCode.NONE
    assert isinstance(stage.replies[third], JoinGroupResponse)
    assert code(stage, stage.heartbeat("ann", 2)) is ErrorCode.NONE
    assert stage.reply(stage.heartbeat("cat", 2), HeartbeatResponse).error_code
