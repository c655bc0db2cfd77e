"""Which jobs write a table: no record is written to it by two, for the one knows nothing of what the other took.

So a topic of a cluster belongs to one lake job, a table to lake jobs or to replays; and all lake jobs of a table write it alike.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.spark.errors import JobError
from penstock.spark.jobs.lake_files import Files, LocalFiles
from penstock.spark.jobs.lake_layout import REPLAY, STATE, Layout

JOB: Final = "job.json"  # a lake's
RANGE: Final = "range.json"  # a replay's
_ALIKE: Final = ("format", "partition_by")
_RAW: Final = "raw"  # values are bytes; else they are structs, whose fields readers can merge


def owner_of(table: str, files: Files | None = None) -> str | None:
    """The name of a lake job that writes the table; None if there is none.

    For other jobs that write files to a directory, such as `replay`: they must leave the table of a lake alone.
    `files`: needed where the table is not on this machine.
    """
    return next(iter(jobs_of(table, files or LocalFiles())), None)


def jobs_of(table: str, files: Files) -> dict[str, dict[str, Any]]:
    """What each lake job said of itself when it first came, by name."""
    state = f"{table}/{STATE}"
    return {
        name: json.loads(files.read(f"{state}/{name}/{JOB}")) for name in _who(table, JOB, files)
    }


def replays_of(table: str, files: Files) -> list[str]:
    """The ids of the replays that wrote to the table."""
    return [name.removeprefix(REPLAY) for name in _who(table, RANGE, files)]


def _who(table: str, wrote: str, files: Files) -> list[str]:
    state = f"{table}/{STATE}"
    return [name for name in files.names(state) if files.exists(f"{state}/{name}/{wrote}")]


def refuse_strangers(files: Files, layout: Layout, wanted: Mapping[str, Any]) -> None:
    """JobError if another job writes one of the topics to the table, or if this one is new and has no place there."""
    jobs = jobs_of(layout.table, files)
    is_new = layout.job not in jobs
    if is_new and (replays := replays_of(layout.table, files)):
        raise JobError(_said_of_replay(layout, replays[0]))
    for name, facts in jobs.items():
        both = sorted({*wanted["topics"]} & {*facts["topics"]})
        if name != layout.job and facts.get("cluster") == wanted["cluster"] and both:
            raise JobError(_said(layout, name, facts["topics"], both))
        if is_new and (unlike := _unlike(facts, wanted)):
            raise JobError(_said_unlike(layout, name, facts, wanted, unlike[0]))


def _unlike(facts: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What keeps two jobs from writing one table: directories of other names, or a column `value` of two types."""
    found = [name for name in _ALIKE if name in facts and facts[name] != wanted.get(name)]
    are_bytes = [facts.get("decode") == _RAW, wanted.get("decode") == _RAW]
    return found + ["decode"] * (len(set(are_bytes)) > 1)


def _said_of_replay(layout: Layout, replay: str) -> str:
    return (
        f"{layout.table} is the table of replay {replay!r}: a lake job knows nothing of the records that it has, and "
        "would add each once more; give another --table"
    )


def _said_unlike(
    layout: Layout, name: str, found: Mapping[str, Any], wanted: Mapping[str, Any], what: str
) -> str:
    flag = "--" + what.replace("_", "-")
    return (
        f"{layout.table} is written by job {name} with {flag} {found.get(what)}, and nobody could read it as one table "
        f"with {flag} {wanted.get(what)}; give {flag} {found.get(what)}, or another --table"
    )


def _said(layout: Layout, name: str, topics: Sequence[str], both: Sequence[str]) -> str:
    return (
        f"{layout.table} has {', '.join(both)} from job {name}, and job {layout.job} would take it once more; "
        f"`lake {' '.join(topics)} --name {name}` continues that job; else leave {', '.join(both)} out, "
        "or give another --table"
    )
