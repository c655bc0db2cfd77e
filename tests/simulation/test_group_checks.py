"""Each anomaly of groups is found by its own check, and a history without one is sound."""

from math import inf

import pytest

from tests.simulation.checks.groups import (
    NOTHING,
    Claim,
    GroupHistory,
    Kind,
    Look,
    Outcome,
    Pending,
    Place,
    Read,
    Rejected,
    Synced,
    Write,
    assert_sound,
    check,
)
from tests.support.failures import DataError

PLACE: Place = ("g", 0)


def commit(
    offset: int,
    start_s: float,
    end_s: float = inf,
    outcome: Outcome = Outcome.DONE,
    place: Place = PLACE,
) -> Write:
    if end_s == inf and outcome is Outcome.DONE:
        outcome = Outcome.UNKNOWN
    token = "" if offset == NOTHING else f"c{offset}"
    return Write("group", place, offset, token, start_s, end_s=end_s, outcome=outcome)


def read(offset: int, start_s: float, end_s: float, place: Place = PLACE) -> Read:
    return Read("group", place, offset, "" if offset == NOTHING else f"c{offset}", start_s, end_s)


def kinds(history: GroupHistory, end: int = 0) -> list[Kind]:
    return [anomaly.kind for anomaly in check(history, {PLACE: end})]


def of_offsets(writes: list[Write], *reads: Read) -> list[Kind]:
    return kinds(GroupHistory(writes=writes, reads=list(reads)))


# Committed offsets -------------------------------------------------------------------------------


def test_reads_of_the_last_commit_or_of_a_concurrent_one_are_sound() -> None:
    writes = [commit(1, 0, 1), commit(5, 2, 3), commit(7, 4, 9)]
    assert not of_offsets(
        writes, read(NOTHING, 0, 0.5), read(1, 0, 0.5), read(5, 5, 6), read(7, 5, 7)
    )


def test_a_commit_without_a_response_may_take_effect_at_any_time() -> None:
    writes = [commit(1, 0), commit(5, 2, 3)]
    assert not of_offsets(writes, read(5, 4, 5), read(1, 6, 7))


def test_an_offset_may_be_set_lower_by_a_later_commit() -> None:
    assert not of_offsets([commit(9, 0, 1), commit(3, 2, 3)], read(3, 4, 5))


@pytest.mark.parametrize("found", [1, NOTHING])
def test_a_read_may_not_return_less_than_an_acknowledged_commit(found: int) -> None:
    writes = [commit(1, 0, 1), commit(5, 2, 3)]
    assert of_offsets(writes, read(found, 4, 5)) == [Kind.WENT_BACK]


def test_what_was_read_once_is_committed() -> None:
    """Also if the commit has no response: its reader saw something that was lost."""
    writes = [commit(1, 0, 1), commit(5, 2)]
    assert of_offsets(writes, read(5, 3, 4), read(1, 5, 6)) == [Kind.WENT_BACK]


def test_a_rejected_commit_may_not_be_read() -> None:
    writes = [commit(5, 2, outcome=Outcome.REFUSED)]
    assert of_offsets(writes, read(5, 3, 4)) == [Kind.REFUSED_COUNTS]


def test_an_offset_that_nobody_committed_may_not_be_read() -> None:
    assert of_offsets([commit(1, 0, 1)], read(2, 3, 4)) == [Kind.PHANTOM]
    assert of_offsets([commit(2, 5, 6)], read(2, 3, 4)) == [Kind.PHANTOM]


def test_a_topic_may_not_inherit_the_offset_of_the_topic_before() -> None:
    writes = [commit(5, 0, 1, place=("v@1", 0))]
    assert of_offsets(writes, read(5, 3, 4, place=("v@2", 0))) == [Kind.PHANTOM]


def test_a_deleted_offset_may_not_return() -> None:
    writes = [commit(5, 0, 1), commit(NOTHING, 2, 3)]
    assert not of_offsets(writes, read(NOTHING, 4, 5))
    assert of_offsets(writes, read(5, 4, 5)) == [Kind.RETURNED]


def test_a_commit_after_a_deletion_may_not_be_lost() -> None:
    writes = [commit(5, 0, 1), commit(NOTHING, 2, 3), commit(6, 4, 5)]
    assert of_offsets(writes, read(NOTHING, 6, 7)) == [Kind.WENT_BACK]


def test_a_stable_offset_may_not_be_told_within_a_transaction() -> None:
    history = GroupHistory(pending=[Pending("group", PLACE, 2, 6)])
    history.stable_reads = [read(1, 1, 3), read(1, 5, 7)]
    assert not kinds(history)
    history.stable_reads.append(read(1, 3, 4))
    assert kinds(history) == [Kind.UNSTABLE]


# Owners ------------------------------------------------------------------------------------------


def claim(member: str, granted_s: float, released_s: float = inf, *kept_s: float) -> Claim:
    return Claim("group", member, PLACE, granted_s, 3, released_s, list(kept_s))


def test_a_partition_may_pass_on_when_its_owner_gave_it_up_or_was_silent() -> None:
    claims = [claim("a", 0, 2, 1), claim("b", 2.1, inf, 2.5, 3.5), claim("c", 7)]
    assert not kinds(GroupHistory(claims=claims))


def test_a_partition_may_not_pass_on_while_its_owner_keeps_its_session() -> None:
    claims = [claim("a", 0, inf, 1, 4), claim("b", 5)]
    assert kinds(GroupHistory(claims=claims)) == [Kind.TWO_OWNERS]


def test_a_former_owner_may_not_commit() -> None:
    claims = [claim("a", 0, inf, 1), claim("b", 5)]
    claims[0].committed_s = [4, 6]
    assert kinds(GroupHistory(claims=claims)) == [Kind.FORMER_MEMBER]


def synced(member: str, made_in: int = 4, author: str = "a.1") -> Synced:
    return Synced("group", 4, member, made_in, author, [PLACE])


def test_members_of_a_generation_share_one_assignment() -> None:
    assert not kinds(GroupHistory(synced=[synced("a"), synced("a")]))
    assert kinds(GroupHistory(synced=[synced("a"), synced("b")])) == [Kind.TWO_OWNERS]
    assert kinds(GroupHistory(synced=[synced("a", 3)])) == [Kind.STALE_SYNC]
    assert kinds(GroupHistory(synced=[synced("a"), synced("a", author="b.1")])) == [Kind.STALE_SYNC]


@pytest.mark.parametrize(
    ("at_s", "is_fenced", "found"),
    [(5, False, []), (3, False, [Kind.LOST_MEMBER]), (5, True, [Kind.FENCED_MEMBER])],
)
def test_a_member_that_keeps_its_session_may_not_be_rejected(
    at_s: float, is_fenced: bool, found: list[Kind]
) -> None:
    history = GroupHistory(rejected=[Rejected("group", "a", 1, at_s, 3, is_fenced)])
    assert kinds(history) == found


def test_a_request_of_an_old_epoch_may_not_be_accepted() -> None:
    assert kinds(GroupHistory(accepted_late=["a"])) == [Kind.LATE_ACCEPTED]


def test_a_coordinator_may_not_lose_its_groups_within_an_epoch() -> None:
    looks = [Look((1, 1, 0, 4), "group", it, at, at + 1) for it, at in ((True, 0), (False, 2))]
    other = Look((1, 1, 0, 5), "group", is_loading=True, start_s=4, end_s=5)
    assert not kinds(GroupHistory(looks=[*looks, other]))
    again = looks[0]._replace(start_s=6, end_s=7)
    assert kinds(GroupHistory(looks=[*looks, again])) == [Kind.FORGOT]


# Delivery ----------------------------------------------------------------------------------------


def test_every_group_gets_every_record() -> None:
    history = GroupHistory(handled={"group": {PLACE: {0, 1, 2}}})
    assert not kinds(history, end=3)
    assert kinds(history, end=4) == [Kind.SKIPPED]
    with pytest.raises(DataError, match="g-0 of 4 records: \\[3\\]"):
        assert_sound(history, {PLACE: 4})
