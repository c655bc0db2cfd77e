"""What each replica's log holds, kept beside the logs themselves: batches enter and leave as the product's own calls say."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

from penstock.broker.partition import Partition
from penstock.model.ids import TopicId
from penstock.records.batch import BatchHeader, iter_headers, parse_header
from penstock.storage.appending import GrowingLog
from penstock.storage.directory import DataDirectory
from penstock.storage.log import Appended, Log

Place = tuple[bytes, int]  # topic id and partition
_CHECKED: Final = ("is_leader", "leader_epoch", "high_watermark", "_log")  # and the log's end


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    epoch: int
    crc: int


class Mirror:
    """The batches of one replica, in order."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.batches = _read(log)

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.log.start_offset

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)

    def cut(self) -> None:
        log = self.log
        while self.batches and self.batches[-1].next_offset > log.next_offset:
            self.batches.pop()
        if self.batches and self.batches[0].base_offset < log.start_offset:
            self.batches = [it for it in self.batches if it.base_offset >= log.start_offset]


class Mirrors:
    """`entered` hears of every batch, and whether a leader took it; `taken` of the headers of those that a leader took;
    `differs` of a log that changed while nobody ran."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], Mirror] = {}  # by path and topic id
        self.entered: Callable[[Log, Batch, bool], None] = lambda _log, _batch, _led: None
        self.taken: Callable[[Log, BatchHeader], None] = lambda _log, _header: None
        self.differs: Callable[[str], None] = lambda _what: None
        self.touched: dict[Partition, None] = {}  # by the current step
        self._owners: dict[Log, Partition] = {}

    def of(self, log: Log) -> Mirror:
        key = log.path, bytes(log.topic_id)
        known = self._known.get(key)
        if known is None or known.log is not log:
            found = Mirror(log)
            if known is not None and found.batches != known.batches:
                self.differs(f"{log.path}: a crash of the process changed the log")
            self._known[key] = known = found
        return known

    def owner_of(self, log: Log) -> Partition | None:
        """The partition that has this log, or had it."""
        return self._owners.get(log)

    def at(self, path: str, topic_id: bytes) -> Mirror | None:
        """Also of a broker that is down, as its process left the log."""
        return self._known.get((path, topic_id))

    def forget(self, directory: str) -> None:
        """Power was lost: nobody knows what is left."""
        for key in [it for it in self._known if it[0].startswith(f"{directory}/")]:
            del self._known[key]

    def _copied(self, log: Log, mirror: Mirror, records: memoryview) -> None:
        for _, header in iter_headers(records):
            if mirror.end <= header.base_offset < log.next_offset:
                batch = Batch(
                    header.base_offset, header.next_offset, header.leader_epoch, header.crc
                )
                mirror.add(batch)
                self.entered(log, batch, False)

    @contextmanager
    def watching(self) -> Iterator[None]:
        append, copy = GrowingLog.append_as_leader, GrowingLog.append_as_follower
        append_together = GrowingLog.append_run
        truncate, restart, leave = Log.truncate_to, Log.restart_at, DataDirectory.give_up

        def append_as_leader(log: Log, records: memoryview, **more: Any) -> Appended:
            mirror = self.of(log)
            appended = append(log, records, **more)
            if not appended.duplicate:
                led(log, mirror, records, appended, more["leader_epoch"])
            return appended

        def append_run(log: Log, run: Sequence[memoryview], **more: Any) -> list[Appended] | None:
            mirror = self.of(log)
            outcomes = append_together(log, run, **more)
            for records, appended in zip(run, outcomes or [], strict=outcomes is not None):
                led(log, mirror, records, appended, more["leader_epoch"])
            return outcomes

        def led(
            log: Log, mirror: Mirror, records: memoryview, appended: Appended, epoch: int
        ) -> None:
            header = parse_header(records)
            batch = Batch(appended.base_offset, appended.last_offset + 1, epoch, header.crc)
            mirror.add(batch)
            self.entered(log, batch, True)
            self.taken(log, header)

        def append_as_follower(log: Log, records: memoryview) -> None:
            mirror = self.of(log)
            try:
                copy(log, records)
            finally:  # batches before a fault are in the log, and count
                self._copied(log, mirror, records)

        def truncate_to(log: Log, offset: int) -> None:
            mirror = self.of(log)
            truncate(log, offset)
            mirror.cut()

        def give_up(at: DataDirectory, topic: str, topic_id: TopicId, partition: int) -> None:
            self._known.pop((at.partition_path(topic, partition), bytes(topic_id)), None)
            leave(at, topic, topic_id, partition)

        def restart_at(log: Log, offset: int) -> None:
            mirror = self.of(log)
            restart(log, offset)
            mirror.batches.clear()

        with ExitStack() as stack:
            stack.enter_context(self._noticing_changes())
            for owner, name, replacement in (
                (GrowingLog, "append_as_leader", append_as_leader),
                (GrowingLog, "append_run", append_run),
                (GrowingLog, "append_as_follower", append_as_follower),
                (Log, "truncate_to", truncate_to),
                (Log, "restart_at", restart_at),
                (DataDirectory, "give_up", give_up),
            ):
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield

    @contextmanager
    def _noticing_changes(self) -> Iterator[None]:
        """Note in `touched` which partitions change, so that no step looks at all of them."""

        def set_of_partition(partition: Partition, name: str, value: Any) -> None:
            object.__setattr__(partition, name, value)
            if name in _CHECKED:
                self.touched[partition] = None
                if name == "_log" and value is not None:
                    self._owners[value] = partition

        def set_of_log(log: Log, name: str, value: Any) -> None:
            object.__setattr__(log, name, value)
            if name == "next_offset" and log in self._owners:
                self.touched[self._owners[log]] = None

        with (
            mock.patch.object(Partition, "__setattr__", set_of_partition, create=True),
            mock.patch.object(Log, "__setattr__", set_of_log, create=True),
        ):
            yield


def _read(log: Log) -> list[Batch]:
    found: list[Batch] = []
    offset = log.start_offset
    while offset < log.next_offset:
        read = log.read(offset, 1 << 20, upto_offset=log.next_offset)
        if not read.slices:
            break
        data = memoryview(b"".join(piece.read() for piece in read.slices))
        found += [
            Batch(header.base_offset, header.next_offset, header.leader_epoch, header.crc)
            for _, header in iter_headers(data)
        ]
        offset = read.next_offset
    return found
