"""Run `mirror status` and `mirror promote`. They query the target, and need no Spark.

The target may be all that is left. If the source responds, both report how much it has beyond the
mirrors. A promotion queries the source only when it is done, and never waits for it before.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.mirroring import MirrorState, mirror_state, promote, supports_mirrors
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.job import Plan, Summary
from penstock.spark.jobs.mirror.beats import Beat, ids, read_beats, write_beats
from penstock.spark.jobs.mirror.lag import Behind, Lag, lag_of, record_sizes
from penstock.spark.jobs.mirror.names import Origin, parse_origin
from penstock.spark.jobs.mirror.options import PROMOTE, MirrorOptions
from penstock.spark.jobs.mirror.topics import described
from penstock.spark.progress import Progress
from penstock.spark.steps import reached
from penstock.spark.survey import ask

_AT_ONCE: Final = 16  # topics that are promoted side by side
_SOURCE_S: Final = 10.0  # it may be gone: nobody waits for it for long


class Mirror(NamedTuple):
    """A topic of the target, and what is known of its source."""

    name: str
    origin: Origin | None  # None: it is no mirror, or not one that a job made
    state: MirrorState
    beats: Mapping[int, Beat]

    @property
    def is_mirror(self) -> bool:
        return self.state.source is not None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def plan(options: MirrorOptions) -> Plan:
    mirrors = ask(options.target, lambda pool: find_mirrors(pool, options))
    facts = {
        "job": "mirror",
        "action": options.action,
        "target": options.target,
        "topics": [mirror.name for mirror in mirrors if mirror.is_mirror],
    }
    if options.action == PROMOTE:
        lines = [
            f"promote {m.name}: {_lag(m, None).line()}, as last heard"
            for m in mirrors
            if m.is_mirror
        ]
    else:
        lines = [f"ask {options.target} and {options.bootstrap} how far the mirrors are"]
    return Plan(facts, tuple(lines or ["nothing to do"]))


def run(options: MirrorOptions, progress: Progress) -> Summary:
    if options.action == PROMOTE:
        return _promoted(options, progress)
    mirrors = ask(options.target, lambda pool: find_mirrors(pool, options))
    return _status(options, mirrors)


async def find_mirrors(target: Pool, options: MirrorOptions) -> list[Mirror]:
    """Those that are named, or all that there are."""
    if not await supports_mirrors(target):
        raise JobError(
            f"the brokers of {options.target} have no mirrors that keep offsets: they are not Penstock's; for copies "
            "with translated offsets, give --translate"
        )
    cluster = await target.metadata(None)
    there = sorted(topic.name or "" for topic in cluster.topics if not topic.is_internal)
    for name in options.topics:
        if name not in there:
            raise JobError(f"topic {name!r} does not exist at the target, {options.target}")
    topics = await described(target, cluster, options.topics or there)
    found = []
    beats: dict[str, dict[TopicPartition, Beat]] = {}
    for name, topic in topics.items():
        if not (topic.mirrors or options.topics):
            continue
        origin = parse_origin(topic.mirrors) if topic.mirrors else None
        if origin is not None and origin.cluster_id not in beats:
            beats[origin.cluster_id] = await read_beats(target, origin.cluster_id)
        known = beats.get(origin.cluster_id, {}) if origin is not None else {}
        own = {place.partition: beat for place, beat in known.items() if place.topic == name}
        found.append(Mirror(name, origin, await mirror_state(target, name), own))
    return found


# Status ------------------------------------------------------------------------------------------


class Live(NamedTuple):
    """What the source says."""

    cluster_id: str
    ids: Mapping[str, str]  # of topics, in hexadecimal
    ends: Mapping[TopicPartition, int]
    sizes: Mapping[TopicPartition, float]

    def has(self, topic: str, topic_id: str, places: Sequence[TopicPartition]) -> bool:
        """Still the same topic, and all of it: one that was deleted, or created anew, tells nothing of what is lost."""
        return self.ids.get(topic) == topic_id and all(place in self.ends for place in places)


def _status(options: MirrorOptions, mirrors: Sequence[Mirror]) -> Summary:
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
        "target": options.target,
        "source_error": problem,
        "mirrors": rows,
    }
    return Summary(facts, tuple(lines or ["there are no mirrors"]))


def _places(mirrors: Sequence[Mirror]) -> list[TopicPartition]:
    return [
        TopicPartition(mirror.origin.topic, index)
        for mirror in mirrors
        if mirror.origin is not None
        for index in mirror.state.partitions
    ]


def _own(mirror: Mirror, source: Live | None) -> Live | None:
    """The cluster that was asked, if it is the one of which this is a mirror, and has all that is mirrored."""
    origin = mirror.origin
    if source is None or origin is None or origin.cluster_id != source.cluster_id:
        return None
    return source if source.has(origin.topic, origin.topic_id, _places([mirror])) else None


def ask_source(
    options: MirrorOptions, places: Sequence[TopicPartition]
) -> tuple[Live | None, str | None]:
    """What it says, or why it says nothing."""

    async def question(source: Pool) -> Live:
        try:
            async with asyncio.timeout(_SOURCE_S):
                return await live(source, places)
        except TimeoutError:
            raise ClientError(
                f"{options.bootstrap} gave no answer in {_SOURCE_S:.0f} s",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None

    try:
        return ask(options.bootstrap, question), None
    except (ClientError, JobError) as error:
        return None, str(error)


async def live(source: Pool, places: Sequence[TopicPartition]) -> Live:
    cluster = await source.metadata(None)
    there = {
        TopicPartition(topic.name or "", row.partition_index)
        for topic in cluster.topics
        for row in topic.partitions
    }
    known = sorted(there.intersection(places))
    latest = await admin.list_offsets(source, dict.fromkeys(known, admin.LATEST))
    first = await admin.list_offsets(source, dict.fromkeys(known, admin.EARLIEST))
    ends = {place: at.offset for place, at in latest.items()}
    sizes = await record_sizes(source, {place: at.offset for place, at in first.items()}, ends)
    ids = {topic.name or "": topic.topic_id.hex() for topic in cluster.topics}
    return Live(cluster.cluster_id or "", ids, ends, sizes)


def _lag(mirror: Mirror, source: Live | None) -> Lag:
    """None: as it was heard last."""
    ends = source.ends if source else {}
    rows = []
    for index, position in mirror.state.partitions.items():
        place = TopicPartition(mirror.origin.topic if mirror.origin else mirror.name, index)
        beat = mirror.beats.get(index)
        end = ends.get(place, beat.source_end if beat else position.log_end_offset)
        rows.append(
            Behind(
                place,
                TopicPartition(mirror.name, index),
                end,
                position.log_end_offset,
                beat.at_ms if beat else 0,
            )
        )
    sizes = source.sizes if source and ends else None
    return lag_of(rows, sizes, now_ms(), is_live=bool(ends))


def _row(mirror: Mirror, lag: Lag, is_live: bool) -> dict[str, Any]:
    return {
        "topic": mirror.name,
        "is_mirror": mirror.is_mirror,
        "source": mirror.state.source,
        "source_asked": is_live,
        "behind": lag.facts() if mirror.is_mirror else None,
        "ends": {str(n): at.log_end_offset for n, at in mirror.state.partitions.items()},
    }


def _line(mirror: Mirror, lag: Lag, is_live: bool) -> str:
    if not mirror.is_mirror:
        return f"{mirror.name}: no mirror, takes writes"
    origin = mirror.origin
    of = f"{origin.topic} of cluster {origin.cluster_id}" if origin else str(mirror.state.source)
    return f"{mirror.name}: mirror of {of}, {lag.line()}" + ("" if is_live else ", as last heard")


# Promotion ---------------------------------------------------------------------------------------


def _promoted(options: MirrorOptions, progress: Progress) -> Summary:
    started_s = time.monotonic()
    progress.show("promoting")
    mirrors, after = ask(options.target, lambda pool: _promote_all(pool, options))
    seconds = time.monotonic() - started_s
    promoted = [mirror for mirror in mirrors if mirror.is_mirror]
    progress.show("asking the source what it has beyond the mirrors")
    source, problem = ask_source(options, _places(promoted)) if promoted else (None, None)
    rows, lines = [], []
    for mirror, state in zip(mirrors, after, strict=True):
        own = _own(mirror, source)
        lag = _lag(mirror, own)
        is_live = own is not None
        rows.append(
            {
                "topic": mirror.name,
                "was_mirror": mirror.is_mirror,
                "source_asked": is_live,
                "rpo": lag.loss(is_live=is_live) if mirror.is_mirror else None,
                "mirrored_upto": _ends(mirror.state),
                "ends": _ends(state),
            }
        )
        heard = "" if is_live else " when the source was last heard"
        lines.append(
            f"{mirror.name}: takes writes; {lag.line()}{heard}"
            if mirror.is_mirror
            else f"{mirror.name}: was no mirror, takes writes already"
        )
    facts = {
        "job": "mirror",
        "action": PROMOTE,
        "target": options.target,
        "source_error": problem,
        "topics": rows,
        "seconds": round(seconds, 2),
    }
    if problem is not None:
        lines.append(f"the source cannot be asked: {problem}")
    lines.append(f"{len(promoted):,} mirrors promoted in {seconds:,.1f} s")
    return Summary(facts, tuple(lines))


def _ends(state: MirrorState) -> dict[str, int]:
    return {str(index): at.log_end_offset for index, at in state.partitions.items()}


async def _promote_all(
    target: Pool, options: MirrorOptions
) -> tuple[list[Mirror], list[MirrorState]]:
    mirrors = await find_mirrors(target, options)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(mirror: Mirror) -> MirrorState:
        async with gate:
            if not mirror.is_mirror:
                return mirror.state
            await _remember(target, mirror)
            reached("mirror:promoting")
            state = await promote(target, mirror.name)
            reached("mirror:promoted")
            return state

    results = await asyncio.gather(*map(one, mirrors), return_exceptions=True)
    for result in results:  # only now: the others are promoted
        if isinstance(result, BaseException):
            raise result
    return mirrors, [result for result in results if isinstance(result, MirrorState)]


async def _remember(target: Pool, mirror: Mirror) -> None:
    """What was copied until then: failing back asks for it."""
    if mirror.origin is None:
        return
    beats = {}
    for index, position in mirror.state.partitions.items():
        beat = mirror.beats.get(index, Beat(0, position.log_end_offset, 0))
        beats[TopicPartition(mirror.name, index)] = beat._replace(
            offset=position.log_end_offset,
            of=ids(mirror.origin.topic_id, mirror.state.topic_id),
            promoted_at_ms=now_ms(),
        )
    await write_beats(target, mirror.origin.cluster_id, beats)
