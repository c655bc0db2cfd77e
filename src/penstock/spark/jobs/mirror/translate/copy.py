"""Copy records to a target that assigns other offsets.

This module finds what is due and runs the transactions that copy it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.client import admin
from penstock.client.pool import Pool
from penstock.client.raw_transactions import Session
from penstock.model.ids import TopicPartition
from penstock.records.compression import Codec
from penstock.spark.errors import JobError, explain
from penstock.spark.jobs.chunks import next_chunk
from penstock.spark.jobs.mirror.copy import Done
from penstock.spark.jobs.mirror.divergence import (
    LOST,
    at_once,
    check_marks,
    joined_marks,
    new_marks,
    reader,
)
from penstock.spark.jobs.mirror.options import MirrorOptions
from penstock.spark.jobs.mirror.rounds import Translated
from penstock.spark.jobs.mirror.topics import Link
from penstock.spark.jobs.mirror.translate import reproduce
from penstock.spark.jobs.mirror.translate.link_log import OpenLink
from penstock.spark.jobs.mirror.translate.links import (
    Copy,
    Entry,
    LinkState,
    dead_entries,
    map_entries,
)
from penstock.spark.jobs.mirror.translate.reproduce import Wires, Wrote
from penstock.spark.offsets import Offsets
from penstock.spark.options import parse_shape
from penstock.spark.progress import Progress
from penstock.spark.survey import Ranges, ask
from penstock.spark.transactional import OVERDUE

_SOURCE_SAYS: Final = "set the option failOnDataLoss to false"
_WE_SAY: Final = "give --allow-data-loss"
_DEAD_AT_ONCE: Final = 1_000
_ATTEMPTS: Final = 10  # a new leader may not know at once how far it may tell
_PAUSE_S: Final = 0.5


class Where(NamedTuple):
    """A partition that is copied, and what the source says of it."""

    source: TopicPartition
    copy: Copy
    source_topic_id: bytes
    earliest: int
    decided: int  # up to where all transactions have ended
    latest: int

    @property
    def target(self) -> TopicPartition:
        return TopicPartition(self.copy.topic, self.copy.partition)


def find_places(
    options: MirrorOptions,
    link: Link,
    topic_ids: Mapping[str, bytes],
    state: LinkState,
    *,
    check_idle: bool,
) -> list[Where]:
    """JobError: the source has lost what comes next, or what is copied already.

    `check_idle`: also check partitions that have nothing to copy. `Copying` checks the others.
    """
    found = ask(options.bootstrap, partial(_asked, link, topic_ids))
    for _ in range(_ATTEMPTS):
        if all((state.position(where.copy) or 0) <= where.decided for where in found):
            break
        time.sleep(_PAUSE_S)
        found = ask(options.bootstrap, partial(_asked, link, topic_ids))
    for where in found:
        _check(where, state.position(where.copy), allow_loss=options.allow_data_loss)
    if check_idle:
        idle = [where for where in found if state.position(where.copy) == where.decided]
        ask(options.bootstrap, lambda pool: _check_known(pool, idle, state))
    return found


async def _check_known(source: Pool, places: Iterable[Where], state: LinkState) -> None:
    """Raise JobError if the source has other records than those that were copied."""
    await at_once(
        check_marks(
            reader(source, where.source),
            state.marks(where.copy),
            where.earliest,
            (where.source, where.target),
        )
        for where in places
    )


async def _asked(link: Link, topic_ids: Mapping[str, bytes], source: Pool) -> list[Where]:
    places = {
        TopicPartition(pair.source, n): pair for pair in link.pairs for n in range(pair.partitions)
    }
    earliest = await admin.list_offsets(source, dict.fromkeys(places, admin.EARLIEST))
    latest = await admin.list_offsets(source, dict.fromkeys(places, admin.LATEST))
    decided = await admin.list_offsets(
        source, dict.fromkeys(places, admin.LATEST), read_committed=True
    )
    return [
        Where(
            place,
            Copy(pair.target, topic_ids[pair.target].hex(), place.partition),
            pair.source_topic_id,
            earliest[place].offset,
            decided[place].offset,
            latest[place].offset,
        )
        for place, pair in places.items()
    ]


def _check(where: Where, position: int | None, *, allow_loss: bool) -> None:
    if position is None:
        return
    if position > where.decided:
        raise JobError(
            f"{where.target} has what {where.source} had up to offset {position}, and that ends at {where.decided}: "
            f"{LOST} copy has; promote the copy to keep its records, or delete it at the target to begin anew"
        )
    if position < where.earliest and not allow_loss:
        raise JobError(
            f"{where.source} begins at offset {where.earliest} now, and was copied up to {position}: retention "
            "was faster than the job; to go on with a gap, give --allow-data-loss"
        )


class Copying:
    """Of what a round found to be due."""

    def __init__(
        self,
        session: Any,
        options: MirrorOptions,
        progress: Progress,
        ids: tuple[str, str],
        link: OpenLink,
        places: Sequence[Where],
    ) -> None:
        self._session = session
        self._options = options
        self._progress = progress
        self._ids = ids
        self._link = link
        self._places = {where.source: where for where in places}
        self._wrote: list[Wrote] = []
        self.told = Translated()

    def run(self) -> None:
        """Until the target has all that was decided when the round began."""
        while self._due()[1]:
            self._link.begin()  # whoever wrote since then is shut out, and what it wrote is known now
            self._check_claims()
            start, end = self._due()
            if end:
                marks = self._marks(end)
                self._link.commit(partial(self._work, start, end, marks))
                self.told = self.told._replace(transactions=self.told.transactions + 1)

    def done(self) -> list[Done]:
        return [
            Done(
                self._places[wrote.source].target,
                self.position(self._places[wrote.source]),
                wrote.batches,
                wrote.records,
                wrote.size_bytes,
            )
            for wrote in self._wrote
        ]

    def position(self, where: Where) -> int:
        """Up to where the target has it."""
        found = self._link.state.position(where.copy)
        return where.earliest if found is None else max(found, where.earliest)

    def _due(self) -> tuple[Offsets, Offsets]:
        at = {place: self.position(where) for place, where in self._places.items()}
        after = {place: where.decided for place, where in self._places.items()}
        return next_chunk(at, after, self._options.batch_records)

    def _marks(self, end: Offsets) -> dict[TopicPartition, dict[int, int]]:
        """Check that the source is the log that was copied, and return the marks for the next check.

        The order matters. A source that loses its tail before the new marks are taken fails this check; one that does
        so later fails the next one, whichever records the tasks have read.
        """
        state, found = self._link.state, dict[TopicPartition, dict[int, int]]()

        async def take(source: Pool, place: TopicPartition, next_offset: int) -> None:
            where = self._places[place]
            new = await new_marks(reader(source, place), where.earliest, next_offset)
            found[place] = joined_marks(state.marks(where.copy), new)

        async def question(source: Pool) -> None:
            await at_once(take(source, place, offset) for place, offset in end.items())
            await _check_known(source, [self._places[place] for place in end], state)

        ask(self._options.bootstrap, question)
        return found

    def _check_claims(self) -> None:
        for topic in {where.copy.topic for where in self._places.values()}:
            claim = self._link.state.claims.get(topic)
            if claim is None or claim.is_promoted:
                raise JobError(f"{topic!r} was promoted meanwhile: nothing more is copied to it")

    def _work(
        self,
        start: Offsets,
        end: Offsets,
        marks: Mapping[TopicPartition, Mapping[int, int]],
        session: Session,
    ) -> list[Entry]:
        options = self._options
        wires = Wires(
            session,
            options.target,
            *self._ids,
            Codec[options.compression.upper()],
            {place: self._places[place].target for place in start},
        )
        wrote = self._sent(wires, Ranges(self._ids[0], start, end))
        rows = {one.source: one.rows for one in wrote}
        entries: list[Entry] = []
        for place, next_offset in end.items():
            copy = self._places[place].copy
            known = rows.get(place, ())
            entries += map_entries(self._link.state, copy, known, next_offset, marks[place])
        entries += dead_entries(self._link.state, self._starts(), at_most=_DEAD_AT_ONCE)
        self._wrote += wrote
        self.told = self.told._replace(
            returned=self.told.returned + sum(one.returned for one in wrote),
            rows=self.told.rows + sum(len(one.rows) for one in wrote),
        )
        return entries

    def _starts(self) -> dict[Copy, int]:
        wheres = list(self._places.values())
        wanted = dict.fromkeys((where.target for where in wheres), admin.EARLIEST)
        found = ask(self._options.target, lambda pool: admin.list_offsets(pool, wanted))
        return {where.copy: found[where.target].offset for where in wheres}

    def _sent(self, wires: Wires, ranges: Ranges) -> list[Wrote]:
        try:
            with self._progress.tasks(self._session, f"copying {ranges.offsets:,} offsets"):
                return send_all(self._session, source_options(self._options, ranges), wires)
        except Exception as error:
            said = explain(error)
            if _SOURCE_SAYS in said:
                raise JobError(said.replace(_SOURCE_SAYS, _WE_SAY)) from error
            if OVERDUE in said:
                raise JobError(said) from error
            raise


def source_options(options: MirrorOptions, ranges: Ranges) -> dict[str, str]:
    return {
        **ranges.source_options(options.bootstrap),
        "columns": reproduce.COLUMNS,
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "false" if options.allow_data_loss else "true",
    }


def send_all(session: Any, source: Mapping[str, str], wires: Wires) -> list[Wrote]:
    """One task reads and writes each partition, so no row changes its place, and none goes through the JVM."""
    from penstock.spark.rows import schema_of
    from penstock.spark.source import BatchReader

    reader = BatchReader(source, schema_of(parse_shape(source)))
    parts = reader.partitions()
    tasks = session.sparkContext.parallelize(parts, len(parts))
    reports = tasks.mapPartitions(partial(reproduce.in_task, wires, reader.read)).collect()
    return [reproduce.parse_report(report) for report in reports]
