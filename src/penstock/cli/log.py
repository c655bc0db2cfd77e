"""`penstock log dump`: what is in a segment, an index or a state file, for the day when one must look.

Nothing is changed. Damage is shown where it is and makes the exit code 1.
"""

import json
import mmap
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from penstock.cli.arguments import add_json, examples
from penstock.cli.formats import readable
from penstock.cli.output import note
from penstock.cli.values import format_time
from penstock.model.errors import BrokerError, StorageFault
from penstock.records.batch import BatchHeader, iter_headers, verify
from penstock.records.compression import Codec
from penstock.records.control import decode_marker, decode_promotion
from penstock.records.record import Record, decode_records
from penstock.storage import checksummed_json, index, snapshot, txn_index

Facts = dict[str, Any]


class Damage(Exception):
    """Where the file stops making sense."""


def configure(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    dump = commands.add_parser(
        "dump",
        help="decode the files of a partition, and those of a data directory",
        description="Decode segment, index and state files; a directory means all files in it.",
        epilog=examples(
            "penstock log dump penstock-data/orders/partition-0/00000000000000000000.log",
            "penstock log dump --records --json penstock-data/orders/partition-0 | jq .records",
        ),
    )
    dump.add_argument("paths", metavar="PATH", nargs="+", type=Path)
    dump.add_argument("--records", action="store_true", help="show the records of each batch")
    add_json(dump)
    dump.set_defaults(run=_dump)


def _dump(arguments: Namespace) -> int:
    files = [file for path in arguments.paths for file in _files(path)]
    damaged = 0
    for file in files:
        if len(files) > 1 and not arguments.json:
            print(f"# {file}")
        try:
            for facts in _decode(file, records=arguments.records):
                shown = {"file": str(file), **facts} if len(files) > 1 else facts
                print(json.dumps(shown, ensure_ascii=False) if arguments.json else _text(facts))
                damaged += facts.get("valid") is False
        except (Damage, BrokerError, checksummed_json.Damaged, ValueError) as error:
            note(f"penstock: {file}: {error}")
            damaged += 1
    return 1 if damaged else 0


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        path.stat()  # one that is not there is said to be so
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and _decoder(file))
    if not files:
        raise StorageFault(
            f"{path} holds no file of a log; give a partition's directory, or a file"
        )
    return files


def _decode(file: Path, *, records: bool) -> Iterator[Facts]:
    if file.suffix == ".log":
        return _batches(file, records=records)
    decoder = _decoder(file)
    if decoder is None:
        raise Damage("not a file of a data directory (.log, .index, recovery-points, …)")
    return decoder(file)


def _batches(file: Path, *, records: bool) -> Iterator[Facts]:
    """Every batch in file order, read through the page cache: a segment may be larger than memory."""
    if file.stat().st_size == 0:
        return
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        end = 0
        with memoryview(mapped) as data:
            for position, header in iter_headers(data):
                end = position + header.size_bytes
                batch = memoryview(bytes(data[position:end]))  # a copy: the mapping must close
                yield _batch_facts(batch, header, position, records=records)
            left = len(data) - end
    if left:
        raise Damage(f"{left} bytes from position {end} on are no whole batch")


def _batch_facts(batch: memoryview, header: BatchHeader, position: int, *, records: bool) -> Facts:
    facts = _header_facts(header, position)
    try:
        verify(batch, header)
    except BrokerError as error:
        return {**facts, "valid": False, "damage": str(error)}
    facts["valid"] = True
    if header.is_control and (marker := decode_marker(batch, header)) is not None:
        facts["marker"] = marker.type.name.lower()
        facts["coordinator_epoch"] = marker.coordinator_epoch
    elif header.is_control and (promotion := decode_promotion(batch, header)) is not None:
        facts["promotion"] = promotion.number
    if records:
        facts["records"] = [_record_facts(record) for record in decode_records(batch, header)]
    return facts


def _record_facts(record: Record) -> Facts:
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **readable("key", record.key),
        **readable("value", record.value),
        "headers": [
            {"key": _printable(key), **readable("value", value)} for key, value in record.headers
        ],
    }


def _printable(key: str) -> str:
    """Bytes of a header's key that are no UTF-8 show as the replacement character."""
    return key.encode(errors="surrogateescape").decode(errors="replace")


def _header_facts(header: BatchHeader, position: int) -> Facts:
    facts: Facts = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "position": position,
        "size_bytes": header.size_bytes,
        "leader_epoch": header.leader_epoch,
        "codec": _codec_name(header.codec),
        "timestamp_type": header.timestamp_type.name.lower(),
        "first_timestamp": format_time(header.first_timestamp_ms),
        "max_timestamp": format_time(header.max_timestamp_ms),
        "crc": f"{header.crc:#010x}",
    }
    if header.has_producer_id:
        facts["producer_id"] = header.producer_id
        facts["producer_epoch"] = header.producer_epoch
        facts["base_sequence"] = header.base_sequence
    if header.is_transactional:
        facts["transactional"] = True
    if header.is_control:
        facts["control"] = True
    if header.delete_horizon_ms is not None:
        facts["delete_horizon"] = format_time(header.delete_horizon_ms)
    return facts


def _codec_name(number: int) -> str:
    try:
        return Codec(number).name.lower()
    except ValueError:
        return str(number)


def _offset_index(file: Path) -> Iterator[Facts]:
    base_offset = _base_offset(file)
    for relative, position in _entries(file, index.OFFSETS):
        yield {"offset": base_offset + relative, "position": position}


def _time_index(file: Path) -> Iterator[Facts]:
    base_offset = _base_offset(file)
    for timestamp_ms, relative in _entries(file, index.TIMES):
        yield {
            "timestamp_ms": timestamp_ms,
            "time": format_time(timestamp_ms),
            "offset": base_offset + relative,
        }


def _txn_index(file: Path) -> Iterator[Facts]:
    data = file.read_bytes()
    entries = txn_index.decode(data)
    for entry in entries:
        yield entry._asdict()
    if left := len(data) - len(txn_index.encode(entries)):
        raise Damage(f"{left} bytes at the end are no aborted transactions")


def _entries(file: Path, layout: index.Layout) -> Iterator[tuple[int, int]]:
    data = file.read_bytes()
    left = len(data) % layout.entry_bytes
    yield from layout.entry.iter_unpack(memoryview(data)[: len(data) - left])
    if left:
        raise Damage(f"{left} bytes at the end are no whole entry of {layout.entry_bytes}")


def _base_offset(file: Path) -> int:
    if not file.stem.isdigit():
        raise Damage(f"an index is named after its first offset; {file.stem!r} is no number")
    return int(file.stem)


def _producers(file: Path) -> Iterator[Facts]:
    """The state at each offset of the snapshot: producers, then segments with aborted transactions."""
    for section, _ in snapshot.decode(file.read_bytes()):
        for producer_id, producer in section.producers:
            yield {
                "at_offset": section.offset,
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "next_sequence": producer.next_sequence,
                "last_time": format_time(producer.last_timestamp_ms),
                "coordinator_epoch": producer.coordinator_epoch,
                "txn_first_offset": producer.txn_first_offset,
                "batches": [list(batch) for batch in producer.batches],
            }
        for base_offset, (count, crc) in section.aborted.items():
            yield {
                "at_offset": section.offset,
                "segment": base_offset,
                "aborted_transactions": count,
                "crc": f"{crc:#010x}",
            }


def _sealed(file: Path) -> Iterator[Facts]:
    yield checksummed_json.decode(file.name, file.read_bytes())


_DECODERS: Final[dict[str, Callable[[Path], Iterator[Facts]]]] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _txn_index,
    "producers.snapshot": _producers,
    **dict.fromkeys(
        (
            "leader-epochs",
            "partition.metadata",
            "cleaned-upto",
            "recovery-points",
            "high-watermarks",
            "log-starts",
            "running",
            "clean",
            "store-revision",
        ),
        _sealed,
    ),
}


def _decoder(file: Path) -> Callable[[Path], Iterator[Facts]] | None:
    if file.suffix == ".log":
        return lambda path: _batches(path, records=False)
    return _DECODERS.get(file.name) or _DECODERS.get(file.suffix)


def _text(facts: Facts) -> str:
    records = facts.get("records", [])
    lines = [_pairs({key: value for key, value in facts.items() if key != "records"})]
    lines += ["  " + _pairs(record) for record in records]
    return os.linesep.join(lines)


def _pairs(facts: Facts) -> str:
    return " ".join(f"{key}={_quoted(value)}" for key, value in facts.items())


def _quoted(value: object) -> str:
    if isinstance(value, str) and value and not set(value) & set(' "=\\') and value.isprintable():
        return value
    return json.dumps(value, ensure_ascii=False)
