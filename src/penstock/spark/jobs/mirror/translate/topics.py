"""Describe the topics of both ends, decide what a target without mirror mode needs, and do it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import NO_TOPIC_ID
from penstock.spark.errors import JobError
from penstock.spark.jobs.mirror import names
from penstock.spark.jobs.mirror.names import Topic
from penstock.spark.jobs.mirror.options import FAILBACK, MirrorOptions
from penstock.spark.jobs.mirror.topics import Ends, Link, Pair, survey
from penstock.spark.jobs.mirror.translate import claims
from penstock.spark.jobs.mirror.translate.claims import Merging, Verdict
from penstock.spark.jobs.mirror.translate.link_log import known_topic
from penstock.spark.jobs.mirror.translate.links import Claim, log_name
from penstock.spark.steps import reached


class Seen(NamedTuple):
    """What both ends say."""

    source_id: str
    target_id: str
    brokers: int  # of the target
    names: Mapping[str, str]  # at the source -> at the target
    sources: Mapping[str, Topic]
    targets: Mapping[str, Topic]
    has_log: bool  # the link was used before
    has_back: bool  # and the one in the other direction
    known: frozenset[str] | None  # settings that the target has


class Step(NamedTuple):
    source: Topic
    target: Topic | None
    name: str
    replicas: int
    verdict: Verdict


async def look(ends: Ends, options: MirrorOptions) -> Seen:
    at_source, at_target, ids, copies, sources, targets = await survey(ends, options)
    logs = log_name(ids[0]), log_name(ids[1])
    has_log = any(topic.name == logs[0] for topic in at_target.topics)
    known = None
    if has_log:
        rows = await admin.topic_configs(ends.target, logs[0])
        known = frozenset(row.name for row in rows)
    return Seen(
        *ids,
        len(at_target.brokers),
        copies,
        sources,
        targets,
        has_log,
        any(topic.name == logs[1] for topic in at_source.topics),
        known,
    )


def decided(
    seen: Seen,
    options: MirrorOptions,
    own: Mapping[str, Claim],
    back: Mapping[str, Claim],
    *,
    merge: Merging,
) -> list[Step]:
    """One of many that a pattern found does not hold up the others; one that was named must be copied."""
    steps = []
    for name, copy in seen.names.items():
        source, target = seen.sources[name], seen.targets.get(copy)
        verdict = _verdict(seen, options, own, back, source, merge)
        replicas = options.replicas or min(source.replicas, seen.brokers)
        steps.append(Step(source, target, copy, replicas, verdict))
    return steps


def _verdict(
    seen: Seen,
    options: MirrorOptions,
    own: Mapping[str, Claim],
    back: Mapping[str, Claim],
    source: Topic,
    merge: Merging,
) -> Verdict:
    name = seen.names[source.name]
    try:
        verdict = claims.decide(
            source,
            seen.targets.get(name),
            name=name,
            claims=own,
            back=back,
            target_id=seen.target_id,
            merge=merge,
            known=seen.known,
        )
    except JobError as error:
        if source.name in options.topics:
            raise
        return Verdict(names.Skip(str(error), is_problem=True))
    if isinstance(verdict.decision, names.Skip) and source.name in options.topics:
        raise JobError(
            f"{verdict.decision.reason}; to change the direction, promote it first: penstock pipeline mirror "
            f"promote {source.name} --target {options.bootstrap} --translate"
        )
    return verdict


def merging(options: MirrorOptions, *, is_first: bool) -> Merging:
    is_asked = options.merge or options.action == FAILBACK
    return Merging(is_asked, is_asked and is_first)


def new_claims(steps: Sequence[Step], own: Mapping[str, Claim]) -> dict[str, Claim]:
    return {
        step.name: step.verdict.claim
        for step in steps
        if step.verdict.claim is not None and step.verdict.claim != own.get(step.name)
    }


async def do(target: Pool, steps: Sequence[Step], known: frozenset[str]) -> dict[str, bytes]:
    """Returns the ids of the target's topics when all of them can be written to."""
    ids = {}
    for step in steps:
        match step.verdict.decision:
            case names.Create(partitions):
                await _create(target, step, partitions, known)
            case names.Adjust(grow_to, set_to, reset):
                if grow_to is not None:
                    await admin.grow_topic(target, step.name, grow_to)
                    reached("mirror:topic-grown")
                if set_to or reset:
                    await admin.alter_topic_configs(target, step.name, set_to=set_to, reset=reset)
                    reached("mirror:topic-set")
            case _:
                continue
        found = await known_topic(target, step.name)
        if found.topic_id == NO_TOPIC_ID:
            raise JobError(
                "the brokers of the target give topics no ids, so that a topic which is deleted and created again "
                "cannot be told apart; they must be newer (Apache Kafka 2.8 or later)"
            )
        ids[step.name] = found.topic_id
    return ids


async def _create(target: Pool, step: Step, partitions: int, known: frozenset[str]) -> None:
    try:
        await admin.create_topic(
            target,
            step.name,
            partitions=partitions,
            replication_factor=step.replicas,
            settings=claims.new_settings(step.source, step.replicas, known),
        )
    except ClientError as error:
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            raise JobError(
                f"{error.message} at the target, since a moment ago; run it again"
            ) from None
        raise
    reached("mirror:topic-created")


def link_of(seen: Seen, steps: Sequence[Step]) -> Link:
    copied = [step for step in steps if not isinstance(step.verdict.decision, names.Skip)]
    skips = [s.verdict.decision for s in steps if isinstance(s.verdict.decision, names.Skip)]
    return Link(
        seen.source_id,
        seen.target_id,
        tuple(
            Pair(step.source.name, step.name, step.source.partitions, step.source.topic_id)
            for step in copied
        ),
        tuple(skip.reason for skip in skips),
        any(skip.is_problem for skip in skips),
        tuple(line for step in copied for line in _told(step)),
    )


def _told(step: Step) -> list[str]:
    match step.verdict.decision:
        case names.Create(partitions):
            return [f"create {step.name} with {partitions} partitions"]
        case names.Adjust(grow_to, set_to, reset):
            lines = [] if grow_to is None else [f"grow {step.name} to {grow_to} partitions"]
            lines += [f"set {key}={value} for {step.name}" for key, value in set_to.items()]
            lines += [f"reset {key} of {step.name}" for key in reset]
            claim = step.verdict.claim
            if claim is not None and claim.is_merged:
                lines.append(f"add to {step.name}, which has records of its own")
            return lines
        case _:
            return []
