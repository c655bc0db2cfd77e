"""Run `mirror status` and `mirror promote` where offsets are translated.

Both query the target, and the source only if it responds. A promotion closes the link, so no run of
it can commit afterwards. If the source responds, the promotion translates the offsets of groups one
last time.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.job import Plan, Summary
from penstock.spark.jobs.mirror.actions import Live, ask_source, now_ms
from penstock.spark.jobs.mirror.beats import Beat, read_beats
from penstock.spark.jobs.mirror.groups import Copied, read_groups
from penstock.spark.jobs.mirror.lag import Behind, Lag, lag_of
from penstock.spark.jobs.mirror.names import LINK_LOG_PREFIX
from penstock.spark.jobs.mirror.options import PROMOTE, MirrorOptions
from penstock.spark.jobs.mirror.translate.link_log import OpenLink, read_log
from penstock.spark.jobs.mirror.translate.links import Claim, Copy, LinkState, claim_entry
from penstock.spark.jobs.mirror.translate.rounds import sync_groups
from penstock.spark.progress import Progress
from penstock.spark.steps import reached
from penstock.spark.survey import ask

PROMOTE_STEPS = ("mirror:promoting", "mirror:final-groups", "mirror:promoted")


class Mirror(NamedTuple):
    """A topic of the target, and what its link knows."""

    name: str
    source_id: str  # of the cluster
    claim: Claim
    positions: Mapping[int, int]  # of the source, by partition
    ends: Mapping[int, int]  # of the target
    copies: Mapping[TopicPartition, Copy]
    beats: Mapping[int, Beat]


class _Topics(NamedTuple):
    ids: Mapping[str, bytes]
    ends: Mapping[TopicPartition, int]


def plan(options: MirrorOptions) -> Plan:
    mirrors = find_mirrors(options)
    facts = {
        "job": "mirror",
        "action": options.action,
        "translate": True,
        "target": options.target,
        "topics": [mirror.name for mirror in mirrors if not mirror.claim.is_promoted],
    }
    if options.action == PROMOTE:
        lines = [
            f"promote {m.name}: {_lag(m, None).line()}, as last heard"
            for m in mirrors
            if not m.claim.is_promoted
        ]
    else:
        lines = [f"ask {options.target} and {options.bootstrap} how far the copies are"]
    return Plan(facts, tuple(lines or ["nothing to do"]))


def run(options: MirrorOptions, progress: Progress) -> Summary:
    if options.action == PROMOTE:
        return _promoted(options, progress)
    return _status(options, find_mirrors(options))


def find_mirrors(options: MirrorOptions) -> list[Mirror]:
    """Those that are named, or all that there are, of all links."""

    async def listed(pool: Pool) -> list[str]:
        cluster = await pool.metadata(None)
        return sorted(topic.name or "" for topic in cluster.topics)

    there = ask(options.target, listed)
    for name in options.topics:
        if name not in there:
            raise JobError(f"topic {name!r} does not exist at the target, {options.target}")
    found = []
    for log in there:
        if log.startswith(LINK_LOG_PREFIX):
            state = LinkState()
            read_log(options.target, log, state, whole=False)
            found += _of_link(options, log.removeprefix(LINK_LOG_PREFIX), state, there)
    for name in options.topics:
        if name not in {mirror.name for mirror in found}:
            raise JobError(f"topic {name!r} of the target is no copy: no link writes to it")
    return found


def _of_link(
    options: MirrorOptions, source_id: str, state: LinkState, there: Iterable[str]
) -> list[Mirror]:
    wanted = options.topics or state.claims
    names = sorted(state.claims.keys() & set(wanted) & set(there))
    seen = ask(options.target, lambda pool: _topics(pool, names))
    beats = ask(options.target, lambda pool: read_beats(pool, source_id))
    return [_mirror(name, source_id, state, seen, beats) for name in names]


async def _topics(pool: Pool, names: list[str]) -> _Topics:
    if not names:
        return _Topics({}, {})
    topics = await admin.describe_topics(pool, names)
    places = [
        TopicPartition(topic.name or "", row.partition_index)
        for topic in topics
        for row in topic.partitions
    ]
    latest = await admin.list_offsets(pool, dict.fromkeys(places, admin.LATEST))
    ids = {topic.name or "": topic.topic_id for topic in topics}
    return _Topics(ids, {place: at.offset for place, at in latest.items()})


def _mirror(
    name: str,
    source_id: str,
    state: LinkState,
    seen: _Topics,
    beats: Mapping[TopicPartition, Beat],
) -> Mirror:
    ends = {place: end for place, end in seen.ends.items() if place.topic == name}
    copies = {place: Copy(name, seen.ids[name].hex(), place.partition) for place in ends}
    positions = {
        place.partition: at
        for place, copy in copies.items()
        if (at := state.position(copy)) is not None
    }
    return Mirror(
        name,
        source_id,
        state.claims[name],
        positions,
        {place.partition: end for place, end in ends.items()},
        copies,
        {place.partition: beat for place, beat in beats.items() if place.topic == name},
    )


# Status ------------------------------------------------------------------------------------------


def _status(options: MirrorOptions, mirrors: list[Mirror]) -> Summary:
    source, problem = ask_source(options, _places(mirrors))
    rows, lines = [], []
    for mirror in mirrors:
        own = _own(mirror, source)
        lag = _lag(mirror, own)
        rows.append(_row(mirror, lag, own is not None))
        lines.append(_line(mirror, lag, own is not None))
    if problem is not None:
        lines.append(f"the source cannot be asked: {problem}")
    facts = {
        "job": "mirror",
        "action": "status",
        "translate": True,
        "target": options.target,
        "source_error": problem,
        "mirrors": rows,
    }
    return Summary(facts, tuple(lines or ["there are no copies with translated offsets"]))


def _places(mirrors: Iterable[Mirror]) -> list[TopicPartition]:
    return [TopicPartition(m.claim.source, n) for m in mirrors for n in m.positions]


def _own(mirror: Mirror, source: Live | None) -> Live | None:
    """The cluster that was asked, if it is the one that is copied, and has all that is copied."""
    claim = mirror.claim
    if source is None or source.cluster_id != mirror.source_id:
        return None
    return source if source.has(claim.source, claim.source_id, _places([mirror])) else None


def _lag(mirror: Mirror, source: Live | None) -> Lag:
    """None: as it was heard last."""
    rows = []
    for index, position in mirror.positions.items():
        place = TopicPartition(mirror.claim.source, index)
        beat = mirror.beats.get(index)
        end = beat.source_end if beat else position
        if source is not None:
            end = source.ends.get(place, end)
        since_ms = beat.at_ms if beat else 0
        rows.append(Behind(place, TopicPartition(mirror.name, index), end, position, since_ms))
    sizes = None if source is None else source.sizes
    return lag_of(rows, sizes, now_ms(), is_live=source is not None)


def _row(mirror: Mirror, lag: Lag, is_live: bool) -> dict[str, Any]:
    return {
        "topic": mirror.name,
        "is_mirror": not mirror.claim.is_promoted,
        "is_merged": mirror.claim.is_merged,
        "source": f"{mirror.source_id}:{mirror.claim.source}",
        "source_asked": is_live,
        "behind": None if mirror.claim.is_promoted else lag.facts(),
        "copied_upto": _texts(mirror.positions),
        "ends": _texts(mirror.ends),
    }


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(index): offset for index, offset in sorted(offsets.items())}


def _line(mirror: Mirror, lag: Lag, is_live: bool) -> str:
    of = f"{mirror.claim.source} of cluster {mirror.source_id}"
    if mirror.claim.is_promoted:
        return f"{mirror.name}: was a copy of {of}, and is promoted"
    heard = "" if is_live else ", as last heard"
    return f"{mirror.name}: copy of {of}, offsets translated, {lag.line()}{heard}"


# Promotion ---------------------------------------------------------------------------------------


def _promoted(options: MirrorOptions, progress: Progress) -> Summary:
    started_s = time.monotonic()
    progress.show("promoting")
    mirrors = find_mirrors(options)
    groups: list[Copied] = []
    problems: list[str] = []
    for source_id in sorted({m.source_id for m in mirrors if not m.claim.is_promoted}):
        names = [m.name for m in mirrors if m.source_id == source_id]
        _shut(options, source_id, names, groups, problems)
    after = {(mirror.source_id, mirror.name): mirror for mirror in find_mirrors(options)}
    pairs = [(mirror, after[mirror.source_id, mirror.name]) for mirror in mirrors]
    seconds = time.monotonic() - started_s
    progress.show("asking the source what it has beyond the copies")
    shut = [mirror for before, mirror in pairs if not before.claim.is_promoted]
    source, problem = ask_source(options, _places(shut)) if shut else (None, None)
    facts = {
        "job": "mirror",
        "action": PROMOTE,
        "translate": True,
        "target": options.target,
        "source_error": problem,
        "topics": [_promoted_row(before, after, source) for before, after in pairs],
        "groups": sorted({name for copied in groups for name in copied.written}),
        "groups_error": problems[0] if problems else None,
        "seconds": round(seconds, 2),
    }
    lines = [line for before, after in pairs for line in _promoted_lines(before, after, source)]
    lines += [f"groups stay where they were moved last: {problem}" for problem in problems]
    if problem is not None:
        lines.append(f"the source cannot be asked: {problem}")
    lines.append(f"{len(shut):,} copies promoted in {seconds:,.1f} s")
    return Summary(facts, tuple(lines))


def _promoted_row(before: Mirror, after: Mirror, source: Live | None) -> dict[str, Any]:
    was_mirror = not before.claim.is_promoted
    own = _own(after, source)
    is_live = own is not None
    return {
        "topic": after.name,
        "was_mirror": was_mirror,
        "source_asked": is_live,
        "rpo": _lag(after, own).loss(is_live=is_live) if was_mirror else None,
        "mirrored_upto": _texts(after.positions),
        "ends": _texts(after.ends),
    }


def _promoted_lines(before: Mirror, mirror: Mirror, source: Live | None) -> list[str]:
    if before.claim.is_promoted:
        return [f"{mirror.name}: was promoted already"]
    own = _own(mirror, source)
    heard = "" if own else " when the source was last heard"
    lines = [f"{mirror.name}: nothing more is copied; {_lag(mirror, own).line()}{heard}"]
    for index, position in sorted(mirror.positions.items()):
        lines.append(
            f"  {mirror.name}-{index} has {mirror.claim.source}-{index} up to offset {position:,}, and ends at "
            f"{mirror.ends[index]:,}"
        )
    return lines


def _shut(
    options: MirrorOptions,
    source_id: str,
    names: list[str],
    groups: list[Copied],
    problems: list[str],
) -> None:
    """A run that copies just now is shut out, with what it has not committed; then the promotion is written down."""
    link = OpenLink(options.target, source_id, timeout_ms=options.transaction_timeout)
    reached("mirror:promoting")
    link.begin()
    claims = {
        name: link.state.claims[name] for name in names if not link.state.claims[name].is_promoted
    }
    if not options.no_groups:
        try:
            groups.append(_last_groups(options, source_id, link.state, claims))
        except ClientError as error:
            problems.append(error.message)
        reached("mirror:final-groups")
    if claims:
        at_ms = now_ms()
        entries = [
            claim_entry(name, claim._replace(promoted_at_ms=at_ms))
            for name, claim in claims.items()
        ]
        link.commit(lambda _: entries)
    reached("mirror:promoted")


def _last_groups(
    options: MirrorOptions, source_id: str, state: LinkState, claims: Mapping[str, Claim]
) -> Copied:
    """ClientError: the source does not answer, or it is another one."""
    wanted = {claim.source: name for name, claim in claims.items()}

    async def read(source: Pool) -> Any:
        cluster = await source.metadata([])
        if cluster.cluster_id != source_id:
            raise ClientError(
                f"{options.bootstrap} is cluster {cluster.cluster_id}, not {source_id}",
                ErrorCode.INCONSISTENT_CLUSTER_ID,
            )
        return await read_groups(source, wanted, options.groups)

    positions = ask(options.bootstrap, read)
    seen = ask(options.target, lambda pool: _topics(pool, sorted(claims)))
    copies = {
        place: Copy(place.topic, seen.ids[place.topic].hex(), place.partition)
        for place in seen.ends
    }
    return sync_groups(options.target, positions, state, copies)
