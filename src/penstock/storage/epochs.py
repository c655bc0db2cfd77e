"""Where each leader epoch begins in a log (KIP-101). A hint: every batch header carries its epoch too."""

from bisect import bisect_right
from typing import Final, NamedTuple

from penstock.storage import checksummed_json

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
_FORMAT: Final = "leader-epochs"


class EpochEnd(NamedTuple):
    """The largest epoch at or below the one asked for, and one past its last offset; -1, -1: unknown."""

    epoch: int
    end_offset: int


UNKNOWN_END: Final = EpochEnd(NO_EPOCH, NO_OFFSET)


class Epochs:
    """Epochs and their start offsets, both growing."""

    __slots__ = ("_epochs", "_starts", "changed", "latest", "log_start")

    def __init__(self, entries: list[tuple[int, int]] | None = None, log_start: int = 0) -> None:
        self.log_start = log_start  # below it epochs were forgotten; a gap there proves nothing
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_EPOCH
        self.changed = False  # since it was last written to its file
        for epoch, start_offset in entries or ():
            self.assign(epoch, start_offset)
        self.changed = False

    def __len__(self) -> int:
        return len(self._epochs)

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` begins at `start_offset`. What was noted for later epochs or offsets is void."""
        if epoch < 0 or epoch == self.latest:
            return
        while self._epochs and (self._epochs[-1] > epoch or self._starts[-1] >= start_offset):
            self._drop_last()
        if epoch != self.latest:
            self._epochs.append(epoch)
            self._starts.append(start_offset)
            self.latest = epoch
            self.changed = True

    def _drop_last(self) -> None:
        self._epochs.pop()
        self._starts.pop()
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        self.changed = True

    def epoch_at(self, offset: int) -> int:
        """The epoch in which `offset` was or will be written."""
        number = bisect_right(self._starts, offset) - 1
        return self._epochs[number] if number >= 0 else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """What OffsetForLeaderEpoch answers."""
        if not self._epochs or epoch < 0 or epoch > self.latest:
            return UNKNOWN_END
        if epoch == self.latest:
            return EpochEnd(epoch, log_end)
        number = bisect_right(self._epochs, epoch)
        if number == 0:
            return EpochEnd(epoch, self._starts[0])
        return EpochEnd(self._epochs[number - 1], self._starts[number])

    def truncate_end(self, next_offset: int) -> None:
        """Forget the epochs that begin at or after the new end of the log."""
        self.log_start = min(self.log_start, next_offset)
        while self._starts and self._starts[-1] >= next_offset:
            self._drop_last()

    def truncate_start(self, start_offset: int) -> None:
        """Forget the epochs that ended before the new start of the log."""
        number = bisect_right(self._starts, start_offset) - 1
        if number >= 0 and self._starts[0] < start_offset:
            del self._epochs[:number], self._starts[:number]
            self._starts[0] = self.log_start = start_offset
            self.changed = True

    def encode(self, truncated_to: int | None) -> bytes:
        """`truncated_to`: how far the log was truncated since its recovery point was last written."""
        content = {
            "epochs": self.entries(),
            "log_start": self.log_start,
            "truncated_to": truncated_to,
        }
        return checksummed_json.encode(_FORMAT, content)


def decode(data: bytes) -> tuple[Epochs, int | None]:
    """What `encode` was given; raises checksummed_json.Damaged."""
    content = checksummed_json.decode(_FORMAT, data)
    try:
        entries = [(int(epoch), int(start)) for epoch, start in content["epochs"]]
        truncated_to = content["truncated_to"]
        epochs = Epochs(entries, int(content.get("log_start", 0)))
        return epochs, None if truncated_to is None else int(truncated_to)
    except (KeyError, TypeError, ValueError) as error:
        raise checksummed_json.Damaged(f"{_FORMAT}: {error!r}") from error
