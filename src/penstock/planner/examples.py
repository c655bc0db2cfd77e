"""Worked examples: loads of capacity documents, and their figures beside those of the planner."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.planner import sizing
from penstock.planner.inputs import Cluster, Inputs, Limits, Machine, Topic
from penstock.planner.planning import make_plan
from penstock.planner.quantities import DAY_S, format_byte_rate, format_bytes, format_count
from penstock.planner.report import Section
from penstock.planner.sizing import GB, INDEX_SHARE, load_of

TB: Final = 1e12
_WEEK_S: Final = 7 * DAY_S
_FULL: Final = Limits(cpu=1, network=1, disk_speed=1, disk_space=1, memory=1)

MILLION: Final = Inputs((Topic(name="001", rate=1e6),), Cluster(zones=3))
TRILLIONS: Final = Inputs(
    (Topic(name="000", rate=3e6, peak=10 / 3, groups=2, members=20),), Cluster(zones=3)
)
DAILY_BILLION: Final = Inputs((Topic(name="003", rate=1e9 / DAY_S, groups=2),), Cluster(zones=3))


class Check(NamedTuple):
    """A figure of a document, and the right one. `figures` are the numbers in `right`."""

    document: str
    says: str
    right: str
    why: str
    figures: tuple[float, ...]


class Example(NamedTuple):
    title: str
    inputs: Inputs


EXAMPLES: Final[Mapping[str, Example]] = {
    "000": Example("3 M messages a second, 10 M at the peak, kept for 7 days", TRILLIONS),
    "001": Example("1 M messages a second of 1 KB, kept for 7 days", MILLION),
    "002": Example("price of a million messages, for the load of 000", TRILLIONS),
    "003": Example("a billion messages a day, kept for 7 days", DAILY_BILLION),
}


def checks(document: str) -> list[Check]:
    return [made for make in _CHECKS if (made := make()).document == document]


def check_section(document: str) -> Section:
    rows = tuple((check.says, check.right, check.why) for check in checks(document))
    return Section(f"Figures of {document}", ("the document says", "right is", "why"), rows)


def _plain(inputs: Inputs) -> Topic:
    """Return the topic as the documents count: without framing and batch headers."""
    return replace(inputs.topics[0], framed=False)


def _check(document: str, says: str, right: str, why: str, *figures: float) -> Check:
    return Check(document, says, right, why, figures)


# 001 ---------------------------------------------------------------------------------------------


def _bytes_a_day() -> Check:
    day = load_of(_plain(MILLION)).in_average * DAY_S
    says = "1 M/s of 1 KB is 86.4 GB a day"
    return _check(
        "001", says, f"{day / TB:.1f} TB a day", "10^6 x 10^3 x 86,400 = 8.64 x 10^13", day
    )


def _week_on_disks() -> Check:
    topic = _plain(MILLION)
    kept = load_of(topic).kept
    copies = kept * topic.replication_factor
    with_room = copies * 1.2
    right = (
        f"{kept / TB:,.1f} TB; {copies / TB:,.0f} TB; {with_room / TB:,.0f} TB in all, "
        f"{with_room / 10 / TB:,.0f} TB a broker of 10"
    )
    says = "7 d are 604.8 GB; x 3 = 1.8 TB; x 1.2 = 2.2 TB a broker, 22 TB in all"
    why = "the same slip, and a total taken for one broker's"
    return _check("001", says, right, why, kept, copies, with_room, with_room / 10)


def _rate_of_a_broker() -> Check:
    """Divide the load by the machines that each resource asks for."""
    one, three = (_needed(replace(_plain(MILLION), groups=groups)) for groups in (1, 3))
    disk = GB / one[sizing.DISK_WRITE]
    network = [GB / needed[sizing.NETWORK_OUT] for needed in (one, three)]
    right = (
        f"{disk / 1e6:.0f} MB/s, {disk / 1e3:,.0f} messages/s; {disk * 10 / 1e9:.2f} M/s for 10; the "
        f"network alone: {network[0] / 1e6:.0f} MB/s (one group), {network[1] / 1e6:.0f} (three)"
    )
    says = "a broker takes 400 MB/s, 400,000 messages/s; 4 M/s for 10"
    why = "its disk (500 MB/s) writes every message once for each replica"
    return _check("001", says, right, why, disk, disk / 1e3, disk * 10 / 1e3, *network)


def _needed(topic: Topic) -> Mapping[str, float]:
    return sizing.size(Inputs((topic,), limits=_FULL), Machine()).needed


def _price_of_a_terabyte() -> Check:
    prices = [price * TB / GB for price in (0.10, 0.05, 0.02)]
    right = ", ".join(f"${price:.0f}" for price in prices)
    says = "$0.10, $0.05, $0.02 a GB are $10, $5, $2 a TB"
    return _check("001", says, right, "a TB is 1,000 GB", *prices)


def _fewer_brokers() -> Check:
    """Put a load that keeps the network of 20 machines 40 % busy on 12 machines."""
    machine = Machine()
    rate = 0.40 * 20 * machine.network / (3 * 1000)
    topic = replace(_plain(MILLION), rate=rate)
    plan = make_plan(Inputs((topic,), Cluster(brokers=12), limits=_FULL))
    share = next(use.share for use in plan.uses if use.resource == sizing.NETWORK_IN)
    says = "20 brokers at 40% are 12 at 70%"
    return _check("001", says, f"{share:.1%}", "8 / 12; fine", share)


def _survived_losses() -> Check:
    topic = MILLION.topics[0]
    data = topic.replication_factor - 1
    writes = topic.replication_factor - topic.acknowledged_by
    right = f"data {data}, writes with min.insync.replicas {topic.acknowledged_by}: {writes}"
    why = "acks=all needs min.insync.replicas of them"
    return _check("001", "RF 3 survives 2 failures", right, why, data, writes)


# 000 ---------------------------------------------------------------------------------------------


def _kept_by_the_average() -> Check:
    average = load_of(_plain(TRILLIONS)).kept
    peak = load_of(replace(_plain(TRILLIONS), rate=10e6)).kept
    compressed = average * 3 * 1.1 / 3
    right = (
        f"at the peak rate {peak / 100 / TB:.1f}, {peak * 3 / 100 / TB:.0f} TB, {peak * 3 / 1e15:.1f} PB; "
        f"at the average {average / 100 / TB:.1f}, {average * 3 / 100 / TB:.1f} TB, {average * 3 / 1e15:.1f} PB; "
        f"{compressed / 1e15:.1f} PB only with compression 3:1 and 10% on top"
    )
    says = "10 M/s x 1 KB x 7 d: 6 TB a broker (of 100), 18 with replicas, 2 PB in all"
    figures = (peak / 100, peak * 3 / 100, peak * 3, average / 100, average * 3 / 100, average * 3)
    return _check("000", says, right, "retention is filled by the average", *figures, compressed)


def _index() -> Check:
    why = "20 bytes for every 4 KiB"
    return _check("000", "indexes take 10%", f"{INDEX_SHARE:.1%}", why, INDEX_SHARE)


def _burst() -> Check:
    topic = TRILLIONS.topics[0]
    burst, peak = topic.rate * 10, topic.rate * topic.peak
    right = f"{format_count(burst)}/s; its peak is {format_count(peak)}/s ({topic.peak:.1f} x)"
    return _check("000", "bursts of 10 x 3 M/s", right, "10 x 3 M is 30 M", burst, peak, topic.peak)


def _partitions() -> Check:
    partitions = 1e6
    each = [rate / partitions for rate in (3e6, 10e6)]
    kept = load_of(_plain(TRILLIONS)).kept / partitions
    right = (
        f"{format_count(partitions * 1000)}/s; its 3 to 10 M/s are {each[0]:.0f} to {each[1]:.0f} "
        f"messages/s each; 100 GB each would be {format_bytes(100e9 * partitions)}; it is {format_bytes(kept)}"
    )
    says = "1 M partitions with 1,000 messages/s and 100 GB each"
    figures = (partitions * 1000, *each, 100e9 * partitions, kept)
    return _check("000", says, right, "the cluster's rate over its partitions", *figures)


def _fan_out() -> Check:
    topic = replace(_plain(TRILLIONS), peak=10 / 3)
    totals = [
        sizing.total([load_of(replace(topic, groups=groups))], TRILLIONS.cpu) for groups in (1, 2)
    ]
    right = f"{format_byte_rate(totals[0].read)} for each group that reads a topic"
    says = "out = in x 20 consumers = 200 GB/s"
    why = "20 is members of a group: they share its messages"
    return _check("000", says, right, why, totals[0].read, totals[1].read)


def _written_by_a_broker() -> Check:
    totals = sizing.total([load_of(_plain(TRILLIONS))], TRILLIONS.cpu)
    each = totals.written / 100
    why = "that is the cluster's; over 100 brokers, times RF 3"
    return _check("000", "each broker writes 10 GB/s", format_byte_rate(each), why, each)


def _cores() -> Check:
    by_its_costs = 12 * 0.70 / 10_000 * 100_000
    ours = sizing.total([load_of(TRILLIONS.topics[0])], TRILLIONS.cpu).cpu_cores / 100
    right = (
        f"10 M/s over 100 is 100 k/s: {by_its_costs:.0f} cores by its own costs; ours {ours:.1f}"
    )
    says = "12 cores for 10,000 messages/s a broker"
    return _check("000", says, right, "12 cores at 70% for a tenth of the load", by_its_costs, ours)


def _egress() -> Check:
    totals = sizing.total([load_of(replace(_plain(TRILLIONS), groups=1))], TRILLIONS.cpu)
    month = totals.read_average * 30 * DAY_S
    price = month / GB * 0.05
    right = f"{month / TB:,.0f} TB for one group at 3 GB/s (${price:,.0f} at its price)"
    return _check("000", "500 TB egress a month", right, "3 GB/s for 30 days", month, price)


def _billion() -> Check:
    billion = 0.047 * 1000
    says = '$0.047 a million, "$0.05 a billion"'
    return _check("000", says, f"${billion:.0f} a billion", "a billion is 1,000 million", billion)


# 002 and 003 -------------------------------------------------------------------------------------


def _price_targets() -> Check:
    million = 10_000 / 1000
    ratio = million / 0.0001
    says = "< $0.0001 a million; < $10,000 a billion a month"
    right = f"$10,000 a billion is ${million:.0f} a million: they differ by {ratio:,.0f}"
    return _check("002", says, right, "neither is a target without a price table", million, ratio)


def _daily_billion() -> Check:
    plain = load_of(_plain(DAILY_BILLION))
    copies = plain.kept * plain.replicas
    ours = load_of(DAILY_BILLION.topics[0]).disk
    right = f"{copies / TB:.1f} TB; {ours / TB:.1f} TB with framing and indexes"
    says = "1 B/day x 1 KB x 7 d x 3 = 21 TB"
    return _check("003", says, right, "right", copies, ours)


def _replicas_counted_twice() -> Check:
    """Put 500 MB/s on machines that take 50 MB/s each, and write that three times."""
    topic = replace(_plain(MILLION), rate=500e3)
    machine = Machine(disk_write=50e6 * topic.replication_factor)
    needed = sizing.size(Inputs((topic,), limits=_FULL), machine).needed[sizing.DISK_WRITE]
    right = f'{needed:.0f}, if 50 MB/s is "with replication", as it says'
    return _check("003", "(500 / 50) x 3 = 30 brokers", right, "RF is counted twice", needed)


_CHECKS: Final[tuple[Callable[[], Check], ...]] = (
    *(_bytes_a_day, _week_on_disks, _rate_of_a_broker, _price_of_a_terabyte, _fewer_brokers),
    *(_survived_losses, _kept_by_the_average, _index, _burst, _partitions, _fan_out),
    *(_written_by_a_broker, _cores, _egress, _billion, _price_targets, _daily_billion),
    _replicas_counted_twice,
)
