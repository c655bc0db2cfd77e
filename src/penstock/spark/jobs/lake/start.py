"""Determine the offsets from which a lake job starts to read, and claim its place in the table.

The job continues after the records that the table has. For other partitions the options decide.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.files import Files
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table.batches import Origin, Storage
from penstock.spark.jobs.table.layout import Layout, default_dead_letters
from penstock.spark.jobs.table.owner import JOB, has_batches, refuse_strangers, sign_as_lake
from penstock.spark.jobs.topic_ids import Ids, changed_ids, check_ids, hold_ids
from penstock.spark.survey import Ranges, offsets_json

_EARLIEST: Final = -2


def starting_offsets(storage: Storage, ranges: Ranges, *, whole: bool, new_only: bool) -> str:
    """For Spark's first batch; afterwards its checkpoint knows. `whole`: all that the topics have."""
    begin: dict[TopicPartition, int] = dict.fromkeys(ranges.first, _EARLIEST)
    if not whole:
        wanted = ranges.after if new_only else ranges.readable_first
        begin |= _once(storage.files, storage.layout, wanted)
    last = storage.last()
    if last is not None:
        begin |= manifests.next_offsets(last.covered)
    return offsets_json({place: begin[place] for place in ranges.first})


def _once(
    files: Files, layout: Layout, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """`latest` and times are looked up by the first run only: one that is killed early must not skip anything."""
    files.create(layout.start, offsets_json(wanted) + "\n")
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in json.loads(files.read(layout.start)).items()
        for partition, offset in partitions.items()
    }


class Numbers:
    """Batches of one checkpoint after another get numbers of one sequence."""

    def __init__(self, storage: Storage, checkpoint: str, checkpoint_files: Files) -> None:
        self._storage = storage
        self._checkpoint = checkpoint
        self._files = checkpoint_files
        self._query: str | None = None
        self._first = 0

    def number(self, batch: int) -> tuple[int, Origin]:
        if self._query is None:
            self._query = json.loads(self._files.read(f"{self._checkpoint}/metadata"))["id"]
            self._first = self._first_number(self._query)
        origin = Origin(self._query, batch, self._planned_end(batch), self._checkpoint)
        return self._first + batch, origin

    def _first_number(self, query: str) -> int:
        files, path = self._storage.files, f"{self._storage.layout.queries}/{query}.json"
        if not files.exists(path):
            last = self._storage.last()
            files.create(path, json.dumps({"first": last.number + 1 if last else 0}) + "\n")
        return int(json.loads(files.read(path))["first"])

    def _planned_end(self, batch: int) -> str | None:
        """The last line of what Spark wrote before it began the batch; None if it is no such thing."""
        path = f"{self._checkpoint}/offsets/{batch}"
        if not self._files.exists(path):
            return None
        line = self._files.read(path).strip().splitlines()[-1]
        try:
            planned = json.loads(line)
        except ValueError:
            return None
        return json.dumps(planned, sort_keys=True) if isinstance(planned, dict) else None


def claim_table(files: Files, layout: Layout, identity: Mapping[str, Any]) -> dict[str, Any]:
    """A name in a table belongs to one job, and so does a topic; another is refused. What the job said when it first came."""
    claimed(files, layout, identity)  # nothing is claimed by a job that is not what it was
    sign_as_lake(files, layout, identity)
    files.create(_job(layout), json.dumps(identity, indent=1) + "\n")
    found: dict[str, Any] = json.loads(files.read(_job(layout)))
    _compare(files, layout, _moved(layout, found), identity)
    return found


def claimed(files: Files, layout: Layout, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """As `claim_table`, but changes nothing; None if the name is new in the table. For --dry-run, and before all that may fail."""
    refuse_strangers(files, layout, identity)
    if not files.exists(_job(layout)):
        return None
    found: dict[str, Any] = json.loads(files.read(_job(layout)))
    _compare(files, layout, _moved(layout, found), identity)
    return found


def _job(layout: Layout) -> str:
    return f"{layout.state}/{JOB}"


def _moved(layout: Layout, found: Mapping[str, Any]) -> dict[str, Any]:
    """A table is where it is now: whoever moved the directory moved its jobs, and the dead letters that are beside it."""
    was, dead = found.get("table", layout.table), found.get("dead_letters")
    if dead == default_dead_letters(was):
        dead = default_dead_letters(layout.table)
    return {**found, "table": layout.table, "dead_letters": dead}


def _compare(
    files: Files, layout: Layout, found: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    """A job may leave out topics that it had, and change nothing else."""
    is_less = {*wanted["topics"]} <= {*found["topics"]}
    differences = [
        f"{name} {found.get(name)!r} instead of {wanted.get(name)!r}"
        for name in sorted({*found, *wanted})
        if found.get(name) != wanted.get(name) and not (name == "topics" and is_less)
    ]
    if not differences:
        return
    shares = found.get("cluster") == wanted["cluster"] and {*wanted["topics"]} & {*found["topics"]}
    advice = "give what it had, or another " + ("--table" if shares else "--name or --table")
    if not has_batches(files, layout.table, layout.job):
        advice += f"; it has written nothing yet: unless a run of it is at work, delete {layout.state} to begin it anew"
    raise JobError(
        f"{layout.table} was written by a job {layout.job} with {', '.join(differences)}; {advice}"
    )


# Topics that are not what they were ----------------------------------------------------------------


def hold_topics(files: Files, layout: Layout, topics: Sequence[str], ids: Ids) -> None:
    """JobError if a topic was created again since the job read it."""
    hold_ids(files, layout.state, ids, _remedy(files, layout, topics, ids))


def check_topics(files: Files, layout: Layout, topics: Sequence[str], ids: Ids) -> None:
    """As `hold_topics`, but changes nothing."""
    check_ids(files, layout.state, ids, _remedy(files, layout, topics, ids))


def _remedy(files: Files, layout: Layout, topics: Sequence[str], ids: Ids) -> str:
    left = sorted({*topics} - changed_ids(files, layout.state, ids).keys())
    without = (
        f"; `lake {' '.join(left)} --name {layout.job}` goes on with the others" if left else ""
    )
    return f"give another --table for the new one{without}"
