"""What is to be written down of all logs at one moment: gathered in the event loop, written in a thread."""

from threading import Lock

from penstock.storage import checkpoints, markers
from penstock.storage.checkpoints import Checkpoint
from penstock.storage.files import Disk, OpenFiles
from penstock.storage.log import Log


class WriteOrder:
    """One ticket is written at a time, and none after a later one."""

    __slots__ = ("lock", "written")

    def __init__(self) -> None:
        self.lock = Lock()
        self.written = 0  # the number of the last ticket that was written to its end


class CheckpointTicket:
    """What `checkpoint_begin` gathered. Only `write` runs in a thread, and touches nothing else."""

    __slots__ = (
        "_disk",
        "_order",
        "_path",
        "_syncs",
        "files",
        "logs",
        "number",
        "store_revision",
    )

    def __init__(
        self,
        path: str,
        open_files: OpenFiles,
        order: WriteOrder,
        number: int,
        *,
        files: dict[str, Checkpoint],
        logs: list[tuple[Log, int, int]],
        store_revision: int | None,
    ) -> None:
        self._path = path
        self._disk: Disk = open_files.disk
        self._syncs = open_files.syncs
        self._order = order
        self.number = number  # later tickets have larger ones
        self.files = files
        self.logs = logs  # with their truncations and start offsets
        self.store_revision = store_revision

    def write(self) -> None:
        """Do nothing if a later ticket was written before: that one had all that this one has."""
        with self._order.lock:
            if self.number >= self._order.written:
                self._write()
                self._order.written = self.number

    def _write(self) -> None:
        for name, checkpoint in self.files.items():
            with self._syncs.of(f"{self._path}/{name}"):
                checkpoints.write(self._path, name, checkpoint, self._disk)
        if self.store_revision is not None:
            markers.write_store_revision(self._path, self.store_revision, self._disk)
