"""`mirror`: topics of one cluster in another, offset by offset; with settings and groups, to move there when the first is lost."""

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError, explain
from penstock.spark.job import Job, Plan, Summary
from penstock.spark.jobs import mirror_actions as actions
from penstock.spark.jobs.mirror_actions import now_ms
from penstock.spark.jobs.mirror_beats import Beat, ids, write_beats
from penstock.spark.jobs.mirror_copy import Done, Span, copy, find_spans
from penstock.spark.jobs.mirror_groups import Copied, Positions, read_groups, write_groups
from penstock.spark.jobs.mirror_lag import Behind, Lag, lag_of, record_sizes
from penstock.spark.jobs.mirror_options import COPY, FAILBACK, MirrorOptions
from penstock.spark.jobs.mirror_topics import Ends, Link, in_step
from penstock.spark.progress import Progress
from penstock.spark.steps import reached
from penstock.spark.survey import ask

STEPS: Final = (  # of the driver
    *("mirror:begun", "mirror:topic-created", "mirror:topics", "mirror:planned"),
    *("mirror:copied", "mirror:group", "mirror:groups", "mirror:beat"),
)
CHANGE_STEPS: Final = ("mirror:topic-grown", "mirror:topic-set", "mirror:topic-deleted")
TASK_STEPS: Final = ("mirror:appending", "mirror:appended")
_SOURCE_SAYS: Final = "set the option failOnDataLoss to false"
_WE_SAY: Final = "give --allow-data-loss"
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0


def _needs_spark(options: MirrorOptions) -> bool:
    return options.action in (COPY, FAILBACK)


def _ask_both(options: MirrorOptions, question: Any) -> Any:
    """`question` is asked with both ends."""

    async def at_source(source: Pool) -> Any:
        async with Pool(options.target, client_id="penstock-mirror") as target:
            return await question(Ends(source, target))

    return ask(options.bootstrap, at_source)


# Plan --------------------------------------------------------------------------------------------


def plan(options: MirrorOptions) -> Plan:
    if not _needs_spark(options):
        return actions.plan(options)
    replace = options.action == FAILBACK
    link: Link = _ask_both(
        options, lambda ends: in_step(ends, options, change=False, replace=replace)
    )
    facts = {
        "job": "mirror",
        "action": options.action,
        "source": link.source_id,
        "target": link.target_id,
        "topics": {pair.source: pair.target for pair in link.pairs},
        "to_do": list(link.to_do),
        "skipped": list(link.skipped),
    }
    names = ", ".join(
        pair.source if pair.source == pair.target else f"{pair.source} as {pair.target}"
        for pair in link.pairs
    )
    lines = [
        f"copy {names or 'nothing'} from {options.bootstrap} to {options.target}, offset by offset",
        *link.to_do,
        *link.skipped,
        "copy no offsets of groups"
        if options.no_groups
        else "copy the offsets of groups that have no members at the target",
    ]
    return Plan(facts, tuple(lines))


# Run ---------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """What one pass over all topics did."""

    link: Link
    done: list[Done]
    groups: Copied | None
    lag: Lag


class _Totals:
    def __init__(self) -> None:
        self.rounds = self.batches = self.records = self.size_bytes = 0
        self.last: Round | None = None

    def add(self, this: Round) -> None:
        self.rounds += 1
        self.batches += sum(done.batches for done in this.done)
        self.records += sum(done.records for done in this.done)
        self.size_bytes += sum(done.size_bytes for done in this.done)
        self.last = this

    def line(self) -> str:
        behind = "" if self.last is None else f", {self.last.lag.line()}"
        return f"{self.records:,} records ({self.size_bytes / 1e6:,.1f} MB) copied{behind}"


def run(session: Any, options: MirrorOptions, progress: Progress) -> Summary:
    if not _needs_spark(options):
        return actions.run(options, progress)
    started_s, totals = time.monotonic(), _Totals()
    if options.follow:
        _follow(session, options, progress, totals)
    else:
        totals.add(_round(session, options, progress, replace=options.action == FAILBACK))
    return _summary(options, totals, time.monotonic() - started_s)


def _follow(session: Any, options: MirrorOptions, progress: Progress, totals: _Totals) -> None:
    """Until Ctrl-C. What may be different next time is tried again; a JobError is not."""
    worked_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
    replace = options.action == FAILBACK  # once: what is promoted later must stay
    try:
        while True:
            begun_s = time.monotonic()
            try:
                totals.add(_round(session, options, progress, replace=replace))
                replace = False
            except JobError:
                raise
            except Exception as error:
                if time.monotonic() - worked_s > options.patience / 1000:
                    raise
                progress.say(f"it goes on when it can: {explain(error)}")
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            worked_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
            progress.show(totals.line())
            time.sleep(max(0.0, begun_s + options.every / 1000 - time.monotonic()))
    except KeyboardInterrupt:
        if totals.last is None:
            raise


def _round(session: Any, options: MirrorOptions, progress: Progress, *, replace: bool) -> Round:
    """Topics, then groups are read, then records copied, then groups written: none is ahead of its mirror."""
    reached("mirror:begun")
    link: Link = _ask_both(
        options, lambda ends: in_step(ends, options, change=True, replace=replace)
    )
    names = {pair.source: pair.target for pair in link.pairs}
    positions: Positions = {}
    if not options.no_groups:
        positions = ask(options.bootstrap, lambda pool: read_groups(pool, names, options.groups))
    asked_ms = now_ms()
    spans: list[Span] = _ask_both(
        options,
        lambda ends: find_spans(ends, link.pairs, allow_loss=options.allow_data_loss),
    )
    reached("mirror:planned")
    done = _copied(session, options, progress, spans)
    reached("mirror:copied")
    ends = {span.target: span.mirror_end for span in spans}
    ends |= {one.place: one.next_offset for one in done}
    groups = None
    if not options.no_groups:
        groups = ask(options.target, lambda pool: write_groups(pool, positions, ends))
        reached("mirror:groups")
    topic_ids = {pair.source: pair.source_topic_id for pair in link.pairs}
    beats = {
        span.target: Beat(
            ends[span.target],
            span.end,
            asked_ms,
            ids(topic_ids[span.source.topic], span.topic_id),
        )
        for span in spans
    }
    if beats:
        ask(options.target, lambda pool: write_beats(pool, link.source_id, beats))
    reached("mirror:beat")
    return Round(link, done, groups, _measured(options, spans, ends, asked_ms))


def _copied(
    session: Any, options: MirrorOptions, progress: Progress, spans: list[Span]
) -> list[Done]:
    due = sum(span.offsets for span in spans)
    try:
        with progress.tasks(session, f"copying {due:,} offsets"):
            return copy(
                session,
                options.bootstrap,
                options.target,
                spans,
                allow_loss=options.allow_data_loss,
            )
    except Exception as error:
        said = explain(error)
        if _SOURCE_SAYS not in said:
            raise
        raise JobError(said.replace(_SOURCE_SAYS, _WE_SAY)) from error


def _measured(
    options: MirrorOptions,
    spans: list[Span],
    ends: Mapping[TopicPartition, int],
    asked_ms: int,
) -> Lag:
    """What the source has by now, and the mirrors do not. A source that is gone by now has what it had."""
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
        Behind(span.source, span.target, now[span.source], ends[span.target], asked_ms)
        for span in spans
    ]
    return lag_of(rows, sizes, now_ms(), is_live=is_live)


def _summary(options: MirrorOptions, totals: _Totals, seconds: float) -> Summary:
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
    lines = [
        f"{totals.records:,} records in {totals.batches:,} batches ({totals.size_bytes / 1e6:,.1f} MB) copied to "
        f"{len(link.pairs):,} mirrors in {seconds:,.1f} s",
        f"the mirrors are {last.lag.line()}",
        *link.skipped,
    ]
    if groups is not None:
        lines.append(f"groups: {len(groups.written):,} moved, {groups.same:,} were there already")
        if groups.active:
            lines.append(
                f"left alone, for they have members at the target: {', '.join(groups.active)}"
            )
    return Summary(facts, tuple(lines), passed=not link.has_problems)


JOB: Final = Job(
    name="mirror",
    options=MirrorOptions,
    plan=plan,
    run=run,
    needs_spark=_needs_spark,
    confs=lambda options: {"spark.speculation": "false"},  # noqa: ARG005  # one writer for each partition
    examples=(
        "penstock pipeline mirror orders payments --bootstrap east:9092 --target west:9092 --follow",
        "penstock pipeline mirror status --bootstrap east:9092 --target west:9092",
        "penstock pipeline mirror promote --target west:9092",
        "penstock pipeline mirror failback orders payments --bootstrap west:9092 --target east:9092",
        "penstock pipeline mirror --pattern '[a-z]+' --rename '{source}.{topic}' --source-name east --bootstrap east:9092 --target west:9092",
    ),
)
