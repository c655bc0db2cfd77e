"""The simulation finds the bugs that it is there to find: by chance within a few seeds, or by a schedule made for one."""

import re
from collections.abc import Callable, Sequence

import pytest

from tests.simulation import bugs, scenarios, session_scenarios
from tests.simulation.bugs import Bug
from tests.simulation.catalogue import BY_NAME
from tests.simulation.histories import run_history
from tests.simulation.loop import Broken
from tests.simulation.schedules import Schedule
from tests.simulation.simulation import Result, Shape, Simulation, simulation
from tests.support.seed import EVERY_RUN

_SEEDS = 12
_TRIES = 12  # what a schedule leaves open is up to the seed


@pytest.mark.parametrize(
    ("bug", "scenario", "shape", "found"),
    [
        (
            bugs.fetches_of_a_session_that_is_over,
            scenarios.a_fetch_arrives_after_its_sender_lost_power,
            scenarios.THREE,
            "I3: broker . is in sync",
        ),
        (
            bugs.a_leader_that_goes_on_without_a_session,
            scenarios.a_leader_hears_only_that_its_session_is_over,
            scenarios.ONE,
            "B4: b. took records without a session",
        ),
        (
            bugs.a_loss_of_power_that_nobody_is_told_of,
            scenarios.power_is_lost_and_the_first_start_after_it_fails,
            scenarios.ONE,
            "I3: broker . is in sync",
        ),
        (
            bugs.an_isr_change_that_counts_before_it_is_committed,
            scenarios.a_leader_cannot_have_its_change_committed,
            scenarios.THREE,
            "I3: broker . is in sync|I5: ",
        ),
        (
            bugs.a_high_watermark_that_moves_below_min_isr,
            scenarios.the_last_one_in_sync_loses_power,
            scenarios.ONE,
            "I5: b. t-0 at .*: committed, and only",
        ),
        (
            bugs.accusations_that_nobody_hears,
            scenarios.a_leader_is_cut_off_from_its_followers,
            scenarios.THREE,
            "producers go on",
        ),
        (
            bugs.accusations_that_nobody_hears,
            scenarios.a_leader_is_cut_off_from_the_controller,
            scenarios.THREE,
            "producers go on",
        ),
        (
            bugs.a_follower_that_is_believed_on_its_own,
            scenarios.a_follower_is_cut_off_from_its_leader,
            scenarios.ONE,
            "the leader was replaced",
        ),
        (
            bugs.a_vote_that_needs_no_majority,
            scenarios.a_follower_is_cut_off_from_its_leader,
            scenarios.ONE,
            "the leader was replaced",
        ),
        (
            bugs.a_leader_that_trusts_its_last_word_of_the_store,
            scenarios.a_leader_is_cut_off_from_the_store_alone,
            scenarios.ONE,
            "B5: acknowledged .* after it was cut off",
        ),
        (
            bugs.a_controller_that_takes_its_own_start_for_everybodys,
            scenarios.the_controller_dies_while_another_broker_starts,
            scenarios.ONE,
            "others lead",
        ),
        (
            bugs.leaders_that_stay_where_they_are,
            scenarios.the_whole_cluster_starts_again,
            scenarios.THREE,
            "each leads its share",
        ),
        (
            bugs.truncation_to_the_high_watermark,
            scenarios.everybody_crashes_again_and_again,
            scenarios.ONE,
            "I3: ",
        ),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_a_schedule_made_for_it_finds_a_bug(
    bug: Bug, scenario: Callable[[Simulation], Result], shape: Shape, found: str
) -> None:
    told = ""
    for number in range(_TRIES):
        with bug(), simulation(EVERY_RUN + number, shape) as sim:
            try:
                scenario(sim)
            except Broken as error:
                told = str(error)
                break
    assert re.search(found, told), told


@pytest.mark.parametrize(
    ("name", "schedule", "shape", "found"),
    [
        (
            "isr-member-epochs-unchecked",
            session_scenarios.a_follower_loses_power_while_its_return_is_asked_for,
            scenarios.FOUR,
            "I3: broker . is in sync",
        ),
        (
            "follower-sessions-not-noted",
            session_scenarios.a_follower_comes_back_while_the_controller_cannot_write,
            scenarios.ONE,
            "I5: .* lack it",
        ),
        (
            "isr-sessions-not-compared",
            session_scenarios.an_isr_change_is_written_after_its_member_lost_power,
            scenarios.ONE,
            "I3: broker . is in sync",
        ),
    ],
)
def test_a_schedule_finds_a_bug_of_the_catalogue(
    name: str, schedule: Schedule, shape: Shape, found: str
) -> None:
    told = ""
    for number in range(_TRIES):
        with BY_NAME[name].plant(), simulation(EVERY_RUN + number, shape) as sim:
            try:
                schedule(sim)
            except Broken as error:
                told = str(error)
                break
    assert re.search(found, told), told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "faults"),
    [
        (bugs.truncation_to_the_high_watermark, ("crash", "crash_all")),
        (bugs.an_isr_change_that_counts_before_it_is_committed, ("part", "one_way", "isolate")),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_chance_finds_a_bug_within_a_few_seeds(bug: Bug, faults: Sequence[str]) -> None:
    told = f"not found in {_SEEDS} histories"
    with bug():
        for number in range(_SEEDS):
            try:
                run_history(EVERY_RUN + number, shape=scenarios.ONE, faulty_s=15, faults=faults)
            except Broken as error:
                told = str(error)
                break
    assert "I3: " in told or "I5: " in told, told
