"""The files in a partition's directory: what is there, and what a crash has left over."""

import os
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.storage import swap
from penstock.storage.files import OpenFiles, SegmentFile, refuse
from penstock.storage.segment import DELETED_SUFFIX, LOG_SUFFIX, SUFFIXES, Segment


class Found(NamedTuple):
    segments: list[tuple[int, int]]  # base offset and size, in order
    retired: dict[int, list[str]]  # paths, by base offset
    is_swapped: bool = False  # compacted segments have just taken the place of others


_NOTHING: Final = Found([], {})


def tidy(directory: str) -> Found:
    """Finish or undo what was under way when the last run ended, and list what is there."""
    names = _names(directory)
    if not names:
        return _NOTHING
    is_swapped = swap.complete(directory, names)
    if is_swapped:
        names = _names(directory)
    bases = {int(name[:20]) for name in names if _is_segment_file(name, LOG_SUFFIX)}
    retired: dict[int, list[str]] = {}
    for name in names:
        path = f"{directory}/{name}"
        if name.endswith(DELETED_SUFFIX) and name[:20].isdigit():
            retired.setdefault(int(name[:20]), []).append(path)
        elif name.endswith(".tmp") or (_is_orphan(name, bases)):
            with suppress(FileNotFoundError):
                os.unlink(path)
    found = [
        (base_offset, os.stat(f"{directory}/{base_offset:020d}{LOG_SUFFIX}").st_size)
        for base_offset in sorted(bases)
    ]
    return Found(found, retired, is_swapped)


def size_bytes(directory: str) -> int | None:
    """Of all segments; None while a replacement of some is under way, for then it says nothing."""
    names = _names(directory)
    if swap.is_under_way(names):
        return None
    logs = [name for name in names if _is_segment_file(name, LOG_SUFFIX)]
    return sum(os.stat(f"{directory}/{name}").st_size for name in logs)


def has_log(directory: str) -> bool:
    """Whether there is any segment."""
    return any(name.endswith(LOG_SUFFIX) for name in _names(directory))


def segments_of(
    files: OpenFiles, directory: str, found: Found, interval_bytes: int
) -> list[Segment]:
    """Each reaches to where the next one begins, as far as names can tell."""
    bases = [base_offset for base_offset, _ in found.segments]
    ends = [*bases[1:], *bases[-1:]]  # the last one's end is not known yet
    return [
        Segment(SegmentFile(files, directory, base, LOG_SUFFIX, size), interval_bytes, end)
        for (base, size), end in zip(found.segments, ends, strict=True)
    ]


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        refuse(error, f"{directory}: cannot be listed")


def _is_segment_file(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and len(name) == 20 + len(suffix) and name[:20].isdigit()


def _is_orphan(name: str, bases: set[int]) -> bool:
    """An index whose log is gone."""
    return (
        any(_is_segment_file(name, suffix) for suffix in SUFFIXES) and int(name[:20]) not in bases
    )
