"""The power goes: with flush.messages=1 nothing acknowledged is lost; without it a prefix is left, never a hole."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage import checkpoints, checksummed_json, markers
from tests.support.faulty_disk import FaultyDisk
from tests.support.history import Ledger, Message, producer, read_all
from tests.support.private_disk import PrivateDisk, ext4_disk
from tests.support.raw_client import RawClient
from tests.support.requests import produce
from tests.support.server import PATIENCE_S, Server, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MOUNT_OPTIONS = "-o loop,commit=300"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PrivateDisk]:
    with ext4_disk(tmp_path, size_mib=256) as mounted:
        yield mounted


@pytest.fixture
def server(tmp_path: Path, disk: PrivateDisk) -> Iterator[Server]:
    with Server(
        tmp_path,
        {"log.flush.offset.checkpoint.interval.ms": 200},
        data_dir=disk.path / "data",
        run_in=disk.run_in,
    ) as started:
        yield started


def cut_power(server: Server, disk: PrivateDisk, tmp_path: Path) -> None:
    """Broker and disk stop at one moment: a broker that lived on would hear lies from the kernel:
    a sync that is under way when ext4 shuts down returns 0."""
    server.process.send_signal(signal.SIGSTOP)
    until(lambda: "stopped" in Path(f"/proc/{server.pid}/status").read_text(), "it stands still")
    disk.cut_power()
    server.kill()
    disk.mount_again(f"{MOUNT_OPTIONS} {tmp_path / 'image'}")
    forge_reboot(disk.view / "data")
    server.start()


def forge_reboot(data: Path) -> None:
    """A broker tells the loss of power from a crash by the machine's boot, which a test cannot change."""
    running = data / markers.RUNNING
    content = checksummed_json.decode(markers.RUNNING, running.read_bytes())
    running.write_bytes(
        checksummed_json.encode(markers.RUNNING, content | {"boot_id": "of another time"})
    )


def noted_marks(disk: PrivateDisk) -> list[int]:
    found = checkpoints.read(str(disk.view / "data"), checkpoints.HIGH_WATERMARKS)
    return [offset for offsets in found.offsets.values() for offset in offsets.values()]


def sync_names(directory: Path) -> None:
    """A file that was put in the place of another is seen before the broker has made that durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def log_of(server: Server, topic: str) -> list[Message]:
    return read_all(server.bootstrap, topic)


@pytest.mark.parametrize(
    "rounds", [pytest.param(4, id="few"), pytest.param(20, id="many", marks=pytest.mark.long)]
)
def test_what_was_acknowledged_with_flush_messages_1_outlives_the_power(
    tmp_path: Path, disk: PrivateDisk, server: Server, rng: random.Random, rounds: int
) -> None:
    topic = server.create_topic("t", flush_messages=1, segment_bytes=200_000)
    ledger = Ledger()
    sender = producer(server.bootstrap, enable_idempotence=True, batch_size=4000)
    for _ in range(rounds):
        target = len(ledger.acked) + rng.randrange(200, 1000)
        while len(ledger.acked) < target:
            for _ in range(20):
                value = b"%06d" % len(ledger.sent) + bytes(rng.randrange(500))
                ledger.send(sender, topic, value)
            ledger.pace(sender, most=200)
        cut_power(server, disk, tmp_path)
        sender.poll(0)  # what was acknowledged up to the last moment
        told = dict(ledger.acked)
        there = {message.offset: message.value for message in log_of(server, topic)}
        lost = [offset for offset, value in told.items() if there.get(offset) != value]
        assert not lost, f"{len(lost)} of {len(told)} lost, the first at {min(lost)}"
    assert sender.flush(PATIENCE_S) == 0
    assert not ledger.failures
    ledger.check_exact(log_of(server, topic))
    assert set(server.topics()) == {topic}


def test_without_flush_a_prefix_is_left_and_the_broker_goes_on(
    tmp_path: Path, disk: PrivateDisk, server: Server
) -> None:
    synced = server.create_topic("synced", flush_ms=100)
    lazy = server.create_topic("lazy", segment_bytes=100_000)
    with RawClient(server.bootstrap) as client:
        sent = {topic: [b"%06d" % n + bytes(3000) for n in range(200)] for topic in (synced, lazy)}
        for number in range(200):
            for topic, values in sent.items():
                assert produce(client, topic, [values[number]]).base_offset == number
    until(lambda: noted_marks(disk) == [200, 200], "the high watermarks are written down")
    sync_names(disk.view / "data")
    cut_power(server, disk, tmp_path)
    for topic, values in sent.items():
        left = [message.value for message in log_of(server, topic)]
        assert left == values[: len(left)], "a prefix, and nothing else"
        told = [line for line in server.events("offsets-lost") if f"partition={topic}-0" in line]
        assert bool(told) == (len(left) < len(values)), "and no loss goes unsaid"
        with RawClient(server.bootstrap) as client:
            assert produce(client, topic, [b"after"]).base_offset == len(left)
    assert "Traceback" not in server.log


def test_topics_and_deletions_that_were_confirmed_outlive_the_power(
    tmp_path: Path, disk: PrivateDisk, server: Server
) -> None:
    for name in ("kept", "deleted"):
        server.create_topic(name, flush_messages=1)
        with RawClient(server.bootstrap) as client:
            assert produce(client, name, [b"x"]).base_offset == 0
    server.delete_topic("deleted")
    server.create_topic("new")
    cut_power(server, disk, tmp_path)
    assert set(server.topics()) == {"kept", "new"}
    assert [message.value for message in log_of(server, "kept")] == [b"x"]


def test_an_acknowledgement_with_flush_messages_1_comes_after_the_sync(tmp_path: Path) -> None:
    """The same promise, told by the order of system calls; it needs no mount."""
    faults = FaultyDisk(tmp_path)
    with Server(tmp_path, variables=faults.variables) as server:
        topic = server.create_topic("t", flush_messages=1, segment_bytes=20_000)
        with RawClient(server.bootstrap) as client:
            for number in range(30):
                before = len(faults.syncs(".log"))
                assert produce(client, topic, [bytes(3000)]).base_offset == number
                assert len(faults.syncs(".log")) > before
        names = {Path(sync.path).name for sync in faults.syncs("/t/")}
        assert {file.name for file in server.segments(topic)} <= names, "every segment was synced"
        assert "partition-0" in names, "and the names of its files with it"
