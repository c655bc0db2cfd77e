"""Lay a plan out as sections of a report. Text, Markdown and HTML print the same sections."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.planner import sizing
from penstock.planner.alternatives import Alternative
from penstock.planner.inputs import Cpu
from penstock.planner.planning import Plan, Use
from penstock.planner.quantities import (
    DAY_S,
    format_byte_rate,
    format_bytes,
    format_count,
    format_duration,
    format_money,
    format_share,
)

_TOPICS_SHOWN: Final = 20
ACCURACY: Final = "Expect ±30%: measure with your own load before you buy."


class Section(NamedTuple):
    """A table with a title. Columns whose name begins with `>` are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


class Report(NamedTuple):
    headline: tuple[str, ...]
    sections: tuple[Section, ...]
    assumptions: tuple[str, ...]


def make_report(plan: Plan, alternatives: list[Alternative], machines: list[Plan]) -> Report:
    """Lay out all sections. `machines` holds the plan on each kind of machine, to compare."""
    sections = [_load(plan), _resources(plan), _layout(plan), _cost(plan), _losses(plan)]
    if len(plan.loads) > 1:
        sections.insert(1, _topics(plan))
    if len(machines) > 1:
        sections.append(_machines(plan, machines))
    sections.append(_alternatives(plan, alternatives))
    return Report(tuple(_headline(plan)), tuple(sections), tuple(_assumptions(plan)))


def _headline(plan: Plan) -> Iterator[str]:
    size = plan.size
    each = f"{count(size.brokers_each, 'broker')} each, {size.brokers:,} in all"
    machines = f"{count(size.machines, 'machine')} of the kind {plan.machine_name!r}, {each}"
    if not plan.inputs.cluster.brokers:
        yield f"{machines}. {_binding(plan)}"
    elif size.fits:
        yield f"{count(size.machines, 'broker')} carry this load. {_binding(plan)}"
    else:
        short = max(size.needed.values()) + size.lose
        yield (
            f"{count(size.machines, 'broker')} do not carry this load: {size.binds} alone asks "
            f"for {_machines_text(short)}."
        )
    money = plan.inputs.prices.currency
    yield (
        f"{format_money(plan.month, money)} a month, {format_money(plan.million, money)} a million "
        f"messages{'' if plan.inputs.own_prices else ' at example prices'}."
    )


def _binding(plan: Plan) -> str:
    size = plan.size
    if size.binds == sizing.REPLICAS:
        most = max(load.replicas for load in plan.loads)
        return (
            f"The replicas bind: {most} of each partition"
            f"{f', and {size.lose} that may be lost' if size.lose else ''}."
        )
    if size.binds == sizing.ZONES:
        return f"The zones bind: a machine in each of {plan.inputs.cluster.zones}."
    return f"{size.binds[0].upper()}{size.binds[1:]} binds."


def _load(plan: Plan) -> Section:
    totals = plan.size.totals
    peak = sum(load.topic.rate * load.topic.peak for load in plan.loads)
    rows = (
        ("messages", f"{format_count(totals.messages)}/s", f"{format_count(peak)}/s"),
        ("their bytes, a day", format_bytes(totals.payload * DAY_S), ""),
        ("into the leaders' logs", format_byte_rate(totals.in_average), format_byte_rate(totals.in_peak)),
        ("to followers", "", format_byte_rate(totals.followed)),
        ("to consumer groups", format_byte_rate(totals.read_average), format_byte_rate(totals.read)),
        ("kept, one copy", format_bytes(totals.kept), ""),
        ("on all disks", format_bytes(plan.size.disk), ""),
    )  # fmt: skip
    stored = totals.in_average / totals.messages
    note = f"One message takes {format_bytes(stored)} in the log."
    if plan.size.open_segments >= 0.01 * plan.size.disk:
        note += (
            f" {format_bytes(plan.size.open_segments)} of the disks is for open segments, which "
            "retention cannot delete."
        )
    return Section("Load", ("", ">average", ">peak"), rows, (note,))


def _topics(plan: Plan) -> Section:
    """List the topics that take the most disk; the others are one row."""
    pairs = list(zip(plan.loads, plan.size.partitions, strict=True))
    pairs.sort(key=lambda pair: (-pair[0].disk, -pair[0].in_average))
    rows = [
        (
            load.topic.name,
            f"{format_count(load.topic.rate)}/s",
            format_byte_rate(load.in_average),
            format_bytes(load.disk + load.open_segments(partitions)),
            f"{load.replicas}",
            f"{load.topic.groups}",
            f"{partitions:,}",
        )
        for load, partitions in pairs[:_TOPICS_SHOWN]
    ]
    if others := pairs[_TOPICS_SHOWN:]:
        rate = sum(load.topic.rate for load, _ in others)
        in_average = sum(load.in_average for load, _ in others)
        disk = sum(load.disk + load.open_segments(number) for load, number in others)
        amounts = f"{format_count(rate)}/s", format_byte_rate(in_average), format_bytes(disk)
        partitions = f"{sum(number for _, number in others):,}"
        rows.append((f"{count(len(others), 'other')}", *amounts, "", "", partitions))
    columns = ("topic", ">messages", ">into log", ">on disks", ">RF", ">groups", ">partitions")
    return Section("Topics", columns, tuple(rows))


def _resources(plan: Plan) -> Section:
    size = plan.size
    columns = ["a machine at peak", ">used", ">of", ">share", ">limit", ">machines"]
    rows = [_resource(plan, use) for use in plan.uses]
    room = plan.growth - 1
    note = "The load fills these machines."
    if room >= 0.01:
        note = f"The load can grow by {format_share(room)} before a machine must be added."
    elif room < 0:
        note = f"These machines carry {format_share(plan.growth)} of this load."
    if size.lose:
        columns.insert(4, f">without {size.lose}")
        for row, use in zip(rows, plan.uses, strict=True):
            row.insert(4, format_share(use.share_after_loss))
        note += f' "without {size.lose}": {count(size.lose, "machine")} lost at the peak.'
    return Section("What binds", tuple(columns), tuple(map(tuple, rows)), (note,))


def _resource(plan: Plan, use: Use) -> list[str]:
    binds = " (binds)" if use.resource == plan.size.binds else ""
    if use.resource == sizing.CPU:
        amounts = f"{use.amount:.2f}", count(int(use.capacity), "core")
    elif use.resource in (sizing.MEMORY, sizing.DISK_SPACE):
        amounts = format_bytes(use.amount), format_bytes(use.capacity)
    else:
        amounts = format_byte_rate(use.amount), format_byte_rate(use.capacity)
    return [
        use.resource + binds,
        *amounts,
        format_share(use.share),
        format_share(use.limit),
        _needed_text(plan.size.needed[use.resource]),
    ]


def _needed_text(machines: float) -> str:
    return "0" if machines == 0 else "< 0.1" if machines < 0.1 else f"{machines:,.1f}"


def _machines_text(machines: float) -> str:
    return count(-int(-machines // 1), "machine")


def _layout(plan: Plan) -> Section:
    size = plan.size
    each = size.replicas / size.machines
    cache = size.totals.written * plan.inputs.cluster.lag / size.machines
    rows = (
        ("partitions", f"{sum(size.partitions):,}", _partitions_note(plan)),
        ("replicas", f"{size.replicas:,}", f"{each:,.0f} on a machine"),
        (
            "memory of brokers",
            format_bytes(size.brokers_each * sizing.BROKER_BYTES + each * sizing.REPLICA_BYTES),
            "a machine: processes, requests in flight, replicas",
        ),
        (
            "page cache",
            format_bytes(cache),
            f"a machine: the last {format_duration(plan.inputs.cluster.lag)} of writes",
        ),
        (
            "copy a machine",
            format_duration(plan.rebuild_s),
            f"a lost one's {format_bytes(size.disk / size.machines)}, to a new one",
        ),
    )
    return Section("Partitions and memory", ("", ">", ""), rows)


def _partitions_note(plan: Plan) -> str:
    in_peak, partitions = plan.size.totals.in_peak, sum(plan.size.partitions)
    return f"{format_byte_rate(in_peak / partitions)} each at the peak"


def _cost(plan: Plan) -> Section:
    money, month = plan.inputs.prices.currency, plan.month
    rows = [
        (name, format_money(amount, money), format_share(amount / month) if month else "")
        for name, amount in plan.cost.items()
    ]
    rows.append(("in all", format_money(month, money), ""))
    rows.append(("a million messages", format_money(plan.million, money), ""))
    return Section("Cost of a month (730 h)", ("", ">cost", ">share"), tuple(rows))


def _losses(plan: Plan) -> Section:
    rows = []
    seen = set()
    for load in plan.loads:
        topic = load.topic
        kind = (topic.replication_factor, topic.acknowledged_by)
        if kind in seen:
            continue
        seen.add(kind)
        copies, acknowledged = kind
        rows.append((f"{copies}", f"{acknowledged}", f"{copies - 1}", f"{copies - acknowledged}"))
    columns = (">replicas", ">min.insync.replicas", ">data survives", ">writes survive")
    notes: tuple[str, ...] = (
        "Losses of machines that hold replicas of the same partition, with acks=all.",
    )
    if any(load.replicas == 1 for load in plan.loads):
        notes += ("With one replica the loss of a disk loses data; a spare machine is only room.",)
    return Section("What a loss costs", columns, tuple(rows), notes)


def _machines(plan: Plan, machines: list[Plan]) -> Section:
    money = plan.inputs.prices.currency
    rows = tuple(
        (
            other.machine_name,
            f"{other.size.machines:,}",
            other.size.binds,
            format_money(other.month, money),
            format_money(other.million, money),
        )
        for other in sorted(machines, key=lambda other: other.month)
    )
    columns = ("machine", ">machines", "binds", ">a month", ">a million messages")
    return Section("Kinds of machines", columns, rows)


def _alternatives(plan: Plan, alternatives: list[Alternative]) -> Section:
    money = plan.inputs.prices.currency
    rows = tuple(
        (
            other.change + (f"; costs: {other.gives_up}" if other.gives_up else ""),
            format_money(other.saving, money),
            format_share(other.saving / plan.month) if plan.month else "",
            f"{other.plan.size.machines:,}",
            "yes" if other.plan.size.fits else "no",
        )
        for other in alternatives
    )
    columns = ("change", ">saves a month", ">share", ">machines", "fits")
    title = "What would make it cheaper" if plan.size.fits else "What would make it fit, or cheaper"
    notes = () if rows else ("Nothing that this version knows of.",)
    return Section(title, columns, rows, notes)


def _assumptions(plan: Plan) -> Iterator[str]:
    inputs = plan.inputs
    limits, cluster = inputs.limits, inputs.cluster
    yield from inputs.notes
    if not inputs.own_prices:
        yield "Prices are examples; give your own in the file ([prices], [machines.NAME])."
    if inputs.machine_name == "" and len(inputs.machines) > 1:
        yield "The cheapest of the machines was taken; choose one with --machine."
    yield (
        f"Limits at the peak: CPU {format_share(limits.cpu)}, network "
        f"{format_share(limits.network)}, disk speed {format_share(limits.disk_speed)}, disk "
        f"space {format_share(limits.disk_space)}, memory {format_share(limits.memory)}."
    )
    yield "What is kept is sized by the average rate, what passes by the peak."
    if cluster.cold_reads == 0:
        yield "Consumers read from the page cache; give cold_reads for those that are far behind."
    if cluster.zones > 1 and cluster.rack_aware:
        yield "Consumers read from a replica in their own zone (client.rack)."
    if plan.size.machine.price_month == 0:
        yield f"The machine {plan.machine_name!r} has no price: set price_month in the file."
    if inputs.cpu == Cpu():
        yield (
            "CPU costs were measured with messages of 1 KB on a virtual machine with 2 cores; "
            "penstock plan --calibrate measures them on yours."
        )
    yield "1 KB is 1,000 bytes. A month has 730 hours."
    yield ACCURACY


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
