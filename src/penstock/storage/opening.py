"""Opens a log from its directory: segments first, then what follows from their batches."""

from penstock.model.configs import TopicConfig
from penstock.model.ids import TopicId
from penstock.storage import identity, layout, recovery, state
from penstock.storage.files import OpenFiles, remove
from penstock.storage.layout import Found
from penstock.storage.log import Log
from penstock.storage.recovery import REMEDY, Ending, Past, Recovery
from penstock.storage.segment import DamagedLog, Segment
from penstock.storage.segments import Segments


def open_log(
    files: OpenFiles,
    topic_path: str,
    partition: int,
    topic_id: TopicId,
    config: TopicConfig,
    past: Past,
) -> Log:
    """The log that the directory holds, recovered; one that was never written if there is none."""
    log = Log(files, topic_path, partition, topic_id, config)
    found = layout.tidy(log.path)
    if not (found.segments or found.retired or past.recovery_point or past.start_offset):
        return log
    epochs, truncated_to = state.read_epochs(log.path) or (None, None)
    if truncated_to is not None and past.recovery_point is not None:
        past = past._replace(recovery_point=min(past.recovery_point, truncated_to))
    known = identity.read(log.path)
    past = past._replace(has_gaps=known is None or known.has_gaps)
    if found.is_swapped:
        past = past._replace(size_bytes=None)
    opened = layout.segments_of(files, log.path, found, config.index_interval_bytes)
    if _lacks_all(log.path, found, past) or _lacks_front(log.path, found, past):
        return _emptied(log, opened, found, past)
    items, log.recovery = recovery.open_segments(opened, past)
    next_offset = items[-1].next_offset
    sure_upto = min(past.recovery_point or 0, next_offset)
    epochs_upto = next_offset if past.ending is Ending.CLEAN else sure_upto
    follows = state.load(log.path, items, epochs, epochs_upto)
    segments = Segments(files, log.path, items)
    unsynced = [segment for segment in items[:-1] if segment.next_offset > sure_upto]
    follows.truncated_to = truncated_to
    unflushed_bytes = log.recovery.scanned_bytes - log.recovery.dropped_bytes
    log.adopt(segments, follows, unsynced, unflushed_bytes, has_gaps=past.has_gaps)
    log.adopt_retired(found.retired)
    log.recovery_point = sure_upto
    start_offset = max(past.start_offset or 0, follows.epochs.log_start)
    log.start_offset = max(items[0].base_offset, min(start_offset, next_offset))
    follows.epochs.truncate_start(log.start_offset)
    log.saved_start_offset = past.start_offset or 0
    return log


def _lacks_all(path: str, found: Found, past: Past) -> bool:
    """Whether there is no segment, as in a log that was never written, or was being emptied."""
    if not found.segments and not found.retired and past.recovery_point:
        raise DamagedLog(
            f"{path}: no segment is there, though it was synced to offset {past.recovery_point}. {REMEDY}"
        )
    return not found.segments


def _lacks_front(path: str, found: Found, past: Past) -> bool:
    """Whether the first segments are gone, and nothing of them had been synced; if it had, raises.

    Segments leave from the front, but stay as retired files until the new start is written down.
    """
    first_offset, start_offset = found.segments[0][0], past.start_offset or 0
    if first_offset <= start_offset or any(base <= start_offset for base in found.retired):
        return False
    point = past.recovery_point
    if past.start_offset is not None and (point is None or point > start_offset):
        raise DamagedLog(
            f"{path}: begins at offset {first_offset}, though the log starts at {start_offset}: "
            f"a segment is missing. {REMEDY}"
        )
    return past.ending is Ending.POWER_LOSS and point is not None


def _emptied(log: Log, segments: list[Segment], found: Found, past: Past) -> Log:
    """Nothing is left of a prefix. No offset below the recovery point is ever given again."""
    point = past.recovery_point or 0
    next_offset = max(point, past.start_offset or 0)
    dropped_bytes = sum(segment.size_bytes for segment in segments)
    # Kept until the log has begun: without them a second attempt would find it damaged.
    dropped = [path for segment in reversed(segments) for path in segment.retire()]
    if next_offset:
        log.truncate_fully_and_start_at(next_offset)  # its file tells the next run the offset
        log.adopt_retired(found.retired)
    else:
        dropped += [path for paths in found.retired.values() for path in paths]
    remove(dropped)
    if dropped_bytes:
        log.recovery = Recovery(0, dropped_bytes, next_offset)
    log.recovery_point = point
    log.saved_start_offset = past.start_offset or 0
    return log
