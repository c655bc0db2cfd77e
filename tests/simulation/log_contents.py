"""The records of a log, as readers of each isolation level must see them in the end."""

from penstock.records.batch import iter_headers
from penstock.records.control import ControlType, decode_marker
from penstock.records.record import decode_records
from penstock.storage.log import Log

Records = list[tuple[int, bytes]]  # offsets and values


def contents(log: Log) -> tuple[Records, Records]:
    """Return all data records, and those that are committed: of no transaction, or before a commit marker."""
    everything: Records = []
    undecided: dict[int, Records] = {}  # of open transactions, by producer id
    left_out: set[int] = set()  # offsets
    offset = log.start_offset
    while offset < log.next_offset:
        read = log.read(offset, 1 << 20, upto_offset=log.next_offset)
        data = memoryview(b"".join(piece.read() for piece in read.slices))
        for start, header in iter_headers(data):
            batch = data[start : start + header.size_bytes]
            if header.is_control:
                marker = decode_marker(batch, header)
                ended = undecided.pop(header.producer_id, [])
                if marker is not None and marker.type is ControlType.ABORT:
                    left_out.update(place for place, _ in ended)
                continue
            found = [
                (record.offset, record.value or b"")
                for record in decode_records(batch)
                if record.offset >= log.start_offset
            ]
            everything += found
            if header.is_transactional:
                undecided.setdefault(header.producer_id, []).extend(found)
        offset = read.next_offset
    left_out.update(place for records in undecided.values() for place, _ in records)
    if not left_out:
        return everything, everything
    return everything, [record for record in everything if record[0] not in left_out]
