"""What a new user may do, or meet: coroutines in `run`, callbacks that fail, signals, brokers that are away."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock import AsyncConsumer, AsyncProducer, Consumer, Producer
from penstock.sdk import dead_letters
from penstock.sdk.delivery import Delivery
from penstock.sdk.errors import Closed, ConfigurationError, PenstockError, TimedOut, UnknownTopic
from penstock.sdk.message import Message
from penstock.testing import Broker

pytestmark = pytest.mark.cluster
NOWHERE = "127.0.0.1:1"
PATIENCE_S = 30.0


@pytest.fixture
def topic(broker: Broker) -> str:
    """Three messages in one partition."""
    name = broker.create_topic()
    with Producer(broker.bootstrap) as producer:
        for n in range(3):
            producer.send(name, str(n))
    return name


def committed(broker: Broker, topic: str) -> int:
    reader = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    (found,) = reader.committed([confluent_kafka.TopicPartition(topic, 0)], PATIENCE_S)
    reader.close()
    return int(found.offset)


def test_run_takes_a_coroutine_function(broker: Broker, topic: str) -> None:
    done: list[bytes] = []
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            done.append(message.value)
            if len(done) == 3:
                consumer.stop()

        assert consumer.run(handle, workers=2).handled == 3
    assert sorted(done) == [b"0", b"1", b"2"]
    assert committed(broker, topic) == 3


def test_run_inside_of_a_loop_points_to_the_twin(broker: Broker, topic: str) -> None:
    async def handle(_: Message) -> None: ...

    async def main() -> None:
        with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
            consumer.run(handle)

    with pytest.raises(ConfigurationError, match="use AsyncConsumer"):
        asyncio.run(main())


def test_a_coroutine_that_nobody_awaits_is_not_taken_for_done(broker: Broker, topic: str) -> None:
    async def handle(_: Message) -> None: ...

    with (
        Consumer(broker.bootstrap, topic, group_id=topic) as consumer,
        pytest.raises(ConfigurationError, match="which nobody awaits; give the coroutine"),
    ):
        consumer.run(lambda message: handle(message), dead_letter=f"{topic}.dlq")
    assert committed(broker, topic) <= 0


def test_a_plain_function_is_not_awaited(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with AsyncConsumer(broker.bootstrap, topic, group_id=topic) as consumer:
            await consumer.run(lambda _: None)  # type: ignore[arg-type, return-value]  # what a user may type

    with pytest.raises(ConfigurationError, match="returned NoneType, which cannot be awaited"):
        asyncio.run(main())
    assert committed(broker, topic) <= 0


@pytest.mark.parametrize("settings", [{}, {"group_protocol": "consumer"}])
def test_what_a_rebalance_callback_raises_comes_out_of_poll(
    broker: Broker, topic: str, settings: dict[str, Any]
) -> None:
    def fail(places: list[tuple[str, int]]) -> None:
        raise LookupError(f"no room for {places}")

    with (
        Consumer(broker.bootstrap, topic, group_id=topic, on_assign=fail, **settings) as consumer,
        pytest.raises(LookupError, match=f"no room for .*{topic}"),
    ):
        consumer.poll(PATIENCE_S)
    consumer = Consumer(broker.bootstrap, topic, group_id=topic, on_revoke=fail)
    assert consumer.poll(PATIENCE_S) is not None
    with pytest.raises(LookupError, match="no room"):
        consumer.close()


def test_a_rebalance_callback_cannot_poll(broker: Broker, topic: str) -> None:
    with (
        Consumer(
            broker.bootstrap, topic, group_id=topic, on_assign=lambda _: consumer.poll(0)
        ) as consumer,
        pytest.raises(ConfigurationError, match="a rebalance callback cannot wait"),
    ):
        consumer.poll(PATIENCE_S)


def test_seek_waits_for_partitions_and_knows_its_own(broker: Broker, topic: str) -> None:
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        consumer.seek(topic, 0, 2)
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.value == b"2"
        with pytest.raises(ConfigurationError, match=f"{topic}-9 is not assigned"):
            consumer.seek(topic, 9, 0)
        with pytest.raises(ConfigurationError, match="offset=-5"):
            consumer.seek(topic, 0, -5)
        with pytest.raises(ConfigurationError, match="give a list of"):
            consumer.pause(topic)  # type: ignore[arg-type]  # what a user may type


def test_lag_is_one_question_for_all_partitions(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic(partitions=4)
    with Producer(broker.bootstrap) as producer:
        for n in range(12):
            producer.send(topic, str(n), partition=n % 4)
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        consumer.await_assignment()
        asked: list[int] = []
        ask = consumer.assigned.offsets_at

        def counted(places: Any, when_ms: int, timeout_s: float) -> Any:
            asked.extend([when_ms] if places else [])
            return ask(places, when_ms, timeout_s)

        monkeypatch.setattr(consumer.assigned, "offsets_at", counted)
        assert consumer.lag() == {(topic, n): 3 for n in range(4)}
        assert consumer.poll(PATIENCE_S) is not None
        assert consumer.metrics.lag == 11
        assert consumer.poll(PATIENCE_S) is not None
        consumer.commit()
        assert consumer.metrics.lag == 10
    assert len(asked) <= 6
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        consumer.await_assignment()
        assert consumer.metrics.lag == 10


def test_after_its_end_a_consumer_says_so_whatever_is_asked(broker: Broker, topic: str) -> None:
    consumer = Consumer(broker.bootstrap, topic, group_id=topic)
    assert consumer.poll(PATIENCE_S) is not None
    consumer.close()
    for ask in (consumer.assignment, consumer.lag, consumer.pause, consumer.resume):
        with pytest.raises(Closed, match="this consumer is closed"):
            ask()
    for act in (consumer.commit, lambda: consumer.run(print), lambda: consumer.seek(topic, 0, 0)):
        with pytest.raises(Closed, match="this consumer is closed"):
            act()
    assert "penstock_consumer_lag{" in consumer.metrics.prometheus()
    assert " NaN\n" in consumer.metrics.prometheus()


def test_exactly_once_needs_the_name_of_a_group(broker: Broker, topic: str) -> None:
    with Consumer(broker.bootstrap, topic, enable_auto_commit=False) as consumer:
        with pytest.raises(ConfigurationError, match="the transaction keeps the place"):
            consumer.transform(print, to="x")
        with pytest.raises(ConfigurationError, match="the database keeps the place"):
            consumer.run_in_database(None, print)


def test_what_waits_in_vain_says_why() -> None:
    producer = Producer(NOWHERE, delivery_timeout_ms=3000, linger_ms=0)
    delivery = producer.send("t", b"x")
    with pytest.raises(TimedOut, match=r"Connection refused.*; check bootstrap"):
        delivery.result(PATIENCE_S)
    producer.close()


def test_a_message_is_not_lost_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "penstock.sdk"),
        Producer(NOWHERE, delivery_timeout_ms=300, linger_ms=0) as producer,
    ):
        producer.send("nobody-waits", b"x")
    assert "a message is lost, and nobody waits for it: topic 'nobody-waits'" in caplog.text


def test_an_aborted_transaction_is_no_loss(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic()
    with (
        caplog.at_level(logging.WARNING, "penstock.sdk"),
        Producer(broker.bootstrap, transactional_id=topic, linger_ms=5_000) as producer,
    ):
        deliveries: list[Delivery] = []
        with suppress(KeyError), producer.transaction():
            deliveries.append(producer.send(topic, b"x"))
            raise KeyError
        error = deliveries[0].exception(PATIENCE_S)
    assert isinstance(error, PenstockError)
    assert "gave it up" in str(error)
    assert "is lost" not in caplog.text


def test_a_transaction_says_which_message_failed() -> None:
    """A broker that makes no topics: the same again would fail again, so `transform` ends."""
    settings = {"auto.create.topics.enable": "false"}
    quick = {"topic.metadata.propagation.max.ms": 100}
    with Broker(settings, subprocess=True) as strict:
        source = strict.create_topic()
        with Producer(strict.bootstrap) as producer:
            producer.send(source, b"x").result(PATIENCE_S)
        with (
            Consumer(
                strict.bootstrap, source, group_id=source, enable_auto_commit=False
            ) as consumer,
            pytest.raises(UnknownTopic, match="create it with: penstock topic create nowhere"),
        ):
            consumer.transform(lambda message: message.value, to="nowhere", librdkafka=quick)
        assert committed(strict, source) <= 0


def test_a_time_may_be_a_datetime_and_acks_0_has_no_offset(broker: Broker) -> None:
    topic = broker.create_topic()
    now = datetime.now(UTC)
    with Producer(broker.bootstrap) as producer:
        delivered = producer.send(topic, b"x", timestamp=now).result(PATIENCE_S)
    assert delivered.timestamp_ms == int(now.timestamp() * 1000)
    with Producer(broker.bootstrap, acks=0) as producer:
        delivery = producer.send(topic, b"x")
        assert delivery.result(PATIENCE_S).offset == -1
        assert repr(delivery).startswith("<Delivery Delivered(topic=")


def test_a_message_put_off_is_not_handled_before_its_time(broker: Broker, topic: str) -> None:
    early: list[Message] = []
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        seen = threading.Semaphore(0)

        def handle(message: Message) -> None:
            due_ms = dead_letters.retry_at_ms(message.headers)
            if due_ms is None:
                raise RuntimeError("not yet")
            if time.time_ns() // 1_000_000 < due_ms:
                early.append(message)
            seen.release()
            if seen.acquire(blocking=False) and consumer.metrics.received >= 6:
                consumer.stop()

        summary = consumer.run(handle, workers=2, retries=0, retry_topics=[0.3])
    assert (summary.put_off, early) == (3, [])


def test_the_twins_have_the_same_names() -> None:
    own = {"client", "consumer", "metrics"}

    def names(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")} - own

    inside = (  # of the engine and of transactions, not for applications
        "before_loss commit_finished committed_elsewhere end_run fetch first_pending forget go_to handed_out "
        "interrupt note_starts refuse_parts rewind rewind_in_doubt take take_many take_more take_ready "
        "take_ready_many"
    )
    assert names(Consumer) - set(inside.split()) == names(AsyncConsumer)
    helpers = {"begin_transaction", "ensure_transactions", "exclusively", "partition_count"}
    assert names(Producer) - helpers == names(AsyncProducer)


def test_the_twin_reads_by_hand_and_transforms(broker: Broker, topic: str) -> None:
    async def main() -> tuple[list[bytes], int]:
        settings: dict[str, Any] = {"group_id": topic, "enable_auto_commit": False}
        async with AsyncConsumer(broker.bootstrap, topic, **settings) as consumer:
            places = await consumer.await_assignment()
            values = [message.value for message in await consumer.poll_many(1, PATIENCE_S)]
            await consumer.commit_offsets(dict.fromkeys(places, 1))
        async with AsyncConsumer(broker.bootstrap, topic, **settings) as consumer:
            done: list[bytes] = []

            async def shout(message: Message) -> bytes:
                await asyncio.sleep(0)
                done.append(message.value)
                if len(done) == 2:
                    consumer.stop()
                return bytes(message.value) + b"!"

            return values, await consumer.transform(shout, to=f"{topic}.loud")

    assert asyncio.run(main()) == ([b"0"], 2)
    with Consumer(broker.bootstrap, f"{topic}.loud", group_id=topic) as consumer:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.value == b"1!"


def test_callbacks_of_the_twin_run_on_the_loop(broker: Broker) -> None:
    topic = broker.create_topic()

    async def main() -> None:
        heard: asyncio.Queue[Any] = asyncio.Queue()
        async with AsyncProducer(broker.bootstrap) as producer:
            fine = await producer.send(topic, b"x")
            fine.add_callback(heard.put_nowait).add_errback(heard.put_nowait)
            assert (await heard.get()).topic == topic
            lost = await producer.send(topic, b"x", partition=0)
            assert await lost.exception() is None

    asyncio.run(main())


WORKER = """
import asyncio, sys, threading
from penstock import AsyncConsumer, Consumer
kind, bootstrap, topic = sys.argv[1:]
begun, go_on = [], threading.Event()
if kind == "threads":
    with Consumer(bootstrap, topic, group_id=topic) as consumer:
        consumer.stop_on_signals()
        def handle(message):
            begun.append(message)
            print("begun", flush=True)
            while not consumer.is_stopped:
                go_on.wait(0.01)
        summary = consumer.run(handle, workers=1, max_in_flight=1)
else:
    async def main():
        async with AsyncConsumer(bootstrap, topic, group_id=topic) as consumer:
            consumer.stop_on_signals()
            async def handle(message):
                begun.append(message)
                print("begun", flush=True)
                while not consumer.is_stopped:
                    await asyncio.sleep(0.01)
            return await consumer.run(handle, workers=1, max_in_flight=1)
    summary = asyncio.run(main())
print("finished", len(begun), summary.handled, flush=True)
"""


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_sigterm_ends_a_run_after_what_is_begun(
    broker: Broker, topic: str, tmp_path: Path, kind: str
) -> None:
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    with subprocess.Popen(
        [sys.executable, str(program), kind, broker.bootstrap, topic],
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begun\n"
        worker.send_signal(signal.SIGTERM)
        assert worker.stdout.readline() == "finished 1 1\n"
    assert worker.returncode == 0
    assert committed(broker, topic) == 1
