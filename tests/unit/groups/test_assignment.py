"""Assignors: every partition to one who wants it, evenly, and with as few moves as that allows."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.assignment import (
    ASSIGNORS,
    NOTHING,
    Assignment,
    Subscriber,
    assign_range,
    assign_uniform,
)

TOPICS = [b"a", b"b", b"c"]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12))
subscriptions = st.frozensets(st.sampled_from(TOPICS))
members = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(6)]),
    st.builds(Subscriber, st.none() | st.sampled_from(["i1", "i2"]), subscriptions),
)


def everything(topics: dict[bytes, int], group: dict[str, Subscriber]) -> set[tuple[bytes, int]]:
    wanted = {topic for subscriber in group.values() for topic in subscriber.topics}
    return {(t, n) for t, count in topics.items() if t in wanted for n in range(count)}


@given(
    name=st.sampled_from(sorted(ASSIGNORS)),
    group=members,
    topics=counts,
    before=members,
    grown=counts,
)
def test_every_partition_goes_to_exactly_one_subscriber(
    name: str,
    group: dict[str, Subscriber],
    topics: dict[bytes, int],
    before: dict[str, Subscriber],
    grown: dict[bytes, int],
) -> None:
    assign = ASSIGNORS[name]
    current = assign(before, grown, {})  # of other members, topics and counts
    assigned = assign(group, topics, current)

    given_out = [p for partitions in assigned.values() for p in partitions]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == everything(topics, group)
    for member, partitions in assigned.items():
        assert {topic for topic, _ in partitions} <= group[member].topics
    assert assigned.keys() == group.keys()
    assert assign(group, topics, current) == assigned


@given(group=members, topics=counts, before=members)
def test_uniform_leaves_no_move_that_would_make_loads_more_even(
    group: dict[str, Subscriber], topics: dict[bytes, int], before: dict[str, Subscriber]
) -> None:
    assigned = assign_uniform(group, topics, assign_uniform(before, topics, {}))
    load = {member: len(partitions) for member, partitions in assigned.items()}
    for member, partitions in assigned.items():
        for topic, _ in partitions:
            for other, subscriber in group.items():
                if topic in subscriber.topics:
                    assert load[member] - load[other] <= 1


@given(count=st.integers(0, 40), size=st.integers(1, 8))
def test_uniform_moves_only_what_a_newcomer_needs(count: int, size: int) -> None:
    topics = {b"a": count}
    everyone = {f"m{n}": Subscriber(None, frozenset([b"a"])) for n in range(size + 1)}
    before = assign_uniform({m: s for m, s in everyone.items() if m != f"m{size}"}, topics, {})
    after = assign_uniform(everyone, topics, before)

    moved = sum(len(before[member] - after[member]) for member in before)
    assert moved == len(after[f"m{size}"]) == count // (size + 1)


@given(count=st.integers(0, 40), size=st.integers(1, 8))
def test_uniform_leaves_the_others_what_they_have_when_one_goes(count: int, size: int) -> None:
    topics = {b"a": count}
    everyone = {f"m{n}": Subscriber(None, frozenset([b"a"])) for n in range(size + 1)}
    before = assign_uniform(everyone, topics, {})
    gone = everyone.pop("m0")
    after = assign_uniform(everyone, topics, before)

    assert gone.topics
    assert all(before[member] <= after[member] for member in everyone)


def test_range_splits_topics_alike_and_static_members_come_first() -> None:
    both = frozenset([b"a", b"b"])
    group = {
        "z": Subscriber("i-1", both),
        "a": Subscriber(None, both),
        "b": Subscriber(None, both),
    }
    assigned = assign_range(group, {b"a": 4, b"b": 4}, {})

    def numbers(partitions: Assignment) -> dict[bytes, list[int]]:
        return {t: sorted(n for topic, n in partitions if topic == t) for t in (b"a", b"b")}

    assert numbers(assigned["z"]) == {b"a": [0, 1], b"b": [0, 1]}
    assert numbers(assigned["a"]) == {b"a": [2], b"b": [2]}
    assert numbers(assigned["b"]) == {b"a": [3], b"b": [3]}


def test_a_member_without_topics_gets_nothing() -> None:
    group = {"ann": Subscriber(None, frozenset()), "bob": Subscriber(None, frozenset([b"a"]))}
    for assign in ASSIGNORS.values():
        assert assign(group, {b"a": 2}, {})["ann"] == NOTHING


def test_a_thousand_members_share_a_thousand_partitions() -> None:
    group = {f"m{n}": Subscriber(None, frozenset([b"a"])) for n in range(1000)}
    assigned = assign_uniform(group, {b"a": 1000}, {})

    assert {len(partitions) for partitions in assigned.values()} == {1}
