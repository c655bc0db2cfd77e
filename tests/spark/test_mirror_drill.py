"""The disaster drill: the primary dies under load, its mirror takes over, and later the roles change back."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from tests.spark.mirrors import committed, stored, two_clusters
from tests.support.command import command, environment
from tests.support.mirrors import committed_rows
from tests.support.server import PATIENCE_S, Server, until, until_data

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LONG_S = 5 * PATIENCE_S
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TOPIC, GROUP = "orders", "billing"


class Acked(NamedTuple):
    offset: int
    value: bytes
    at_s: float


class Load:
    """Writes numbers until it is stopped, and knows which were acknowledged."""

    def __init__(self, server: Server, start: int = 0) -> None:
        self.acked: list[Acked] = []
        self._next = start
        self._stopping = threading.Event()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": server.bootstrap, "acks": "all", "linger.ms": 2, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self, *, server_is_dead: bool = False) -> list[Acked]:
        self._stopping.set()
        self._thread.join()
        if server_is_dead:
            self._producer.purge()
        self._producer.flush(PATIENCE_S)
        return self.acked

    def _run(self) -> None:
        while not self._stopping.wait(0.005):
            self._producer.produce(TOPIC, b"%d" % self._next, on_delivery=self._told)
            self._next += 1
            self._producer.poll(0)

    def _told(self, error: Any, message: Any) -> None:
        if error is None:
            self.acked.append(Acked(message.offset(), message.value(), time.monotonic()))


class Reader:
    """A consumer of the group that commits what it has seen, until it is stopped."""

    def __init__(self, server: Server) -> None:
        self.seen: list[tuple[int, bytes]] = []
        self.first_at_s = 0.0
        self._stopping = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": server.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([TOPIC])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> list[tuple[int, bytes]]:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()
        return self.seen

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(50, 0.1):
                if message.error() is None:
                    self.first_at_s = self.first_at_s or time.monotonic()
                    self.seen.append((message.offset() or 0, message.value() or b""))
                    self._commit(message)

    def _commit(self, message: Any) -> None:
        try:
            self._consumer.commit(message=message, asynchronous=True)
        except confluent_kafka.KafkaException:
            pass  # the primary is dead; what it did not keep is read again


def test_the_primary_dies_under_load_and_its_mirror_takes_over_and_back(tmp_path: Path) -> None:
    with two_clusters(tmp_path) as (east, west):
        east.create_topic(TOPIC)
        load, reader = Load(east), Reader(east)
        with _following(east, west, TOPIC):
            _until_copied(east, west, load)
            killed_s = time.monotonic()
            east.kill()
        before, seen_before = load.stop(server_is_dead=True), reader.stop()

        promoting_s = time.monotonic()
        assert _cli(west, west, "promote") == 0
        second_load, second_reader = Load(west, start=10_000_000), Reader(west)
        until(lambda: second_load.acked and second_reader.seen, "work goes on", LONG_S)
        mirrored = [row for row in committed_rows(west.bootstrap, TOPIC) if int(row.value) < 10**7]
        lost = _check_takeover(before, mirrored, seen_before, second_reader)
        rpo_s = max((killed_s - one.at_s for one in lost), default=0.0)
        rto_s = max(second_load.acked[0].at_s, second_reader.first_at_s) - promoting_s
        sys.stdout.write(
            f"\nRPO: {len(lost)} of {len(before)} records, {rpo_s:.2f} s; "
            f"RTO from the decision to promote: {rto_s:.2f} s\n"
        )

        east.start()
        kept = committed_rows(east.bootstrap, TOPIC)  # also what it could not acknowledge any more
        is_short = kept[-1].offset > mirrored[-1].offset
        assert is_short or not lost
        refused = _cli(west, east, "failback", TOPIC)
        assert refused == (1 if is_short else 0), "what was never copied is not thrown away unasked"
        if is_short:
            assert _cli(west, east, "failback", TOPIC, "--discard") == 0
        after, seen_after = second_load.stop(), second_reader.stop()
        until(lambda: _is_all_back(west, east), "the group's dead member is forgotten", LONG_S)
        assert stored(east, TOPIC) == stored(west, TOPIC)
        assert _cli(west, east, "promote") == 0
        values = [row.value for row in committed_rows(east.bootstrap, TOPIC)]
        assert values == [row.value for row in mirrored] + [one.value for one in after]
        _check_reading_goes_on(east, after, seen_after)


def _until_copied(east: Server, west: Server, load: Load) -> None:
    """The group is at the mirror, and some hundred records that were written while it was copied."""
    until(lambda: TOPIC in west.topics(), "the mirror is made", LONG_S)
    until(lambda: committed(west, GROUP, TOPIC)[0][0] > 0, "the group is copied", LONG_S)
    known = len(load.acked)
    until(
        lambda: len(load.acked) > known + 300 and committed(west, GROUP, TOPIC)[0][0] > known,
        "it goes on under load",
        LONG_S,
    )
    assert east.is_running


def _check_takeover(
    before: list[Acked],
    mirrored: list[Any],
    seen_before: list[tuple[int, bytes]],
    reader: Reader,
) -> list[Acked]:
    """The mirror is a beginning of what was acknowledged, at the same offsets. What it lacks is returned."""
    by_offset = {one.offset: one.value for one in before}
    end = mirrored[-1].offset + 1
    assert [row.offset for row in mirrored] == list(range(end))
    for row in mirrored:
        assert by_offset.get(row.offset, row.value) == row.value
    first_offset, _ = reader.seen[0]
    assert 0 < first_offset <= len(seen_before), "it goes on where the group was, and skips nothing"
    return [one for one in before if one.offset >= end]


def _is_all_back(west: Server, east: Server) -> bool:
    assert _cli(west, east, TOPIC) == 0
    return committed(east, GROUP, TOPIC) == committed(west, GROUP, TOPIC)


def _check_reading_goes_on(east: Server, after: list[Acked], seen: list[tuple[int, bytes]]) -> None:
    """Everything written while the mirror was the primary is read by the group: there, or back here."""
    third = Reader(east)
    wanted = {one.value for one in after}
    done = {value for _, value in seen}
    until_data(lambda: wanted <= done | {value for _, value in third.seen}, "all is read", LONG_S)
    third.stop()


def _words(source: Server, target: Server, *what: str) -> list[str]:
    ends = ("--bootstrap", source.bootstrap, "--target", target.bootstrap)
    return command("pipeline", "mirror", *what, *ends, "--conf", "spark.driver.memory=512m")


def _cli(source: Server, target: Server, *what: str) -> int:
    return subprocess.run(
        _words(source, target, *what),
        env=environment(JAVA_TOOL_OPTIONS=QUICK_JVM),
        stdin=subprocess.DEVNULL,
        timeout=LONG_S,
        check=False,
    ).returncode


@contextmanager
def _following(source: Server, target: Server, *what: str) -> Iterator[None]:
    """The job, as it runs all day; stopped as with Ctrl-C."""
    process = subprocess.Popen(
        _words(source, target, *what, "--follow", "--every", "200ms"),
        env=environment(JAVA_TOOL_OPTIONS=QUICK_JVM),
        stdin=subprocess.DEVNULL,
    )
    try:
        yield
        process.send_signal(signal.SIGINT)
        process.wait(LONG_S)
    finally:
        process.kill()
        process.wait()
