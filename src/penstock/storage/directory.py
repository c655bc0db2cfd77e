"""A broker's data directory: one process at a time, how its last run ended, and its logs.

What is durable for all partitions is in a few files that are replaced whole; see docs/storage-format.md.
"""

import os
import shutil
import uuid
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from penstock.model.configs import TopicConfig
from penstock.model.errors import BrokerError, DiskFull, ErrorCode, OutOfResources, StorageFault
from penstock.model.ids import TopicId
from penstock.storage import checkpoints, identity, layout, machine, markers, names
from penstock.storage.checkpoint_files import CheckpointFiles
from penstock.storage.checkpoint_ticket import CheckpointTicket
from penstock.storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_SIZES,
    LOG_STARTS,
    RECOVERY_POINTS,
    Checkpoint,
)
from penstock.storage.disk_reserve import DiskReserve
from penstock.storage.files import OPEN_FILES_LIMIT, QUEUED_FILES_LIMIT, Disk, OpenFiles, refuse
from penstock.storage.flush import FlushTicket
from penstock.storage.identity import Identity
from penstock.storage.log import Log
from penstock.storage.opening import open_log
from penstock.storage.recovery import Ending, Past
from penstock.storage.syncs import Syncs
from penstock.storage.threads import DaemonThreads

DELETE_DELAY_MS: Final = 60_000
STRAY_DELAY_MS: Final = 24 * 3_600_000
_CLOSING_THREADS: Final = 16
_CLOSED_TOGETHER: Final = 256  # logs
_FILES_OF_A_LOG: Final = 8
_NO_BOOT: Final = "disk-failed"  # in place of a boot's id: no run has the same


class DataDirectory:
    """Owns the logs of one broker. The event loop is its only caller, except where it says a thread."""

    def __init__(
        self,
        path: str,
        *,
        open_files_limit: int = OPEN_FILES_LIMIT,
        queued_files_limit: int = QUEUED_FILES_LIMIT,
        disk: Disk | None = None,
        boot_id: str | None = None,
        disk_reserve_bytes: int = 0,
    ) -> None:
        """Raises StorageFault, with one line for the operator, if it cannot be this broker's."""
        self.path = os.path.abspath(path)
        self.files = OpenFiles(open_files_limit, disk)
        self.files.queued_max = queued_files_limit
        self._disk = self.files.disk
        self._lock_fd = machine.lock(self.path)
        self.disk_reserve = DiskReserve(self.path, disk_reserve_bytes)
        try:
            self._begin_somehow(boot_id if boot_id is not None else machine.read_boot_id())
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._logs: dict[str, dict[int, Log]] = {}
        self._is_closing = False
        self._swapped: set[str] = set()  # logs in which an attempt to open them ended a compaction
        self._aside: dict[str, int | None] = {  # directories to be removed, from when on they wait
            f"{self.path}/{name}": None for name in os.listdir(self.path) if names.is_aside(name)
        }

    def _begin_somehow(self, boot_id: str) -> None:
        """On a full disk too, if the room that was set aside is enough."""
        try:
            self._begin(boot_id)
        except DiskFull:
            self.disk_reserve.release()
            self._begin(boot_id)
        else:
            self.disk_reserve.take()

    def _begin(self, boot_id: str) -> None:
        is_new = not os.path.exists(f"{self.path}/{markers.META}")
        self._meta = self._read_or_create_meta()
        self._boot_id = boot_id
        self._epoch: int | None = None
        self._run = uuid.uuid4().hex
        self.last_run = markers.read_last_run(self.path, boot_id, is_new=is_new)
        self._checkpoints = CheckpointFiles(
            self.path, self.files, has_sizes=self.last_run.has_sizes
        )
        self.store_revision = markers.read_store_revision(self.path)
        self._saved_revision = self.store_revision
        self._untold = self.last_run.untold
        self.note_broker_epoch(self.last_run.broker_epoch)

    def _read_or_create_meta(self) -> dict[str, str]:
        meta = markers.read_meta(self.path)
        if meta is not None:
            return meta
        found = [
            name for name in os.listdir(self.path) if name in (markers.RUNNING, RECOVERY_POINTS)
        ]
        if found:
            raise StorageFault(
                f"{self.path}: {markers.META} is missing, though {found[0]} is there; restore it"
            )
        new = {"version": "1", "directory.id": _new_id()}
        for name in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS):
            checkpoints.write(self.path, name, Checkpoint({}, is_complete=True), self._disk)
        markers.write_meta(self.path, new, self._disk)
        return new

    # Who and how -----------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._meta["directory.id"]

    @property
    def cluster_id(self) -> str | None:
        """The cluster that it has joined; None before."""
        return self._meta.get("cluster.id")

    @property
    def ending(self) -> Ending:
        """How the last run ended."""
        return self.last_run.ending

    @property
    def syncs(self) -> Syncs:
        """Those that are under way. Any thread may ask."""
        return self.files.syncs

    def join(self, cluster_id: str, broker_id: int) -> None:
        """It belongs to this broker of this cluster, from now on; StorageFault if to another."""
        wanted = {"cluster.id": cluster_id, "node.id": str(broker_id)}
        for name, value in wanted.items():
            if self._meta.get(name, value) != value:
                raise StorageFault(
                    f"{self.path} belongs to {name} {self._meta[name]}, not {value}; "
                    "give this broker its own directory"
                )
        if not wanted.items() <= self._meta.items():
            self._meta |= wanted
            markers.write_meta(self.path, self._meta, self._disk)

    def note_broker_epoch(self, broker_epoch: int | None) -> None:
        """The epoch of this run's session. Waits for the disk."""
        self._epoch = broker_epoch
        self._write_running(broker_epoch, self._untold, self._disk)

    def note_registered(self, broker_epoch: int) -> None:
        """The controller knows how earlier runs ended. Waits for the disk."""
        self._untold = Ending.CLEAN
        self.note_broker_epoch(broker_epoch)

    def note_failed(self) -> None:
        """The disk failed: the kernel may have dropped what it could not write, so that the next run must take
        this one's end for a loss of power. Waits for the disk, if that still takes anything: for a thread.

        A note that cannot be synced is left in the page cache, where it survives a crash of the process. After a
        loss of power the boot id tells the same.
        """
        self._boot_id = _NO_BOOT
        try:
            self._write_running(self._epoch, self._untold, self._disk)
        except (StorageFault, BrokerError):
            self.disk_reserve.release()
            self._write_running(self._epoch, self._untold, None)

    def _write_running(
        self, broker_epoch: int | None, untold: Ending, sync_on: Disk | None
    ) -> None:
        before = self.last_run.unseen_ending
        if self.ending is Ending.CLEAN and self.last_run.seen is None:
            before = Ending.CLEAN
        markers.write_running(
            self.path, self._run, self._boot_id, broker_epoch, before, untold, sync_on
        )

    # Logs ------------------------------------------------------------------------------------

    def partition_path(self, topic: str, partition: int) -> str:
        return f"{self.path}/{names.directory_of(topic)}/partition-{partition}"

    def log_for(
        self,
        topic: str,
        topic_id: TopicId,
        partition: int,
        config: TopicConfig,
        *,
        has_copies: bool = False,
    ) -> Log:
        """The log of a partition, opened and recovered at first use. Raises DamagedLog, StorageFault.

        `has_copies`: other replicas may have what is damaged in this one.
        """
        logs = self._logs.get(topic)
        log = logs.get(partition) if logs is not None else None
        if log is not None and log.topic_id == topic_id:
            return log
        self._check_open()
        if log is not None:
            log.abandon()
        self._set_aside_stranger(topic, topic_id, partition)
        past = self._past_of(topic_id, partition)._replace(has_copies=has_copies)
        path = self.partition_path(topic, partition)
        if layout.size_bytes(path) is None:
            self._swapped.add(path)  # also for the next attempt, should this one lack descriptors
        if path in self._swapped:
            past = past._replace(size_bytes=None)
        topic_path = f"{self.path}/{names.directory_of(topic)}"
        log = open_log(self.files, topic_path, partition, topic_id, config, past)
        self._logs.setdefault(topic, {})[partition] = log
        return log

    def logs(self) -> Iterator[Log]:
        """Those that were opened."""
        for logs in self._logs.values():
            yield from logs.values()

    def high_watermark(self, topic_id: TopicId, partition: int) -> int | None:
        """As it was last written down; None: it was not, or it was lost."""
        return self._checkpoints[HIGH_WATERMARKS].get(topic_id, partition)

    def ending_of(self, topic_id: TopicId, partition: int) -> Ending:
        """How the last run ended that had this log open."""
        return self._past_of(topic_id, partition).ending

    def _past_of(self, topic_id: TopicId, partition: int) -> Past:
        last = self.last_run
        seen = last.seen is None or markers.log_name(topic_id, partition) in last.seen
        points = self._checkpoints[RECOVERY_POINTS]
        point = points.get(topic_id, partition)
        if point is None and points.is_complete:
            point = 0
        start_offset = self._checkpoints[LOG_STARTS].get(topic_id, partition)
        size_bytes = self._checkpoints[LOG_SIZES].get(topic_id, partition)
        ending = last.ending if seen else last.unseen_ending
        return Past(ending, point, start_offset, size_bytes=size_bytes)

    def is_as_left(self, topic: str, topic_id: TopicId, partition: int) -> bool:
        """Whether its segments are as large as when the last run ended well, as far as that is known. For a thread."""
        past = self._past_of(topic_id, partition)
        if past.ending is not Ending.CLEAN or past.size_bytes is None:
            return True
        return layout.size_bytes(self.partition_path(topic, partition)) == past.size_bytes

    def _set_aside_stranger(self, topic: str, topic_id: TopicId, partition: int) -> None:
        """Files of an earlier topic of the same name are nobody's (O5)."""
        path = self.partition_path(topic, partition)
        if not os.path.exists(path):
            return
        owner = identity.read(path)
        if owner is None and not layout.has_log(path):
            return
        if (
            owner is None
            and self._checkpoints[RECOVERY_POINTS].get(topic_id, partition) is not None
        ):
            identity.write(path, Identity(topic_id, has_gaps=True))  # nobody knows: take the worse
        elif owner is None or owner.topic_id != topic_id:
            self._set_aside(topic, owner.topic_id if owner else None, partition)

    def _set_aside(self, topic: str, owner: TopicId | None, partition: int) -> None:
        number = self._checkpoints.number
        aside = names.log_aside_path(self.path, topic, owner, partition, number)
        path = self.partition_path(topic, partition)
        try:
            os.rename(path, aside)
        except OSError as error:
            refuse(error, f"{path}: cannot be set aside")
        self._aside[aside] = None

    def give_up(self, topic: str, topic_id: TopicId, partition: int) -> None:
        """Set a damaged log aside; `log_for` then gives one that was never written."""
        self._check_open()
        log = self._logs.get(topic, {}).pop(partition, None)
        if log is not None:
            log.abandon()
        self._checkpoints.forget(topic_id, partition)
        if os.path.exists(self.partition_path(topic, partition)):
            self._set_aside(topic, topic_id, partition)

    # Topics that go --------------------------------------------------------------------------

    def delete_topic(self, topic: str, topic_id: TopicId) -> None:
        """Take a topic's files out of use at once; `removable` tells when they may be removed."""
        self._check_open()
        for log in self._logs.pop(topic, {}).values():
            log.abandon()
        self._checkpoints.forget(topic_id, None)
        self._retire_topic(topic, topic_id, names.DELETE_SUFFIX)

    def set_aside_unknown(self, topics: Mapping[str, TopicId]) -> list[str]:
        """Set aside the files of every topic that is not among all that exist; their names.

        Only after a full, fresh reading of the cluster's metadata.
        """
        unknown = [
            topic
            for name in os.listdir(self.path)
            if os.path.isdir(f"{self.path}/{name}") and names.is_topic(name)
            if (topic := names.topic_of(name)) not in topics
        ]
        for topic in unknown:
            self._retire_topic(topic, None, names.STRAY_SUFFIX)
        return unknown

    def _retire_topic(self, topic: str, topic_id: TopicId | None, suffix: str) -> None:
        path = f"{self.path}/{names.directory_of(topic)}"
        aside = names.set_aside_path(self.path, topic, topic_id, suffix)
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return  # none of its partitions was ever written
        except OSError as error:
            refuse(error, f"{path}: cannot be set aside")
        self._aside[aside] = None

    def removable(self, now_ms: int, delete_delay_ms: int = DELETE_DELAY_MS) -> list[str]:
        """Files and directories to be removed now, by `remove_tree` in a thread. Given once. By a clock that only grows."""
        paths = [path for log in self.logs() for path in log.removable(now_ms)]
        for path, since_ms in list(self._aside.items()):
            delay_ms = delete_delay_ms if path.endswith(names.DELETE_SUFFIX) else STRAY_DELAY_MS
            if since_ms is None:
                self._aside[path] = now_ms
            elif now_ms - since_ms >= delay_ms and not self._is_needed(path):
                paths.append(path)
                del self._aside[path]
        return paths

    def _is_needed(self, aside: str) -> bool:
        """Whether entries of the old log may be on the disk: only this name tells them from new ones."""
        log = names.log_aside(os.path.basename(aside))
        return log is not None and self._checkpoints.may_name(log)

    # Checkpoints -----------------------------------------------------------------------------

    def checkpoint_begin(self, high_watermarks: checkpoints.Offsets) -> CheckpointTicket:
        """What to write down now. Then `ticket.write()` in a thread, then `checkpoint_end(ticket)`."""
        revision = self.store_revision if self.store_revision != self._saved_revision else None
        logs = [log for log in self.logs() if log.segments]
        return self._checkpoints.begin(logs, high_watermarks, revision)

    def checkpoint_end(self, ticket: CheckpointTicket) -> None:
        if not self._checkpoints.end(ticket):
            return
        if ticket.store_revision is not None:
            self._saved_revision = ticket.store_revision
        for log, truncations, start_offset in ticket.logs:
            log.checkpointed(truncations, start_offset)

    # The end ---------------------------------------------------------------------------------

    def stop_writes(self) -> None:
        """Reject every change of a log from now on, and open no other log.

        Call it on the event loop before `close` runs in a thread: then no append is halfway when a log is sealed.
        """
        self._is_closing = True
        for log in self.logs():
            log.stop_writes()

    def _check_open(self) -> None:
        if self._is_closing:
            raise BrokerError(
                f"{self.path} is being closed: the broker is stopping",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )

    def close(self, high_watermarks: checkpoints.Offsets = MappingProxyType({})) -> None:
        """Make everything durable, and say so: the next run need not check it. Waits for the disk."""
        self.stop_writes()
        try:
            self._close_logs()
            ticket = self.checkpoint_begin(high_watermarks)
            ticket.write()
            self.checkpoint_end(ticket)
            self._checkpoints.write_sizes(self.logs())
            markers.write_clean(self.path, self._run, self._seen(), self._disk)
        except BaseException as error:
            if isinstance(error, StorageFault):
                with suppress(StorageFault, BrokerError):
                    self.note_failed()
            self.abandon()
            raise
        os.close(self._lock_fd)

    def _close_logs(self) -> None:
        """Many at a time: the disk makes one journal entry of syncs that come together."""
        waiting = deque(self.logs())
        with DaemonThreads(_CLOSING_THREADS, "close") as threads:
            while waiting:
                begun = self._begin_to_close(waiting)
                tried = threads.map(lambda it: _is_synced(it[1]), begun)
                for (log, ticket), is_synced in zip(begun, list(tried), strict=True):
                    if not is_synced:  # no descriptor was left; now those of the others are free
                        self.files.close_all()
                        ticket.sync()
                    log.close_end(ticket)

    def _begin_to_close(self, waiting: deque[Log]) -> list[tuple[Log, FlushTicket]]:
        """Take as many logs from the front as there are descriptors for; each holds a few until it is synced."""
        begun: list[tuple[Log, FlushTicket]] = []
        together = min(_CLOSED_TOGETHER, max(self.files.limit // _FILES_OF_A_LOG, 1))
        while waiting and len(begun) < together:
            try:
                ticket = waiting[0].close_begin()
            except OutOfResources:
                if begun:
                    break
                self.files.close_all()
                ticket = waiting[0].close_begin()
            log = waiting.popleft()
            if ticket is not None:
                begun.append((log, ticket))
        return begun

    def abandon(self) -> None:
        """Let go of the directory as it is, as a crash would: after the disk has failed."""
        for log in self.logs():
            log.abandon()
        os.close(self._lock_fd)

    def _seen(self) -> list[str] | None:
        """Logs that are known to be whole; None: all of them."""
        last = self.last_run
        if last.seen is None:
            return None
        opened = {markers.log_name(log.topic_id, log.partition) for log in self.logs()}
        return sorted(opened | last.seen)


def _is_synced(ticket: FlushTicket) -> bool:
    """Sync it; False if a lack of descriptors came in between, so that it has to be tried again."""
    try:
        ticket.sync()
    except OutOfResources:
        return False
    return True


def remove_tree(path: str) -> None:
    """Remove a file or a directory that `removable` named. For a thread."""
    try:
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        refuse(error, f"{path}: cannot be removed")


def _new_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
