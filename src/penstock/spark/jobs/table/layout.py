"""Define the paths of a table: data in the table's directory, all else below `_penstock`.

Readers ignore `_penstock`.

TABLE/topic=orders/date=2026-11-15/<job>-00000017-0000.parquet       rows
TABLE_dead_letters/topic=orders/<job>-00000017-0000.parquet          records that failed to decode
TABLE/_penstock/<job>/manifests/0000000017.json                      one per batch
TABLE/_penstock/_claims/0000000002.json                              the jobs that write the table
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

STATE: Final = "_penstock"
CLAIMS: Final = "_claims"  # below it; no job has such a name
REPLAY: Final = "replay-"  # before the id of a replay, which makes the name of its job
DEAD_COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
    *("error", "job"),
)
_SHOWN_TOPICS: Final = 40


class Layout(NamedTuple):
    table: str
    dead_letters: str
    job: str

    @property
    def state(self) -> str:
        return f"{self.table}/{STATE}/{self.job}"

    @property
    def manifests(self) -> str:
        return f"{self.state}/manifests"

    @property
    def compactions(self) -> str:
        return f"{self.state}/compactions"

    @property
    def dead_compactions(self) -> str:
        return f"{self.dead_letters}/{STATE}/{self.job}/compactions"

    @property
    def queries(self) -> str:
        return f"{self.state}/queries"

    @property
    def schemas(self) -> str:
        return f"{self.state}/schemas"

    @property
    def start(self) -> str:
        return f"{self.state}/start.json"

    @property
    def checkpoint(self) -> str:
        """Unless another is given."""
        return f"{self.state}/checkpoint"

    def checkpoint_of(self, topics: Sequence[str]) -> str:
        """Of a job that has left others out: in the checkpoint that it had, those would be missed."""
        return f"{self.checkpoint}-{_digest(sorted(set(topics)))}"

    @property
    def staging(self) -> str:
        return f"{self.state}/staging"

    @property
    def dead_staging(self) -> str:
        """On the file system of the dead letters, so that a rename stays one."""
        return f"{self.dead_letters}/{STATE}/{self.job}/staging"


def default_dead_letters(table: str) -> str:
    return f"{table}_dead_letters"


def compacted_name(job: str, number: int, index: int) -> str:
    return f"{job}-c{number:08}-{index:04}.parquet"


def file_names(job: str) -> re.Pattern[str]:
    """Of the data that the job wrote, or compacted, and of no other's: neither number has a '-' in it."""
    return re.compile(rf"{re.escape(job)}-c?[0-9]+-[0-9]+\.parquet")


def default_name(table: str, topics: Sequence[str]) -> str:
    """The same for the same table and topics."""
    names = sorted(set(topics))
    return f"{'-'.join(names)[:_SHOWN_TOPICS]}-{_digest([table, *names])}"


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
