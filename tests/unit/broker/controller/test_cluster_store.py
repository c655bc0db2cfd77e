"""The metadata store fails, loses answers, falls behind, is another cluster's, or takes little at once."""

import asyncio
from collections.abc import Sequence

import pytest

from penstock.broker.controller.batching import MAX_OPS
from penstock.broker.controller.cluster import Cluster
from penstock.broker.membership.session import Identity
from penstock.metadata.image import Delta
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.rules.decisions import Decision, unchanged
from penstock.metadata.store import (
    NO_REVISION,
    Ambiguous,
    Committed,
    CommitTooLarge,
    Compare,
    Conflict,
    Put,
    StoreError,
    Write,
)
from penstock.metadata.values import CONTROLLER, encode
from penstock.model.errors import BrokerError, ErrorCode
from penstock.node.tasks import Tasks
from tests.unit.broker.places import Place, TroubledStore, code_of, create, run


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_with_an_unknown_outcome_has_its_effect_once(place: Place, applied: bool) -> None:
    async def scenario() -> None:
        async def lost(_: Sequence[Write]) -> None:
            raise Ambiguous("the request was lost")

        def trouble(store: TroubledStore) -> None:
            store.fails_after_commit = applied
            store.trouble = None if applied else lost

        store = place.store()
        async with place.broker(store=store) as cluster:
            trouble(store)
            (topic,) = await create(cluster, "t")
            trouble(store)
            await cluster.create_partitions("t", 2)
            trouble(store)
            first = await cluster.next_producer_id()
            trouble(store)
            await cluster.delete_topics(["t"])
            assert first == 0
            assert cluster.image.next_producer_id == 1000
            assert cluster.image.tombstones == {topic.id: "t"}
            trouble(store)
            await cluster.confirm_deleted([topic.id])
            assert not cluster.image.tombstones

    run(scenario())


def test_a_decision_whose_ground_has_shifted_is_made_again(place: Place) -> None:
    async def scenario() -> None:
        store, other = place.store(), place.store()

        async def intrude(_: Sequence[Write]) -> None:
            await other.commit([], [Put("cfg/topic/t", encode(set={"flush.ms": "1"}))])

        async with place.broker(store=store) as cluster:
            await create(cluster, "t")
            store.trouble = intrude
            ops = [ConfigOp("retention.ms", Op.SET, "2")]
            await cluster.alter_configs(Resource.TOPIC, "t", ops)
            assert cluster.image.topics["t"].config == {"flush.ms": "1", "retention.ms": "2"}
        await other.close()

    run(scenario())


def test_of_a_batch_that_fails_only_the_topic_to_blame_is_refused(place: Place) -> None:
    async def scenario() -> None:
        store, other = place.store(), place.store()

        async def intrude(_: Sequence[Write]) -> None:
            row = encode(id="AAAAAAAAAAAAAAAAAAAAAQ", partitions=0)
            await other.commit([], [Put("t/b", row)])

        async with place.broker(store=store) as cluster:
            store.trouble = intrude
            outcomes = await cluster.create_topics([TopicSpec("a"), TopicSpec("b"), TopicSpec("c")])
            codes = [getattr(it, "code", ErrorCode.NONE) for it in outcomes]
            assert codes == [0, ErrorCode.TOPIC_ALREADY_EXISTS, 0]
        await other.close()

    run(scenario())


def test_who_lost_the_office_writes_no_more(place: Place) -> None:
    async def scenario() -> None:
        store, other = place.store(), place.store()

        async def usurp(_: Sequence[Write]) -> None:
            vacant, row = Compare(CONTROLLER, mod_revision=NO_REVISION), encode(broker=9, epoch=9)
            while isinstance(await other.commit([vacant], [Put(CONTROLLER, row)]), Conflict):
                entry = await other.read(CONTROLLER)
                if entry is not None and entry.lease is not None:
                    await other.revoke(entry.lease)

        async with place.broker(store=store) as cluster:
            store.trouble = usurp
            assert await code_of(create(cluster, "t")) is ErrorCode.NOT_CONTROLLER
            assert "t" not in cluster.image.topics
            assert not cluster.is_controller
        await other.close()

    run(scenario())


def test_a_topic_too_large_for_one_commit_is_visible_only_when_whole(place: Place) -> None:
    async def scenario() -> None:
        store = place.store()
        static = {"penstock.partitions.per.request.max": "20000"}
        async with place.broker(store=store, static=static) as cluster:
            (topic,) = await create(cluster, "wide", partitions=MAX_OPS * 64 + 1)
            assert len(topic.partitions) == MAX_OPS * 64 + 1
            pieces = 0

            async def second_fails(_: Sequence[Write]) -> None:
                nonlocal pieces
                pieces += 1
                if pieces == 2:
                    raise StoreError("no more")
                store.trouble = second_fails

            store.trouble = second_fails
            assert await code_of(create(cluster, "torn", partitions=MAX_OPS * 64 + 1)) is (
                ErrorCode.REQUEST_TIMED_OUT
            )
            assert "torn" not in cluster.image.topics
        async with place.broker(static=static) as cluster:
            assert cluster.image.orphans() == []
            assert list(cluster.image.topics) == ["wide"]

    run(scenario())


def test_a_store_that_fails_is_answered_with_a_code_and_serves_again_later(place: Place) -> None:
    async def scenario() -> None:
        async def fail(_: Sequence[Write]) -> None:
            raise StoreError("the disk is full")

        async def hang(_: Sequence[Write]) -> None:
            await asyncio.Event().wait()

        store = place.store()
        async with place.broker(store=store) as cluster:
            store.trouble = fail
            (outcome,) = await cluster.create_topics([TopicSpec("t")])
            assert isinstance(outcome, BrokerError)
            assert (outcome.code, str(outcome)) == (ErrorCode.REQUEST_TIMED_OUT, "the disk is full")
            store.trouble = hang
            (outcome,) = await cluster.create_topics([TopicSpec("t")], timeout_ms=1)
            assert isinstance(outcome, BrokerError)
            assert "not done within 1 ms" in str(outcome)
            await create(cluster, "t")

    run(scenario())


def test_an_image_that_fell_too_far_behind_is_loaded_anew(place: Place) -> None:
    async def scenario() -> None:
        store = place.store()
        async with place.broker(store=store) as cluster:
            await create(cluster, "a")
            told: list[Delta] = []
            cluster.on_change(told.append)
            store.reloads = 1
            await create(cluster, "b")
            await create(cluster, "c")
            assert list(cluster.image.topics) == ["a", "b", "c"]
            assert [topic.name for delta in told for topic in delta.created] == ["b", "c"]

    run(scenario())


def test_a_listener_that_fails_does_not_stop_the_others(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Delta) -> None:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        async with place.broker() as cluster:
            told: list[Delta] = []
            cluster.on_change(broken)
            cluster.on_change(told.append)
            await create(cluster, "t")
            assert len(told) == 1

    run(scenario())
    assert "listener-failed" in caplog.text


def test_a_store_of_another_cluster_or_of_the_past_is_refused(place: Place) -> None:
    async def scenario() -> None:
        async with place.broker() as cluster:
            await create(cluster, "t")
            known_id, revision = cluster.cluster_id, cluster.image.revision
        tasks = Tasks()
        identity = Identity(broker_id=1, directory_id="dir-1", session_timeout_ms=40)
        for arguments, says in (
            ({"cluster_id": "other"}, "belongs to cluster other"),
            ({"cluster_id": known_id, "least_revision": revision + 100}, "an old backup"),
        ):
            cluster = Cluster(place.store(), identity, tasks.spawn)
            with pytest.raises(StoreError, match=says):
                await cluster.load(**arguments)
            await cluster.stop()
        cluster = Cluster(place.store(), identity, tasks.spawn)
        await cluster.load(cluster_id=known_id, least_revision=revision)
        await cluster.stop()
        await tasks.close()

    run(scenario())


def test_an_empty_store_is_refused_by_a_broker_that_belongs_to_a_cluster(place: Place) -> None:
    """Else every topic on its disk would be unknown, set aside, and in the end removed."""

    async def scenario() -> None:
        tasks = Tasks()
        identity = Identity(broker_id=1, directory_id="dir-1", session_timeout_ms=40)
        cluster = Cluster(place.store(), identity, tasks.spawn)
        with pytest.raises(StoreError, match="store is empty, and the data directory belongs to"):
            await cluster.load(cluster_id="known")
        await cluster.stop()
        await tasks.close()

    run(scenario())


class SmallStore(TroubledStore):
    """Takes a few writes at once."""

    async def commit(
        self, compares: Sequence[Compare], writes: Sequence[Write]
    ) -> Committed | Conflict:
        if len(writes) > 9:
            raise CommitTooLarge(f"{len(writes)} writes")
        return await super().commit(compares, writes)


def test_a_store_that_takes_less_at_once_gets_less_at_once(place: Place) -> None:
    async def scenario() -> None:
        store = SmallStore(place.path, place.clock, boot_id="boot", poll_ms=1)
        async with place.broker(store=store) as cluster:
            await create(cluster, *(f"t{number}" for number in range(50)))
            assert len(cluster.image.topics) == 50
            await create(cluster, "wide", partitions=64 * 30)
            assert len(cluster.image.topics["wide"].partitions) == 64 * 30

    run(scenario())


@pytest.mark.parametrize("fails", [Ambiguous("lost"), StoreError("down")])
def test_of_commits_at_once_all_have_ended_before_one_failure_is_told(
    place: Place, fails: StoreError
) -> None:
    async def scenario() -> None:
        store = place.store()
        async with place.broker(store=store) as cluster:
            keys = [f"cfg/topic/{number}" for number in range(MAX_OPS * 5)]

            def decide() -> list[Decision[None]]:
                present = cluster.image.key_revisions
                return [
                    Decision(None, [Put(key, encode(set={}))], [unchanged(cluster.image, key)])
                    for key in keys
                    if key not in present
                ]

            async def fail(_: Sequence[Write]) -> None:
                raise fails

            store.trouble = fail
            try:
                await cluster._committer.commit_fast(decide)
                assert isinstance(fails, Ambiguous)
            except StoreError:
                await cluster._committer.commit_fast(decide)
            assert cluster.image.key_revisions.keys() >= set(keys)
            last = max(keys, key=cluster.image.key_revisions.__getitem__)
            assert last == keys[-1], "it tells that all others were committed"

    run(scenario())
