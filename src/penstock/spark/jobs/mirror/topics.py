"""Keep the target in step with the source: its mirrors, their partitions and their settings."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.mirroring import MIRROR_SOURCE, supports_mirrors
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.mirror import names
from penstock.spark.jobs.mirror.beats import ids as beat_ids
from penstock.spark.jobs.mirror.beats import read_beats
from penstock.spark.jobs.mirror.names import LINK_LOG_PREFIX, Origin, Topic
from penstock.spark.jobs.mirror.options import MirrorOptions
from penstock.spark.steps import reached
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponseTopic


class Ends(NamedTuple):
    """Both ends of a link."""

    source: Pool
    target: Pool


class Pair(NamedTuple):
    source: str
    target: str
    partitions: int
    source_topic_id: bytes


class Link(NamedTuple):
    """What is copied, and what would have to be done first."""

    source_id: str
    target_id: str
    pairs: tuple[Pair, ...]
    skipped: tuple[str, ...]
    has_problems: bool  # some were skipped that should not have to be
    to_do: tuple[str, ...]


class Survey(NamedTuple):
    """What both ends have of the topics that are meant."""

    at_source: MetadataResponse
    at_target: MetadataResponse
    ids: tuple[str, str]  # of the clusters
    names: Mapping[str, str]  # at the source -> at the target
    sources: Mapping[str, Topic]
    targets: Mapping[str, Topic]


class _Step(NamedTuple):
    source: Topic
    target: Topic | None
    name: str
    origin: Origin
    replicas: int
    decision: names.Decision


async def survey(ends: Ends, options: MirrorOptions) -> Survey:
    at_source, at_target = await ends.source.metadata(None), await ends.target.metadata(None)
    ids = at_source.cluster_id or "", at_target.cluster_id or ""
    if ids[0] == ids[1]:
        raise JobError("source and target are the same cluster; give two")
    wanted = chosen(options, at_source)
    own_name = options.source_name or ids[0]
    copies = {name: names.renamed(options.rename, own_name, name) for name in wanted}
    sources = await described(ends.source, at_source, wanted)
    targets = await described(ends.target, at_target, copies.values())
    return Survey(at_source, at_target, ids, copies, sources, targets)


async def in_step(
    ends: Ends, options: MirrorOptions, *, change: bool, replace: bool = False
) -> Link:
    """Asks both ends. `change`: and does what it takes; else only tells. `replace`: also what is no mirror."""
    if not await supports_mirrors(ends.target):
        raise JobError(
            f"the brokers of {options.target} take no mirrors: they are not Penstock's, or not all of this "
            "version (mirror.version 1); to copy with other offsets, and have those of groups translated, give --translate"
        )
    _, at_target, ids, mirror_names, sources, targets = await survey(ends, options)
    steps = []
    for name, mirror in mirror_names.items():
        source = sources[name]
        origin = Origin(ids[0], source.topic_id.hex(), name, source.mirrors)
        decision = _decided(options, source, targets.get(mirror), mirror, origin, ids[1], replace)
        replicas = options.replicas or min(source.replicas, len(at_target.brokers))
        steps.append(_Step(source, targets.get(mirror), mirror, origin, replicas, decision))
    await _check_discards(ends, options, ids[1], [s for s in steps if _replaces(s)])
    if change:
        for step in steps:
            await _do(ends.target, step)
        reached("mirror:topics")
    return _link(ids, steps)


def _decided(
    options: MirrorOptions,
    source: Topic,
    target: Topic | None,
    name: str,
    origin: Origin,
    target_id: str,
    replace: bool,
) -> names.Decision:
    """One of many that a pattern found does not hold up the others; one that was named must be copied."""
    try:
        decision = names.decide(
            source,
            target,
            name=name,
            origin=origin,
            target_id=target_id,
            replace=replace,
        )
    except JobError as error:
        if source.name in options.topics:
            raise
        return names.Skip(str(error), is_problem=True)
    if isinstance(decision, names.Skip) and source.name in options.topics:
        raise JobError(
            f"{decision.reason}; to change the direction, promote it first: penstock pipeline mirror "
            f"promote {source.name} --target {options.bootstrap}"
        )
    return decision


def chosen(options: MirrorOptions, cluster: MetadataResponse) -> list[str]:
    """Topics of the source; a name that is not there is an error."""
    there = {topic.name or "": topic for topic in cluster.topics}
    for name in options.topics:
        if name not in there:
            raise JobError(f"topic {name!r} does not exist at the source, {options.bootstrap}")
    matching = []
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        matching = [
            name
            for name, topic in there.items()
            if not topic.is_internal
            and not name.startswith(LINK_LOG_PREFIX)
            and pattern.fullmatch(name)
        ]
    return sorted({*options.topics, *matching})


async def described(
    pool: Pool, cluster: MetadataResponse, wanted: Iterable[str]
) -> dict[str, Topic]:
    """Those that exist."""
    there = {topic.name or "": topic for topic in cluster.topics}
    return {
        name: await _described(pool, there[name]) for name in sorted(set(wanted)) if name in there
    }


async def _described(pool: Pool, topic: MetadataResponseTopic) -> Topic:
    name = topic.name or ""
    configs = await admin.topic_configs(pool, name)
    settings = {row.name: row.value or "" for row in configs if row.is_overridden}
    return Topic(
        name,
        topic.topic_id,
        len(topic.partitions),
        len(topic.partitions[0].replica_nodes) if topic.partitions else 1,
        settings,
        settings.get(MIRROR_SOURCE, ""),
    )


def _replaces(step: _Step) -> bool:
    return isinstance(step.decision, names.Replace)


async def _do(target: Pool, step: _Step) -> None:
    match step.decision:
        case names.Skip():
            return
        case names.Create(partitions):
            await _create(target, step, partitions)
        case names.Replace(partitions):
            await admin.delete_topic(target, step.name)
            reached("mirror:topic-deleted")
            await _create(target, step, partitions)
        case names.Adjust(grow_to, set_to, reset):
            if grow_to is not None:
                await admin.grow_topic(target, step.name, grow_to)
                reached("mirror:topic-grown")
                await admin.ensure_topic(target, step.name, create=False)
            if set_to or reset:
                await admin.alter_topic_configs(target, step.name, set_to=set_to, reset=reset)
                reached("mirror:topic-set")


async def _create(target: Pool, step: _Step, partitions: int) -> None:
    settings = names.copied_settings(step.source, step.replicas)
    try:
        await admin.create_topic(
            target,
            step.name,
            partitions=partitions,
            replication_factor=step.replicas,
            settings={**settings, MIRROR_SOURCE: step.origin.text()},
        )
    except ClientError as error:
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            raise JobError(
                f"{error.message} at the target, since a moment ago; run it again"
            ) from None
        raise
    reached("mirror:topic-created")
    await admin.ensure_topic(target, step.name, create=False)


def _link(ids: tuple[str, str], steps: Sequence[_Step]) -> Link:
    copied = [step for step in steps if not isinstance(step.decision, names.Skip)]
    skips = [step.decision for step in steps if isinstance(step.decision, names.Skip)]
    return Link(
        *ids,
        tuple(_pair(step) for step in copied),
        tuple(skip.reason for skip in skips),
        any(skip.is_problem for skip in skips),
        tuple(line for step in copied for line in _told(step)),
    )


def _pair(step: _Step) -> Pair:
    source = step.source
    return Pair(source.name, step.name, source.partitions, source.topic_id)


def _told(step: _Step) -> list[str]:
    match step.decision:
        case names.Create(partitions):
            return [f"create mirror {step.name} with {partitions} partitions"]
        case names.Replace(partitions):
            return [f"delete {step.name} and create it as a mirror with {partitions} partitions"]
        case names.Adjust(grow_to, set_to, reset):
            lines = [] if grow_to is None else [f"grow {step.name} to {grow_to} partitions"]
            lines += [f"set {key}={value} for {step.name}" for key, value in set_to.items()]
            return lines + [f"reset {key} of {step.name}" for key in reset]
        case _:
            return []


# What would be lost ------------------------------------------------------------------------------


async def _check_discards(
    ends: Ends, options: MirrorOptions, target_id: str, steps: Sequence[_Step]
) -> None:
    """A topic that is made anew may have records that were never copied: they are given up by name only."""
    if not steps or options.discard:
        return
    beats = await read_beats(ends.source, target_id)
    for step in steps:
        assert step.target is not None, "it is there to be replaced"
        known = beat_ids(step.target.topic_id, step.source.topic_id)
        copied = {
            place: beat.offset
            for place, beat in beats.items()
            if place.topic == step.source.name and beat.of == known
        }
        if lost := await _uncopied(ends.target, step.name, copied):
            raise JobError(
                f"topic {step.name!r} of {options.target} has {lost} that were never mirrored, and failback "
                "makes it anew; save them (penstock pipeline lake), then give --discard"
            )


async def _uncopied(target: Pool, name: str, copied: Mapping[TopicPartition, int]) -> str:
    """How many records of it nobody copied; nothing if none."""
    if not copied:
        return "records of which it is not known whether they were mirrored, or"
    (topic,) = await admin.describe_topics(target, [name])
    places = [TopicPartition(name, row.partition_index) for row in topic.partitions]
    latest = await admin.list_offsets(target, dict.fromkeys(places, admin.LATEST))
    by_index = {place.partition: offset for place, offset in copied.items()}
    count = sum(max(0, latest[p].offset - by_index.get(p.partition, 0)) for p in places)
    return f"{count:,} offsets" if count else ""
