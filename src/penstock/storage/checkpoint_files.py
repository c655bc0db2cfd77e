"""The checkpoint files of a data directory, and which of their entries speak of a log that is gone.

Checkpoints are numbered. Each file carries the number of the checkpoint that wrote it. The directory
of a log that was set aside carries the number of the newest checkpoint at that time: files up to that
number speak of the old log, later files of the log that has taken its place. One rename sets a log
aside, so no crash can separate it from its number, and nothing has to be removed afterwards.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from penstock.model.ids import TopicId
from penstock.storage import checkpoints, names
from penstock.storage.checkpoint_ticket import CheckpointTicket, WriteOrder
from penstock.storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_SIZES,
    LOG_STARTS,
    RECOVERY_POINTS,
    Checkpoint,
)
from penstock.storage.files import OpenFiles
from penstock.storage.log import Log
from penstock.storage.names import LogAside

# In the order in which they are written. A log that begins past offset 0 needs its start first: with
# a recovery point and no start, it would seem to have lost its front.
_NAMES: Final = (LOG_STARTS, RECOVERY_POINTS, HIGH_WATERMARKS)


class _Forgotten(NamedTuple):
    """A log that is gone, or all of a topic. Files up to this checkpoint may still name it."""

    number: int
    topic_id: TopicId
    partition: int | None


class CheckpointFiles:
    """Only the event loop calls this, apart from `CheckpointTicket.write`."""

    def __init__(self, path: str, open_files: OpenFiles, *, has_sizes: bool) -> None:
        """Read the files. Waits for the disk if an older version wrote them."""
        self._path = path
        self._open_files = open_files
        self._order = WriteOrder()
        self._forgotten: list[_Forgotten] = []
        self._unsure: set[str] = set()  # files that were being written, for all we know
        self._ended = 0  # the newest checkpoint that is known to be on the disk
        self._files = {name: checkpoints.read(path, name) for name in _NAMES}
        logs_aside = list(_logs_aside(path))
        numbers = [log.checkpoint for log in logs_aside]
        self.number = max([file.number for file in self._files.values()] + numbers)  # the newest
        self._number_files()
        for log in logs_aside:
            self._forget_log_aside(log)
        nothing = Checkpoint({}, is_complete=False)
        self._files[LOG_SIZES] = checkpoints.read(path, LOG_SIZES) if has_sizes else nothing

    def _number_files(self) -> None:
        """Number the files of an older version. They are newer than every log aside with a number."""
        unnumbered = [name for name in _NAMES if _is_unnumbered(self._files[name])]
        if unnumbered:
            self.number += 1
        for name in unnumbered:
            numbered = self._files[name] = self._files[name]._replace(number=self.number)
            checkpoints.write(self._path, name, numbered, self._open_files.disk)

    def _forget_log_aside(self, log: LogAside) -> None:
        outdated = [
            file
            for name in _NAMES
            if (file := self._files[name]).number <= log.checkpoint
            and file.get(log.topic_id, log.partition) is not None
        ]
        for file in outdated:
            file.forget(log.topic_id, log.partition)
        if outdated:
            self._forgotten.append(_Forgotten(self.number, log.topic_id, log.partition))

    def __getitem__(self, name: str) -> Checkpoint:
        return self._files[name]

    def forget(self, topic_id: TopicId, partition: int | None) -> None:
        """Have no entry for the log, or for any log of the topic."""
        self._forgotten.append(_Forgotten(self.number, topic_id, partition))
        self._forget_now(topic_id, partition)

    def _forget_now(self, topic_id: TopicId, partition: int | None) -> None:
        for file in self._files.values():
            file.forget(topic_id, partition)

    def may_name(self, log: LogAside) -> bool:
        """Whether the files on the disk may still have an entry of it."""
        return any(
            (gone.topic_id, gone.partition) == (log.topic_id, log.partition)
            for gone in self._forgotten
        )

    def begin(
        self,
        logs: Sequence[Log],
        high_watermarks: checkpoints.Offsets,
        store_revision: int | None,
    ) -> CheckpointTicket:
        marks = [
            (topic_id, index, offset)
            for topic_id, found in high_watermarks.items()
            for index, offset in found.items()
        ]
        points = [(log.topic_id, log.partition, log.recovery_point) for log in logs]
        starts = [(log.topic_id, log.partition, log.start_offset) for log in logs]
        self.number += 1
        changes = zip(_NAMES, (starts, points, marks), strict=True)
        files = {name: self._files[name].updated(entries) for name, entries in changes}
        changed = {
            name: file._replace(number=self.number)
            for name, file in files.items()
            if self._forgotten or name in self._unsure or file != self._files[name]
        }
        self._unsure.update(changed)
        state = [(log, log.truncations, log.start_offset) for log in logs]
        return CheckpointTicket(
            self._path,
            self._open_files,
            self._order,
            self.number,
            files=changed,
            logs=state,
            store_revision=store_revision,
        )

    def end(self, ticket: CheckpointTicket) -> bool:
        """The ticket was written; False if a later one was before it, which then has all of it."""
        if ticket.number < self._ended:
            return False
        self._ended = ticket.number
        self._files |= ticket.files
        if ticket.number == self.number:  # else a later one may have been written in part
            self._unsure.clear()
        self._forgotten = [gone for gone in self._forgotten if gone.number >= ticket.number]
        for gone in self._forgotten:
            self._forget_now(gone.topic_id, gone.partition)
        return True

    def write_sizes(self, logs: Iterator[Log]) -> None:
        """Logs that this run did not open are as large as they were. Waits for the disk."""
        sizes = self._files[LOG_SIZES].updated(
            (log.topic_id, log.partition, sum(segment.size_bytes for segment in log.segments))
            for log in logs
            if log.segments
        )
        checkpoints.write(self._path, LOG_SIZES, sizes, self._open_files.disk)


def _is_unnumbered(file: Checkpoint) -> bool:
    return not file.number and any(file.offsets.values())


def _logs_aside(path: str) -> Iterator[LogAside]:
    for name in os.listdir(path):
        log = names.log_aside(name)
        if log is not None:
            yield log
