"""High watermark and in-sync replicas, as their leader reckons them."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.leader import Follower, IsrState, Leadership

ME, ANN, BOB = 1, 2, 3
EVERYBODY = (ME, ANN, BOB)


def leadership(isr: tuple[int, ...] = EVERYBODY, start_offset: int = 0) -> Leadership:
    return Leadership(ME, 5, start_offset, EVERYBODY, IsrState(isr, 7))


def fetched(lead: Leadership, broker: int, offset: int, log_end: int = 10, now_ms: int = 0) -> bool:
    return lead.fetched(broker, 100 + broker, offset, log_end, now_ms)


def mark(lead: Leadership, present: int = 0, own_end: int = 10, min_isr: int = 2) -> int:
    return lead.high_watermark(present, own_end, min_isr=min_isr)


# The high watermark


def test_nothing_is_committed_before_every_in_sync_replica_has_it() -> None:
    lead = leadership()
    assert mark(lead) == 0
    fetched(lead, ANN, 10)
    assert mark(lead) == 0
    fetched(lead, BOB, 4)
    assert mark(lead) == 4
    fetched(lead, BOB, 10)
    assert mark(lead) == 10


def test_the_leaders_own_log_counts_too() -> None:
    lead = leadership()
    fetched(lead, ANN, 10)
    fetched(lead, BOB, 10)
    assert mark(lead, own_end=8) == 8  # synced up to there


def test_who_is_not_in_sync_does_not_hold_the_others_up() -> None:
    lead = leadership(isr=(ME, ANN))
    fetched(lead, ANN, 10)
    fetched(lead, BOB, 1)
    assert mark(lead) == 10


def test_what_a_follower_had_in_an_earlier_session_does_not_count() -> None:
    """It may have lost power in between; and the third, which held the mark back, is no longer in sync."""
    lead = leadership()
    fetched(lead, ANN, 10)
    fetched(lead, BOB, 4)
    assert mark(lead) == 4
    lead.began_session(ANN, 100 + ANN)
    lead.committed(IsrState((ME, ANN), 8), EVERYBODY)
    assert mark(lead, present=4) == 10, "the session that it fetched in"
    lead.began_session(ANN, 999)
    assert mark(lead, present=4) == 4
    assert lead.expanded(ANN, 4) is None
    lead.fetched(ANN, 999, 7, 10, 0)
    assert mark(lead, present=4) == 7


def test_it_never_goes_back() -> None:
    lead = leadership()
    fetched(lead, ANN, 3)
    fetched(lead, BOB, 3)
    assert mark(lead, present=6) == 6


def test_it_stands_still_below_the_minimum_of_in_sync_replicas() -> None:
    lead = leadership(isr=(ME,))
    assert mark(lead, present=4, min_isr=2) == 4
    assert mark(lead, present=4, min_isr=1) == 10


def test_members_of_the_old_and_of_the_proposed_state_count_until_one_is_committed() -> None:
    lead = leadership(isr=(ME, ANN))
    fetched(lead, ANN, 10)
    fetched(lead, BOB, 6)
    lead.propose(EVERYBODY)
    assert mark(lead) == 6
    lead.refused()
    assert mark(lead) == 10

    shrinking = leadership()
    fetched(shrinking, ANN, 10)
    fetched(shrinking, BOB, 6)
    shrinking.propose((ME, ANN))
    assert mark(shrinking) == 6
    shrinking.committed(IsrState((ME, ANN), 8), EVERYBODY)
    assert mark(shrinking) == 10


def test_it_waits_for_one_that_is_about_to_catch_up() -> None:
    lead = leadership(isr=(ME, ANN))
    fetched(lead, ANN, 10)
    fetched(lead, BOB, 7)

    def waits_for(broker: int, _: Follower) -> bool:
        return broker == BOB

    assert lead.high_watermark(0, 10, min_isr=2, awaited=waits_for) == 7


# Who is in sync


def test_a_follower_joins_when_it_has_what_is_committed_and_what_was_there_when_the_epoch_began() -> (
    None
):
    lead = leadership(isr=(ME, ANN), start_offset=8)
    assert lead.expanded(BOB, 5) is None
    fetched(lead, BOB, 7)
    assert lead.expanded(BOB, 5) is None
    fetched(lead, BOB, 8)
    assert lead.expanded(BOB, 9) is None
    assert lead.expanded(BOB, 8) == EVERYBODY


def test_one_change_is_under_way_at_a_time() -> None:
    lead = leadership(isr=(ME, ANN))
    fetched(lead, BOB, 10)
    lead.propose((ME,))
    assert lead.expanded(BOB, 5) is None
    assert lead.shrunk(10, now_ms=10**9, lag_ms=1, since_ms=0) is None


def test_a_proposed_addition_counts_for_the_session_in_which_it_had_caught_up() -> None:
    """It may come back without its log before the controller answers, and the request is repeated."""
    lead = leadership(isr=(ME, ANN))
    fetched(lead, BOB, 10)
    assert lead.session_of(BOB) == 103
    lead.propose(EVERYBODY)
    lead.began_session(BOB, 200)
    lead.fetched(BOB, 200, 0, 10, 0)
    assert lead.session_of(BOB) == 103
    lead.refused()
    assert lead.session_of(BOB) == 200


def test_who_has_not_been_up_to_date_for_too_long_leaves() -> None:
    lead = leadership()
    fetched(lead, ANN, 10, now_ms=100)
    fetched(lead, BOB, 9, now_ms=100)
    assert lead.shrunk(10, now_ms=200, lag_ms=100, since_ms=100) is None
    assert lead.shrunk(10, now_ms=201, lag_ms=100, since_ms=100) == (ME, ANN)


def test_who_keeps_up_with_a_log_that_grows_all_the_time_stays() -> None:
    lead = leadership(isr=(ME, ANN))
    for now_ms in range(0, 1000, 10):  # each time it has what was there the last time
        fetched(lead, ANN, now_ms, log_end=now_ms + 10, now_ms=now_ms)
    assert lead.shrunk(1000, now_ms=1000, lag_ms=50, since_ms=0) is None
    assert lead.shrunk(1000, now_ms=1200, lag_ms=50, since_ms=0) == (ME,)


def test_who_never_fetched_leaves_once_its_time_has_run() -> None:
    lead = leadership()
    assert lead.shrunk(0, now_ms=50, lag_ms=100, since_ms=0) is None
    assert lead.shrunk(0, now_ms=101, lag_ms=100, since_ms=0) == (ME,)


def test_of_answers_and_metadata_the_newest_counts_whichever_comes_first() -> None:
    lead = leadership()
    assert lead.committed(IsrState((ME, ANN), 9), EVERYBODY)
    assert not lead.committed(IsrState(EVERYBODY, 8), EVERYBODY)
    assert lead.isr == IsrState((ME, ANN), 9)


def test_a_broker_that_is_no_replica_changes_nothing() -> None:
    lead = leadership()
    assert not fetched(lead, 9, 10)
    assert lead.follower(9) is None
    fetched(lead, BOB, 10)
    lead.committed(IsrState((ME, ANN), 8), (ME, ANN))
    assert lead.follower(BOB) is None


# Whatever happens

steps = st.one_of(
    st.tuples(st.just("fetch"), st.sampled_from((ANN, BOB)), st.integers(0, 20)),
    st.tuples(st.just("propose"), st.sampled_from(((ME,), (ME, ANN), (ME, BOB), EVERYBODY))),
    st.tuples(st.just("commit")),
    st.tuples(st.just("refuse")),
)


@given(st.lists(steps, max_size=40))
def test_what_is_committed_is_on_every_replica_that_may_be_in_sync(
    history: list[tuple[object, ...]],
) -> None:
    lead, present, epoch = leadership(), 0, 7
    has = {ME: 20, ANN: -1, BOB: -1}
    for step in history:
        match step:
            case ("fetch", int(broker), int(offset)):
                has[broker] = max(has[broker], offset)
                fetched(lead, broker, has[broker], log_end=20)
            case ("propose", tuple() as members) if lead.proposed is None:
                lead.propose(members)
            case ("commit",) if lead.proposed is not None:
                epoch += 1
                lead.committed(IsrState(lead.proposed, epoch), EVERYBODY)
            case ("refuse",):
                lead.refused()
            case _:
                continue
        before, present = present, mark(lead, present, own_end=20)
        assert present >= before
        if present > before:
            assert len(lead.isr.members) >= 2
            assert all(
                has[member] >= present for member in (*lead.isr.members, *(lead.proposed or ()))
            )
