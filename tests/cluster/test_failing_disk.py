"""A disk that fails: nothing on it is trusted any more, clients are told, and nothing is tried twice."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import ErrorCode
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire.messages.produce import ProduceResponse
from tests.support.faulty_disk import FaultyDisk
from tests.support.history import read_all, send
from tests.support.raw_client import RawClient
from tests.support.requests import PRODUCE_VERSION, fetch, produce, produce_request
from tests.support.server import PATIENCE_S, Server, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SETTINGS = {"log.flush.offset.checkpoint.interval.ms": 200}
LARGE = bytes(100_000)  # leaves by sendfile; small batches are read and copied


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path)


@pytest.fixture
def server(tmp_path: Path, disk: FaultyDisk) -> Iterator[Server]:
    with Server(tmp_path, SETTINGS, variables=disk.variables) as started:
        yield started


def is_offline(server: Server) -> bool:
    return server.metric("penstock_data_directory_offline") == 1


def check_offline(server: Server, *topics: str) -> None:
    """Every topic is refused, the operator is told once, and the process stays up."""
    until(lambda: is_offline(server), "the directory is offline")
    with RawClient(server.bootstrap) as client:
        for topic in topics:
            refused = produce(client, topic, [b"x"])
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "offline" in (refused.error_message or "")
            assert fetch(client, topic).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    status, text = server.http("/readyz")
    assert status == 503
    assert "the data directory is offline" in text
    assert server.http("/livez")[0] == 200
    assert len(server.events("data-directory-offline")) == 1
    assert server.metric("kafka_server_replicamanager_offlinereplicacount") == len(topics)
    assert "Traceback" not in server.log


def check_ends_and_starts_again(server: Server, disk: FaultyDisk) -> None:
    assert server.stop() == 0
    assert not (server.data_dir / "clean").exists(), "that was no clean end"
    disk.heal()
    server.start()
    assert server.events("recovered")
    assert server.metric("penstock_data_directory_offline") == 0


def values(server: Server, topic: str) -> list[bytes | None]:
    return [message.value for message in read_all(server.bootstrap, topic)]


def test_a_failed_sync_is_not_acknowledged_not_repeated_and_takes_the_directory_offline(
    disk: FaultyDisk, server: Server
) -> None:
    synced = server.create_topic("synced", flush_messages=1)
    other = server.create_topic("other")
    with RawClient(server.bootstrap) as client:
        assert produce(client, synced, [b"1"]).error_code == ErrorCode.NONE
        assert produce(client, other, [b"1"]).error_code == ErrorCode.NONE
        disk.fail("sync", "/synced/")
        refused = produce(client, synced, [b"2"])
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "Input/output error" in (refused.error_message or "")
    check_offline(server, synced, other)
    failed = [sync for sync in disk.syncs(str(server.data_dir)) if sync.error]
    assert len(failed) == 1, "a second try could report success over lost data"
    last = disk.syncs("/synced/")[-1]  # a checkpoint may be under way in another thread
    assert last == failed[0], "and nothing of that log was synced after it"

    check_ends_and_starts_again(server, disk)
    assert values(server, synced)[:1] == [b"1"], "what was acknowledged is there"
    assert values(server, other) == [b"1"]
    send(server.bootstrap, synced, [b"3"])


def test_a_failed_sync_in_the_background_takes_the_directory_offline(
    disk: FaultyDisk, server: Server
) -> None:
    topic = server.create_topic("t", flush_ms=100)
    disk.fail("sync", "/t/")
    with RawClient(server.bootstrap) as client:
        assert produce(client, topic, [b"1"]).error_code == ErrorCode.NONE
    check_offline(server, topic)
    check_ends_and_starts_again(server, disk)
    assert values(server, topic) == [b"1"], "the page cache was still there"


@pytest.mark.parametrize("file", ["recovery-points", "running"])
def test_a_failed_sync_of_a_small_file_takes_the_directory_offline_or_is_not_needed(
    disk: FaultyDisk, server: Server, file: str
) -> None:
    topic = server.create_topic("t", flush_messages=1)
    disk.fail("sync", file)
    with RawClient(server.bootstrap) as client:
        assert produce(client, topic, [b"1"]).error_code == ErrorCode.NONE
    if file == "running":  # written at the start only
        assert server.stop() == 0
        process = server.launch()
        assert process.wait(PATIENCE_S) == 1
        assert server.wait() == 1
        (line,) = server.log.splitlines()
        assert "running: cannot be written: Input/output error" in line
        disk.heal()
        server.start()
    else:
        check_offline(server, topic)
        check_ends_and_starts_again(server, disk)
    assert values(server, topic) == [b"1"]


def test_a_failed_write_takes_the_directory_offline(disk: FaultyDisk, server: Server) -> None:
    topic, other = server.create_topic("t"), server.create_topic("other")
    with RawClient(server.bootstrap) as client:
        assert produce(client, topic, [b"1"]).error_code == ErrorCode.NONE
        disk.fail("write", "/t/")
        assert produce(client, topic, [b"2"]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    check_offline(server, topic, other)
    check_ends_and_starts_again(server, disk)
    assert values(server, topic) == [b"1"]


def test_a_failed_write_that_cannot_be_cut_off_leaves_nothing_that_a_reader_sees(
    disk: FaultyDisk, server: Server
) -> None:
    topic = server.create_topic("t")
    with RawClient(server.bootstrap) as client:
        assert produce(client, topic, [b"1"]).error_code == ErrorCode.NONE
        disk.fail("write", "/t/", 28)
        disk.fail("cut", "/t/")
        assert produce(client, topic, [b"2"]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    check_offline(server, topic)
    check_ends_and_starts_again(server, disk)
    assert values(server, topic) == [b"1"]


def test_writes_that_the_kernel_takes_in_halves_are_put_together(
    disk: FaultyDisk, server: Server
) -> None:
    topic = server.create_topic("t")
    disk.do_half("write", "/t/")
    expected = [b"%d" % number + LARGE for number in range(20)]
    send(server.bootstrap, topic, expected)
    assert values(server, topic) == expected
    server.crash()
    assert values(server, topic) == expected


@pytest.mark.parametrize(
    ("operation", "value"), [("read", b"small"), ("send", LARGE)], ids=["read", "sendfile"]
)
def test_a_failed_read_takes_the_directory_offline_and_no_client_waits_for_ever(
    disk: FaultyDisk, server: Server, operation: str, value: bytes
) -> None:
    topic, other = server.create_topic("t"), server.create_topic("other")
    send(server.bootstrap, topic, [value])
    send(server.bootstrap, other, [value])
    disk.fail(operation, "/t/")
    in_the_answer = contextlib.suppress(ConnectionError)  # it may be found out that late
    with RawClient(server.bootstrap) as client, in_the_answer:
        assert fetch(client, topic).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    check_offline(server, topic, other)
    check_ends_and_starts_again(server, disk)
    assert values(server, topic) == values(server, other) == [value]


def test_a_topic_whose_files_cannot_be_set_aside_is_deleted_all_the_same(
    disk: FaultyDisk, server: Server
) -> None:
    topic, other = server.create_topic("t"), server.create_topic("other")
    send(server.bootstrap, topic, [b"x"])
    disk.fail("rename", "/t")
    server.delete_topic(topic)
    until(lambda: is_offline(server), "the directory is offline")
    with RawClient(server.bootstrap) as client:
        assert produce(client, other, [b"x"]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    server.create_topic("later")  # metadata is not touched by it
    check_ends_and_starts_again(server, disk)
    listed = server.topics()
    assert {"other", "later"} <= set(listed)
    assert topic not in listed
    assert not (server.data_dir / topic).exists()
    send(server.bootstrap, other, [b"x"])


def test_metadata_that_cannot_be_synced_fails_requests_that_change_it_and_nothing_else(
    disk: FaultyDisk, server: Server
) -> None:
    topic = server.create_topic("t")
    disk.fail("sync", "metadata.sqlite")
    with pytest.raises(Exception, match="a commit failed half-way: disk I/O error"):
        server.create_topic("new")
    send(server.bootstrap, topic, [b"x"])
    assert values(server, topic) == [b"x"]
    assert server.http("/livez")[0] == 200
    assert server.process.poll() is None
    disk.heal()
    until(lambda: creates(server, "later"), "metadata can be changed again")
    server.crash()
    assert {"t", "later"} <= set(server.topics())
    assert values(server, topic) == [b"x"]


def creates(server: Server, name: str) -> bool:
    try:
        server.create_topic(name)
    except Exception as error:  # noqa: BLE001 - what it says is looked at
        return "exists" in str(error)
    return True


# Slow --------------------------------------------------------------------------------------------


def test_a_sync_that_takes_its_time_holds_up_who_waits_for_it_and_nobody_else(
    disk: FaultyDisk, server: Server
) -> None:
    synced = server.create_topic("synced", flush_messages=1)
    other = server.create_topic("other")
    with RawClient(server.bootstrap) as patient, RawClient(server.bootstrap) as client:
        assert produce(patient, synced, [b"0"]).error_code == ErrorCode.NONE
        disk.hold("sync", "/synced/")
        patient.send(produce_request(synced, [b"1"]), PRODUCE_VERSION)
        for number in range(50):
            assert produce(client, other, [b"x"]).base_offset == number
            assert fetch(client, other, number).high_watermark == number + 1
            assert client.ask(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
            assert fetch(client, synced).high_watermark == 1, "not before it is on the disk"
        assert server.http("/livez")[0] == 200
        assert server.http("/metrics")[0] == 200
        disk.heal()
        _, answer = patient.receive_as(ProduceResponse, PRODUCE_VERSION)
        assert answer.responses[0].partition_responses[0].base_offset == 1
        assert fetch(client, synced, 1).high_watermark == 2


def test_a_checkpoint_that_takes_its_time_holds_up_nobody(disk: FaultyDisk, server: Server) -> None:
    topic = server.create_topic("t")
    with RawClient(server.bootstrap) as client:
        assert produce(client, topic, [b"x"]).error_code == ErrorCode.NONE
        disk.hold("sync", "recovery-points")
        for number in range(1, 50):
            assert produce(client, topic, [b"x"]).base_offset == number
        assert server.http("/readyz")[0] == 200
        disk.heal()
