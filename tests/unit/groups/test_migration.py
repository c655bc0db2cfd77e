"""Live migration (KIP-848): classic and consumer members in one group, there and back."""

import pytest

from penstock.groups.consumer import ConsumerGroup
from penstock.groups.protocol import decode_assignment, encode_assignment
from penstock.groups.state import ClassicGroup, Rules, State
from penstock.model.errors import ErrorCode
from penstock.wire.messages.join_group import JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupResponse
from penstock.wire.messages.sync_group import SyncGroupResponse
from tests.unit.groups.stage import GROUP, Stage, subscription
from tests.unit.groups.test_consumer import Consumer, code

T = ("t",)


class ClassicConsumer:
    """A member with the classic protocol that does what a cooperative consumer does."""

    def __init__(self, stage: Stage, name: str, instance: str | None = None) -> None:
        self.stage, self.name, self.instance = stage, name, instance
        self.generation = -1
        self.owned: dict[str, list[int]] = {}

    def join(self, member_id: str | None = None) -> JoinGroupResponse:
        number = self.stage.join(
            self.name if member_id is None else member_id,
            owned=self.owned,
            instance=self.instance,
            fresh=self.name,
            version=5,
        )
        self.stage.settle()
        response = self.stage.reply(number, JoinGroupResponse)
        if not response.error_code:
            self.generation = response.generation_id
        return response

    def sync(self, assignments: dict[str, bytes] | None = None) -> SyncGroupResponse:
        number = self.stage.sync(self.name, self.generation, assignments, instance=self.instance)
        response = self.stage.reply(number, SyncGroupResponse)
        if not response.error_code:
            self.owned = decode_assignment(response.assignment)
        return response

    def heartbeat(self) -> ErrorCode:
        number = self.stage.heartbeat(self.name, self.generation, instance=self.instance)
        return ErrorCode(self.stage.replies[number].error_code)

    def follow(self) -> None:
        """Until there is nothing left to do: rejoin as long as it is told to."""
        while self.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            self.sync()


def classic_group(count: int = 4) -> tuple[Stage, ClassicConsumer]:
    stage = Stage(t=count)
    ann = ClassicConsumer(stage, "ann", instance="i-ann")
    ann.join("")
    ann.sync({"ann": encode_assignment({"t": list(range(count))}, 1)})
    return stage, ann


def kind(stage: Stage) -> type[object]:
    return type(stage.shard.groups[GROUP])


def mixed() -> tuple[Stage, ClassicConsumer, Consumer]:
    """A group that was upgraded by bob, and is at rest."""
    stage, ann = classic_group()
    bob = Consumer(stage, "bob")
    for _ in range(3):
        ann.follow()
        bob.beat()
    return stage, ann, bob


def test_a_classic_group_becomes_a_consumer_group_when_a_new_member_joins() -> None:
    stage, ann = classic_group()
    bob = Consumer(stage, "bob")
    assert kind(stage) is ConsumerGroup
    assert bob.owned == {}  # ann works on all of them still

    ann.follow()
    bob.beat()

    assert (ann.owned, bob.owned) == ({"t": [0, 1]}, {"t": [2, 3]})


def test_an_upgraded_group_is_found_again_after_a_crash() -> None:
    stage, ann, bob = mixed()
    stage.crash()

    assert ann.heartbeat() is ErrorCode.NONE
    assert code(bob.beat()) is ErrorCode.NONE
    assert kind(stage) is ConsumerGroup


def test_the_group_is_classic_again_when_the_last_new_member_is_gone() -> None:
    stage, ann, bob = mixed()
    stage.beat("bob", -1)
    assert bob.owned
    assert kind(stage) is ClassicGroup

    assert ann.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    joined = ann.join()
    ann.sync({"ann": encode_assignment({"t": [0, 1, 2, 3]}, 1)})

    assert joined.leader == "ann"
    assert ann.owned == {"t": [0, 1, 2, 3]}
    stage.crash()
    assert kind(stage) is ClassicGroup
    assert ann.heartbeat() is ErrorCode.NONE


def test_a_static_member_that_goes_back_to_the_classic_protocol_makes_the_group_classic() -> None:
    stage = Stage(t=2)
    Consumer(stage, "ann", instance="i-1")
    stage.beat("ann", -2, instance="i-1")
    back = ClassicConsumer(stage, "ann2", instance="i-1")
    joined = back.join("")
    synced = back.sync()

    assert kind(stage) is ClassicGroup
    assert not joined.error_code
    assert not synced.error_code
    assert back.owned == {"t": [0, 1]}


def test_those_who_wait_while_the_group_is_upgraded_are_sent_back_to_join() -> None:
    stage, ann = classic_group()
    waiting = stage.join(fresh="cat")
    Consumer(stage, "bob")

    assert stage.replies[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert ann.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("join", "epoch", "expected"),
    [
        ({"protocol_type": "connect", "protocols": {"x": b""}}, 0, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"protocols": {"range": b"?"}}, 0, ErrorCode.GROUP_ID_NOT_FOUND),
        ({}, 3, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_group_that_cannot_be_converted_stays_what_it_is(
    join: dict[str, object], epoch: int, expected: ErrorCode
) -> None:
    stage = Stage(t=2)
    stage.join(fresh="ann", **join)  # type: ignore[arg-type] # the options of Stage.join
    stage.settle()
    response = stage.beat("bob", epoch)

    assert code(response) is expected
    assert kind(stage) is ClassicGroup
    assert "ann" in stage.shard.groups[GROUP].members


def test_a_group_that_is_full_is_not_converted() -> None:
    stage = Stage(Rules(consumer_max_size=1), t=2)
    stage.join(fresh="ann")
    stage.settle()

    assert code(stage.beat("bob", 0)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert kind(stage) is ClassicGroup


def test_an_empty_group_of_either_kind_becomes_the_other_and_keeps_its_offsets() -> None:
    stage = Stage(t=2)
    stage.commit(5)
    Consumer(stage, "ann")
    assert kind(stage) is ConsumerGroup
    stage.beat("ann", -1)
    stage.join(fresh="bob")
    stage.settle()
    assert kind(stage) is ClassicGroup

    assert stage.position() == 5
    assert stage.replayed().offsets.get(GROUP, "t", 0) is not None
    assert not stage.replayed().groups[GROUP].members


# A classic member in a consumer group ------------------------------------------------------------


def test_a_newcomer_with_the_classic_protocol_is_told_its_id_and_then_let_in() -> None:
    stage, ann, bob = mixed()
    cat = ClassicConsumer(stage, "cat")
    assert cat.join("").error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert not cat.join().error_code
    cat.sync()
    for _ in range(4):
        ann.follow()
        bob.beat()
        cat.follow()

    assert sorted(n for c in (ann, bob, cat) for n in c.owned["t"]) == [0, 1, 2, 3]


def test_classic_members_are_checked_as_ever() -> None:
    stage, ann, bob = mixed()
    wrong = [
        (stage.heartbeat("ann", 99), ErrorCode.ILLEGAL_GENERATION),
        (stage.heartbeat("eve", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (stage.heartbeat(bob.name, bob.epoch), ErrorCode.UNKNOWN_MEMBER_ID),
        (stage.heartbeat("eve", 1, instance="i-ann"), ErrorCode.FENCED_INSTANCE_ID),
        (stage.sync("ann", 99), ErrorCode.ILLEGAL_GENERATION),
        (
            stage.sync("ann", ann.generation, protocol="odd", protocol_type="consumer"),
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        (stage.join(protocols={"odd": subscription("t")}), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (stage.join("eve", instance="i-ann"), ErrorCode.FENCED_INSTANCE_ID),
        (stage.join("eve", instance="i-new"), ErrorCode.UNKNOWN_MEMBER_ID),
        (stage.join(protocols={"range": b"?"}), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ]

    assert [ErrorCode(stage.replies[n].error_code) for n, _ in wrong] == [c for _, c in wrong]
    assert ann.heartbeat() is ErrorCode.NONE


def test_a_sync_for_an_assignment_that_is_out_of_date_means_joining_again() -> None:
    stage, ann, _ = mixed()
    Consumer(stage, "cat")

    assert ann.sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_classic_member_leaves_and_the_others_take_its_work() -> None:
    stage, ann, bob = mixed()
    number = stage.leave("ann", "bob", "eve")
    for _ in range(3):
        bob.beat()

    codes = [m.error_code for m in stage.reply(number, LeaveGroupResponse).members]
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert codes == [ErrorCode.NONE, unknown, unknown]  # bob leaves in its own way
    assert bob.owned == {"t": [0, 1, 2, 3]}
    assert ann.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("told", ["join", "sync"])
def test_a_classic_member_that_does_not_follow_is_removed(told: str) -> None:
    stage, ann, bob = mixed()
    cat = Consumer(stage, "cat")
    assert ann.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    if told == "sync":
        ann.join()
    for _ in range(7):  # alive, but it does not do what it is told
        stage.pass_time(9000)
        ann.heartbeat()
        bob.beat()
        cat.beat()

    assert "ann" not in stage.shard.groups[GROUP].members


def test_an_eager_member_that_says_it_owns_nothing_gives_everything_up_at_once() -> None:
    stage, ann = classic_group()
    bob = Consumer(stage, "bob")
    ann.owned = {}  # as eager clients do before they join
    ann.join()
    bob.beat()

    assert bob.owned == {"t": [2, 3]}


def test_a_new_topic_makes_classic_members_of_a_consumer_group_rejoin() -> None:
    stage, ann, _ = mixed()
    stage.topics.put("t", stage.topics.get("t").id, 6)  # type: ignore[union-attr] # it is there

    assert ann.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_downgraded_group_has_the_state_and_generation_that_members_know() -> None:
    stage, ann, _ = mixed()
    stage.beat("bob", -1)
    group = stage.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)

    assert group.state is State.PREPARING
    assert group.generation >= ann.generation
