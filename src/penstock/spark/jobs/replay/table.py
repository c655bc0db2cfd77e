"""Write a replay to Parquet files: the batches of the table are the chunks of the replay.

The offsets that the first run decided are stored beside the table's manifests.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.spark.jobs.files import open_files
from penstock.spark.jobs.record_times import folder_date, times_of
from penstock.spark.jobs.replay.range import Decided, Piece, kept
from penstock.spark.jobs.table.batches import Batches, Origin, Storage
from penstock.spark.jobs.table.decode import RawDecoder
from penstock.spark.jobs.table.layout import REPLAY, Layout, default_dead_letters
from penstock.spark.jobs.table.manifest import Manifest
from penstock.spark.jobs.table.owner import RANGE, sign_as_replay
from penstock.spark.offsets import from_json, to_json

_FOLDERS: Final = ("topic", "date")


class Table:
    """Used by one thread."""

    def __init__(self, session: Any, place: str, id: str) -> None:
        layout = Layout(place, default_dead_letters(place), f"{REPLAY}{id}")
        files = open_files(place, session)
        self._storage = Storage(layout, files, files)
        self._batches = Batches(session, self._storage, RawDecoder(), _FOLDERS, _by_day, _nothing)
        self._id = id

    @property
    def rows(self) -> int:
        return self._batches.totals.rows

    @property
    def batches(self) -> int:
        return self._batches.totals.batches

    def decide(
        self, what: Decided, asked: Sequence[Piece], *, cluster_id: str, most: int
    ) -> tuple[Decided, int]:
        """What the first run found, which may be this one; and how many offsets a chunk of it has.

        JobError for the table of a lake job.
        """
        files, path = self._storage.files, f"{self._storage.layout.state}/{RANGE}"
        sign_as_replay(files, self._storage.layout)
        facts = {
            "cluster": cluster_id,
            "wish": what.wish,
            "first": to_json(what.first),
            "after": to_json(what.after),
            "batch_records": most,
            "topic_ids": dict(what.topic_ids),
            **what.times.facts,
        }
        files.create(path, json.dumps(facts, indent=1) + "\n")
        found = json.loads(files.read(path))
        first, after = from_json(found["first"]), from_json(found["after"])
        self._batches.recover()
        ids = found.get("topic_ids", {})  # none: an earlier version
        what = kept(found["wish"], first, after, asked, times_of(found), ids)
        return what, int(found["batch_records"])

    def has(self, number: int) -> bool:
        return self._storage.find(number) is not None

    def take(self, records: Callable[[], Any], number: int) -> None:
        """Only what is not there yet is read."""
        manifest = self._storage.find(number)
        if manifest is not None:
            self._batches.publish(manifest)
        else:
            origin = Origin(f"replay {self._id}", number, None, self._storage.layout.state)
            self._batches.take(records(), number, origin)


def _by_day(rows: Any, folders: tuple[str, ...]) -> Any:
    assert folders == _FOLDERS
    return rows.withColumn("date", folder_date())


def _nothing(manifest: Manifest) -> None:
    """A directory of Parquet files is a table when the files are there."""
