"""The asyncio twins against a broker: the same promises, and a loop that never waits for librdkafka."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress

import confluent_kafka
import pytest

from penstock import AsyncConsumer, AsyncProducer, Producer
from penstock.sdk import dead_letters
from penstock.sdk.errors import BufferExhausted, ProcessingFailed, TimedOut
from penstock.sdk.message import Message
from penstock.testing import Broker
from tests.support.failures import DataError

pytestmark = pytest.mark.cluster
PATIENCE_S = 60.0  # for all of a scenario, ten times and more of what it needs
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def topic(broker: Broker) -> str:
    """Fifty messages, with five keys."""
    name = broker.create_topic(partitions=2)
    with Producer(broker.bootstrap) as producer:
        for n in range(50):
            producer.send(name, str(n), f"key-{n % 5}")
    return name


def committed(broker: Broker, topic: str) -> int:
    reader = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    found = reader.committed(
        [confluent_kafka.TopicPartition(topic, n) for n in range(2)], PATIENCE_S
    )
    reader.close()
    return sum(max(0, one.offset) for one in found)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main()

    asyncio.run(bounded())


def test_what_is_sent_can_be_awaited_and_comes_back(broker: Broker) -> None:
    topic = broker.create_topic()
    came: list[int] = []

    async def main() -> None:
        async with AsyncProducer(broker.bootstrap, value_serializer="json") as producer:
            sent = [await producer.send(topic, {"n": n}) for n in range(100)]
            delivered = await asyncio.gather(*(one.result() for one in sent))
            assert [one.offset for one in delivered] == list(range(100))
            assert all(one.done for one in sent)
            assert (await sent[0]).offset == 0
            await producer.flush()
        async with AsyncConsumer(
            broker.bootstrap, topic, group_id=topic, value_deserializer="json"
        ) as consumer:
            async for message in consumer:
                came.append(message.value["n"])
                if len(came) == 100:
                    break

    run(main)
    assert came == list(range(100))


def test_an_error_is_raised_where_it_is_awaited() -> None:
    async def main() -> None:
        producer = AsyncProducer(NOWHERE, delivery_timeout_ms=200)
        sent = await producer.send("t", b"")
        with pytest.raises(TimedOut):
            await sent
        await producer.close()

    run(main)


def test_a_full_buffer_waits_without_stopping_the_loop() -> None:
    async def main() -> None:
        producer = AsyncProducer(NOWHERE, buffer_messages=1, max_block_ms=100)
        await producer.send("t", b"1")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        async with asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(tick())
            with pytest.raises(BufferExhausted, match=r"full for 0\.1 s"):
                await producer.send("t", b"2")
            ticking.cancel()
        assert ticks > 10
        with pytest.raises(TimedOut):
            await producer.close(0.0)

    run(main)


def test_options_that_may_block_work_too(broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)

    async def main() -> None:
        async with AsyncProducer(
            broker.bootstrap, partitioner="round_robin", rate_limit=1e6
        ) as producer:
            places = [(await (await producer.send(topic, b""))).partition for _ in range(4)]
        assert places == [0, 1, 0, 1]

    run(main)


def test_a_crash_in_the_loop_repeats_the_message(broker: Broker, topic: str) -> None:
    async def crash() -> None:
        async with AsyncConsumer(broker.bootstrap, topic, group_id=topic) as consumer:
            count = 0
            async for _ in consumer:
                count += 1
                if count == 10:
                    raise RuntimeError("the handler's")

    with pytest.raises(RuntimeError, match="the handler's"):
        run(crash)
    assert committed(broker, topic) == 9


def test_the_methods_have_the_names_of_the_plain_consumer(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with AsyncConsumer(broker.bootstrap, topic, group_id=topic) as consumer:
            assert await consumer.poll(PATIENCE_S)
            assert len(await consumer.assignment()) == 2
            assert sum((await consumer.lag()).values()) == 49
            await consumer.pause()
            assert await consumer.poll(0.2) is None
            await consumer.resume()
            await consumer.seek_to_time(0)
            assert await consumer.poll(PATIENCE_S)
            await consumer.seek(topic, 0, 0)
            await consumer.commit()

    run(main)


def test_coroutines_handle_messages_in_the_order_of_their_keys(broker: Broker, topic: str) -> None:
    seen: dict[bytes, list[int]] = defaultdict(list)

    async def main() -> None:
        async with AsyncConsumer(broker.bootstrap, topic, group_id=topic) as consumer:

            async def handler(message: Message) -> None:
                await asyncio.sleep(0.001)
                seen[message.key].append(int(message.value))
                if sum(map(len, seen.values())) == 50:
                    consumer.stop()

            summary = await consumer.run(handler, workers=4)
            assert summary.handled == 50

    run(main)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert committed(broker, topic) == 50


def test_poison_is_put_aside_by_coroutines_too(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with AsyncConsumer(broker.bootstrap, topic, group_id=topic) as consumer:
            handled = 0

            async def handler(message: Message) -> None:
                nonlocal handled
                handled += message.value != b"7"
                if handled == 49:
                    consumer.stop()
                if message.value == b"7":
                    raise ValueError("seven")

            summary = await consumer.run(
                handler, retries=2, backoff=0.001, dead_letter=f"{topic}.dlq"
            )
            assert (summary.dead_letters, summary.retried) == (1, 2)
        async with AsyncConsumer(broker.bootstrap, f"{topic}.dlq", group_id="dlq") as letters:
            message = await letters.poll(PATIENCE_S)
            assert message is not None
            assert dead_letters.read(message.headers).attempts == 3

    run(main)
    assert committed(broker, topic) == 50


def test_poison_without_a_place_to_go_ends_the_run(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async def handler(_: Message) -> None:
            raise ValueError

        async with AsyncConsumer(broker.bootstrap, topic, group_id=topic) as consumer:
            with pytest.raises(ProcessingFailed):
                await consumer.run(handler, retries=0)

    run(main)
    assert committed(broker, topic) == 0


def test_a_cancelled_run_finishes_what_it_has_begun(broker: Broker, topic: str) -> None:
    done: list[int] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def handler(message: Message) -> None:
            begun.set()
            await asyncio.sleep(0.05)
            done.append(int(message.value))

        async with (
            AsyncConsumer(broker.bootstrap, topic, group_id=topic) as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            running = tasks.create_task(consumer.run(handler, workers=2, order="partition"))
            await begun.wait()
            running.cancel()

    run(main)
    assert committed(broker, topic) == len(done) > 0


def test_a_transaction_is_seen_whole(broker: Broker) -> None:
    topic = broker.create_topic()

    async def fail(producer: AsyncProducer) -> None:
        async with producer.transaction():
            await producer.send(topic, b"aborted")
            raise ValueError("no")

    async def main() -> None:
        async with AsyncProducer(broker.bootstrap, transactional_id=topic) as producer:
            with pytest.raises(ValueError, match="no"):
                await fail(producer)
            async with producer.transaction():
                await producer.send(topic, b"committed")
        async with AsyncConsumer(
            broker.bootstrap, topic, group_id=topic, isolation_level="read_committed"
        ) as consumer:
            message = await consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.value == b"committed"

    run(main)


def test_a_cancelled_poll_takes_no_message_away(broker: Broker, topic: str) -> None:
    came: list[int] = []

    async def main() -> None:
        async with AsyncConsumer(
            broker.bootstrap, topic, group_id=topic, fetch_max_wait_ms=20
        ) as consumer:
            while len(came) < 50:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.005):
                        if (message := await consumer.poll()) is not None:
                            came.append(int(message.value))

    with suppress(TimeoutError):  # what never comes is lost, not late
        run(main)
    if sorted(came) != list(range(50)):
        raise DataError(f"not each message once: {sorted(came)}")
    assert committed(broker, topic) == 50


def test_a_consumer_works_on_after_a_cancelled_run(broker: Broker, topic: str) -> None:
    done: set[int] = set()

    async def main() -> None:
        begun, is_complete = asyncio.Event(), asyncio.Event()

        async def handler(message: Message) -> None:
            begun.set()
            await asyncio.sleep(0.01)
            done.add(int(message.value))
            if len(done) == 50:
                is_complete.set()

        async with AsyncConsumer(broker.bootstrap, topic, group_id=topic) as consumer:
            for event in (begun, is_complete):
                async with asyncio.TaskGroup() as tasks:
                    running = tasks.create_task(consumer.run(handler, workers=2))
                    await event.wait()
                    running.cancel()

    with suppress(TimeoutError):  # what never comes is lost, not late
        run(main)
    if done != set(range(50)):
        raise DataError(f"skipped: {set(range(50)) - done}")
    assert committed(broker, topic) == 50


def test_a_transaction_that_is_cancelled_at_its_begin_leaves_the_producer_usable(
    broker: Broker,
) -> None:
    topic = broker.create_topic()

    async def main() -> None:
        async with AsyncProducer(broker.bootstrap, transactional_id=topic) as producer:

            async def use() -> None:
                async with producer.transaction():
                    raise AssertionError("it is cancelled before")

            using = asyncio.get_running_loop().create_task(use())
            await asyncio.sleep(0)
            using.cancel()
            await asyncio.wait({using})
            async with producer.transaction():
                delivery = await producer.send(topic, b"committed")
            await delivery

    run(main)
