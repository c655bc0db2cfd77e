"""Decide which jobs may write a table, so that no two of them write the same record to it.

A topic of a cluster belongs to one lake job. A table belongs to lake jobs or to replays. All lake
jobs of a table write it in the same format.

A job claims its place in the table's book: numbered files, each created only if absent, by a job
that has read all files before it. So of two jobs that start at the same time one is rejected and
leaves nothing behind. A job that was killed after its claim is accepted when it starts again. Jobs
of a Penstock without a book count if they have a batch in the table.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.spark.errors import JobError
from penstock.spark.jobs.files import Files, LocalFiles
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table.layout import CLAIMS, REPLAY, STATE, Layout

JOB: Final = "job.json"  # a lake's
RANGE: Final = "range.json"  # a replay's
Facts = Mapping[str, Any]  # what a lake job says of itself
_ALIKE: Final = ("format", "partition_by")
_RAW: Final = "raw"  # values are bytes; else they are structs, whose fields readers can merge


# The book ----------------------------------------------------------------------------------------


class Claim(NamedTuple):
    job: str  # the name of its directory
    lake: Facts | None  # None: a replay's


class Book(NamedTuple):
    claims: tuple[Claim, ...]
    next_number: int


def read_book(table: str, files: Files) -> Book:
    place = _book(table)
    numbers = manifests.numbers(files.names(place))
    found = [json.loads(files.read(f"{place}/{manifests.name(number)}")) for number in numbers]
    return Book(
        tuple(Claim(facts["job"], facts["lake"]) for facts in found),
        numbers[-1] + 1 if numbers else 0,
    )


def sign(files: Files, table: str, claim: Claim, refuse: Callable[[Book], bool]) -> None:
    """`refuse`: JobError if there is no place for the claim beside those of the book; whether it is needed at all."""
    while True:
        book = read_book(table, files)
        if not refuse(book):
            return
        path = f"{_book(table)}/{manifests.name(book.next_number)}"
        if files.create(path, json.dumps(claim._asdict(), indent=1) + "\n"):
            return  # else another has that number: its claim must be read


def _book(table: str) -> str:
    return f"{table}/{STATE}/{CLAIMS}"


# Who writes --------------------------------------------------------------------------------------


def owner_of(table: str, files: Files | None = None) -> str | None:
    """The name of a lake job that writes the table; None if there is none.

    For other jobs that write files to a directory, such as `replay`: they must leave the table of a lake alone.
    `files`: needed where the table is not on this machine.
    """
    files = files or LocalFiles()
    return next(iter(jobs_of(table, files, read_book(table, files))), None)


def jobs_of(table: str, files: Files, book: Book) -> dict[str, list[Facts]]:
    """What each lake job said of itself when it first came, by name; all that it said, if it was killed soon after."""
    claimed = {claim.job for claim in book.claims if claim.lake is not None}
    found: dict[str, list[Facts]] = {}
    for name in sorted(claimed | {*_who(table, JOB, files)}):
        path = f"{table}/{STATE}/{name}/{JOB}"
        if not files.exists(path):
            found[name] = [claim.lake for claim in book.claims if claim.job == name and claim.lake]
        elif name in claimed or has_batches(files, table, name):
            found[name] = [json.loads(files.read(path))]
    return found


def replays_of(table: str, files: Files, book: Book) -> list[str]:
    """The ids of the replays that wrote to the table, or are about to."""
    claimed = {claim.job for claim in book.claims if claim.lake is None}
    return [name.removeprefix(REPLAY) for name in sorted(claimed | {*_who(table, RANGE, files)})]


def _who(table: str, wrote: str, files: Files) -> list[str]:
    state = f"{table}/{STATE}"
    return [name for name in files.names(state) if files.exists(f"{state}/{name}/{wrote}")]


def has_batches(files: Files, table: str, job: str) -> bool:
    return bool(manifests.numbers(files.names(Layout(table, "", job).manifests)))


# Who may write -----------------------------------------------------------------------------------


def sign_as_replay(files: Files, layout: Layout) -> None:
    """JobError for the table of a lake job, which does not know what a replay writes: its records would be there twice."""
    claim = Claim(layout.job, None)

    def refuse(book: Book) -> bool:
        refuse_lake(layout.table, files, book)
        return claim not in book.claims

    sign(files, layout.table, claim, refuse)


def refuse_lake(table: str, files: Files, book: Book | None = None) -> None:
    """As `sign_as_replay`, but changes nothing. For --dry-run."""
    for owner in jobs_of(table, files, book or read_book(table, files)):
        raise JobError(
            f"{table} is the table of lake job {owner}: it has these records, or will have them, "
            "and a replay would add each once more; give another --table"
        )


def sign_as_lake(files: Files, layout: Layout, wanted: Facts) -> None:
    """JobError as from `refuse_strangers`."""
    claim = Claim(layout.job, wanted)
    sign(files, layout.table, claim, lambda book: refuse_strangers(files, layout, wanted, book))


def refuse_strangers(files: Files, layout: Layout, wanted: Facts, book: Book | None = None) -> bool:
    """Whether the job is new: has neither claimed this, nor any batch in the table. JobError if it is and has no place there."""
    book = book or read_book(layout.table, files)
    own = [claim.lake for claim in book.claims if claim.job == layout.job and claim.lake]
    is_begun = files.exists(f"{layout.state}/{JOB}")
    if is_begun and has_batches(files, layout.table, layout.job):
        return False  # even where two jobs came to write a topic, before there was a book
    if any(_covers(facts, wanted) for facts in own):
        return False
    if replays := replays_of(layout.table, files, book):
        raise JobError(_said_of_replay(layout, replays[0]))
    for name, said in jobs_of(layout.table, files, book).items():
        if name != layout.job:
            for facts in said:
                _refuse(layout, name, facts, wanted)
    return True


def _covers(claimed: Facts, wanted: Facts) -> bool:
    is_same = claimed.get("cluster") == wanted["cluster"] and not _unlike(claimed, wanted)
    return is_same and {*wanted["topics"]} <= {*claimed["topics"]}


def _refuse(layout: Layout, name: str, facts: Facts, wanted: Facts) -> None:
    both = sorted({*wanted["topics"]} & {*facts["topics"]})
    if both and facts.get("cluster") == wanted["cluster"]:
        raise JobError(_said(layout, name, facts["topics"], both))
    if unlike := _unlike(facts, wanted):
        raise JobError(_said_unlike(layout, name, facts, wanted, unlike[0]))


def _unlike(facts: Facts, wanted: Facts) -> list[str]:
    """What keeps two jobs from writing one table: directories of other names, or a column `value` of two types."""
    found = [name for name in _ALIKE if name in facts and facts[name] != wanted.get(name)]
    are_bytes = [facts.get("decode") == _RAW, wanted.get("decode") == _RAW]
    return found + ["decode"] * (len(set(are_bytes)) > 1)


def _said_of_replay(layout: Layout, replay: str) -> str:
    return (
        f"{layout.table} is the table of replay {replay!r}: a lake job knows nothing of the records that it has, and "
        "would add each once more; give another --table"
    )


def _said_unlike(layout: Layout, name: str, found: Facts, wanted: Facts, what: str) -> str:
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
