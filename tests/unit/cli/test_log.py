import json
from pathlib import Path
from struct import pack

import pytest

from penstock.cli.main import main
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.records.record import Record
from penstock.storage import checksummed_json, snapshot, txn_index
from penstock.storage.directory import DataDirectory
from penstock.storage.producers import Producer, Producers

SEGMENT = "00000000000000000100"
RECORDS = [
    Record(100, 1_700_000_000_000, b"k", b"hello world", (("source", b"\xff"),)),
    Record(101, 1_700_000_000_001, None, None),
]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    file = tmp_path / f"{SEGMENT}.log"
    batch = build_batch(RECORDS, base_offset=100, leader_epoch=7, codec=Codec.LZ4)
    marker = build_marker(
        EndMarker(ControlType.COMMIT, 5),
        producer_id=9,
        producer_epoch=1,
        timestamp_ms=1,
        base_offset=102,
    )
    file.write_bytes(bytes(batch) + bytes(marker))
    return file


def dump(
    capsys: pytest.CaptureFixture[str], *words: str, status: int = 0
) -> list[dict[str, object]]:
    assert main(["log", "dump", "--json", *words]) == status
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_segment_is_shown_batch_by_batch(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = dump(capsys, str(segment))
    assert first["base_offset"] == 100
    assert first["last_offset"] == 101
    assert first["codec"] == "lz4"
    assert first["leader_epoch"] == 7
    assert first["valid"] is True
    assert second["marker"] == "commit"
    assert second["position"] == first["size_bytes"]
    assert "records" not in first


def test_records_are_shown_when_asked_for(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = dump(capsys, "--records", str(segment))
    assert first["records"] == [
        {
            "offset": 100,
            "timestamp_ms": 1_700_000_000_000,
            "key": "k",
            "value": "hello world",
            "headers": [{"key": "source", "value_base64": "/w=="}],
        },
        {
            "offset": 101,
            "timestamp_ms": 1_700_000_000_001,
            "key": None,
            "value": None,
            "headers": [],
        },
    ]


def test_text_is_one_line_a_batch_and_one_a_record(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "dump", "--records", str(segment)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 3
    assert lines[0].startswith("base_offset=100 last_offset=101 count=2 position=0")
    assert 'value="hello world"' in lines[1]


def test_a_flipped_bit_is_shown_and_the_rest_is_still_read(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    first, second = dump(capsys, "--records", str(segment), status=1)
    assert first["valid"] is False
    assert "checksum" in str(first["damage"])
    assert second["valid"] is True


def test_a_torn_end_is_named_with_its_position(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment.write_bytes(segment.read_bytes()[:-5])
    assert main(["log", "dump", str(segment)]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert "are no whole batch" in captured.err


def test_an_empty_segment_has_no_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{SEGMENT}.log").write_bytes(b"")
    assert dump(capsys, str(tmp_path / f"{SEGMENT}.log")) == []


def test_indexes_are_shown_with_absolute_offsets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = tmp_path / f"{SEGMENT}.index"
    offsets.write_bytes(pack(">IIII", 5, 4096, 9, 8192))
    times = tmp_path / f"{SEGMENT}.timeindex"
    times.write_bytes(pack(">qI", 1_700_000_000_000, 5))
    aborted = tmp_path / f"{SEGMENT}.txnindex"
    aborted.write_bytes(txn_index.encode([txn_index.AbortedEntry(9, 100, 110, 111)]))
    assert dump(capsys, str(offsets)) == [
        {"offset": 105, "position": 4096},
        {"offset": 109, "position": 8192},
    ]
    assert dump(capsys, str(times)) == [
        {"timestamp_ms": 1_700_000_000_000, "time": "2023-11-14T22:13:20.000Z", "offset": 105}
    ]
    assert dump(capsys, str(aborted)) == [
        {"producer_id": 9, "first_offset": 100, "last_offset": 110, "last_stable_offset": 111}
    ]


def test_a_state_file_shows_its_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "leader-epochs"
    file.write_bytes(checksummed_json.encode("leader-epochs", {"epochs": [(0, 0), (3, 120)]}))
    assert dump(capsys, str(file)) == [{"epochs": [[0, 0], [3, 120]]}]


def test_a_snapshot_shows_every_producer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = Producer(3)
    producer.next_sequence = 17
    producers = Producers()
    producers.restore([(9, producer)])
    aborted_before = {100: txn_index.Digest(2, 7)}
    section = snapshot.section_of(200, snapshot.NO_MARK, producers, aborted_before, 1_000)
    file = tmp_path / "producers.snapshot"
    file.write_bytes(snapshot.encode([section]))
    shown, aborted = dump(capsys, str(file))
    assert (shown["at_offset"], shown["producer_id"], shown["producer_epoch"]) == (200, 9, 3)
    assert shown["next_sequence"] == 17
    assert aborted["aborted_transactions"] == 2


def test_a_damaged_state_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "leader-epochs"
    file.write_bytes(checksummed_json.encode("leader-epochs", {})[:-3])
    assert main(["log", "dump", str(file)]) == 1
    assert "leader-epochs" in capsys.readouterr().err


def test_a_directory_means_the_files_of_its_log(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment.parent / "notes.txt").write_text("not ours")
    (segment.parent / f"{SEGMENT}.index").write_bytes(pack(">II", 1, 2))
    shown = dump(capsys, str(segment.parent))
    assert [Path(str(facts["file"])).suffix for facts in shown] == [".index", ".log", ".log"]


def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("not ours")
    assert main(["log", "dump", str(tmp_path / "notes.txt")]) == 1
    assert "not a file of a data directory" in capsys.readouterr().err


def test_the_files_of_a_data_directory_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = DataDirectory(str(tmp_path))
    directory.join("cluster", 1)
    directory.close()
    shown = {Path(str(facts["file"])).name for facts in dump(capsys, str(tmp_path))}
    assert shown == {"clean", "high-watermarks", "log-starts", "recovery-points", "running"}


def test_a_directory_without_a_log_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "dump", str(tmp_path)]) == 1
    assert "holds no file of a log" in capsys.readouterr().err
