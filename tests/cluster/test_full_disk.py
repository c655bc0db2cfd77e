"""A full disk: appends are refused with a code that clients retry, reads go on, and it heals by itself."""

import errno
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from penstock.model.errors import ErrorCode
from tests.support.faulty_disk import FaultyDisk
from tests.support.history import Ledger, producer, read_all, send
from tests.support.private_disk import PrivateDisk, ram_disk
from tests.support.raw_client import RawClient
from tests.support.requests import fetch, produce
from tests.support.server import PATIENCE_S, Server, rd, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SETTINGS = {
    "penstock.disk.reserve.bytes": 1 << 20,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 0,
}
VALUE = bytes(5000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PrivateDisk]:
    with ram_disk(tmp_path, "12m") as mounted:
        yield mounted


@pytest.fixture
def server(tmp_path: Path, disk: PrivateDisk) -> Iterator[Server]:
    with Server(tmp_path, SETTINGS, data_dir=disk.path / "data", run_in=disk.run_in) as started:
        yield started


def fill_by_producing(client: RawClient, topic: str, acked: list[bytes]) -> str:
    """Until an append is refused; the reason. What was acknowledged is added to `acked`."""
    for _ in range(10_000):
        value = b"%06d" % len(acked) + VALUE
        answer = produce(client, topic, [value])
        if answer.error_code:
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert answer.base_offset == -1
            return answer.error_message or ""
        assert answer.base_offset == len(acked), "no offset is left out, none is used twice"
        acked.append(value)
    raise AssertionError("it never became full")


def has_room(server: Server) -> bool:
    return server.metric("penstock_disk_full") == 0


def values(server: Server, topic: str) -> list[bytes | None]:
    return [message.value for message in read_all(server.bootstrap, topic)]


def test_a_full_disk_refuses_appends_serves_reads_and_heals_by_itself(
    disk: PrivateDisk, server: Server
) -> None:
    topic = server.create_topic("t", segment_bytes=1 << 20)
    acked: list[bytes] = []
    disk.fill(leave_bytes=6 << 20)
    with RawClient(server.bootstrap) as client:
        reason = fill_by_producing(client, topic, acked)
        assert "No space left on device" in reason
        assert "free some space" in reason

        assert server.metric("penstock_disk_full") == 1
        status, text = server.http("/readyz")
        assert status == 503
        assert "No space left on device" in text
        assert server.http("/livez")[0] == 200
        for _ in range(20):
            assert produce(client, topic, [b"x"]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(server.events("disk-full")) == 1, "said once, not for each append"
        fetched = fetch(client, topic, len(acked) - 1)
        assert fetched.high_watermark == len(acked)
        assert fetched.records
        assert values(server, topic) == acked

        disk.make_room()
        until(lambda: has_room(server), "it notices the room")
        assert server.http("/readyz")[0] == 200
        assert server.events("disk-has-room")
        for number in range(10):
            assert produce(client, topic, [b"after"]).base_offset == len(acked) + number
    assert values(server, topic) == acked + [b"after"] * 10
    server.crash()
    assert values(server, topic) == acked + [b"after"] * 10


def test_an_idempotent_producer_outlasts_a_full_disk_and_loses_nothing(
    disk: PrivateDisk, server: Server
) -> None:
    topic = server.create_topic("t", segment_bytes=1 << 20)
    ledger = Ledger()
    sender = producer(server.bootstrap, enable_idempotence=True)
    disk.fill(leave_bytes=3 << 20)
    while server.http("/readyz")[0] == 200:
        sender.poll(0)
        if ledger.in_flight < 200:  # the rest must fit once there is room
            for _ in range(20):
                ledger.send(sender, topic, b"%06d" % len(ledger.sent) + VALUE)
    for _ in range(100):
        ledger.send(sender, topic, b"%06d" % len(ledger.sent) + VALUE)
    disk.make_room()
    assert sender.flush(PATIENCE_S) == 0
    assert not ledger.failures, ledger.failures[0]
    ledger.check_exact(read_all(server.bootstrap, topic))


def test_a_broker_killed_on_a_full_disk_starts_again_serves_reads_and_then_heals(
    disk: PrivateDisk, server: Server
) -> None:
    topic = server.create_topic("t", segment_bytes=1 << 20)
    acked: list[bytes] = []
    disk.fill(leave_bytes=6 << 20)
    with RawClient(server.bootstrap) as client:
        fill_by_producing(client, topic, acked)
    for _ in range(3):
        server.crash()
        assert values(server, topic) == acked
    with RawClient(server.bootstrap) as client:
        fill_by_producing(client, topic, acked)
    disk.make_room()
    until(lambda: has_room(server), "it notices the room")
    send(server.bootstrap, topic, [b"after"])
    assert values(server, topic) == [*acked, b"after"]


def test_a_stop_on_a_full_disk_is_clean_or_recovered_from(
    disk: PrivateDisk, server: Server
) -> None:
    topic = server.create_topic("t", segment_bytes=1 << 20)
    acked: list[bytes] = []
    disk.fill(leave_bytes=4 << 20)
    with RawClient(server.bootstrap) as client:
        fill_by_producing(client, topic, acked)
    assert server.stop() == 0
    assert "Traceback" not in server.log
    disk.make_room()
    server.start()
    assert values(server, topic) == acked


def test_no_room_for_another_file_is_a_full_disk_too(tmp_path: Path) -> None:
    """Segments roll, and there is no inode left for the next one."""
    with (
        ram_disk(tmp_path, "12m", files=120) as disk,
        Server(tmp_path, SETTINGS, data_dir=disk.path / "data", run_in=disk.run_in) as server,
    ):
        fillers = [disk.view / f"filler-{number}" for number in range(50)]
        for filler in fillers:
            filler.touch()
        topic = server.create_topic("t", segment_bytes=20_000)
        acked: list[bytes] = []
        with RawClient(server.bootstrap) as client:
            assert "No space left on device" in fill_by_producing(client, topic, acked)
            assert values(server, topic) == acked
        assert "Traceback" not in server.log
        server.kill()
        for filler in fillers:
            filler.unlink()
        server.start()
        assert values(server, topic) == acked
        send(server.bootstrap, topic, [b"after"])
        assert values(server, topic) == [*acked, b"after"]


def test_retention_frees_a_full_disk(disk: PrivateDisk, server: Server) -> None:
    topic = server.create_topic("t", segment_bytes=1 << 20)
    acked: list[bytes] = []
    disk.fill(leave_bytes=6 << 20)
    with RawClient(server.bootstrap) as client:
        fill_by_producing(client, topic, acked)
        assert disk.free_bytes < 2 << 20
        entry = rd.ConfigEntry(
            "retention.bytes", str(2 << 20), incremental_operation=rd.AlterConfigOpType.SET
        )
        resource = rd.ConfigResource("topic", topic, incremental_configs=[entry])
        server.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

        until(lambda: has_room(server), "retention has made room")
        assert produce(client, topic, [b"after"]).base_offset == len(acked)
    kept = read_all(server.bootstrap, topic)
    assert [message.value for message in kept] == [*acked, b"after"][kept[0].offset :]
    server.crash()
    assert read_all(server.bootstrap, topic) == kept


def test_deleting_a_topic_frees_a_full_disk(disk: PrivateDisk, server: Server) -> None:
    large = server.create_topic("large")
    other = server.create_topic("other")
    disk.fill(leave_bytes=6 << 20)
    with RawClient(server.bootstrap) as client:
        produce(client, other, [b"first"])
        fill_by_producing(client, large, [])
        assert produce(client, other, [b"second"]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        server.delete_topic(large)
        until(lambda: has_room(server), "the deleted topic's files are gone")
        assert produce(client, other, [b"second"]).base_offset == 1
    assert values(server, other) == [b"first", b"second"]


def test_without_room_for_metadata_a_topic_is_refused_and_can_be_made_later(
    disk: PrivateDisk, server: Server
) -> None:
    topic = server.create_topic("t")
    send(server.bootstrap, topic, [b"before"])
    disk.fill()
    made: list[str] = []
    refusal: confluent_kafka.KafkaError | None = None
    while refusal is None:
        name = f"topic-{len(made)}"
        try:
            server.create_topic(name, partitions=50)
        except confluent_kafka.KafkaException as error:
            refusal = error.args[0]
        else:
            made.append(name)
        assert len(made) < 1000, "the metadata store never became full"
    assert refusal.code() == ErrorCode.KAFKA_STORAGE_ERROR
    assert "the disk is full" in refusal.str()
    assert values(server, topic) == [b"before"], "reads go on"
    listed = set(server.topics())
    assert listed == {topic, *made}

    disk.make_room()
    server.create_topic(f"topic-{len(made)}", partitions=50)
    server.crash()
    listed = set(server.topics())
    assert listed == {topic, *made, f"topic-{len(made)}"}
    assert values(server, topic) == [b"before"]


# Full at one spot --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        (".index", ".timeindex"),
        pytest.param(("leader-epochs", "producers.snapshot"), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_without_room_for_what_follows_from_the_batches_they_are_still_taken_and_kept(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    faults = FaultyDisk(tmp_path)
    settings = {**SETTINGS, "log.flush.interval.ms": 50}
    with Server(tmp_path, settings, variables=faults.variables) as server:
        topic = server.create_topic("t", segment_bytes=50_000)
        for part in parts:
            faults.fail("write", part, errno.ENOSPC)
        expected: list[bytes | None] = [b"%06d" % n + VALUE for n in range(100)]
        send(server.bootstrap, topic, expected, enable_idempotence=True)
        assert values(server, topic) == expected
        until(lambda: faults.syncs("/t/"), "a sync was tried")
        server.crash()
        assert values(server, topic) == expected
        send(server.bootstrap, topic, expected[:20], enable_idempotence=True)
        faults.heal()
        send(server.bootstrap, topic, expected[20:], enable_idempotence=True)
        assert "Traceback" not in server.log
        assert server.stop() == 0
        server.start()
        assert not server.events("recovered")
        assert values(server, topic) == expected * 2


def test_without_room_for_a_checkpoint_everything_else_goes_on(tmp_path: Path) -> None:
    faults = FaultyDisk(tmp_path)
    with Server(tmp_path, SETTINGS, variables=faults.variables) as server:
        topic = server.create_topic("t", flush_messages=1)
        for part in ("recovery-points", "high-watermarks", "log-starts"):
            faults.fail("write", part, errno.ENOSPC)
        send(server.bootstrap, topic, [b"1"])
        until(lambda: server.events("disk-full"), "it notices")
        assert "Traceback" not in server.log
        assert values(server, topic) == [b"1"]
        faults.heal()
        until(lambda: has_room(server), "it notices that it can write again")
        send(server.bootstrap, topic, [b"2"])
        server.crash()
        assert values(server, topic) == [b"1", b"2"]


def test_a_producer_that_waits_for_a_sync_is_answered_after_a_full_disk(tmp_path: Path) -> None:
    faults = FaultyDisk(tmp_path)
    with Server(tmp_path, SETTINGS, variables=faults.variables) as server:
        topic = server.create_topic("t", flush_messages=1)
        faults.fail("write", "leader-epochs", errno.ENOSPC)
        with RawClient(server.bootstrap) as client:
            assert produce(client, topic, [b"1"]).error_code in (
                ErrorCode.NONE,
                ErrorCode.KAFKA_STORAGE_ERROR,
            )
            faults.heal()
            until(lambda: has_room(server), "it can write again")
            assert produce(client, topic, [b"2"]).error_code == ErrorCode.NONE
        server.crash()
        assert values(server, topic)[-1] == b"2"


def test_a_start_on_a_disk_that_others_filled_serves_reads(
    disk: PrivateDisk, server: Server
) -> None:
    topic = server.create_topic("t")
    send(server.bootstrap, topic, [b"kept"])
    assert server.stop() == 0
    disk.fill()
    server.start()
    assert not server.events("recovered"), "the clean end still counts"
    assert values(server, topic) == [b"kept"]
    disk.fill()
    until(lambda: not has_room(server), "it notices without being asked")
    disk.make_room()
    until(lambda: has_room(server), "it notices the room")
    send(server.bootstrap, topic, [b"after"])
    assert values(server, topic) == [b"kept", b"after"]


def test_a_start_without_any_room_says_so_in_one_line_and_harms_nothing(
    disk: PrivateDisk, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "penstock.disk.reserve.bytes": 0}  # nothing is set aside either
    with Server(tmp_path, settings, data_dir=disk.path / "data", run_in=disk.run_in) as server:
        topic = server.create_topic("t")
        send(server.bootstrap, topic, [b"kept"])
        assert server.stop() == 0
        disk.fill()
        server.launch()
        assert server.wait() == 1
        (line,) = server.log.splitlines()
        assert line.startswith("penstock: ")
        assert "No space left on device" in line
        disk.make_room()
        server.start()
        assert not server.events("recovered"), "the clean end still counts"
        assert values(server, topic) == [b"kept"]
