"""Each delivery guarantee, counted while producer, consumer and broker are killed at random; `SEED=…` replays the order of kills.

At most once: nothing twice. At least once: nothing lost. Exactly once: neither. One directed kill each shows the loss or
the duplicate that the weaker ones permit.
"""

import json
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, Producer
from penstock.testing import Broker
from tests.support import postgres
from tests.support.command import environment
from tests.support.ports import kept_addresses
from tests.support.sdk_worker import END
from tests.support.seed import chosen_seed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED = chosen_seed()
COUNT = 300
KILLS = 6
STUCK_S = (
    60.0  # librdkafka may wait for ever on a coordinator of a broker that was killed: replace it
)
PATIENCE_S = 150.0  # librdkafka takes its time to find a broker again that came back
ROOT = Path(__file__).parents[2]


class Process:
    """A worker that is started again until it has ended by itself."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._command = [sys.executable, "-m", "tests.support.sdk_worker", json.dumps(options)]
        self._log = Path(options["file"]).with_suffix(f".{options['mode']}.log")
        self._child = self._start()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def is_done(self) -> bool:
        """Starts it again if it was killed, or has given up."""
        status = self._child.poll()
        if status is not None and status != 0:
            self._child = self._start()
        return status == 0

    def finish(self) -> None:
        for _ in range(60):
            try:
                if self._child.wait(STUCK_S) == 0:
                    return
            except subprocess.TimeoutExpired:
                self.kill()
            self.is_done()
        raise AssertionError(f"it never ends well:\n{self._log.read_text()[-3000:]}")

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, cwd=ROOT, env=environment(), stderr=log)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(kept_addresses(), subprocess=True, data_dir=tmp_path / "data") as started:
        yield started


def wreak_havoc(rng: random.Random, broker: Broker, producer: Process, consumer: Process) -> None:
    """Kills one of the three, again and again; what was killed comes back."""
    pause = threading.Event()
    for _ in range(KILLS):
        pause.wait(rng.uniform(0.2, 0.9))
        match rng.choice(["producer", "consumer", "broker"]):
            case "producer":
                producer.kill()
            case "consumer":
                consumer.kill()
            case _:
                broker.kill()
                broker.start()
        producer.is_done()
        consumer.is_done()


def send_end(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, str(END)).result(PATIENCE_S)


def numbers_in(file: Path) -> Counter[int]:
    counted = Counter(int(line) for line in file.read_text().split())
    del counted[END]
    return counted


def pipeline(
    broker: Broker, tmp_path: Path, produce: str, consume: str, **more: Any
) -> tuple[Process, Process, Path]:
    topic = broker.create_topic()
    common = {
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "count": COUNT,
        "pace_s": 0.005,
        **more,
    }
    done = tmp_path / "done"
    producer = Process({**common, "mode": produce, "file": str(tmp_path / "sent")})
    consumer = Process({**common, "mode": consume, "file": str(done)})
    return producer, consumer, done


def run_through(broker: Broker, tmp_path: Path, produce: str, consume: str, **more: Any) -> Path:
    """The whole pipeline under random kills, until the consumer has seen the end."""
    producer, consumer, done = pipeline(broker, tmp_path, produce, consume, **more)
    wreak_havoc(random.Random(SEED), broker, producer, consumer)
    producer.finish()
    topic = json.loads(producer._command[-1])["topic"]
    send_end(broker, topic)
    consumer.finish()
    return done


@pytest.mark.long
def test_at_most_once_nothing_comes_twice(broker: Broker, tmp_path: Path) -> None:
    done = run_through(broker, tmp_path, "produce_at_most_once", "consume_at_most_once")
    counted = numbers_in(done)
    assert set(counted) <= set(range(COUNT)), f"SEED={SEED}"
    assert max(counted.values(), default=0) <= 1, f"SEED={SEED}: {counted.most_common(3)}"


def test_at_least_once_nothing_is_lost(broker: Broker, tmp_path: Path) -> None:
    done = run_through(broker, tmp_path, "produce_at_least_once", "consume_at_least_once")
    assert set(numbers_in(done)) == set(range(COUNT)), f"SEED={SEED}"


def fill(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in (*range(COUNT), END):
            producer.send(topic, str(number))


def kill_at_random(broker: Broker, worker: Process, topic: str) -> None:
    rng = random.Random(SEED)
    pause = threading.Event()
    for _ in range(KILLS):
        pause.wait(rng.uniform(0.2, 0.9))
        if rng.random() < 0.7:
            worker.kill()
        else:
            broker.kill()
            broker.start()
        if worker.is_done():
            return
    send_end(broker, topic)  # one that was killed after the first end waits for another


def exactly_once_options(broker: Broker, tmp_path: Path, mode: str) -> dict[str, Any]:
    topic = broker.create_topic()
    fill(broker, topic)
    file = str(tmp_path / "done")
    return {
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "count": COUNT,
        "mode": mode,
        "file": file,
    }


def read_committed(broker: Broker, topic: str) -> Counter[int]:
    with Consumer(broker.bootstrap, topic, group_id="count") as consumer:
        counted: Counter[int] = Counter()
        while message := consumer.poll(PATIENCE_S if counted[END] == 0 else 2.0):
            counted[int(message.value)] += 1
    del counted[END]
    return counted


def test_exactly_once_from_topic_to_topic(broker: Broker, tmp_path: Path) -> None:
    out = broker.create_topic()
    options = {**exactly_once_options(broker, tmp_path, "transform"), "to": out}
    worker = Process(options)
    kill_at_random(broker, worker, options["topic"])
    worker.finish()
    assert read_committed(broker, out) == Counter(range(COUNT)), f"SEED={SEED}"


def database_rows(options: dict[str, Any]) -> Counter[int]:
    if "postgres" in options:
        import psycopg

        connection: Any = psycopg.connect(options["postgres"])
    else:
        connection = sqlite3.connect(Path(options["file"]).with_suffix(".sqlite"))
    with closing(connection):
        cursor = connection.cursor()
        cursor.execute("SELECT number FROM results")
        counted = Counter(row[0] for row in cursor.fetchall())
    del counted[END]
    return counted


def make_results(options: dict[str, Any]) -> None:
    if "postgres" in options:
        import psycopg

        connection: Any = psycopg.connect(options["postgres"])
    else:
        connection = sqlite3.connect(Path(options["file"]).with_suffix(".sqlite"))
    with closing(connection):
        connection.cursor().execute("CREATE TABLE results (number INTEGER)")
        connection.commit()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    if request.param == "sqlite":
        yield {}
        return
    reason = postgres.missing()
    if reason is not None:
        pytest.skip(reason)
    with postgres.running() as address:
        yield {"postgres": address}


def test_exactly_once_into_a_database(
    broker: Broker, tmp_path: Path, database: dict[str, str]
) -> None:
    options = {**exactly_once_options(broker, tmp_path, "database"), **database}
    make_results(options)
    worker = Process(options)
    kill_at_random(broker, worker, options["topic"])
    worker.finish()
    assert database_rows(options) == Counter(range(COUNT)), f"SEED={SEED}"


# one directed kill each ---------------------------------------------------------------------------


def directed(broker: Broker, tmp_path: Path, mode: str, point: str, **more: Any) -> dict[str, Any]:
    """Twenty messages through a worker that is killed once, at that point of message 10."""
    options = {**exactly_once_options(broker, tmp_path, mode), "die_at": [point, 10], **more}
    if mode == "database":
        make_results(options)
    Process(options).finish()
    assert (tmp_path / "done.died").exists()
    return options


def test_a_kill_between_commit_and_work_loses_a_message_at_most_once(
    broker: Broker, tmp_path: Path
) -> None:
    directed(broker, tmp_path, "consume_at_most_once", "committed")
    assert numbers_in(tmp_path / "done") == Counter(set(range(COUNT)) - {10})


def test_a_kill_between_work_and_commit_repeats_a_message_at_least_once(
    broker: Broker, tmp_path: Path
) -> None:
    directed(broker, tmp_path, "consume_at_least_once", "done")
    counted = numbers_in(tmp_path / "done")
    assert set(counted) == set(range(COUNT))
    assert counted[10] == 2


@pytest.mark.parametrize(
    ("mode", "point", "expected"),
    [("produce_at_most_once", "noted", 0), ("produce_at_least_once", "sent", 2)],
)
def test_a_kill_of_the_producer_loses_or_repeats_what_its_guarantee_permits(
    broker: Broker, tmp_path: Path, mode: str, point: str, expected: int
) -> None:
    topic = broker.create_topic()
    options = {"bootstrap": broker.bootstrap, "topic": topic, "count": 20, "mode": mode}
    Process({**options, "file": str(tmp_path / "sent"), "die_at": [point, 10]}).finish()
    send_end(broker, topic)
    counted = read_committed(broker, topic)
    assert counted[10] == expected
    del counted[10]
    assert counted == Counter(set(range(20)) - {10})


def test_a_kill_inside_a_transaction_neither_loses_nor_repeats(
    broker: Broker, tmp_path: Path, database: dict[str, str]
) -> None:
    options = directed(broker, tmp_path, "database", "inserted", **database)
    assert database_rows(options) == Counter(range(COUNT))


def test_a_kill_inside_a_transform_neither_loses_nor_repeats(
    broker: Broker, tmp_path: Path
) -> None:
    out = broker.create_topic()
    directed(broker, tmp_path, "transform", "transformed", to=out)
    assert read_committed(broker, out) == Counter(range(COUNT))
