"""All directed schedules, each with the cluster that it is for."""

from collections.abc import Callable
from typing import Final

from tests.simulation import scenarios, session_scenarios
from tests.simulation.simulation import Result, Shape, Simulation

Schedule = Callable[[Simulation], Result]

SCHEDULES: Final[tuple[tuple[Schedule, Shape], ...]] = (
    (scenarios.a_fetch_arrives_after_its_sender_lost_power, scenarios.THREE),
    (scenarios.a_leader_hears_only_that_its_session_is_over, scenarios.ONE),
    (session_scenarios.a_follower_loses_power_while_its_return_is_asked_for, scenarios.FOUR),
    (session_scenarios.a_follower_comes_back_while_the_controller_cannot_write, scenarios.ONE),
    (session_scenarios.an_isr_change_is_written_after_its_member_lost_power, scenarios.ONE),
    (scenarios.the_last_one_in_sync_loses_power, scenarios.ONE),
    (scenarios.a_leader_cannot_have_its_change_committed, scenarios.THREE),
    (scenarios.a_leader_is_cut_off_from_its_followers, scenarios.THREE),
    (scenarios.a_leader_is_cut_off_from_the_controller, scenarios.THREE),
    (scenarios.a_follower_is_cut_off_from_its_leader, scenarios.ONE),
    (scenarios.a_leader_is_cut_off_from_the_store_alone, scenarios.ONE),
    (scenarios.the_store_is_down, scenarios.ONE),
    (scenarios.the_controller_dies_while_another_broker_starts, scenarios.ONE),
    (scenarios.the_whole_cluster_starts_again, scenarios.THREE),
    (scenarios.power_is_lost_and_the_first_start_after_it_fails, scenarios.ONE),
    (scenarios.followers_come_back_to_a_partition_where_nothing_is_written, scenarios.ONE),
    (scenarios.power_is_lost_everywhere, scenarios.SYNCED),
    (scenarios.everybody_crashes_again_and_again, scenarios.ONE),
    (scenarios.a_topic_is_deleted_and_made_again_while_a_broker_is_away, scenarios.ONE),
)
