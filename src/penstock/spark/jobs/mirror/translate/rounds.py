"""`mirror --translate`: produce records again at a target that cannot keep their offsets.

Each micro-batch is one transaction. It holds the records, the position in the source, and the
target offset of each record: all or nothing. Beginning a transaction fences earlier writers and
aborts what they left; only then does the job read how far the link is. So each committed record of
the source is at the target once and in order, whichever process is killed and whoever starts it
again.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.client import admin
from penstock.client.groups import Committed
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.spark.job import Plan
from penstock.spark.jobs.mirror.actions import now_ms
from penstock.spark.jobs.mirror.beats import Beat, ids, read_beats, write_beats
from penstock.spark.jobs.mirror.copy import Span
from penstock.spark.jobs.mirror.divergence import IdleChecks
from penstock.spark.jobs.mirror.groups import Copied, Positions, read_groups, write_groups
from penstock.spark.jobs.mirror.options import MirrorOptions
from penstock.spark.jobs.mirror.rounds import Round, ask_both, measured, pair_names, plan_facts
from penstock.spark.jobs.mirror.topics import Link
from penstock.spark.jobs.mirror.translate import topics
from penstock.spark.jobs.mirror.translate.copy import Copying, Where, find_places
from penstock.spark.jobs.mirror.translate.link_log import OpenLink, ensure_log, read_log
from penstock.spark.jobs.mirror.translate.links import Copy, Entry, LinkState, claim_entry, log_name
from penstock.spark.jobs.mirror.translate.topics import Seen, Step
from penstock.spark.progress import Progress
from penstock.spark.steps import reached
from penstock.spark.survey import ask
from penstock.spark.transactional import check_confs

TRANSLATE_STEPS: Final = (  # of the driver, beside those of transactions
    *("mirror:begun", "mirror:log", "mirror:claimed", "mirror:topic-created", "mirror:topics"),
    *("mirror:planned", "mirror:mapped", "mirror:copied"),
    *("mirror:group", "mirror:groups", "mirror:beat"),
)


def plan(options: MirrorOptions) -> Plan:
    """Asks both ends, and changes nothing."""
    seen: Seen = ask_both(options, lambda ends: topics.look(ends, options))
    own, back = LinkState(), _back(options, seen, LinkState())
    if seen.has_log:
        read_log(options.target, log_name(seen.source_id), own, whole=False)
    merge = topics.merging(options, is_first=True)
    steps = topics.decided(seen, options, own.claims, back.claims, merge=merge)
    link = topics.link_of(seen, steps)
    lines = (
        f"copy {pair_names(link) or 'nothing'} from {options.bootstrap} to {options.target}, in transactions of at most "
        f"{options.batch_records:,} records",
        f"remember which offset is where in {log_name(link.source_id)} there",
        *link.to_do,
        *link.skipped,
        "translate no offsets of groups"
        if options.no_groups
        else "translate the offsets of groups that have no members at the target",
    )
    return Plan(plan_facts(options, link), lines)


def _back(options: MirrorOptions, seen: Seen, back: LinkState) -> LinkState:
    """The link in the other direction."""
    if seen.has_back:
        read_log(options.bootstrap, log_name(seen.target_id), back, whole=False)
    return back


class Rounds:
    """One after the other, of one job."""

    def __init__(self, session: Any, options: MirrorOptions, progress: Progress) -> None:
        self._session = session
        self._options = options
        self._progress = progress
        self._link: OpenLink | None = None
        self._back = LinkState()
        self._is_first = True
        self._idle_checks = IdleChecks()
        if session is not None:
            check_confs(session)

    def __call__(self) -> Round:
        """Topics, then groups are read, then records copied, then groups written: none is ahead of its copy."""
        reached("mirror:begun")
        options = self._options
        seen: Seen = ask_both(options, lambda ends: topics.look(ends, options))
        link, open_link, topic_ids = self._in_step(seen)
        reached("mirror:topics")
        positions: Positions = {}
        if not options.no_groups:
            names = {pair.source: pair.target for pair in link.pairs}
            positions = ask(
                options.bootstrap, lambda pool: read_groups(pool, names, options.groups)
            )
        asked_ms = now_ms()
        check_idle = self._idle_checks.are_due(time.monotonic())
        places = find_places(options, link, topic_ids, open_link.state, check_idle=check_idle)
        reached("mirror:planned")
        ids = link.source_id, link.target_id
        copying = Copying(self._session, options, self._progress, ids, open_link, places)
        copying.run()
        reached("mirror:copied")
        groups = None
        if not options.no_groups:
            groups = sync_groups(options.target, positions, open_link.state, _copies(places))
            reached("mirror:groups")
        self._is_first = False
        return self._told(link, copying, places, groups, asked_ms)

    def _in_step(self, seen: Seen) -> tuple[Link, OpenLink, dict[str, bytes]]:
        """The target has the topics, and the link's own topic says whose copies they are."""
        options = self._options
        if self._link is None:
            self._link = OpenLink(
                options.target, seen.source_id, timeout_ms=options.transaction_timeout
            )
        link = self._link
        known = seen.known
        if known is None:
            known = ask(options.target, lambda pool: _made(pool, link.name, seen.brokers))
            reached("mirror:log")
        link.refresh()
        _back(options, seen, self._back)
        steps = self._decided(seen)
        if topics.new_claims(steps, link.state.claims):
            link.begin()
            steps = self._decided(seen)
            if entries := _claims(steps):
                link.commit(lambda _: entries)
            reached("mirror:claimed")
        topic_ids = ask(options.target, lambda pool: topics.do(pool, steps, known))
        return topics.link_of(seen, steps), link, topic_ids

    def _decided(self, seen: Seen) -> list[Step]:
        assert self._link is not None, "it is open"
        merge = topics.merging(self._options, is_first=self._is_first)
        own, back = self._link.state.claims, self._back.claims
        return topics.decided(seen, self._options, own, back, merge=merge)

    def _told(
        self,
        link: Link,
        copying: Copying,
        places: Sequence[Where],
        groups: Copied | None,
        asked_ms: int,
    ) -> Round:
        """Writes down how far the source was, and since when; for whoever asks when it is gone."""
        target = self._options.target
        ends = {where.target: copying.position(where) for where in places}
        before = ask(target, lambda pool: read_beats(pool, link.source_id))
        beats = {}
        for where in places:
            known = before.get(where.target, Beat(0, 0, 0)).at_ms
            since_ms = asked_ms if where.decided == where.latest else known
            topic_ids = ids(where.source_topic_id, bytes.fromhex(where.copy.topic_id))
            beats[where.target] = Beat(ends[where.target], where.latest, since_ms, topic_ids)
        if beats:
            ask(target, lambda pool: write_beats(pool, link.source_id, beats))
        reached("mirror:beat")
        spans = [Span(w.source, w.target, b"", 0, w.earliest, w.latest) for w in places]
        since = {place: beat.at_ms for place, beat in beats.items()}
        lag = measured(self._options, spans, ends, since)
        return Round(link, copying.done(), groups, lag, copying.told)


def _claims(steps: Sequence[Step]) -> list[Entry]:
    return [
        claim_entry(step.name, step.verdict.claim)
        for step in steps
        if step.verdict.claim is not None
    ]


async def _made(target: Pool, name: str, brokers: int) -> frozenset[str]:
    """Settings that the target knows: its own answer for a topic that it has."""
    await ensure_log(target, name, brokers)
    return frozenset(row.name for row in await admin.topic_configs(target, name))


# Groups ------------------------------------------------------------------------------------------


def _copies(places: Sequence[Where]) -> dict[TopicPartition, Copy]:
    return {where.target: where.copy for where in places}


def sync_groups(
    target: str, positions: Positions, state: LinkState, copies: Mapping[TopicPartition, Copy]
) -> Copied:
    """`positions`: offsets of the source, by the target's partitions."""

    async def write(pool: Pool) -> Copied:
        starts = await admin.list_offsets(pool, dict.fromkeys(copies, admin.EARLIEST))
        latest = await admin.list_offsets(pool, dict.fromkeys(copies, admin.LATEST))
        first = {place: at.offset for place, at in starts.items()}
        ends = {place: at.offset for place, at in latest.items()}
        wanted = translated(positions, state, copies, first)
        return await write_groups(pool, wanted, ends, forward_only=True)

    return ask(target, write)


def translated(
    positions: Positions,
    state: LinkState,
    copies: Mapping[TopicPartition, Copy],
    first: Mapping[TopicPartition, int],
) -> dict[str, dict[TopicPartition, Committed]]:
    """Each group is where the next record that it would have read is; not before what retention has left (`first`)."""
    found: dict[str, dict[TopicPartition, Committed]] = {}
    for group, places in positions.items():
        moved = {}
        for place, at in places.items():
            if place in copies:
                offset = state.map_of(copies[place]).lookup(at.offset)
                moved[place] = at._replace(offset=max(first[place], offset or 0))
        if moved:
            found[group] = moved
    return found
