"""One broker's view of the cluster, on a real embedded store: commands, sessions, office, and whom clients are told of."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from penstock.broker.controller.batching import MAX_OPS
from penstock.broker.controller.cluster import Cluster
from penstock.metadata.image import Delta
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.rules.topic_writes import CreatedTopic
from penstock.metadata.store import (
    Delete,
    StoreError,
)
from penstock.metadata.values import CONTROLLER, live_key
from penstock.model.errors import ErrorCode, InvalidConfig
from penstock.model.ids import TopicId
from tests.unit.broker.places import SESSION_MS, Place, code_of, create, run


def test_a_single_broker_is_admitted_and_becomes_the_controller_at_once(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker() as cluster:
            image = cluster.image
            assert cluster.is_controller
            assert (image.controller_id, image.cluster_id) == (1, cluster.cluster_id)
            assert image.brokers[1].epoch == cluster.epoch > 0
            ((broker, endpoint),) = cluster.endpoints("PLAINTEXT")
            assert (broker.id, endpoint) == (1, cluster.endpoint(1))
            assert cluster.endpoints("OTHER") == []
            first_id = cluster.cluster_id
        async with place.broker() as cluster:
            assert cluster.cluster_id == first_id

    run(scenario())


def test_a_topic_is_visible_when_its_creation_returns_and_listeners_were_told(place: Place) -> None:
    async def scenario() -> None:
        told: list[Delta] = []
        async with place.broker() as cluster:
            cluster.on_change(told.append)
            (outcome,) = await cluster.create_topics(
                [TopicSpec("t", 3, config={"retention.ms": "7d"})]
            )
            topic = cluster.image.topics["t"]
            assert outcome == CreatedTopic(topic.name, topic.id, 3, 1, topic.config)
            assert [delta.created for delta in told] == [[topic]]
            assert cluster.topic_config(topic).retention_ms == 604_800_000

    run(scenario())


def test_outcomes_come_in_the_order_of_the_request(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker() as cluster:
            await create(cluster, "there")
            specs = [TopicSpec("a"), TopicSpec("there"), TopicSpec("b"), TopicSpec("b b")]
            for validate_only in (True, False):
                outcomes = await cluster.create_topics(specs, validate_only=validate_only)
                assert [
                    getattr(it, "name", None) or getattr(it, "code", None) for it in outcomes
                ] == [
                    "a",
                    ErrorCode.TOPIC_ALREADY_EXISTS,
                    "b",
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                ]
                assert ("a" in cluster.image.topics) is not validate_only

    run(scenario())


def test_many_topics_take_few_commits(place: Place) -> None:
    async def scenario() -> None:
        store = place.store()
        async with place.broker(store=store) as cluster:
            before = store.commits
            await create(cluster, *(f"t{number}" for number in range(500)))
            assert store.commits - before <= 1 + 500 * 2 // MAX_OPS
            assert len(cluster.image.topics) == 500

    run(scenario())


def test_topics_grow_change_and_go(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker() as cluster:
            one, _, three = await create(cluster, "one", "two", "three")
            await cluster.create_partitions("one", 4, validate_only=True)
            assert len(cluster.image.topics["one"].partitions) == 1
            await cluster.create_partitions("one", 4)
            assert len(cluster.image.topics["one"].partitions) == 4
            ops = [ConfigOp("segment.bytes", Op.SET, "1MiB")]
            await cluster.alter_configs(Resource.TOPIC, "one", ops, validate_only=True)
            assert not cluster.image.topics["one"].config
            await cluster.alter_configs(Resource.TOPIC, "one", ops)
            assert cluster.topic_config(cluster.image.topics["one"]).segment_bytes == 1_048_576
            await cluster.replace_configs(Resource.TOPIC, "one", [("flush.ms", "1s")])
            assert cluster.image.topics["one"].config == {"flush.ms": "1000"}
            outcomes = await cluster.delete_topics(["one", three.id, "none"])
            assert [getattr(it, "name", None) or getattr(it, "code", None) for it in outcomes] == [
                "one",
                "three",
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            assert list(cluster.image.topics) == ["two"]
            assert set(cluster.image.tombstones) == {one.id, three.id}
            await cluster.confirm_deleted([one.id, TopicId(bytes(16))])
            assert set(cluster.image.tombstones) == {three.id}

    run(scenario())


def test_broker_settings_changed_at_run_time_are_in_force_at_once(place: Place) -> None:
    async def scenario() -> None:
        static = {"log.retention.ms": "5", "max.connections": "10"}
        async with place.broker(static=static) as cluster:
            (topic,) = await create(cluster, "t")
            told: list[Delta] = []
            cluster.on_change(told.append)
            assert cluster.topic_config(topic).retention_ms == 5
            ops = [
                ConfigOp("log.retention.ms", Op.SET, "6"),
                ConfigOp("max.connections", Op.SET, "20"),
            ]
            await cluster.alter_configs(Resource.BROKER, "", ops)
            assert (cluster.config.log_retention_ms, cluster.config.max_connections) == (6, 20)
            assert cluster.topic_config(topic).retention_ms == 6
            assert [delta.broker_configs for delta in told] == [True]
            await cluster.alter_configs(
                Resource.BROKER, "1", [ConfigOp("max.connections", Op.SET, "30")]
            )
            assert cluster.config.max_connections == 30
            layers = cluster.broker_layers
            assert layers.own == {"max.connections": "30"}
            assert layers.all_brokers == {"log.retention.ms": "6", "max.connections": "20"}
            refused = cluster.alter_configs(
                Resource.BROKER, "1", [ConfigOp("broker.id", Op.SET, "2")]
            )
            assert await code_of(refused) is ErrorCode.INVALID_REQUEST
            for name in ("2", "1" * 5000, "\u0661"):
                refused = cluster.alter_configs(
                    Resource.BROKER, name, [ConfigOp("max.connections", Op.SET, "30")]
                )
                assert await code_of(refused) is ErrorCode.INVALID_REQUEST
        async with place.broker(static=static) as cluster:
            assert cluster.config.max_connections == 30

    run(scenario())


def test_a_topic_whose_settings_no_longer_hold_stops_the_start_with_its_name(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker() as cluster:
            spec = TopicSpec("odd", config={"max.compaction.lag.ms": "5"})
            await cluster.create_topics([spec])
        with pytest.raises(InvalidConfig, match="topic 'odd' has settings that cannot hold"):
            async with place.broker(static={"log.cleaner.min.compaction.lag.ms": "6"}):
                pass

    run(scenario())


def test_a_topic_asked_for_by_many_is_created_once(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker() as cluster:
            topics = await asyncio.gather(*(cluster.auto_create_topic("t") for _ in range(10)))
            assert len({topic.id for topic in topics}) == 1
            offsets = await cluster.auto_create_topic("__consumer_offsets")
            assert len(offsets.partitions) == 50
            assert await code_of(cluster.auto_create_topic("a b")) is (
                ErrorCode.INVALID_TOPIC_EXCEPTION
            )

    run(scenario())


def test_producer_ids_are_never_given_twice(place: Place) -> None:
    async def scenario() -> None:
        given: list[int] = []
        for _ in range(2):
            async with place.broker() as cluster:
                given += await asyncio.gather(*(cluster.next_producer_id() for _ in range(1500)))
        assert len(set(given)) == 3000

    run(scenario())


def test_stopping_gives_up_session_and_office(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker():
            pass
        store = place.store()
        keys = (await store.snapshot("")).entries
        assert live_key(1) not in keys
        assert CONTROLLER not in keys
        assert "reg/1" in keys
        await store.close()

    run(scenario())


@asynccontextmanager
async def crashed(running: AbstractAsyncContextManager[Cluster]) -> AsyncIterator[Cluster]:
    """A broker whose session nobody ended: its store is closed under it."""
    async with running as cluster:
        yield cluster
        await cluster._store.close()


def test_a_broker_that_crashed_comes_back_at_once_and_leads_at_a_higher_epoch(place: Place) -> None:
    async def scenario() -> None:
        async with crashed(place.broker()) as cluster:
            await create(cluster, "t", partitions=70)
            epoch = cluster.epoch
        async with place.broker() as cluster:
            assert cluster.epoch > epoch
            assert cluster.is_controller
            assert {row.leader_epoch for row in cluster.image.topics["t"].partitions} == {1}

    run(scenario())


def test_an_id_that_another_running_broker_has_is_refused(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker() as first:
            with pytest.raises(StoreError, match="broker id 1 is taken by another running broker"):
                async with place.broker(directory_id="elsewhere", session_ms=40):
                    pass
            assert first.image.brokers[1].epoch == first.epoch

    run(scenario())


def test_the_id_of_a_dead_broker_is_free_after_its_session(place: Place) -> None:
    async def scenario() -> None:
        async with crashed(place.broker()):
            pass
        place.clock.advance(SESSION_MS + 1)
        async with place.broker(directory_id="elsewhere") as cluster:
            assert cluster.is_controller

    run(scenario())


def test_a_broker_whose_session_is_ended_by_others_opens_another(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker() as cluster:
            await create(cluster, "t")
            epoch = cluster.epoch
            again = asyncio.Event()
            cluster.on_change(
                lambda _: (
                    again.set()
                    if cluster.image.usable_brokers() and cluster.epoch > epoch
                    else None
                )
            )
            other = place.store()
            entry = await other.read(live_key(1))
            assert entry is not None
            assert entry.lease is not None
            await other.revoke(entry.lease)
            await again.wait()
            assert cluster.epoch > epoch
            assert cluster.image.topics["t"].partitions[0].leader_epoch == 1
            await create(cluster, "u")
            await other.close()

    run(scenario())


def test_a_second_broker_sees_what_the_first_does_and_takes_over_from_it(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker(2) as second, place.broker(1) as first:
            assert (first.is_controller, second.is_controller) == (False, True)
            assert await code_of(create(first, "t")) is ErrorCode.NOT_CONTROLLER
            assert await code_of(first.allocate_producer_ids()) is ErrorCode.NOT_CONTROLLER
            seen = asyncio.Event()
            first.on_change(lambda delta: seen.set() if delta.created else None)
            await second.create_topics([TopicSpec("t", 4)])
            await seen.wait()
            assert first.image.topics["t"] == second.image.topics["t"]
            assert first.image.topics["t"].replication_factor == 2
            await second.stop()
            while not first.is_controller:  # noqa: ASYNC110  # its listeners are told too early
                await asyncio.sleep(0)
            (topic,) = await create(first, "u")
            assert topic.partitions[0].isr == (1,)

    run(scenario())


def test_a_broker_that_is_not_registered_at_the_moment_is_still_told_to_its_clients(
    place: Place,
) -> None:
    async def scenario() -> None:
        async with place.broker() as cluster:
            ((_, told),) = cluster.endpoints("PLAINTEXT")
            other = place.store()
            await other.commit([], [Delete(live_key(1))])
            await other.close()
            while cluster.image.usable_brokers():
                assert cluster.endpoints("PLAINTEXT")
                await asyncio.sleep(0)
            ((broker, endpoint),) = cluster.endpoints("PLAINTEXT")
            assert (broker.id, endpoint) == (1, told)
            assert len(cluster.endpoints_with_grace("PLAINTEXT")) == 1, "it is not told of twice"

    run(scenario())


def test_clients_that_look_for_leaders_are_told_of_a_broker_that_died_a_moment_ago(
    place: Place,
) -> None:
    async def scenario() -> None:
        async with place.broker(1) as one, place.broker(2):
            seen = asyncio.Event()

            def look(_: Delta) -> None:
                if [broker.id for broker, _ in one.endpoints("PLAINTEXT")] == [1]:
                    told.append([broker.id for broker, _ in one.endpoints_with_grace("PLAINTEXT")])
                    seen.set()

            told: list[list[int]] = []
            one.on_change(look)
            other = place.store()
            await other.commit([], [Delete(live_key(2))])
            await other.close()
            await seen.wait()
            assert told[0] == [1, 2]

    run(scenario())
