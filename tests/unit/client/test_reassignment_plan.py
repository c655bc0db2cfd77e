"""Plans move as little as possible, never put two replicas on a broker, keep racks, and leave nothing to plan."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.layout import Node
from penstock.client.reassignment_plan import (
    Plan,
    TooFewBrokers,
    copies,
    plan_balance,
    plan_factor,
    plan_leaving,
    plan_placement,
)
from penstock.model.ids import TopicPartition

Replicas = dict[TopicPartition, tuple[int, ...]]


def nodes(*racks: str | None) -> list[Node]:
    """Brokers 1 to N in these racks."""
    return [Node(number, rack) for number, rack in enumerate(racks, 1)]


def one_topic(*replicas: Sequence[int]) -> Replicas:
    return {TopicPartition("t", index): tuple(it) for index, it in enumerate(replicas)}


def applied(replicas: Replicas, plan: Plan) -> Replicas:
    return {**replicas, **plan}


def loads(replicas: Mapping[TopicPartition, Sequence[int]], among: Iterable[Node]) -> list[int]:
    count = Counter(member for members in replicas.values() for member in members)
    return [count[node.id] for node in among]


def leads(replicas: Mapping[TopicPartition, Sequence[int]], among: Iterable[Node]) -> list[int]:
    count = Counter(members[0] for members in replicas.values())
    return [count[node.id] for node in among]


def unevenness(counts: Sequence[int]) -> int:
    return max(counts) - min(counts)


def copied(replicas: Replicas, plan: Plan) -> int:
    return sum(copies(replicas[at], members) for at, members in plan.items())


def crowding(members: Sequence[int], among: Iterable[Node]) -> int:
    """Low where a partition is well spread over racks."""
    racks = {node.id: node.rack for node in among}
    return sum(size**2 for size in Counter(racks[it] for it in members if it in racks).values())


@st.composite
def clusters(draw: st.DrawFn, *, racks: bool = True) -> tuple[Replicas, list[Node]]:
    names = st.sampled_from(["a", "b", "c"]) if racks else st.none()
    members = nodes(*draw(st.lists(names, min_size=2, max_size=7)))
    ids = [node.id for node in members]
    factors = draw(st.lists(st.integers(1, min(4, len(ids))), min_size=1, max_size=4))
    replicas: Replicas = {}
    for number, factor in enumerate(factors):
        for index in range(draw(st.integers(1, 8))):
            chosen = draw(st.permutations(ids))[:factor]
            replicas[TopicPartition(f"t{number}", index)] = tuple(chosen)
    return replicas, members


@given(clusters())
def test_every_plan_is_legal_and_keeps_racks(cluster: tuple[Replicas, list[Node]]) -> None:
    replicas, members = cluster
    after = applied(replicas, plan_balance(replicas, members))
    for at, chosen in after.items():
        assert len(set(chosen)) == len(chosen) == len(replicas[at])
        assert crowding(chosen, members) <= crowding(replicas[at], members)


@given(clusters())
def test_a_balanced_cluster_needs_no_plan(cluster: tuple[Replicas, list[Node]]) -> None:
    replicas, members = cluster
    after = applied(replicas, plan_balance(replicas, members))
    assert plan_balance(after, members) == {}


@given(clusters(racks=False))
def test_without_racks_replicas_are_even_within_one_by_the_fewest_copies(
    cluster: tuple[Replicas, list[Node]],
) -> None:
    replicas, members = cluster
    plan = plan_balance(replicas, members)
    assert unevenness(loads(applied(replicas, plan), members)) <= 1
    before = loads(replicas, members)
    low, rest = divmod(sum(before), len(before))
    too_many = sum(max(0, load - low - bool(rest)) for load in before)
    too_few = sum(max(0, low - load) for load in before)
    assert copied(replicas, plan) == max(too_many, too_few)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 12),
    st.data(),
)
def test_with_racks_of_equal_size_replicas_are_even_within_one(
    racks: int, size: int, partitions: int, data: st.DataObject
) -> None:
    members = nodes(*("abcd"[number % racks] for number in range(racks * size)))
    factor = data.draw(st.integers(1, racks))
    ids = [node.id for node in members]
    replicas = one_topic(*(data.draw(st.permutations(ids))[:factor] for _ in range(partitions)))
    after = applied(replicas, plan_balance(replicas, members))
    assert unevenness(loads(after, members)) <= 1
    for chosen in after.values():
        assert crowding(chosen, members) == factor, "one replica a rack"


@given(clusters(racks=False))
def test_nobody_leads_two_more_than_a_replica_that_could_take_over(
    cluster: tuple[Replicas, list[Node]],
) -> None:
    replicas, members = cluster
    after = applied(replicas, plan_balance(replicas, members))
    count = Counter(chosen[0] for chosen in after.values())
    for chosen in after.values():
        assert all(count[chosen[0]] - count[other] <= 1 for other in chosen)


@given(st.integers(3, 6), st.integers(1, 5), st.integers(2, 3))
def test_a_new_broker_gets_its_share_and_nothing_else_is_copied(
    brokers: int, rounds: int, factor: int
) -> None:
    partitions = brokers * rounds
    members = nodes(*[None] * (brokers + 1))
    replicas = one_topic(
        *([(index + step) % brokers + 1 for step in range(factor)] for index in range(partitions))
    )
    plan = plan_balance(replicas, members)
    after = applied(replicas, plan)
    assert unevenness(loads(after, members)) <= 1
    assert unevenness(leads(after, members)) <= 1
    assert copied(replicas, plan) == loads(after, members)[-1]
    for at, chosen in plan.items():
        assert set(chosen) - set(replicas[at]) <= {brokers + 1}


@given(clusters(), st.data())
def test_leaving_a_broker_copies_what_it_holds_and_keeps_the_order(
    cluster: tuple[Replicas, list[Node]], data: st.DataObject
) -> None:
    replicas, members = cluster
    leaving = data.draw(st.sampled_from([node.id for node in members]))
    if max(map(len, replicas.values())) == len(members):
        at_leaving = [at for at, chosen in replicas.items() if leaving in chosen]
        if any(len(replicas[at]) == len(members) for at in at_leaving):
            with pytest.raises(TooFewBrokers):
                plan_leaving(replicas, members, [leaving])
            return
    plan = plan_leaving(replicas, members, [leaving])
    assert set(plan) == {at for at, chosen in replicas.items() if leaving in chosen}
    for at, chosen in plan.items():
        assert leaving not in chosen
        assert len(set(chosen)) == len(chosen)
        moved = [(old, new) for old, new in zip(replicas[at], chosen, strict=True) if old != new]
        assert [old for old, _ in moved] == [leaving]
    assert plan_leaving(applied(replicas, plan), members, [leaving]) == {}


def test_what_a_broker_leaves_is_spread_over_the_least_loaded() -> None:
    replicas = one_topic([1, 4], [2, 4], [3, 4], [1, 4], [2, 4], [3, 4])
    plan = plan_leaving(replicas, nodes(None, None, None, None), [4])
    assert loads(applied(replicas, plan), nodes(None, None, None)) == [4, 4, 4]


def test_what_a_broker_leaves_stays_in_racks_of_its_own() -> None:
    members = nodes("a", "b", "a", "b", "c")
    replicas = one_topic([1, 2, 5], [3, 4, 5], [1, 4, 5])
    plan = plan_leaving(replicas, [*members, Node(6, "c")], [5])
    assert all(chosen[2] == 6 for chosen in plan.values())


def test_who_has_too_few_brokers_is_told_for_which_partition() -> None:
    with pytest.raises(TooFewBrokers) as told:
        plan_leaving(one_topic([1, 2, 3]), nodes(None, None, None), [3])
    assert (str(told.value.partition), told.value.wanted, told.value.brokers) == ("t-0", 3, 2)


def test_where_nobody_can_take_a_replica_over_it_can_be_given_up() -> None:
    replicas = one_topic([3, 1, 2], [3, 1], [3])
    plan = plan_leaving(replicas, nodes(None, None, None), [3], shrink=True)
    assert plan == one_topic([1, 2], [2, 1], [1])


def test_what_is_on_a_broker_that_does_not_run_stays_there() -> None:
    replicas = one_topic([1, 9], [1, 9], [1, 9], [1, 9])
    after = applied(replicas, plan_balance(replicas, nodes(None, None)))
    assert [chosen[1] for chosen in after.values()] == [9, 9, 9, 9]
    assert loads(after, nodes(None, None)) == [2, 2]


@given(clusters(racks=False), st.integers(1, 4))
def test_a_new_factor_adds_or_takes_away_and_no_more(
    cluster: tuple[Replicas, list[Node]], factor: int
) -> None:
    replicas, members = cluster
    if factor > len(members):
        with pytest.raises(TooFewBrokers):
            plan_factor(replicas, members, factor)
        return
    after = applied(replicas, plan_factor(replicas, members, factor))
    for at, chosen in after.items():
        assert len(set(chosen)) == len(chosen) == factor
        assert chosen[0] == replicas[at][0], "the preferred leader stays"
        assert set(chosen) <= set(replicas[at]) or set(chosen) >= set(replicas[at])
    assert plan_factor(after, members, factor) == {}


def test_a_factor_is_lowered_where_replicas_are_dead_or_crowded() -> None:
    members = nodes("a", "a", "b")
    assert plan_factor(one_topic([1, 2, 3]), members, 2) == one_topic([1, 3])
    assert plan_factor(one_topic([9, 1, 3]), members, 2) == one_topic([1, 3])


def test_topics_can_be_sent_to_some_brokers_and_others_stay() -> None:
    replicas = {**one_topic([1, 2], [2, 1], [1, 2]), TopicPartition("other", 0): (1, 2)}
    chosen = [Node(3), Node(4)]
    plan = plan_placement(replicas, chosen, topics=["t"])
    assert set(plan) == {at for at in replicas if at.topic == "t"}
    assert all(set(members) == {3, 4} for members in plan.values())
    assert unevenness(leads(plan, chosen)) <= 1
    assert plan_placement(applied(replicas, plan), chosen, topics=["t"]) == {}


def test_thousands_of_partitions_are_planned_at_once() -> None:
    members = nodes(*[None] * 13)
    replicas = {
        TopicPartition(f"t{topic}", index): tuple(
            (topic + index + step) % 12 + 1 for step in range(3)
        )
        for topic in range(200)
        for index in range(20)
    }
    after = applied(replicas, plan_balance(replicas, members))
    assert unevenness(loads(after, members)) <= 1
    assert unevenness(leads(after, members)) <= 1
