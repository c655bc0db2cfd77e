"""Compute what would make a plan cheaper, or fit. Each alternative is a plan with one change.

Only what this version of the broker can do is offered.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from penstock.planner.inputs import Inputs, PlanError
from penstock.planner.planning import Plan, compare_machines, make_plan, with_topics
from penstock.planner.quantities import DAY_S, format_bytes, format_duration

_Changes = Iterator[tuple[str, str, Inputs]]

_COMPRESSION: Final = 3.0  # what JSON of one kind often reaches with lz4 or zstd
_BATCH: Final = 64.0
_LEAST_SAVING: Final = 0.005  # of the price of a month
_GROWTHS: Final = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)


@dataclass(frozen=True, slots=True)
class Alternative:
    change: str
    gives_up: str  # what it costs besides money; empty: nothing
    plan: Plan
    saving: float  # a month


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """The price of a month when all rates are multiplied by `factor`; None: no such cluster."""

    factor: float
    month: float | None
    machines: int | None


def cheaper(plan: Plan) -> list[Alternative]:
    """Return the changes that save money, or make a cluster fit; the best first."""
    found = []
    for change, gives_up, inputs in _changes(plan):
        try:
            other = make_plan(inputs)
        except PlanError:
            continue
        saving = plan.month - other.month
        mends = other.size.fits and not plan.size.fits
        if mends or saving > plan.month * _LEAST_SAVING:
            found.append(Alternative(change, gives_up, other, saving))
    return sorted(found, key=lambda other: (not other.plan.size.fits, -other.saving))


def growth_curve(plan: Plan) -> list[GrowthPoint]:
    """Plan smaller and larger loads on the same kind of machine."""
    points = []
    for factor in _GROWTHS:
        grown = grow(replace(plan.inputs, machine_name=plan.machine_name), factor)
        try:
            other = make_plan(grown)
        except PlanError:
            points.append(GrowthPoint(factor, None, None))
        else:
            points.append(GrowthPoint(factor, other.month, other.size.machines))
    return points


def grow(inputs: Inputs, factor: float) -> Inputs:
    """Multiply all rates, and the sizes of compacted topics, by `factor`."""
    topics = tuple(
        replace(topic, rate=topic.rate * factor, kept=topic.kept * factor)
        for topic in inputs.topics
    )
    return replace(inputs, topics=topics)


def _changes(plan: Plan) -> _Changes:
    inputs = replace(plan.inputs, machine_name=plan.machine_name)
    for change in (_compress, _batch, _shorten, _copy_less, _read_near, _small_segments, _disks):
        yield from change(plan, inputs)
    for other in _other_machines(plan):
        yield (
            f"machine {other.machine_name!r}",
            "",
            replace(inputs, machine_name=other.machine_name),
        )


def _compress(_: Plan, inputs: Inputs) -> _Changes:
    """Leave out topics whose size in the log was measured: how well they compress is not known."""
    if any(topic.framed and topic.compression < _COMPRESSION for topic in inputs.topics):
        topics = tuple(
            replace(topic, compression=max(topic.compression, _COMPRESSION if topic.framed else 1))
            for topic in inputs.topics
        )
        yield (
            f"compress to {_COMPRESSION:g}:1 (lz4 or zstd, in producers)",
            "CPU of clients; measure the ratio",
            replace(inputs, topics=topics),
        )


def _batch(_: Plan, inputs: Inputs) -> _Changes:
    if any(topic.framed and topic.batch < _BATCH for topic in inputs.topics):
        topics = tuple(replace(it, batch=max(it.batch, _BATCH)) for it in inputs.topics)
        changed = replace(inputs, topics=topics)
        yield f"batches of {_BATCH:g} messages (linger.ms)", "a few ms of latency", changed


def _shorten(_: Plan, inputs: Inputs) -> _Changes:
    longest = max(topic.retention for topic in inputs.topics)
    choices = {longest / 2, min(longest, 1.0 * DAY_S)}
    for retention_s in sorted(choices, reverse=True):
        if retention_s < longest:
            topics = tuple(
                replace(topic, retention=min(topic.retention, retention_s))
                for topic in inputs.topics
            )
            text = format_duration(retention_s)
            yield f"retention of {text}", "older messages", replace(inputs, topics=topics)


def _copy_less(_: Plan, inputs: Inputs) -> _Changes:
    most = max(topic.replication_factor for topic in inputs.topics)
    if most > 2:
        topics = tuple(
            replace(topic, replication_factor=min(topic.replication_factor, most - 1))
            for topic in inputs.topics
        )
        yield (
            f"replication factor {most - 1}",
            f"data survives {most - 2} lost, not {most - 1}",
            replace(inputs, topics=topics),
        )


def _read_near(_: Plan, inputs: Inputs) -> _Changes:
    cluster = inputs.cluster
    if cluster.zones > 1 and not cluster.rack_aware:
        changed = replace(inputs, cluster=replace(cluster, rack_aware=True))
        yield "consumers read in their own zone (client.rack)", "", changed


def _small_segments(plan: Plan, inputs: Inputs) -> _Changes:
    """Shrink segments where many partitions keep open ones that retention cannot delete."""
    if plan.size.open_segments > 0.1 * plan.size.disk:
        largest = max(topic.segment for topic in inputs.topics)
        smaller = max(largest / 8, 2.0**24)
        if smaller < largest:
            changed = with_topics(inputs, segment=smaller)
            yield f"segment.bytes of {format_bytes(smaller)}", "more files", changed


def _disks(plan: Plan, inputs: Inputs) -> _Changes:
    machine = plan.size.machine
    larger = replace(machine, disk=machine.disk * 2)
    changed = replace(inputs, machines={**inputs.machines, plan.machine_name: larger})
    text = f"{format_bytes(larger.disk)} of disk a machine"
    yield text, "longer copies; price as before", changed


def _other_machines(plan: Plan) -> list[Plan]:
    return [
        other
        for other in compare_machines(replace(plan.inputs, machine_name=""))
        if other.machine_name != plan.machine_name
    ]
