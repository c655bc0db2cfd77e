"""A broker's data directory: one process at a time, and how its last run ended.

Every file here is replaced whole and durably. A damaged one is treated as lost, never as empty.
"""

import fcntl
import os
from typing import Final

from penstock.model.configs import TopicConfig
from penstock.model.errors import StorageFault
from penstock.model.ids import TopicId, format_topic_id
from penstock.storage.files import OPEN_FILES_LIMIT, OpenFiles
from penstock.storage.log import Log
from penstock.storage.opening import open_log
from penstock.storage.recovery import Ending, Past

_LOCK: Final = "lock"


class DataDirectory:
    """Owns the logs of one broker. The event loop is its only caller, but for what says otherwise."""

    def __init__(self, path: str, *, open_files_limit: int = OPEN_FILES_LIMIT) -> None:
        self.path = path
        self.files = OpenFiles(open_files_limit)
        self._logs: dict[str, dict[int, Log]] = {}
        os.makedirs(path, exist_ok=True)
        self._lock_fd = _lock(path)
        self.ending = Ending.PROCESS_CRASH
        self.id = format_topic_id(TopicId(os.urandom(16)))

    def log_for(self, topic: str, topic_id: TopicId, partition: int, config: TopicConfig) -> Log:
        """The log of a partition, opened and recovered at first use."""
        logs = self._logs.setdefault(topic, {})
        log = logs.get(partition)
        if log is None:
            log = logs[partition] = open_log(
                self.files,
                f"{self.path}/{topic}",
                partition,
                topic_id,
                config,
                Past(self.ending, 0, None),
            )
        return log

    def delete_topic(self, topic: str, topic_id: TopicId) -> None:
        """Take a topic's files out of use at once; they are removed later."""
        for log in self._logs.pop(topic, {}).values():
            log.close()
        path = f"{self.path}/{topic}"
        if os.path.exists(path):
            os.rename(path, f"{self.path}/{topic[:200]}.{format_topic_id(topic_id)}-delete")

    def close(self) -> None:
        for logs in self._logs.values():
            for log in logs.values():
                log.close()
        os.close(self._lock_fd)


def _lock(path: str) -> int:
    fd = os.open(f"{path}/{_LOCK}", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise StorageFault(
            f"{path} is in use by another broker (process {holder}); give this one its own directory"
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
