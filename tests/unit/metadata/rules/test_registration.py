"""The life of a broker: what its coming and going does to the partitions that it holds."""

import pytest

from penstock.metadata.rules.controller import TopicSpec, automatic_topic
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.rules.elections import ElectionKind, elect_leaders
from penstock.metadata.rules.registration import (
    begin_shutdown,
    broker_lost,
    brokers_to_register,
    disk_failed,
    lost_brokers,
    register_broker,
    unfence_broker,
    unregister_broker,
)
from penstock.metadata.store import Put
from penstock.metadata.values import (
    PartitionImage,
    chunk_key,
    decode_registration,
    encode,
    encode_chunk,
)
from penstock.metadata.values import decode as decode_value
from penstock.model.errors import BrokerError, ErrorCode
from tests.unit.metadata.worlds import (
    THREE,
    World,
    come_back,
    lose,
    partition,
    register,
    unfence,
    world_with,
)

FULL = PartitionImage(1, 5, 7, (1, 2, 3), (1, 2, 3))


def test_a_broker_alone_leads_again_at_a_higher_epoch_and_takes_part_once_it_knows() -> None:
    world = World()
    world.create(TopicSpec("t", 130), TopicSpec("u"))
    world.start(1)
    assert brokers_to_register(world.image) == [1]
    for decision in register_broker(world.image, 1, world.rules):
        assert brokers_to_register(world.image) == [1], "the registration is written last"
        world.carry_out(decision)
    assert brokers_to_register(world.image) == []
    assert register_broker(world.image, 1, world.rules) == []
    assert world.image.brokers[1].fenced
    for topic in world.image.topics.values():
        assert set(topic.partitions) == {PartitionImage(1, 1, 1, (1,), (1,))}
    (only,) = unfence_broker(world.image, 1, world.rules)
    world.carry_out(only)
    assert world.image.brokers[1].may_lead
    assert unfence_broker(world.image, 1, world.rules) == []


@pytest.mark.parametrize("ending", ["clean", "process-crash", "power-loss", "empty-disk"])
def test_the_only_replica_leads_again_however_its_broker_ended(ending: str) -> None:
    world = world_with(PartitionImage(1, 5, 7, (1,), (1,)))
    come_back(world, 1, ending)
    assert partition(world) == PartitionImage(1, 6, 8, (1,), (1,))
    lose(world, 1)
    assert partition(world) == PartitionImage(-1, 7, 9, (1,), (), (1,))
    come_back(world, 1, ending)
    assert partition(world) == PartitionImage(1, 8, 10, (1,), (1,))


def test_brokers_are_lost_one_by_one_down_to_the_last_and_come_back() -> None:
    world = world_with(FULL)
    lose(world, 3)
    assert partition(world) == PartitionImage(1, 5, 8, (1, 2, 3), (1, 2))
    lose(world, 1)
    assert partition(world) == PartitionImage(2, 6, 9, (1, 2, 3), (2,), (1,))
    lose(world, 2)
    assert partition(world) == PartitionImage(-1, 7, 10, (1, 2, 3), (), (1, 2))
    come_back(world, 3)
    assert partition(world).leader == -1, "it may lack what the other two committed"
    come_back(world, 1, "process-crash")
    assert partition(world) == PartitionImage(1, 8, 11, (1, 2, 3), (1,), (2,))


def test_a_loss_is_dealt_with_once_and_only_without_a_session() -> None:
    world = world_with(FULL)
    assert broker_lost(world.image, 1, world.rules) == []
    assert broker_lost(world.image, 9, world.rules) == []
    world.stop(1)
    assert lost_brokers(world.image) == [1]
    world.carry_out_all(broker_lost(world.image, 1, world.rules))
    assert lost_brokers(world.image) == []
    assert broker_lost(world.image, 1, world.rules) == []
    assert world.image.registrations[1].fenced


def test_what_a_controller_left_half_done_is_finished_by_the_next() -> None:
    rows = [FULL._replace(leader=1 + n % 3) for n in range(6)]
    world = world_with(*rows)
    world.create(*(TopicSpec(f"u{n}", 3, 3) for n in range(4)))
    world.stop(1)
    world.carry_out_all(broker_lost(world.image, 1, world.rules)[:2])
    assert lost_brokers(world.image) == [1]
    world.carry_out_all(broker_lost(world.image, 1, world.rules))
    assert all(
        1 not in row.isr and row.leader != 1
        for topic in world.image.topics.values()
        for row in topic.partitions
    )


def test_leaderless_partitions_come_first_and_internal_topics_before_them() -> None:
    world = World(THREE)
    world.create(
        TopicSpec("follows", assignments={0: [2, 1]}),
        TopicSpec("leads", assignments={0: [1, 2]}),
        TopicSpec("alone", assignments={0: [1]}),
        automatic_topic(world.image, "__consumer_offsets", world.rules),
    )
    names = {topic.id: topic.name for topic in world.image.topics.values()}
    keys = {chunk_key(topic_id, 0): name for topic_id, name in names.items()}
    world.stop(1)
    order = [
        write.key
        for it in broker_lost(world.image, 1, world.rules)
        for write in it.writes
        if isinstance(write, Put)
    ]
    assert [keys.get(key, key) for key in order] == [
        "__consumer_offsets",
        "alone",
        "leads",
        "follows",
        "reg/1",
    ]


def test_two_brokers_lost_together_elect_only_those_that_run() -> None:
    world = world_with(FULL)
    lose(world, 1, 2)
    assert partition(world) == PartitionImage(3, 6, 9, (1, 2, 3), (3,), (2,))


@pytest.mark.parametrize(
    ("ending", "after"),
    [
        ("clean", PartitionImage(1, 6, 8, (1, 2, 3), (1, 2, 3))),
        ("process-crash", PartitionImage(2, 6, 8, (1, 2, 3), (2, 3))),
        ("power-loss", PartitionImage(2, 6, 8, (1, 2, 3), (2, 3))),
    ],
)
def test_a_leader_back_before_its_loss_was_noticed_leads_on_only_after_a_clean_end(
    ending: str, after: PartitionImage
) -> None:
    world = world_with(FULL)
    come_back(world, 1, ending)
    assert partition(world) == after


@pytest.mark.parametrize(
    ("ending", "elr"), [("clean", (1,)), ("process-crash", (1,)), ("power-loss", ())]
)
def test_a_crash_keeps_a_place_among_the_eligible_and_a_loss_of_power_does_not(
    ending: str, elr: tuple[int, ...]
) -> None:
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (2,), (1,)))
    world.start(1, ending)
    register(world, 1)
    assert partition(world).elr == elr
    assert partition(world).leader_epoch == 5
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (1, 2)))
    world.start(1, ending)
    register(world, 1)
    if ending != "clean":
        assert partition(world) == PartitionImage(2, 5, 8, (1, 2, 3), (2,), elr)


@pytest.mark.parametrize(
    ("how", "is_known"),
    [
        ({"directory": "other"}, False),
        ({"previous_epoch": 0}, False),
        ({"previous_epoch": 99}, True),
        ({}, True),
    ],
)
def test_a_disk_that_is_not_the_one_known_counts_as_empty(
    how: dict[str, object], is_known: bool
) -> None:
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (1, 2)))
    world.start(1, "clean", **how)  # type: ignore[arg-type]  # one of two keywords, each of its type
    register(world, 1)
    assert (1 in partition(world).isr) is is_known
    assert (1 in partition(world).isr + partition(world).elr) is is_known


def test_when_all_lose_power_only_synced_topics_and_single_replicas_lead_again() -> None:
    for config, leads in (({}, False), ({"flush.messages": "1"}, True)):
        world = world_with(FULL, PartitionImage(1, 5, 7, (1,), (1,)), config={**config})
        for broker_id in THREE:
            world.stop(broker_id)
        for broker_id in THREE:
            world.start(broker_id, "power-loss")
            register(world, broker_id)
        for broker_id in THREE:
            unfence(world, broker_id)
        assert (partition(world).leader == 1) is leads
        assert partition(world, 1).leader == 1


def test_after_a_loss_of_power_everywhere_an_unclean_election_finds_who_was_in_sync() -> None:
    world = world_with(PartitionImage(2, 5, 7, (1, 2, 3), (2, 3)))
    for broker_id in THREE:
        world.stop(broker_id)
    for broker_id in THREE:
        come_back(world, broker_id, "power-loss")
    now = partition(world)
    assert (now.leader, now.isr, now.elr, now.last_known_elr) == (-1, (), (), (2, 3))
    come_back(world, 2, "empty-disk")
    assert partition(world).last_known_elr == (2, 3), "its disk is the one that is known"
    world.start(2, directory="other")
    register(world, 2)
    unfence(world, 2)
    assert partition(world).last_known_elr == (3,)
    answers = elect_leaders(world.image, world.rules, ElectionKind.UNCLEAN)
    world.carry_out_all(answers.decisions)
    now = partition(world)
    assert (now.leader, now.isr, now.last_known_elr, now.recovering) == (3, (3,), (), True)


@pytest.mark.parametrize("is_cold_start", [True, False])
def test_at_a_cold_start_the_first_broker_does_not_take_everything(is_cold_start: bool) -> None:
    world = world_with(*(FULL._replace(leader=leader) for leader in THREE))
    for broker_id in THREE:
        world.stop(broker_id)
    for broker_id in THREE:
        world.start(broker_id, "process-crash")
        decisions = register_broker(
            world.image, broker_id, world.rules, is_cold_start=is_cold_start
        )
        world.carry_out_all(decisions)
        unfence(world, broker_id)
    leaders = [partition(world, number).leader for number in range(3)]
    assert leaders == ([1, 2, 3] if is_cold_start else [1, 1, 1])
    assert all(len(partition(world, n).isr) == 3 for n in range(3)) is is_cold_start


def test_a_cluster_that_crashed_as_a_whole_is_led_as_before() -> None:
    world = world_with(FULL, FULL._replace(leader=2), FULL._replace(leader=3))
    for broker_id in THREE:
        world.stop(broker_id)
    for broker_id in THREE:
        world.start(broker_id, "process-crash")
        register(world, broker_id)
    for broker_id in THREE:
        unfence(world, broker_id)
    assert [partition(world, n).leader for n in range(3)] == [1, 2, 3]
    assert all(partition(world, n).isr == (1, 2, 3) for n in range(3))
    assert all(partition(world, n).leader_epoch == 6 for n in range(3))


def test_an_unclean_election_needs_leave_and_leaves_the_winner_alone() -> None:
    for config, after in (
        ({}, PartitionImage(-1, 6, 8, (1, 2, 3), (), (1,))),
        (
            {"unclean.leader.election.enable": "true"},
            PartitionImage(2, 6, 8, (1, 2, 3), (2,), (), (), (), True, (), 6),
        ),
    ):
        world = world_with(PartitionImage(1, 5, 7, (1, 2, 3), (1,)), config={**config})
        lose(world, 1)
        assert partition(world) == after


def test_each_partition_remembers_the_epoch_of_its_own_unclean_election() -> None:
    config = {"unclean.leader.election.enable": "true"}
    rows = [PartitionImage(1, epoch, 7, (1, 2, 3), (1,)) for epoch in (5, 9, 5)]
    world = world_with(*rows, config={**config})
    lose(world, 1)
    assert [partition(world, number).unclean_epoch for number in range(3)] == [6, 10, 6]
    world.write(
        [
            Put(
                chunk_key(world.image.topics["t"].id, 0),
                encode_chunk(
                    [
                        partition(world, number)._replace(recovering=False, isr=(2, 3))
                        for number in range(3)
                    ]
                ),
            )
        ]
    )
    lose(world, 2)
    assert [partition(world, number).leader_epoch for number in range(3)] == [7, 11, 7]
    assert [partition(world, number).unclean_epoch for number in range(3)] == [6, 10, 6]


def test_a_law_that_became_milder_takes_the_right_of_those_that_may_lack_data() -> None:
    world = world_with(
        PartitionImage(1, 5, 7, (1, 2, 3), (1,), (2,)), config={"min.insync.replicas": "1"}
    )
    lose(world, 1)
    assert partition(world) == PartitionImage(-1, 6, 8, (1, 2, 3), (), (1,))


def test_a_registration_of_an_older_version_has_the_defaults() -> None:
    value = encode(epoch=3, rack=None, fenced=False, directory_id="d")
    found = decode_registration(decode_value("reg/1", value))
    assert not found.in_controlled_shutdown
    assert not found.gone


def test_nothing_is_decided_on_a_session_that_has_ended_meanwhile() -> None:
    world = world_with(FULL)
    world.start(1)
    decisions = register_broker(world.image, 1, world.rules)
    world.stop(1)
    with pytest.raises(AssertionError):
        world.carry_out_all(decisions)
    assert unfence_broker(world.image, 1, world.rules) == []
    assert isinstance(decisions[-1], Decision)


def leave(world: World, broker_id: int) -> None:
    world.carry_out_all(begin_shutdown(world.image, broker_id, world.rules))


def test_a_broker_that_wants_to_stop_hands_over_and_is_given_nothing_back() -> None:
    world = world_with(FULL, FULL._replace(leader=2))
    leave(world, 1)
    assert partition(world) == PartitionImage(2, 6, 8, (1, 2, 3), (2, 3))
    assert partition(world, 1) == PartitionImage(2, 5, 8, (1, 2, 3), (2, 3))
    assert not world.image.brokers[1].may_lead
    assert not world.image.brokers[1].fenced, "clients may still ask it where to go"
    assert begin_shutdown(world.image, 1, world.rules) == []
    assert unfence_broker(world.image, 1, world.rules) == []
    lose(world, 1)
    lose(world, 2)
    assert partition(world).leader == 3
    come_back(world, 1)
    assert world.image.brokers[1].may_lead


def test_a_broker_that_stops_leads_on_where_nobody_else_is_in_sync() -> None:
    alone = PartitionImage(1, 5, 7, (1, 2, 3), (1,), (2,))
    world = world_with(alone, PartitionImage(1, 5, 7, (1,), (1,)))
    leave(world, 1)
    assert partition(world) == alone
    assert partition(world, 1).leader == 1
    lose(world, 1)
    assert partition(world) == PartitionImage(2, 6, 8, (1, 2, 3), (2,), (1,))
    assert partition(world, 1) == PartitionImage(-1, 6, 8, (1,), (), (1,))


def test_brokers_that_stop_together_do_not_hand_over_to_each_other() -> None:
    world = world_with(FULL)
    leave(world, 3)
    leave(world, 2)
    leave(world, 1)
    assert partition(world) == PartitionImage(1, 5, 9, (1, 2, 3), (1,), (2,))


def test_only_a_broker_with_a_session_that_is_known_can_leave() -> None:
    world = world_with(FULL)
    world.stop(1)
    assert begin_shutdown(world.image, 1, world.rules) == []
    assert begin_shutdown(world.image, 9, world.rules) == []


def test_a_broker_is_struck_off_when_it_does_not_run() -> None:
    world = world_with(FULL)
    for broker_id, code in (
        (1, ErrorCode.INVALID_REQUEST),
        (9, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        with pytest.raises(BrokerError) as refused:
            unregister_broker(world.image, broker_id, world.rules)
        assert refused.value.code is code
    world.stop(1)
    world.carry_out_all(unregister_broker(world.image, 1, world.rules))
    assert 1 not in world.image.brokers
    assert partition(world) == PartitionImage(2, 6, 8, (1, 2, 3), (2, 3))
    lose(world, 3)
    world.carry_out_all(unregister_broker(world.image, 3, world.rules))
    come_back(world, 1)
    assert partition(world).isr == (2,), "nobody knows what its disk holds"
    assert 1 not in partition(world).elr


def test_nobody_else_is_elected_while_the_loss_of_one_in_sync_is_not_decided_upon() -> None:
    config: dict[str, str | None] = {"min.insync.replicas": "3"}
    world = world_with(PartitionImage(1, 5, 7, (1, 2, 3), (1, 2), (3,)), config=config)
    world.stop(2)
    lose(world, 1)
    assert partition(world) == PartitionImage(-1, 6, 8, (1, 2, 3), (2,), (1, 3))
    world.carry_out_all(broker_lost(world.image, 2, world.rules))
    assert partition(world) == PartitionImage(3, 7, 9, (1, 2, 3), (3,), (1, 2))


def fail_disk(world: World, broker_id: int) -> None:
    world.carry_out_all(disk_failed(world.image, broker_id, world.rules))


def test_a_broker_whose_disk_failed_leads_nothing_and_is_not_eligible() -> None:
    """What it had acknowledged may not be there any more, though nobody else has left."""
    two = PartitionImage(1, 5, 7, (1, 2, 3), (1, 2))
    eligible = PartitionImage(2, 5, 7, (1, 2, 3), (2,), (1, 3))
    world = world_with(two, FULL._replace(leader=2), eligible)
    fail_disk(world, 1)
    assert partition(world) == PartitionImage(2, 6, 8, (1, 2, 3), (2,))
    assert partition(world, 1) == PartitionImage(2, 5, 8, (1, 2, 3), (2, 3))
    assert partition(world, 2) == PartitionImage(2, 5, 8, (1, 2, 3), (2,), (3,))
    assert not world.image.brokers[1].may_lead
    assert disk_failed(world.image, 1, world.rules) == []
    leave(world, 1)
    assert partition(world) == PartitionImage(2, 6, 8, (1, 2, 3), (2,))
    lose(world, 2)
    come_back(world, 1, "process-crash")
    assert partition(world).leader == -1, "what it has is not known to be all"
    come_back(world, 2)
    assert partition(world).leader == 2


def test_after_its_disk_failed_a_broker_comes_back_as_if_it_had_lost_power() -> None:
    alone = PartitionImage(1, 5, 7, (1, 2, 3), (1,))
    world = world_with(alone)
    fail_disk(world, 1)
    assert partition(world) == alone, "no other has what is committed"
    lose(world, 1)
    come_back(world, 1, "clean")
    assert partition(world).leader == -1
    assert partition(world).last_known_elr == (1,)
    assert not world.image.registrations[1].disk_failed
    come_back(world, 1, "clean")
    assert world.image.brokers[1].may_lead


def test_nobody_leads_in_place_of_a_failed_disk_until_one_that_is_in_sync_takes_part() -> None:
    world = world_with(PartitionImage(1, 5, 7, (1, 2, 3), (1, 2)))
    world.start(2)
    register(world, 2)
    fail_disk(world, 1)
    assert partition(world) == PartitionImage(-1, 6, 8, (1, 2, 3), (2,))
    unfence(world, 2)
    assert partition(world) == PartitionImage(2, 7, 9, (1, 2, 3), (2,))


def test_only_a_broker_with_a_session_that_is_known_can_have_failed() -> None:
    world = world_with(FULL)
    world.stop(1)
    assert disk_failed(world.image, 1, world.rules) == []
    assert disk_failed(world.image, 9, world.rules) == []
