"""Run the rounds of a mirror job and report on them.

This is the same for mirrors that keep offsets and for mirrors that translate them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError, explain
from penstock.spark.job import Summary
from penstock.spark.jobs.mirror.actions import now_ms
from penstock.spark.jobs.mirror.copy import Done, Span
from penstock.spark.jobs.mirror.groups import Copied
from penstock.spark.jobs.mirror.lag import Behind, Lag, lag_of, record_sizes
from penstock.spark.jobs.mirror.options import MirrorOptions
from penstock.spark.jobs.mirror.topics import Ends, Link
from penstock.spark.progress import Progress
from penstock.spark.survey import ask

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0


class Translated(NamedTuple):
    """More to tell where offsets are translated."""

    transactions: int = 0
    returned: int = 0  # records that came from the target
    rows: int = 0  # of the map


class Round(NamedTuple):
    """What one pass over all topics did."""

    link: Link
    done: list[Done]
    groups: Copied | None
    lag: Lag
    translated: Translated | None = None


class Totals:
    def __init__(self) -> None:
        self.rounds = self.batches = self.records = self.size_bytes = 0
        self.translated: Translated | None = None
        self.last: Round | None = None

    def add(self, this: Round) -> None:
        self.rounds += 1
        self.batches += sum(done.batches for done in this.done)
        self.records += sum(done.records for done in this.done)
        self.size_bytes += sum(done.size_bytes for done in this.done)
        if this.translated is not None:
            pairs = zip(self.translated or Translated(), this.translated, strict=True)
            self.translated = Translated(*(before + now for before, now in pairs))
        self.last = this

    def line(self) -> str:
        behind = "" if self.last is None else f", {self.last.lag.line()}"
        return f"{self.records:,} records ({self.size_bytes / 1e6:,.1f} MB) copied{behind}"


def ask_both(options: MirrorOptions, question: Any) -> Any:
    """`question` is asked with both ends."""

    async def at_source(source: Pool) -> Any:
        async with Pool(options.target, client_id="penstock-mirror") as target:
            return await question(Ends(source, target))

    return ask(options.bootstrap, at_source)


def plan_facts(options: MirrorOptions, link: Link) -> dict[str, Any]:
    return {
        "job": "mirror",
        "action": options.action,
        "translate": options.translate,
        "source": link.source_id,
        "target": link.target_id,
        "topics": {pair.source: pair.target for pair in link.pairs},
        "to_do": list(link.to_do),
        "skipped": list(link.skipped),
    }


def pair_names(link: Link) -> str:
    return ", ".join(
        pair.source if pair.source == pair.target else f"{pair.source} as {pair.target}"
        for pair in link.pairs
    )


def measured(
    options: MirrorOptions,
    spans: Sequence[Span],
    ends: Mapping[TopicPartition, int],
    in_step_at_ms: Mapping[TopicPartition, int],
) -> Lag:
    """What the source has by now, and the mirrors do not. A source that is gone by now has what it had.

    By partitions of the target: up to where it has the source's records, and when it had all.
    """
    places = [span.source for span in spans]

    async def look(source: Pool) -> tuple[dict[TopicPartition, int], dict[TopicPartition, float]]:
        latest = await admin.list_offsets(source, dict.fromkeys(places, admin.LATEST))
        found = {place: at.offset for place, at in latest.items()}
        return found, await record_sizes(source, {}, found)

    sizes: dict[TopicPartition, float] | None = None
    now = {span.source: span.end for span in spans}
    is_live = False
    try:
        now, sizes = ask(options.bootstrap, look)
        is_live = True
    except ClientError:
        pass
    rows = [
        Behind(s.source, s.target, now[s.source], ends[s.target], in_step_at_ms[s.target])
        for s in spans
    ]
    return lag_of(rows, sizes, now_ms(), is_live=is_live)


def follow(
    one_round: Callable[[], Round], options: MirrorOptions, progress: Progress, totals: Totals
) -> None:
    """Until Ctrl-C. What may be different next time is tried again; a JobError is not."""
    worked_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
    try:
        while True:
            begun_s = time.monotonic()
            try:
                totals.add(one_round())
            except JobError:
                raise
            except Exception as error:
                if time.monotonic() - worked_s > options.patience / 1000:
                    raise
                progress.say(f"it goes on when it can: {explain(error)}")
                progress.pause(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            worked_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
            progress.show(totals.line())
            progress.pause(max(0.0, begun_s + options.every / 1000 - time.monotonic()))
    except KeyboardInterrupt:
        if totals.last is None:
            raise


def summary(options: MirrorOptions, totals: Totals, seconds: float) -> Summary:
    last = totals.last
    assert last is not None, "a run that ends well has copied"
    link, groups = last.link, last.groups
    facts = {
        "job": "mirror",
        "action": options.action,
        "source": link.source_id,
        "target": link.target_id,
        "topics": {pair.source: pair.target for pair in link.pairs},
        "skipped": list(link.skipped),
        "rounds": totals.rounds,
        "batches": totals.batches,
        "records": totals.records,
        "bytes": totals.size_bytes,
        "groups": None
        if groups is None
        else {"written": list(groups.written), "same": groups.same, "active": list(groups.active)},
        "behind": last.lag.facts(),
        "seconds": round(seconds, 1),
    }
    if totals.translated is not None:
        facts["translated"] = totals.translated._asdict()
    lines = [
        f"{totals.records:,} records in {totals.batches:,} batches ({totals.size_bytes / 1e6:,.1f} MB) copied to "
        f"{len(link.pairs):,} mirrors in {seconds:,.1f} s",
        *_translated_lines(totals.translated),
        f"the mirrors are {last.lag.line()}",
        *link.skipped,
        *_group_lines(groups),
    ]
    return Summary(facts, tuple(lines), passed=not link.has_problems)


def _translated_lines(told: Translated | None) -> list[str]:
    if told is None:
        return []
    line = (
        f"offsets translated: {told.rows:,} rows of the map, in {told.transactions:,} transactions"
    )
    back = f"; {told.returned:,} records came from the target, and were not copied back"
    return [line + (back if told.returned else "")]


def _group_lines(groups: Copied | None) -> list[Any]:
    if groups is None:
        return []
    lines = [f"groups: {len(groups.written):,} moved, {groups.same:,} were there already"]
    if groups.active:
        lines.append(f"left alone, for they have members at the target: {', '.join(groups.active)}")
    return lines
