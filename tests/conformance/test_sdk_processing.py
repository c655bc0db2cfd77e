"""`run` against a broker: order, commits, retries, dead letters, back-pressure, moves and the end."""

import threading
from collections import defaultdict
from collections.abc import Callable

import confluent_kafka
import pytest

from penstock import Consumer, Producer
from penstock.sdk import dead_letters
from penstock.sdk.errors import ConfigurationError, ProcessingFailed
from penstock.sdk.message import Message
from penstock.sdk.retrying import RetryTopics
from penstock.sdk.workers import Order
from penstock.testing import Broker
from tests.support.failures import DataError

pytestmark = pytest.mark.cluster
PATIENCE_S = 30.0

Fill = Callable[..., str]


@pytest.fixture
def fill(broker: Broker) -> Fill:
    def make(count: int, *, partitions: int = 1, keys: int = 5) -> str:
        topic = broker.create_topic(partitions=partitions)
        with Producer(broker.bootstrap) as producer:
            for n in range(count):
                producer.send(topic, str(n), f"key-{n % keys}", {"own": b"header"})
        return topic

    return make


def committed(broker: Broker, topic: str, partitions: int = 1) -> int:
    reader = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    wanted = [confluent_kafka.TopicPartition(topic, n) for n in range(partitions)]
    found = reader.committed(wanted, PATIENCE_S)
    reader.close()
    return sum(max(0, one.offset) for one in found)


def read_all(broker: Broker, topic: str, count: int) -> list[Message]:
    with Consumer(broker.bootstrap, topic, group_id=f"read-{topic}") as consumer:
        messages: list[Message] = []
        while len(messages) < count:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            messages.append(message)
        return messages


class Recorder:
    """A handler that notes what came, and stops the run when it has seen enough."""

    def __init__(self, consumer: Consumer, enough: int) -> None:
        self.seen: dict[bytes | None, list[int]] = defaultdict(list)
        self._consumer = consumer
        self._enough = enough
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self.seen[message.raw_key].append(int(message.value))
            if sum(map(len, self.seen.values())) == self._enough:
                self._consumer.stop()

    @property
    def all(self) -> list[int]:
        return sorted(n for numbers in self.seen.values() for n in numbers)


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_every_message_is_handled_once_and_all_is_committed(
    broker: Broker, fill: Fill, order: Order
) -> None:
    topic = fill(500, partitions=3)
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        handler = Recorder(consumer, 500)
        summary = consumer.run(handler, order=order, workers=4)
    assert handler.all == list(range(500))
    assert (summary.handled, summary.dead_letters) == (500, 0)
    assert committed(broker, topic, 3) == 500
    if order != "none":
        assert all(numbers == sorted(numbers) for numbers in handler.seen.values())


def test_a_message_in_work_holds_the_commit_back(broker: Broker, fill: Fill) -> None:
    topic = fill(20, keys=20)
    release = threading.Event()
    others = threading.Semaphore(0)

    def handler(message: Message) -> None:
        if message.offset == 3:
            assert release.wait(PATIENCE_S)
        others.release()

    consumer = Consumer(broker.bootstrap, topic, group_id=topic, auto_commit_interval_ms=0)
    run = threading.Thread(
        target=consumer.run, args=(handler,), kwargs={"order": "none", "workers": 3}
    )
    run.start()
    for _ in range(19):
        assert others.acquire(timeout=PATIENCE_S)
    while committed(broker, topic) < 3:
        pass
    assert committed(broker, topic) == 3
    consumer.stop()
    release.set()
    run.join()
    consumer.close()
    assert committed(broker, topic) == 20


def test_a_failure_is_tried_again_and_then_it_is_fine(broker: Broker, fill: Fill) -> None:
    topic = fill(1)
    tries: list[int] = []
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:

        def handler(_: Message) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise RuntimeError("not yet")
            consumer.stop()

        summary = consumer.run(handler, retries=5, backoff=0)
    assert (len(tries), summary.retried, summary.handled) == (3, 2, 1)
    assert committed(broker, topic) == 1


def test_poison_goes_to_the_dead_letter_topic_with_its_story(broker: Broker, fill: Fill) -> None:
    topic = fill(10, keys=2)
    dead = f"{topic}.dlq"
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        recorder = Recorder(consumer, 9)

        def handler(message: Message) -> None:
            if message.value == b"4":
                raise ValueError("cannot be four")
            recorder(message)

        summary = consumer.run(handler, workers=2, retries=2, backoff=0, dead_letter=dead)
    assert summary.dead_letters == 1
    assert committed(broker, topic) == 10
    (message,) = read_all(broker, dead, 1)
    letter = dead_letters.read(message.headers)
    assert (letter.topic, letter.partition, letter.offset) == (topic, 0, 4)
    assert (letter.error, letter.error_type, letter.attempts) == ("cannot be four", "ValueError", 3)
    assert letter.group == topic
    assert (message.key, message.value) == (b"key-0", b"4")
    assert message.header("own") == b"header"


def test_without_a_dead_letter_topic_poison_ends_the_run_and_nothing_passes_it(
    broker: Broker, fill: Fill
) -> None:
    topic = fill(10, keys=10)

    def handler(message: Message) -> None:
        if message.value == b"4":
            raise ValueError("cannot be four")

    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        with pytest.raises(
            ProcessingFailed, match=f"{topic}-0@4 failed 2 times: ValueError"
        ) as failed:
            consumer.run(handler, retries=1, backoff=0)
        assert isinstance(failed.value.__cause__, ValueError)
    assert committed(broker, topic) == 4


def test_a_failing_message_comes_back_through_the_retry_topics(broker: Broker, fill: Fill) -> None:
    topic = fill(3)
    tries: dict[bytes, list[str]] = defaultdict(list)
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:

        def handler(message: Message) -> None:
            tries[message.value].append(message.topic)
            if message.value == b"1":
                if len(tries[b"1"]) == 3:
                    consumer.stop()
                raise RuntimeError("never")

        retry = RetryTopics(delays=(0.1, 0.2))
        summary = consumer.run(
            handler, retries=0, retry_topics=retry, dead_letter=f"{topic}.dlq", workers=2
        )
    assert tries[b"1"] == [topic, f"{topic}.retry.1", f"{topic}.retry.2"]
    assert (tries[b"0"], tries[b"2"]) == ([topic], [topic])
    assert (summary.put_off, summary.dead_letters) == (2, 1)
    (message,) = read_all(broker, f"{topic}.dlq", 1)
    letter = dead_letters.read(message.headers)
    assert (letter.topic, letter.offset, letter.attempts) == (topic, 1, 3)


def test_slow_handlers_hold_the_fetching_back(broker: Broker, fill: Fill) -> None:
    topic = fill(200)
    at_once: list[int] = []
    inside = threading.Semaphore(0)
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        recorder = Recorder(consumer, 200)

        def handler(message: Message) -> None:
            inside.release()
            at_once.append(consumer.metrics.received - sum(map(len, recorder.seen.values())))
            recorder(message)

        consumer.run(handler, workers=2, max_in_flight=10)
    assert max(at_once) <= 10 + 1
    assert recorder.all == list(range(200))


def test_a_handler_slower_than_the_keep_alive_pauses_and_loses_nothing(
    broker: Broker, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sdk.processing._KEEP_ALIVE_S", 0.0)
    topic = fill(60, partitions=2)
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        recorder = Recorder(consumer, 60)
        tick = threading.Event()

        def handler(message: Message) -> None:
            tick.wait(0.005)
            recorder(message)

        consumer.run(handler, workers=2, max_in_flight=4)
    assert recorder.all == list(range(60))
    assert committed(broker, topic, 2) == 60


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_that_move_take_only_unfinished_messages_with_them(
    broker: Broker, fill: Fill, protocol: str
) -> None:
    topic = fill(400, partitions=4, keys=40)
    lock = threading.Lock()
    seen: list[int] = []
    consumers: list[Consumer] = []
    tick = threading.Event()

    def handler(message: Message) -> None:
        tick.wait(0.002)
        with lock:
            seen.append(int(message.value))
            if len(seen) >= 400:
                for consumer in consumers:
                    consumer.stop()

    def run() -> None:
        with Consumer(broker.bootstrap, topic, group_id=topic, group_protocol=protocol) as consumer:
            with lock:
                consumers.append(consumer)
                if len(seen) >= 400:  # the other one was quick
                    consumer.stop()
            consumer.run(handler, workers=2)

    threads = [threading.Thread(target=run) for _ in range(2)]
    threads[0].start()
    while len(seen) < 20:
        tick.wait(0.005)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(400))
    assert committed(broker, topic, 4) == 400


def test_a_handler_that_exits_ends_the_run_without_committing_its_message(
    broker: Broker, fill: Fill
) -> None:
    topic = fill(3)

    def handler(message: Message) -> None:
        if message.offset == 1:
            raise SystemExit(3)

    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer, pytest.raises(SystemExit):
        consumer.run(handler, workers=1, dead_letter=f"{topic}.dlq")
    assert committed(broker, topic) == 1


def test_wrong_options_are_refused(broker: Broker, fill: Fill) -> None:
    with Consumer(broker.bootstrap, fill(0), group_id="options") as consumer:
        with pytest.raises(ConfigurationError, match="workers=0"):
            consumer.run(print, workers=0)
        with pytest.raises(ConfigurationError, match="order='random'"):
            consumer.run(print, order="random")  # type: ignore[arg-type]  # what a user may type


def test_run_again_after_a_failure_gets_the_message_that_failed(broker: Broker, fill: Fill) -> None:
    topic = fill(60, keys=10)
    failures = {7, 20, 41}
    handled: set[int] = set()
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:

        def handler(message: Message) -> None:
            number = int(message.value)
            if number in failures:
                failures.remove(number)
                raise ValueError(number)
            handled.add(number)
            if len(handled) == 60:
                consumer.stop()

        failed_runs = 0
        end = threading.Timer(PATIENCE_S, consumer.stop)  # what never comes is lost, not late
        end.start()
        while not consumer.is_stopped:
            try:
                consumer.run(handler, workers=3, retries=0)
            except ProcessingFailed:
                failed_runs += 1
        end.cancel()
        end.join()
    assert 1 <= failed_runs <= 3
    if handled != set(range(60)):
        raise DataError(f"skipped: {set(range(60)) - handled}")
    assert committed(broker, topic) == 60
