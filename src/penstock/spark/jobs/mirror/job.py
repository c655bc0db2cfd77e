"""`mirror`: copy topics to another cluster with their offsets, settings and groups.

Clients can move to the target when the source is lost.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from penstock.spark.errors import JobError, explain
from penstock.spark.job import Job, Plan, Summary
from penstock.spark.jobs.mirror import actions
from penstock.spark.jobs.mirror.actions import now_ms
from penstock.spark.jobs.mirror.beats import Beat, ids, write_beats
from penstock.spark.jobs.mirror.copy import Done, Span, copy, find_spans
from penstock.spark.jobs.mirror.divergence import LOST, IdleChecks
from penstock.spark.jobs.mirror.groups import Positions, read_groups, write_groups
from penstock.spark.jobs.mirror.options import COPY, FAILBACK, MirrorOptions
from penstock.spark.jobs.mirror.rounds import (
    Round,
    Totals,
    ask_both,
    follow,
    measured,
    pair_names,
    plan_facts,
    summary,
)
from penstock.spark.jobs.mirror.topics import Link, in_step
from penstock.spark.jobs.mirror.translate import actions as translated_actions
from penstock.spark.jobs.mirror.translate import rounds as translated_rounds
from penstock.spark.progress import Progress
from penstock.spark.steps import reached
from penstock.spark.survey import ask
from penstock.spark.transactional import CONFS

STEPS: Final = (  # of the driver
    *("mirror:begun", "mirror:topic-created", "mirror:topics", "mirror:planned"),
    *("mirror:copied", "mirror:group", "mirror:groups", "mirror:beat"),
)
CHANGE_STEPS: Final = ("mirror:topic-grown", "mirror:topic-set", "mirror:topic-deleted")
TASK_STEPS: Final = ("mirror:appending", "mirror:appended")
_SOURCE_SAYS: Final = "set the option failOnDataLoss to false"
_WE_SAY: Final = "give --allow-data-loss"


def _needs_spark(options: MirrorOptions) -> bool:
    return options.action in (COPY, FAILBACK)


# Plan --------------------------------------------------------------------------------------------


def plan(options: MirrorOptions) -> Plan:
    if not _needs_spark(options):
        if options.translate:
            return translated_actions.plan(options)
        return actions.plan(options)
    if options.translate:
        return translated_rounds.plan(options)
    replace = options.action == FAILBACK
    link: Link = ask_both(
        options, lambda ends: in_step(ends, options, change=False, replace=replace)
    )
    lines = [
        f"copy {pair_names(link) or 'nothing'} from {options.bootstrap} to {options.target}, offset by offset",
        *link.to_do,
        *link.skipped,
        "copy no offsets of groups"
        if options.no_groups
        else "copy the offsets of groups that have no members at the target",
    ]
    return Plan(plan_facts(options, link), tuple(lines))


# Run ---------------------------------------------------------------------------------------------


def run(session: Any, options: MirrorOptions, progress: Progress) -> Summary:
    if not _needs_spark(options):
        if options.translate:
            return translated_actions.run(options, progress)
        return actions.run(options, progress)
    started_s, totals = time.monotonic(), Totals()
    rounds = translated_rounds.Rounds if options.translate else _Rounds
    one_round = rounds(session, options, progress)
    if options.follow:
        follow(one_round, options, progress, totals)
    else:
        totals.add(one_round())
    return summary(options, totals, time.monotonic() - started_s)


class _Rounds:
    """One after the other; mirrors that keep offsets."""

    def __init__(self, session: Any, options: MirrorOptions, progress: Progress) -> None:
        self._job = session, options, progress
        self._replace = options.action == FAILBACK  # once: what is promoted later must stay
        self._idle_checks = IdleChecks()

    def __call__(self) -> Round:
        check_idle = self._idle_checks.are_due(time.monotonic())
        found = _round(*self._job, replace=self._replace, check_idle=check_idle)
        self._replace = False
        return found


def _round(
    session: Any, options: MirrorOptions, progress: Progress, *, replace: bool, check_idle: bool
) -> Round:
    """Topics, then groups are read, then records copied, then groups written: none is ahead of its mirror."""
    reached("mirror:begun")
    link: Link = ask_both(
        options, lambda ends: in_step(ends, options, change=True, replace=replace)
    )
    names = {pair.source: pair.target for pair in link.pairs}
    positions: Positions = {}
    if not options.no_groups:
        positions = ask(options.bootstrap, lambda pool: read_groups(pool, names, options.groups))
    asked_ms = now_ms()
    spans: list[Span] = ask_both(
        options,
        lambda ends: find_spans(
            ends, link.pairs, allow_loss=options.allow_data_loss, check_idle=check_idle
        ),
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
    asked = dict.fromkeys(ends, asked_ms)
    return Round(link, done, groups, measured(options, spans, ends, asked))


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
        if _SOURCE_SAYS not in said and LOST not in said:
            raise
        raise JobError(said.replace(_SOURCE_SAYS, _WE_SAY)) from error


def confs(options: MirrorOptions) -> Mapping[str, str]:
    return CONFS if options.translate else {"spark.speculation": "false"}  # one writer a partition


JOB: Final = Job(
    name="mirror",
    options=MirrorOptions,
    plan=plan,
    run=run,
    needs_spark=_needs_spark,
    confs=confs,
    examples=(
        "penstock pipeline mirror orders payments --bootstrap east:9092 --target west:9092 --follow",
        "penstock pipeline mirror status --bootstrap east:9092 --target west:9092",
        "penstock pipeline mirror promote --target west:9092",
        "penstock pipeline mirror failback orders payments --bootstrap west:9092 --target east:9092",
        "penstock pipeline mirror orders --translate --bootstrap east:9092 --target kafka:9092 --follow",
        "penstock pipeline mirror --pattern '[a-z]+' --rename '{source}.{topic}' --source-name east --bootstrap east:9092 --target west:9092",
    ),
)
