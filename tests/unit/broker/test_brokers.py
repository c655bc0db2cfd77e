"""Several brokers on one store: they are admitted, elect a controller, replace each other and leave in peace."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.broker.controller import cluster
from penstock.broker.controller import election as membership
from penstock.broker.controller.cluster import Cluster
from penstock.broker.membership.leader_reachability import LeaderReachability
from penstock.client.errors import ConnectionRefused
from penstock.metadata.rules.elections import ElectionKind
from penstock.metadata.store import Delete
from penstock.metadata.values import live_key
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.node.tasks import Tasks
from penstock.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from tests.unit.broker.brokers import Brokers, brokers, create, isrs, leaders, seen


@pytest.fixture(autouse=True)
def no_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client is there to be told of new leaders."""
    monkeypatch.setattr(cluster, "_FAREWELL_S", 0)


def run(path: Path, scenario: Callable[[Brokers], Awaitable[None]]) -> None:
    async def main() -> None:
        async with brokers(path / "metadata.db") as started:
            await scenario(started)

    asyncio.run(main())


def isr_request(
    asking: Cluster, topic: str, isr: list[int], *, epoch: int | None = None
) -> AlterPartitionRequest:
    image = asking.image.topics[topic]
    partition = image.partitions[0]
    members = [BrokerState(broker_id=it, broker_epoch=asking.image.brokers[it].epoch) for it in isr]
    data = PartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        new_isr_with_epochs=members,
        partition_epoch=partition.partition_epoch,
    )
    return AlterPartitionRequest(
        broker_id=asking.broker_id,
        broker_epoch=asking.epoch if epoch is None else epoch,
        topics=[TopicData(topic_id=image.id, partitions=[data])],
    )


def test_brokers_on_one_store_are_all_admitted_and_know_where_the_others_are(
    tmp_path: Path,
) -> None:
    async def scenario(started: Brokers) -> None:
        first, second, third = [await started.start(number) for number in (1, 2, 3)]
        assert [it.is_controller for it in (first, second, third)] == [True, False, False]
        await seen(first, lambda: len(first.image.usable_brokers()) == 3)
        for number, broker in started.running.items():
            assert first.endpoint(number) == broker.served.listeners["PLAINTEXT"]
            assert first.image.brokers[number].epoch == broker.cluster.epoch
        assert first.endpoint(9) is None
        assert {it.id for it in second.other_brokers()} <= {1, 3}

    run(tmp_path, scenario)


def test_others_lead_in_the_place_of_a_broker_that_was_killed(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, second, _ = [await started.start(number) for number in (1, 2, 3)]
        await create(first, "t", [[3, 1], [2, 3], [1, 2]])
        await second.catch_up()
        await started.crash(3)
        await seen(second, lambda: leaders(second, "t") == [1, 2, 1])
        assert isrs(second, "t") == [(1,), (2,), (1, 2)]
        assert second.image.topics["t"].partitions[0].leader_epoch == 1
        assert second.endpoint(3) is None

    run(tmp_path, scenario)


def test_when_the_controller_is_killed_another_takes_over_and_elects(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, second, third = [await started.start(number) for number in (1, 2, 3)]
        await create(first, "t", [[1, 2, 3]])
        await seen(third, lambda: "t" in third.image.topics)
        await started.crash(1)
        await seen(third, lambda: leaders(third, "t") == [2])
        assert second.is_controller is not third.is_controller
        await third.auto_create_topic("u")

    run(tmp_path, scenario)


def test_a_controller_that_is_cut_off_resigns_and_another_takes_the_office(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(started: Brokers) -> None:
        first, second, _ = [await started.start(number) for number in (1, 2, 3)]
        monkeypatch.setattr(
            LeaderReachability,
            "is_cut_off",
            property(lambda it: it._view.broker_id == first.broker_id),
        )
        first._election._happened.set()
        await seen(second, lambda: second.image.controller_id in (2, 3))
        assert not first.is_controller
        await first.auto_create_topic("t")

    run(tmp_path, scenario)


def test_one_that_resigned_and_has_had_a_successor_takes_the_office_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would, for as long as it stands back."""
    monkeypatch.setattr(membership, "_STANDS_BACK_S", 3600.0)

    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        cut_off = {1}
        monkeypatch.setattr(
            LeaderReachability, "is_cut_off", property(lambda it: it._view.broker_id in cut_off)
        )
        first._election._happened.set()
        await seen(first, lambda: first.image.controller_id == 2)
        cut_off.symmetric_difference_update({1, 2})
        second._election._happened.set()
        await seen(first, lambda: first.image.controller_id == 1)

    run(tmp_path, scenario)


def test_a_broker_that_stops_opens_no_other_session_when_others_take_it_for_dead(
    tmp_path: Path,
) -> None:
    """Else it would write down a session after it has written that it ended well."""

    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        lost, sessions = asyncio.Event(), list[int]()
        second.on_session_lost(lost.set)
        second.on_session(sessions.append)
        second.begin_to_leave()
        entry = await first._store.read(live_key(2))
        assert entry is not None
        assert entry.lease is not None
        await first._store.revoke(entry.lease)
        await lost.wait()
        await seen(first, lambda: first.image.registrations[2].gone)
        await second.catch_up()
        assert (second.epoch, sessions) == (0, [])

    run(tmp_path, scenario)


def test_a_session_that_just_ends_is_a_loss_as_well(tmp_path: Path) -> None:
    """Without the fast path: the address still answers."""

    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        await create(first, "t", [[2, 1]])
        lost = asyncio.Event()
        second.on_session_lost(lost.set)
        before = second.epoch
        entry = await first._store.read(live_key(2))
        assert entry is not None
        assert entry.lease is not None
        await first._store.revoke(entry.lease)
        await lost.wait()
        await seen(first, lambda: first.image.brokers[2].epoch > before)
        await seen(first, lambda: not first.image.brokers[2].fenced)
        assert second.epoch == first.image.brokers[2].epoch
        assert first.image.topics["t"].partitions[0].leader_epoch >= 1

    run(tmp_path, scenario)


def test_after_a_cold_start_leaders_are_waited_for(tmp_path: Path) -> None:
    """C4: the first broker that is back must not take everything."""

    async def scenario(started: Brokers) -> None:
        first = await started.start(1)
        second = await started.start(2)
        await create(first, "t", [[2, 1], [1, 2]])
        await seen(second, lambda: "t" in second.image.topics)
        epochs = first.epoch, second.epoch
        await started.stop_all_at_once()
        first = await started.start(1, previous_epoch=epochs[0], session_ms=60_000)
        assert leaders(first, "t") == [2, 1]
        await started.start(2, previous_epoch=epochs[1])
        await seen(first, lambda: len(first.image.usable_brokers()) == 2)
        assert leaders(first, "t") == [2, 1]
        assert isrs(first, "t") == [(2, 1), (1, 2)]

    run(tmp_path, scenario)


def test_after_a_cold_start_who_does_not_come_back_is_replaced_in_the_end(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first = await started.start(1)
        second = await started.start(2)
        await create(first, "t", [[2, 1]])
        await seen(second, lambda: "t" in second.image.topics)
        epoch = first.epoch
        await started.stop_all_at_once()
        first = await started.start(1, previous_epoch=epoch, session_ms=100)
        await seen(first, lambda: leaders(first, "t") == [1])

    run(tmp_path, scenario)


def test_a_broker_that_stops_hands_over_first(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        await create(first, "t", [[2, 1], [1, 2]])
        await create(first, "alone", [[2]])
        await seen(second, lambda: "alone" in second.image.topics)
        await second.hand_over()
        assert (leaders(second, "t"), leaders(second, "alone")) == ([1, 1], [2])
        assert isrs(second, "t") == [(1,), (1,)]
        assert second.image.brokers[2].in_controlled_shutdown
        await started.running.pop(2).stop()
        await seen(first, lambda: first.image.brokers[2].epoch == 0)

    run(tmp_path, scenario)


def test_the_controller_hands_over_as_well(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        await create(first, "t", [[1, 2]])
        await started.stop(1)
        await seen(second, lambda: leaders(second, "t") == [2])
        await seen(second, lambda: second.image.controller_id == 2)

    run(tmp_path, scenario)


def test_a_broker_alone_has_nobody_to_hand_over_to(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first = await started.start(1)
        await create(first, "t", [[1]])
        await first.hand_over()
        assert leaders(first, "t") == [1]
        assert not first.image.brokers[1].in_controlled_shutdown

    run(tmp_path, scenario)


def test_a_broker_whose_disk_failed_leads_no_more_and_goes_on(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        await create(first, "t", [[2, 1]])
        second.withdraw_when(lambda: True)
        await seen(first, lambda: leaders(first, "t") == [1])
        assert first.image.brokers[2].epoch == second.epoch

    run(tmp_path, scenario)


def test_leaders_change_the_isr_from_any_broker(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        await create(first, "t", [[2, 1]])
        await create(first, "u", [[1, 2]])
        await seen(second, lambda: "u" in second.image.topics)
        for asking, topic in ((second, "t"), (first, "u")):
            me = asking.broker_id
            answer = await asking.alter_partition(isr_request(asking, topic, [me]))
            (partition,) = answer.topics[0].partitions
            assert (answer.error_code, partition.error_code) == (0, 0)
            assert (partition.leader_id, partition.isr, partition.partition_epoch) == (me, [me], 1)
            await asking.catch_up()
            answer = await asking.alter_partition(isr_request(asking, topic, [1, 2]))
            assert sorted(answer.topics[0].partitions[0].isr) == [1, 2]
            await asking.catch_up()
        refused = await second.alter_partition(isr_request(second, "u", [2]))
        assert refused.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
        stale = await second.alter_partition(isr_request(second, "t", [2], epoch=1))
        assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH

    run(tmp_path, scenario)


def test_topics_and_producer_ids_can_be_had_from_any_broker(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        topic = await second.auto_create_topic("t")
        assert second.image.topics["t"] is topic
        assert topic.replication_factor == 2
        assert await second.auto_create_topic("t") == topic
        given = [await it.next_producer_id() for it in (first, second) for _ in range(1001)]
        assert len(set(given)) == 2002
        with pytest.raises(BrokerError) as refused:
            await second.auto_create_topic("a b")
        assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION

    run(tmp_path, scenario)


def test_internal_topics_get_their_replicas_when_brokers_come(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first = await started.start(1)
        await first.auto_create_topic("__consumer_offsets")
        await started.start(2)
        topics = first.image.topics
        await seen(
            first,
            lambda: all(2 in it.replicas for it in topics["__consumer_offsets"].partitions),
        )
        moved = topics["__consumer_offsets"].partitions[0]
        assert (moved.adding, moved.isr) == ((2,), (1,))

    run(tmp_path, scenario)


def test_a_deleted_topic_is_remembered_until_every_broker_knows(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        topic = await create(first, "t", [[1, 2]])
        await started.crash(2)
        await seen(first, lambda: first.image.brokers[2].epoch == 0)
        await first.delete_topics(["t"])
        await first.confirm_deleted([topic.id])
        assert topic.id in first.image.tombstones
        second = await started.start(2, previous_epoch=second.epoch)
        while first.image.tombstones:
            await first.confirm_deleted([topic.id])
            await asyncio.sleep(0.01)
        await second.catch_up()
        assert not second.image.tombstones

    run(tmp_path, scenario)


def test_elections_moves_and_removals_are_commands_of_the_controller(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, _ = [await started.start(number) for number in (1, 2)]
        at = TopicPartition("t", 0)
        await create(first, "t", [[2, 1]])
        assert await first.alter_reassignments({at: [1, 2]}) == {at: None}
        assert await first.elect_leaders(ElectionKind.PREFERRED, [at]) == {at: None}
        assert leaders(first, "t") == [1]
        assert await first.elect_leaders(ElectionKind.PREFERRED, None) == {}
        assert await first.alter_reassignments({at: [2]}) == {at: None}
        assert (leaders(first, "t"), isrs(first, "t")) == ([2], [(2,)])
        assert await first.alter_reassignments({at: [1, 2]}) == {at: None}
        await started.crash(2)
        await seen(first, lambda: first.image.brokers[2].epoch == 0)
        await first.unregister_broker(2)
        assert list(first.image.registrations) == [1]

    run(tmp_path, scenario)


def test_who_is_in_office_no_more_is_asked_no_more(tmp_path: Path) -> None:
    """A request that waits for a controller which is gone is made again to the next one."""

    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        third = await started.start(3)
        await third.next_producer_id()
        third._producer_ids = iter(range(0))
        await started.crash(1)
        number = await third.next_producer_id()
        assert number >= 1000
        assert second.is_controller or third.is_controller
        assert not first.is_controller

    run(tmp_path, scenario)


def test_a_broker_that_was_away_too_long_leads_nothing_before_it_has_asked(tmp_path: Path) -> None:
    """As after SIGSTOP and SIGCONT: the lease is over by its own clock."""

    async def scenario(started: Brokers) -> None:
        first, second = [await started.start(number) for number in (1, 2)]
        lost: list[int] = []
        second.on_session_lost(lambda: lost.append(second.epoch))
        before = second.epoch
        second._session._lease_renewer._good_until_s = 0.0
        second._session._stalled()
        assert (lost, second.epoch) == ([0], 0)
        await seen(second, lambda: second.epoch > before)
        await seen(first, lambda: not first.image.brokers[2].fenced)

    run(tmp_path, scenario)


def test_a_broker_alone_keeps_its_session_however_long_it_was_away(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first = await started.start(1)
        before = first.epoch
        first._session._lease_renewer._good_until_s = 0.0
        first._session._stalled()
        assert first.epoch == before
        first.withdraw_when(lambda: True)
        await create(first, "t", [[1]])
        assert leaders(first, "t") == [1]

    run(tmp_path, scenario)


def test_a_key_that_is_gone_is_noticed_although_no_change_was_told(tmp_path: Path) -> None:
    """B4: the watch may lag behind, and a lease that was kept proves nothing."""

    async def scenario(started: Brokers) -> None:
        first = await started.start(1, session_ms=100)
        before = first.epoch
        for task in first._tasks:
            if task.get_name() == "metadata-watch":
                task.cancel()
        lost = asyncio.Event()
        first.on_session_lost(lost.set)
        store = started.store()
        await store.commit([], [Delete(live_key(1))])
        await store.close()
        await lost.wait()
        assert first.epoch == 0 < before

    run(tmp_path, scenario)


def test_who_leaves_does_not_take_the_office(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first, second, third = [await started.start(number) for number in (1, 2, 3)]
        await second.hand_over()
        await third.catch_up()
        await started.crash(1)
        await seen(second, lambda: second.image.controller_id not in (None, 1))
        assert second.image.controller_id == 3
        assert not first.is_controller

    run(tmp_path, scenario)


def test_an_address_that_refuses_means_nothing_where_that_is_set(tmp_path: Path) -> None:
    """Behind a proxy."""

    async def scenario(started: Brokers) -> None:
        static = {"penstock.refused.means.dead": "false"}
        first = await started.start(1, static=static)
        second = await started.start(2, static=static)
        await started.running[2].served.close()
        with pytest.raises(ConnectionRefused):
            await first.peers.connection(2, timeout_ms=60_000)
        assert not first._refused_connections._suspected
        assert first.image.brokers[2].epoch == second.epoch

    run(tmp_path, scenario)


def test_an_error_of_our_own_does_not_end_the_controllers_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(started: Brokers) -> None:
        first = await started.start(1)
        fails = True
        attend = first._lifecycle.attend

        async def broken() -> None:
            nonlocal fails
            if fails:
                fails = False
                raise RuntimeError("a bug")
            await attend()

        monkeypatch.setattr(membership, "_RETRY_S", 0)
        monkeypatch.setattr(first._lifecycle, "attend", broken)
        await started.start(2)

    run(tmp_path, scenario)
    assert "membership-failed" in caplog.text


def test_a_broker_that_cannot_be_registered_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(started: Brokers) -> None:
        first = await started.start(1)
        register = first._lifecycle._register

        async def refusing(broker_id: int) -> None:
            if broker_id == 2:
                raise BrokerError("not this one")
            await register(broker_id)

        monkeypatch.setattr(membership, "_RETRY_S", 0.01)
        monkeypatch.setattr(first._lifecycle, "_register", refusing)
        tasks = Tasks()
        tasks.spawn(started.start(2), "never-admitted")
        await started.start(3)
        assert 2 not in first.image.registrations
        await tasks.close()

    run(tmp_path, scenario)


def test_preferred_leaders_are_put_back(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        static = {"leader.imbalance.check.interval.seconds": "1"}
        first = await started.start(1, static=static)
        await started.start(2)
        at = TopicPartition("t", 0)
        await create(first, "t", [[2, 1]])
        await first.alter_reassignments({at: [1, 2]})
        assert leaders(first, "t") == [2]
        await seen(first, lambda: leaders(first, "t") == [1])

    run(tmp_path, scenario)


def test_somebody_who_knows_more_makes_us_look_once_in_a_while(tmp_path: Path) -> None:
    async def scenario(started: Brokers) -> None:
        first = await started.start(1)
        looks = 0
        looked = asyncio.Event()

        async def catch_up() -> None:
            nonlocal looks
            looks += 1
            looked.set()

        first._feed.catch_up = catch_up  # type: ignore[method-assign]  # counted
        for _ in range(100):
            first.look_again()
        await looked.wait()
        assert looks == 1

    run(tmp_path, scenario)
