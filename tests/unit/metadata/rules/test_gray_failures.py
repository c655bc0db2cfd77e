"""Leaders that run and do not serve: who must say so, who leads in their place, and when all stays as it is."""

from penstock.metadata.rules.elections import balance_leaders
from penstock.metadata.rules.gray_failures import Evidence, replace_unreachable_leaders
from penstock.metadata.values import PartitionImage
from tests.unit.metadata.worlds import World, lose, partition, world_with

FULL = PartitionImage(1, 5, 7, (1, 2, 3), (1, 2, 3))
NOBODY = frozenset[int]()
FIRST = frozenset({1})


def judge(world: World, evidence: Evidence) -> PartitionImage:
    moves = replace_unreachable_leaders(world.image, world.rules, evidence)
    world.carry_out_all(moves.decisions)
    assert bool(moves.leaders) == bool(moves.decisions)
    assert set(moves.leaders.values()) <= {1}
    return partition(world)


def test_a_leader_that_no_follower_in_sync_can_reach_is_replaced_and_out_of_sync() -> None:
    evidence = Evidence({1: NOBODY, 2: FIRST, 3: FIRST})
    assert judge(world_with(FULL), evidence) == PartitionImage(2, 6, 8, (1, 2, 3), (2, 3))


def test_the_word_of_one_of_two_followers_changes_nothing() -> None:
    world = world_with(FULL)
    for evidence in (
        Evidence({1: NOBODY, 2: FIRST, 3: NOBODY}),
        Evidence({1: NOBODY, 2: FIRST}),
        Evidence({1: NOBODY, 2: NOBODY, 3: NOBODY}),
    ):
        assert judge(world, evidence) == FULL


def test_followers_out_of_sync_or_without_a_session_have_no_say() -> None:
    world = world_with(FULL._replace(isr=(1, 2)), config={"min.insync.replicas": "1"})
    assert judge(world, Evidence({1: NOBODY, 2: NOBODY, 3: FIRST})).leader == 1
    assert judge(world, Evidence({1: NOBODY, 2: FIRST, 3: NOBODY})).leader == 2
    world = world_with(FULL)
    lose(world, 3)
    assert partition(world).isr == (1, 2)
    assert judge(world, Evidence({1: NOBODY, 2: FIRST})).leader == 1, "2 alone would be too few"


def test_nothing_is_moved_where_too_few_would_be_in_sync_without_the_leader() -> None:
    """Nobody would be served by it: acks=all waits here as there."""
    assert judge(world_with(FULL._replace(isr=(1, 2))), Evidence({1: NOBODY, 2: FIRST})).leader == 1


def test_whom_another_follower_cannot_reach_is_not_chosen() -> None:
    evidence = Evidence({2: FIRST, 3: frozenset({1, 2})})
    assert judge(world_with(FULL), evidence).leader == 3
    evidence = Evidence({2: frozenset({1, 3}), 3: frozenset({1, 2})})
    assert judge(world_with(FULL), evidence) == FULL


def test_a_leader_that_the_controller_does_not_hear_follows_one_that_both_reach() -> None:
    evidence = Evidence({2: FIRST, 3: NOBODY}, unheard=FIRST)
    assert judge(world_with(FULL), evidence) == FULL._replace(
        leader=3, leader_epoch=6, partition_epoch=8
    )


def test_without_an_accusation_the_controller_waits_longer_before_it_replaces_a_silent_leader() -> (
    None
):
    evidence = Evidence({2: NOBODY, 3: NOBODY}, unheard=FIRST)
    assert judge(world_with(FULL), evidence) == FULL
    evidence = evidence._replace(long_unheard=FIRST)
    assert judge(world_with(FULL), evidence).leader == 2


def test_a_controller_that_hears_nobody_else_takes_nothing_for_itself() -> None:
    """Then it is the one that is cut off."""
    evidence = Evidence({2: FIRST}, unheard=frozenset({1, 3}), long_unheard=frozenset({1, 3}))
    assert judge(world_with(FULL), evidence) == FULL


def test_what_was_moved_a_short_while_ago_stays() -> None:
    world = world_with(FULL)
    spared = frozenset({(world.image.topics["t"].id, 0)})
    evidence = Evidence({2: FIRST, 3: FIRST}, spared=spared)
    assert judge(world, evidence) == FULL


def test_all_partitions_of_a_leader_move_together_with_one_write_for_each_chunk() -> None:
    world = world_with(*[FULL._replace(leader=1 + number % 2) for number in range(6)])
    moves = replace_unreachable_leaders(world.image, world.rules, Evidence({2: FIRST, 3: FIRST}))
    assert len(moves.decisions) == 1
    assert sorted(number for _, number in moves.leaders) == [0, 2, 4]


def test_who_was_out_of_reach_is_not_given_back_what_it_led_for_the_sake_of_balance() -> None:
    world = world_with(FULL._replace(leader=2))
    assert not balance_leaders(world.image, world.rules, max_moves=10, avoided=FIRST)
    assert balance_leaders(world.image, world.rules, max_moves=10)
