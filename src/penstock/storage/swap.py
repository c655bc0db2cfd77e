"""Compacted segments take the place of old ones, all at once or not at all, whatever happens in between.

    1. write `<base>.log.cleaned` of every new segment and sync it       worker
    2. `prepare`: their indexes, then `<base>.swap`, which commits       worker or thread
    3. `Log.replace_segments`: renames, no waiting                       event loop
`complete` finishes after a crash what `prepare` committed, and removes what it did not.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.model.errors import StorageFault
from penstock.records.batch import BatchHeader
from penstock.storage import checksummed_json, identity, txn_index
from penstock.storage.files import (
    Disk,
    OpenFiles,
    SegmentFile,
    read_small,
    refuse,
    write_atomically,
)
from penstock.storage.index import OFFSETS, TIMES
from penstock.storage.segment import LOG_SUFFIX, SUFFIXES, DamagedLog, Segment, filler

CLEANED: Final = ".cleaned"
_SUFFIX: Final = ".swap"
_FORMAT: Final = "swap"


class Swap(NamedTuple):
    """Base offsets of closed segments that follow each other, and of those that replace them.

    The first new one begins where the first old one does, and the last ends where the last old one does.
    """

    old: tuple[int, ...]
    new: tuple[int, ...]

    def path(self, directory: str) -> str:
        return f"{directory}/{self.old[0]:020d}{_SUFFIX}"


def prepare(directory: str, swap: Swap, interval_bytes: int, disk: Disk | None = None) -> None:
    """From its return on, the swap is certain to happen. Any thread or process may call this."""
    assert swap.old[0] == swap.new[0]
    disk = disk or Disk()
    ends = (*swap.new[1:], _base_after(directory, swap.old[-1]))
    for base_offset, end in zip(swap.new, ends, strict=True):
        _finish_cleaned(directory, base_offset, end, interval_bytes, disk)
    known = identity.read(directory)
    if known is not None and not known.has_gaps:
        identity.write(directory, known._replace(has_gaps=True), disk)
    content = {"new": swap.new, "old": swap.old}
    write_atomically(swap.path(directory), checksummed_json.encode(_FORMAT, content), disk=disk)


def _base_after(directory: str, base_offset: int) -> int:
    """Where the next segment begins; there always is one, since the active one is never replaced."""
    bases = [int(name[:20]) for name in os.listdir(directory) if name[20:] == LOG_SUFFIX]
    return min(base for base in bases if base > base_offset)


def _finish_cleaned(
    directory: str, base_offset: int, end: int, interval_bytes: int, disk: Disk
) -> None:
    """Make a cleaned segment reach to `end`, and write its indexes, so that nobody has to wait for them."""
    file = SegmentFile(OpenFiles(limit=8, disk=disk), directory, base_offset, LOG_SUFFIX + CLEANED)
    file.measure()
    segment = Segment(file, interval_bytes, base_offset, CLEANED)
    segment.rebuild_indexes()
    if segment.next_offset < end:
        file.append(filler(segment.next_offset, end))
        segment.rebuild_indexes()
    assert segment.next_offset == end, "a cleaned segment holds no more than the old ones did"
    for synced in (file, *segment.seal()):
        disk.fdatasync(synced.fileno())
    segment.close()


def complete(directory: str, names: Iterable[str]) -> bool:
    """Finish or undo every swap that a crash left, from the names in the directory; whether there was any."""
    names = list(names)
    for name in names:
        if name.endswith(_SUFFIX):
            swap = _read(f"{directory}/{name}")
            install(directory, swap)
            if _is_installed(directory, swap):
                _remove_old(directory, swap)
            _forget_aborts(directory, swap)
            finish(directory, swap)
    for name in names:
        if name.endswith(CLEANED):
            with suppress(FileNotFoundError):  # a swap has just put it in place
                os.unlink(f"{directory}/{name}")
    return is_under_way(names)


def _is_installed(directory: str, swap: Swap) -> bool:
    """Whether the new ones are in place: they reach as far as the old ones did. If not, `discard` had taken them away
    while `prepare` committed the swap, and the old ones are the log."""
    if len(swap.old) == 1:
        return True  # nothing is to be removed
    end = swap.new[-1]
    for header in _readable_headers(_segment_at(directory, swap.new[-1])):
        end = header.next_offset
    return end > swap.old[-1]


def _forget_aborts(directory: str, swap: Swap) -> None:
    """Forget the aborts whose markers were compacted away.

    Readers would leave out all that the producers wrote later. The index files may still be those of
    the old segments.
    """
    for base_offset in swap.new:
        if txn_index.exists(directory, base_offset):
            segment = _segment_at(directory, base_offset)
            markers = {
                header.last_offset
                for header in _readable_headers(segment)
                if header.is_control and header.record_count > 0
            }
            kept = [entry for entry in segment.aborted if entry.last_offset in markers]
            segment.txns.keep_saved(kept)
            segment.close()


def _segment_at(directory: str, base_offset: int) -> Segment:
    file = SegmentFile(OpenFiles(limit=8), directory, base_offset, LOG_SUFFIX)
    file.measure()
    return Segment(file, 0, base_offset)


def _readable_headers(segment: Segment) -> Iterator[BatchHeader]:
    """As far as the segment can be read. Its file is closed afterwards."""
    with suppress(DamagedLog):
        for _, header in segment.headers():
            yield header
    segment.file.close()


def is_under_way(names: Iterable[str]) -> bool:
    return any(name.endswith((_SUFFIX, CLEANED)) for name in names)


def install(directory: str, swap: Swap) -> None:
    """Put the new files in place of the old ones. May be repeated.

    Then old ones that no new one replaces must leave the log, and then `finish` ends the swap: without
    its file nobody would know that they are old.
    """
    try:
        for base_offset in swap.new:
            _install(directory, base_offset)
    except OSError as error:
        raise StorageFault(f"{swap.path(directory)}: cannot be installed: {error}") from error


def finish(directory: str, swap: Swap) -> None:
    try:
        os.unlink(swap.path(directory))
    except OSError as error:
        raise StorageFault(f"{swap.path(directory)}: cannot be finished: {error}") from error


def _remove_old(directory: str, swap: Swap) -> None:
    for base_offset in swap.old:
        if base_offset not in swap.new:
            for suffix in SUFFIXES:
                with suppress(FileNotFoundError):
                    os.unlink(f"{directory}/{base_offset:020d}{suffix}")


def _install(directory: str, base_offset: int) -> None:
    """Indexes first: beside the log they were made for, or beside one that will refuse them."""
    for suffix in (OFFSETS.suffix, TIMES.suffix, LOG_SUFFIX):
        name = f"{directory}/{base_offset:020d}{suffix}"
        try:
            os.rename(name + CLEANED, name)
        except FileNotFoundError:
            if suffix != LOG_SUFFIX and os.path.exists(
                f"{directory}/{base_offset:020d}{LOG_SUFFIX}{CLEANED}"
            ):
                with suppress(FileNotFoundError):
                    os.unlink(name)  # an empty index has no file


def discard(directory: str, disk: Disk) -> None:
    """Undo every swap that was prepared and not applied: the old segments are about to change.

    The worker, or a thread, may be doing the same.
    """
    try:
        names = [name for name in os.listdir(directory) if name.endswith((_SUFFIX, CLEANED))]
        for name in sorted(names, key=lambda name: name.endswith(CLEANED)):
            with suppress(FileNotFoundError):
                os.unlink(f"{directory}/{name}")
        if names:
            disk.fsync_directory(directory)
    except OSError as error:
        refuse(error, f"{directory}: cannot be tidied")


def _read(path: str) -> Swap:
    data = read_small(path)
    if data is None:
        raise StorageFault(f"{path}: cannot be read")
    try:
        content = checksummed_json.decode(_FORMAT, data)
        return Swap(tuple(map(int, content["old"])), tuple(map(int, content["new"])))
    except (checksummed_json.Damaged, KeyError, TypeError, ValueError) as error:
        raise StorageFault(f"{path}: cannot be read: {error}") from error
