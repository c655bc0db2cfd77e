"""Where requests go, and what is tried again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from penstock.client import admin, pool
from penstock.client.errors import ClientError
from penstock.client.pool import Controller, Leader, Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from penstock.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.schema import Message
from tests.support.fake_broker import HANG_UP, SILENCE, FakeBroker

ORDERS_0 = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
def _three_retries_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    def pauses() -> Iterator[int]:
        yield from (0, 0, 0)
        yield 10**9  # longer than any deadline: give up

    monkeypatch.setattr(pool, "_pauses_ms", pauses)


class Cluster:
    """Two scripted brokers that agree on who leads partition 0 of `orders` and who is the controller."""

    def __init__(self, brokers: list[FakeBroker]) -> None:
        self.brokers = brokers
        self.leader_id = 2
        self.controller_id = 1
        for broker in brokers:
            broker.on(MetadataRequest, lambda _: self.metadata())

    def metadata(self) -> MetadataResponse:
        partition = MetadataResponsePartition(leader_id=self.leader_id, replica_nodes=[1, 2])
        addresses = [broker.address for broker in self.brokers]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=number, host=address.host, port=address.port)
                for number, address in enumerate(addresses, 1)
            ],
            controller_id=self.controller_id,
            topics=[MetadataResponseTopic(name="orders", partitions=[partition])],
        )


def run(scenario: Callable[[Cluster, Pool], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeBroker() as first, FakeBroker() as second:
            cluster = Cluster([first, second])
            async with Pool([first.address]) as client:
                await scenario(cluster, client)

    asyncio.run(main())


def end_offset(offset: int, error: ErrorCode = ErrorCode.NONE) -> Callable[[Message], Message]:
    row = ListOffsetsPartitionResponse(partition_index=0, offset=offset, error_code=error)
    answer = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[row])])
    return lambda _: answer


def creation(error: ErrorCode, message: str | None = None) -> CreateTopicsResponse:
    result = CreatableTopicResult(
        name="t", error_code=error, error_message=message, num_partitions=3, replication_factor=1
    )
    return CreateTopicsResponse(topics=[result])


async def latest(client: Pool) -> int:
    found = await admin.list_offsets(client, {ORDERS_0: admin.LATEST})
    return found[ORDERS_0].offset


def test_a_request_for_a_partition_goes_to_its_leader() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        cluster.brokers[1].on(ListOffsetsRequest, end_offset(42))
        answer = await client.ask(Leader(ORDERS_0), ListOffsetsRequest(), ListOffsetsResponse)
        assert answer.topics[0].partitions[0].offset == 42
        assert cluster.brokers[0].count(ListOffsetsRequest) == 0

    run(scenario)


def test_a_leader_that_moved_is_looked_up_again() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        def moved(_: Message) -> Message:
            cluster.leader_id = 1
            return end_offset(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)(_)

        cluster.brokers[1].on(ListOffsetsRequest, moved)
        cluster.brokers[0].on(ListOffsetsRequest, end_offset(7))
        assert await latest(client) == 7

    run(scenario)


def test_a_partition_without_a_leader_is_waited_for() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        cluster.leader_id = -1
        cluster.brokers[1].on(ListOffsetsRequest, end_offset(3))
        answers = iter([-1, -1, 2])
        original = cluster.metadata

        def elect(_: Message) -> Message:
            cluster.leader_id = next(answers)
            return original()

        cluster.brokers[0].on(MetadataRequest, elect)
        assert await latest(client) == 3

    run(scenario)


def test_the_controller_is_looked_up_again_when_it_moved() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        def moved(_: Message) -> Message:
            cluster.controller_id = 2
            return creation(ErrorCode.NOT_CONTROLLER)

        cluster.brokers[0].on(CreateTopicsRequest, moved)
        cluster.brokers[1].on(CreateTopicsRequest, lambda _: creation(ErrorCode.NONE))
        made = await admin.create_topic(client, "t")
        assert made == admin.CreatedTopic("t", 3, 1)

    run(scenario)


def test_what_may_have_worked_and_cannot_be_repeated_is_not_done_twice() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        cluster.brokers[0].on(CreateTopicsRequest, lambda _: HANG_UP)
        with pytest.raises(ClientError) as caught:
            await client.ask(
                Controller(), CreateTopicsRequest(), CreateTopicsResponse, repeatable=False
            )
        assert caught.value.outcome_unknown
        assert cluster.brokers[0].count(CreateTopicsRequest) == 1

    run(scenario)


@pytest.mark.parametrize(("partitions", "is_ours"), [(None, True), (1, True), (5, False)])
def test_a_topic_that_exists_after_a_lost_answer_is_the_one_that_was_asked_for(
    partitions: int | None, is_ours: bool
) -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        answers = iter([HANG_UP, creation(ErrorCode.TOPIC_ALREADY_EXISTS)])
        cluster.brokers[0].on(CreateTopicsRequest, lambda _: next(answers))
        made = admin.create_topic(client, "orders", partitions=partitions)
        if is_ours:
            assert await made == admin.CreatedTopic("orders", 1, 2)
        else:
            with pytest.raises(ClientError, match="exists already"):
                await made

    run(scenario)


def test_a_topic_that_existed_before_is_refused() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        refusal = creation(ErrorCode.TOPIC_ALREADY_EXISTS)
        cluster.brokers[0].on(CreateTopicsRequest, lambda _: refusal)
        with pytest.raises(ClientError, match="exists already"):
            await admin.create_topic(client, "orders")

    run(scenario)


def test_a_topic_that_is_gone_after_a_lost_answer_was_deleted() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        gone = DeletableTopicResult(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        answers = iter([HANG_UP, DeleteTopicsResponse(responses=[gone])])
        cluster.brokers[0].on(DeleteTopicsRequest, lambda _: next(answers))
        await admin.delete_topic(client, "t")

    run(scenario)


def test_a_topic_that_has_as_many_partitions_after_a_lost_answer_has_grown() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        refused = CreatePartitionsTopicResult(
            name="orders", error_code=ErrorCode.INVALID_PARTITIONS
        )
        answers = iter([HANG_UP, CreatePartitionsResponse(results=[refused])] * 2)
        cluster.brokers[0].on(CreatePartitionsRequest, lambda _: next(answers))
        await admin.grow_topic(client, "orders", 1)
        with pytest.raises(ClientError, match="has 1 partitions"):
            await admin.grow_topic(client, "orders", 2)

    run(scenario)


@pytest.mark.parametrize("frozen", ["before", "after"])
def test_another_broker_is_asked_when_the_controller_says_nothing(
    monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    """It is frozen before it lets us in, or while it has our request."""
    monkeypatch.setattr(pool, "_CONNECT_MS", 50)
    monkeypatch.setattr(pool, "_ANSWER_MS", 50)

    async def scenario(cluster: Cluster, client: Pool) -> None:
        cluster.controller_id = 2
        silent = ApiVersionsRequest if frozen == "before" else CreateTopicsRequest
        cluster.brokers[1].on(CreateTopicsRequest, lambda _: creation(ErrorCode.NONE))
        cluster.brokers[1].on(silent, lambda _: SILENCE)
        cluster.brokers[0].on(CreateTopicsRequest, lambda _: creation(ErrorCode.NONE))
        for _ in range(2):
            assert await admin.create_topic(client, "t") == admin.CreatedTopic("t", 3, 1)
        assert cluster.brokers[1].connections == 1, "it is left alone for a while"

    run(scenario)


def test_a_first_address_that_says_nothing_is_left_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "_CONNECT_MS", 50)

    async def scenario(cluster: Cluster, client: Pool) -> None:  # noqa: ARG001  # every scenario has both
        cluster.brokers[0].on(ApiVersionsRequest, lambda _: SILENCE)
        async with Pool([it.address for it in cluster.brokers]) as other:
            assert await other.broker_ids() == [1, 2]

    run(scenario)


def test_what_only_reads_is_asked_again_on_a_new_connection() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        answers = iter([HANG_UP, HANG_UP, end_offset(9)(ListOffsetsRequest())])
        cluster.brokers[1].on(ListOffsetsRequest, lambda _: next(answers))
        assert await latest(client) == 9
        assert cluster.brokers[1].connections == 3

    run(scenario)


def test_a_refusal_is_final_and_carries_the_brokers_words() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        refusal = creation(ErrorCode.INVALID_PARTITIONS, "0 partitions; the least is 1")
        cluster.brokers[0].on(CreateTopicsRequest, lambda _: refusal)
        with pytest.raises(ClientError, match="0 partitions; the least is 1") as caught:
            await admin.create_topic(client, "t")
        assert caught.value.code is ErrorCode.INVALID_PARTITIONS

    run(scenario)


def test_a_log_that_its_broker_cannot_use_is_not_waited_for() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        row = ListOffsetsPartitionResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        topic = ListOffsetsTopicResponse(name="orders", partitions=[row])
        asked: list[Message] = []

        def refuse(request: Message) -> ListOffsetsResponse:
            asked.append(request)
            return ListOffsetsResponse(topics=[topic])

        cluster.brokers[1].on(ListOffsetsRequest, refuse)
        with pytest.raises(ClientError, match=r"orders-0: .*; see the broker's log"):
            await admin.list_offsets(client, {ORDERS_0: admin.LATEST})
        assert len(asked) == 1

    run(scenario)


def test_a_missing_partition_is_an_error_not_a_wait() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:  # noqa: ARG001  # every scenario has both
        with pytest.raises(ClientError, match="'orders' has no partition 5"):
            await admin.list_offsets(client, {TopicPartition("orders", 5): admin.LATEST})

    run(scenario)


def test_one_connection_serves_requests_that_start_together() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        await asyncio.gather(*(client.metadata([]) for _ in range(20)))
        assert cluster.brokers[0].connections == 1

    run(scenario)


def test_the_next_bootstrap_address_is_tried_when_the_first_is_dead() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:  # noqa: ARG001  # every scenario has both
        async with FakeBroker() as short_lived:
            dead = short_lived.address
        async with Pool([dead, cluster.brokers[0].address]) as other:
            assert await other.broker_ids() == [1, 2]

    run(scenario)


def test_when_no_address_answers_the_error_comes_at_once() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:  # noqa: ARG001  # every scenario has both
        async with FakeBroker() as short_lived:
            dead = short_lived.address
        async with Pool([dead]) as other:
            with pytest.raises(ClientError, match="cannot reach"):
                await other.metadata()

    run(scenario)


def test_a_leader_at_an_unreachable_advertised_address_is_named() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        async with FakeBroker() as short_lived:
            cluster.brokers[1] = short_lived
            await client.metadata(["orders"])
        with pytest.raises(ClientError, match="the advertised address of broker 2"):
            await client.ask(Leader(ORDERS_0), ListOffsetsRequest(), ListOffsetsResponse)

    run(scenario)


def test_the_reason_for_waiting_is_told_when_time_runs_out() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        cluster.leader_id = -1
        no_leader = cluster.metadata()
        answers = iter([no_leader, no_leader, SILENCE])
        cluster.brokers[0].on(MetadataRequest, lambda _: next(answers))
        with pytest.raises(ClientError, match="orders-0 has no leader at the moment"):
            await client.ask(
                Leader(ORDERS_0), ListOffsetsRequest(), ListOffsetsResponse, timeout_ms=2000
            )

    run(scenario)


def test_a_cluster_without_a_controller_says_so() -> None:
    async def scenario(cluster: Cluster, client: Pool) -> None:
        cluster.controller_id = -1
        request = CreateTopicsRequest()
        with pytest.raises(ClientError, match="no controller"):
            await client.ask(Controller(), request, CreateTopicsResponse)

    run(scenario)
