"""Files that a crash, a bad disk or a careless hand has damaged: each has one outcome, and the rest works."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.model.errors import CorruptBatch, ErrorCode
from penstock.records.batch import iter_headers, split_batches
from penstock.storage import checkpoints
from tests.support.history import Ledger, producer, read_all, send
from tests.support.raw_client import RawClient
from tests.support.requests import fetch, produce
from tests.support.server import PATIENCE_S, Server, rd, until
from tests.support.variants import first_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SYNCED, WRITTEN = 60, 80  # messages below the recovery point, and in all; each is a batch
SETTINGS = {
    "log.segment.bytes": 20_000,
    "log.flush.interval.ms": 20,
    "log.flush.offset.checkpoint.interval.ms": 50,
    "penstock.scrub.bytes.per.second": 1 << 30,
}
NEVER = str(1 << 40)


def value(number: int) -> bytes:
    return b"%04d" % number + bytes(1000)


EXPECTED = [value(number) for number in range(WRITTEN)]


# What is done to a log ---------------------------------------------------------------------------


def segments(log: Path) -> list[Path]:
    found = sorted(log.glob("*.log"))
    assert len(found) > 3, "there is a first, a last and something between them"
    return found


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x10
    file.write_bytes(data)


def batch_at(file: Path, offset: int) -> tuple[int, int]:
    """Where the batch with that offset begins and ends."""
    for position, header in iter_headers(memoryview(file.read_bytes())):
        if header.base_offset == offset:
            return position, position + header.size_bytes
    raise AssertionError(f"offset {offset} is not in {file}")


def nothing(_: Path) -> None:
    pass


def flip_a_value_of_a_closed_segment(log: Path) -> None:
    flip(segments(log)[1], 500)


def flip_a_length_of_a_closed_segment(log: Path) -> None:
    flip(segments(log)[1], 10)


def flip_a_value_past_the_recovery_point(log: Path) -> None:
    last = segments(log)[-1]
    flip(last, batch_at(last, WRITTEN - 2)[1] - 10)


def append_garbage(log: Path) -> None:
    with open(segments(log)[-1], "ab") as file:
        file.write(b"\x00\xff garbage" * 50)


def append_zeros(log: Path) -> None:
    """What some file systems leave of a write that was under way when the power went."""
    with open(segments(log)[-1], "ab") as file:
        file.write(bytes(4096))


def tear_the_last_batch(log: Path) -> None:
    last = segments(log)[-1]
    begin, end = batch_at(last, WRITTEN - 1)
    with open(last, "r+b") as file:
        file.truncate((begin + end) // 2)


def cut_below_the_recovery_point(log: Path) -> None:
    for file in segments(log):
        base_offset = int(file.stem)
        if base_offset > SYNCED // 2:
            file.unlink()
    last = sorted(log.glob("*.log"))[-1]
    with open(last, "r+b") as cut:
        cut.truncate(batch_at(last, int(last.stem))[1])


def remove_the_first_segment(log: Path) -> None:
    segments(log)[0].unlink()


def remove_a_segment_in_the_middle(log: Path) -> None:
    segments(log)[2].unlink()


def remove_all_segments(log: Path) -> None:
    for file in segments(log):
        file.unlink()


def remove_indexes(log: Path) -> None:
    for pattern in ("*.index", "*.timeindex"):
        for file in log.glob(pattern):
            file.unlink()


def scribble_over(pattern: str) -> Callable[[Path], None]:
    def scribble(log: Path) -> None:
        found = list(log.glob(pattern))
        assert found, f"there is no {pattern}"
        for file in found:
            file.write_bytes(b"\x07" * (file.stat().st_size or 12))

    return scribble


# What becomes of it ------------------------------------------------------------------------------

WHOLE = {
    "sound": nothing,
    "garbage": append_garbage,
    "zeros": append_zeros,
    "no-indexes": remove_indexes,
    "bad-index": scribble_over("*.index"),
    "bad-timeindex": scribble_over("*.timeindex"),
    "bad-epochs": scribble_over("leader-epochs"),
    "bad-producers": scribble_over("producers.snapshot"),
}
SHORTER = {
    "torn": (tear_the_last_batch, 1),
    "flipped-tail": (flip_a_value_past_the_recovery_point, 2),
}
REFUSED = {
    "cut": cut_below_the_recovery_point,
    "no-first": remove_the_first_segment,
    "no-middle": remove_a_segment_in_the_middle,
    "no-segment": remove_all_segments,
}
FOUND_LATER = {
    "flipped-value": flip_a_value_of_a_closed_segment,
    "flipped-length": flip_a_length_of_a_closed_segment,
}
DAMAGES: dict[str, Callable[[Path], None]] = {
    **WHOLE,
    **{name: damage for name, (damage, _) in SHORTER.items()},
    **REFUSED,
    **FOUND_LATER,
}


def write(server: Server, topics: list[str], numbers: range) -> None:
    with RawClient(server.bootstrap) as client:
        for topic in topics:
            for number in numbers:
                assert produce(client, topic, [value(number)]).base_offset == number


def stop_syncing(server: Server, topics: list[str]) -> None:
    entry = rd.ConfigEntry("flush.ms", NEVER, incremental_operation=rd.AlterConfigOpType.SET)
    for topic in topics:
        resource = rd.ConfigResource("topic", topic, incremental_configs=[entry])
        server.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def are_synced(server: Server, count: int) -> bool:
    points = checkpoints.read(str(server.data_dir), checkpoints.RECOVERY_POINTS).offsets
    return len(points) == count and all(found == {0: SYNCED} for found in points.values())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It was killed, each of its topics was damaged in a way of its own, and it was started again."""
    with Server(tmp_path_factory.mktemp("damage"), SETTINGS) as started:
        topics = [started.create_topic(name) for name in DAMAGES]
        write(started, topics, range(SYNCED))
        until(lambda: are_synced(started, len(topics)), "all recovery points are on the disk")
        stop_syncing(started, topics)
        write(started, topics, range(SYNCED, WRITTEN))
        started.kill()
        for topic, damage in DAMAGES.items():
            damage(started.partition_dir(topic))
        started.start()
        yield started


def values(server: Server, topic: str) -> list[bytes | None]:
    return [message.value for message in read_all(server.bootstrap, topic)]


def check_refused(server: Server, topic: str) -> str:
    """Nothing is read from it or written to it; why not, as a client is told."""
    with RawClient(server.bootstrap) as client:
        refused = produce(client, topic, [b"x"])
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert fetch(client, topic).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    reason = refused.error_message or ""
    assert str(server.partition_dir(topic)) in reason
    assert any(
        f"partition={topic}-0" in line and "CRITICAL" in line for line in server.log.splitlines()
    )
    return reason


@pytest.mark.parametrize("topic", WHOLE)
def test_damage_beside_the_batches_costs_nothing(server: Server, topic: str) -> None:
    assert values(server, topic) == EXPECTED
    tail = [line for line in server.events("torn-tail-dropped") if f"partition={topic}-0" in line]
    assert bool(tail) == (topic in ("garbage", "zeros"))
    send(server.bootstrap, topic, [b"after"], enable_idempotence=True)
    assert values(server, topic) == [*EXPECTED, b"after"]


@pytest.mark.parametrize("topic", SHORTER)
def test_a_torn_tail_is_dropped_and_said(server: Server, topic: str) -> None:
    kept = WRITTEN - SHORTER[topic][1]
    assert values(server, topic) == EXPECTED[:kept]
    (line,) = [it for it in server.events("torn-tail-dropped") if f"partition={topic}-0" in it]
    assert f"next-offset={kept}" in line
    assert send(server.bootstrap, topic, [b"after"]) == [kept]


@pytest.mark.parametrize("topic", REFUSED)
def test_what_had_been_synced_and_is_gone_refuses_the_partition_and_no_other(
    server: Server, topic: str
) -> None:
    reason = check_refused(server, topic)
    assert "offset" in reason
    assert "restore the file" in reason
    assert server.events("partition-failed")


@pytest.mark.parametrize("topic", FOUND_LATER)
def test_a_closed_segment_that_has_rotted_is_found_by_the_scrub(server: Server, topic: str) -> None:
    def is_refused() -> bool:
        with RawClient(server.bootstrap) as client:
            return fetch(client, topic).error_code == ErrorCode.KAFKA_STORAGE_ERROR

    until(is_refused, "it was found")
    reason = check_refused(server, topic)
    damaged = sorted(server.partition_dir(topic).glob("*.log"))[1]
    assert str(damaged) in reason
    assert "byte 0" in reason
    assert f"offset {int(damaged.stem)}" in reason


def test_a_broker_with_damaged_logs_is_up_and_says_what_is_wrong(server: Server) -> None:
    broken = len(REFUSED) + len(FOUND_LATER)
    offline = "kafka_server_replicamanager_offlinereplicacount"
    until(lambda: server.metric(offline) == broken, "the scrub has been everywhere")
    assert server.metric("penstock_data_directory_offline") == 0
    assert server.metric("penstock_scrub_damaged_segments_total") >= 1
    assert server.metric("penstock_recovery_truncated_bytes_total") > 0
    assert server.http("/livez")[0] == 200
    assert "Traceback" not in server.log
    client = server.admin
    client.delete_topics(["no-segment"])["no-segment"].result(PATIENCE_S)
    server.create_topic("new")
    send(server.bootstrap, "new", [b"x"])
    stop_syncing(server, ["no-middle"])  # its settings can be changed, damaged or not
    assert server.metric(offline) == broken - 1


# Put right ---------------------------------------------------------------------------------------


def test_a_file_that_is_put_back_makes_the_partition_work_again(tmp_path: Path) -> None:
    with Server(tmp_path, SETTINGS) as server:
        topic = server.create_topic("t")
        write(server, [topic], range(SYNCED))
        until(lambda: are_synced(server, 1), "the recovery point is on the disk")
        server.kill()
        lost = segments(server.partition_dir(topic))[2]
        lost.rename(tmp_path / "found")
        server.start()
        check_refused(server, topic)
        assert server.stop() == 0
        (tmp_path / "found").rename(lost)
        server.start()
        assert values(server, topic) == EXPECTED[:SYNCED]
        assert send(server.bootstrap, topic, [b"after"]) == [SYNCED]


def test_a_file_that_goes_while_the_broker_runs_takes_its_partition_along_and_no_other(
    tmp_path: Path,
) -> None:
    with Server(tmp_path, SETTINGS) as server:
        topic, other = server.create_topic("t"), server.create_topic("other")
        write(server, [topic, other], range(SYNCED))
        assert server.stop() == 0
        server.start()
        segments(server.partition_dir(topic))[2].unlink()
        with RawClient(server.bootstrap) as client:
            until(
                lambda: any(
                    fetch(client, topic, offset).error_code == ErrorCode.KAFKA_STORAGE_ERROR
                    for offset in range(SYNCED)
                ),
                "it is noticed",
            )
        check_refused(server, topic)
        assert server.metric("penstock_data_directory_offline") == 0
        assert values(server, other) == EXPECTED[:SYNCED]


# The broker's own files --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "clean", first_of([False, True]), ids=["killed-and-spoilt", "stopped-and-removed"]
)
def test_lost_checkpoints_cost_time_and_nothing_else(tmp_path: Path, clean: bool) -> None:
    with Server(tmp_path, SETTINGS) as server:
        topic = server.create_topic("t")
        ledger = Ledger()
        sender = producer(server.bootstrap, enable_idempotence=True, batch_size=2000)
        for number in range(WRITTEN):
            ledger.send(sender, topic, value(number))
        assert sender.flush(PATIENCE_S) == 0
        if clean:
            assert server.stop() == 0
        else:
            server.kill()
        for name in ("recovery-points", "high-watermarks", "log-starts", "store-revision"):
            file = server.data_dir / name
            if clean:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(bytes(50))
        server.start()
        ledger.check_exact(read_all(server.bootstrap, topic))
        ledger.send(sender, topic, b"goes on")
        assert sender.flush(PATIENCE_S) == 0
        ledger.check_exact(read_all(server.bootstrap, topic))


@pytest.mark.parametrize(
    "lost", [["running"], ["clean"], ["running", "clean"]], ids=["running", "clean", "both"]
)
def test_a_lost_mark_of_the_end_is_taken_for_a_crash(tmp_path: Path, lost: list[str]) -> None:
    with Server(tmp_path, SETTINGS) as server:
        topic = server.create_topic("t")
        write(server, [topic], range(SYNCED))
        assert server.stop() == 0
        for name in lost:
            (server.data_dir / name).unlink()
        server.start()
        assert server.events("recovered")
        assert values(server, topic) == EXPECTED[:SYNCED]


def refused_start(server: Server) -> str:
    server.launch()
    assert server.wait() == 1
    (line,) = server.log.splitlines()
    assert line.startswith("penstock: ")
    return line


def test_damaged_metadata_is_said_in_one_line_and_a_restored_copy_works(tmp_path: Path) -> None:
    with Server(tmp_path, SETTINGS) as server:
        topic = server.create_topic("t")
        send(server.bootstrap, topic, [b"kept"])
        assert server.stop() == 0
        store = server.data_dir / "metadata.sqlite"
        sound = store.read_bytes()

        for damaged in (b"not a database" * 1000, sound[:100] + b"\xff" * (len(sound) - 100)):
            store.write_bytes(damaged)
            line = refused_start(server)
            assert f"metadata store {store}" in line
            assert "damaged" in line
            assert "restore it from a backup" in line
        store.unlink()
        assert "the metadata store is empty" in refused_start(server)
        assert server.partition_dir(topic).exists(), "nothing was set aside"

        store.write_bytes(sound)
        server.start()
        assert values(server, topic) == [b"kept"]


def test_a_lost_identity_is_said_in_one_line(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        assert server.stop() == 0
        identity = server.data_dir / "meta.properties"
        sound = identity.read_bytes()
        identity.write_bytes(b"version=7\n")
        assert "meta.properties: damaged, or of another version" in refused_start(server)
        identity.unlink()
        assert "meta.properties is missing" in refused_start(server)
        identity.write_bytes(sound)
        server.start()


def test_a_compaction_never_makes_damage_look_sound(tmp_path: Path) -> None:
    """Records that are put into new batches get new checksums: those of a damaged one must not."""
    settings = {**SETTINGS, "log.cleaner.backoff.ms": 50, "penstock.scrub.bytes.per.second": 0}
    with Server(tmp_path, settings) as server:
        topic = server.create_topic(
            "t", cleanup_policy="compact", segment_bytes=20_000, min_cleanable_dirty_ratio=1
        )
        sender = producer(server.bootstrap, batch_size=1)
        for number in range(SYNCED):
            sender.produce(topic, value(number), key=b"%d" % (number % 7), partition=0)
        assert sender.flush(PATIENCE_S) == 0
        assert server.stop() == 0
        log = server.partition_dir(topic)
        damaged = segments(log)[1]
        flip(damaged, 500)
        before = damaged.read_bytes()[:600]
        server.start()
        entry = rd.ConfigEntry(
            "min.cleanable.dirty.ratio", "0.01", incremental_operation=rd.AlterConfigOpType.SET
        )
        resource = rd.ConfigResource("topic", topic, incremental_configs=[entry])
        server.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

        def is_noticed() -> bool:
            unreadable = server.metric("penstock_compaction_unreadable_batches_total")
            failures = server.metric("penstock_compaction_failures_total")
            offline = server.metric("kafka_server_replicamanager_offlinereplicacount")
            return unreadable + failures + offline > 0

        until(is_noticed, "the compaction has come across it")
        kept = [file for file in log.glob("*.log") if before[400:600] in file.read_bytes()]
        assert kept, "the damaged batch is as it was"
        with pytest.raises(CorruptBatch, match=f"checksum mismatch.*offset {int(damaged.stem)}"):
            list(split_batches(memoryview(kept[0].read_bytes())))
        assert server.events("batches-unreadable")
