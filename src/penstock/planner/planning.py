"""Make a plan: machines and brokers, their use before and after losses, and what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.planner import sizing
from penstock.planner.inputs import Inputs, Machine, PlanError
from penstock.planner.quantities import MONTH_S, nearest
from penstock.planner.sizing import GB, Size, TopicLoad

MACHINES: Final = "machines"
DISKS: Final = "disks"
ACROSS_ZONES: Final = "across zones"
EGRESS: Final = "egress"


@dataclass(frozen=True, slots=True)
class Use:
    """How busy one resource of a machine is at the peak. A share above one does not fit."""

    resource: str
    amount: float  # of one machine, with all machines there
    capacity: float
    share: float
    share_after_loss: float
    limit: float


@dataclass(frozen=True, slots=True)
class Plan:
    inputs: Inputs
    machine_name: str
    loads: tuple[TopicLoad, ...]
    size: Size
    uses: tuple[Use, ...]
    cost: Mapping[str, float]  # a month, by what is paid for

    @property
    def month(self) -> float:
        return sum(self.cost.values())

    @property
    def million(self) -> float:
        """The price of a million messages."""
        return self.month / (self.size.totals.messages * MONTH_S / 1e6)

    @property
    def growth(self) -> float:
        """By how much the load can grow on these machines, losses included (1: not at all)."""
        size = self.size
        return (size.machines - size.lose) / max(size.needed.values())

    @property
    def rebuild_s(self) -> float:
        """Time to copy a lost machine's data to a new one, at the limits of disk and network."""
        machine, limits = self.size.machine, self.inputs.limits
        speed = min(machine.disk_write * limits.disk_speed, machine.network * limits.network)
        return self.size.disk / self.size.machines / speed


def make_plan(inputs: Inputs) -> Plan:
    """Plan on the chosen machine, or on the cheapest one."""
    if not inputs.machine_name:
        plans = compare_machines(inputs)
        return min(plans, key=lambda plan: (not plan.size.fits, plan.month))
    if inputs.machine_name not in inputs.machines:
        known = list(inputs.machines)
        hint = nearest(inputs.machine_name, known) or f" (known: {', '.join(known)})"
        raise PlanError(f"machine: there is no machine {inputs.machine_name!r}{hint}")
    return plan_on(inputs, inputs.machine_name)


def compare_machines(inputs: Inputs) -> list[Plan]:
    """Plan on each kind of machine; leave out those that cannot carry the load."""
    plans, refused = [], []
    for name in inputs.machines:
        try:
            plans.append(plan_on(inputs, name))
        except PlanError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    return plans


def plan_on(inputs: Inputs, name: str) -> Plan:
    machine = inputs.machines[name]
    size = sizing.size(inputs, machine)
    loads = tuple(sizing.load_of(topic) for topic in inputs.topics)
    return Plan(inputs, name, loads, size, _uses(inputs, machine, size), _cost(inputs, loads, size))


def _uses(inputs: Inputs, machine: Machine, size: Size) -> tuple[Use, ...]:
    totals, limits, cluster = size.totals, inputs.limits, inputs.cluster
    cache = totals.written * cluster.lag + size.replicas * sizing.REPLICA_BYTES
    brokers_memory = size.brokers_each * sizing.BROKER_BYTES
    rows = (
        (sizing.CPU, totals.cpu_cores, float(size.brokers_each), 0.0, limits.cpu),
        (sizing.MEMORY, cache, machine.memory, brokers_memory, limits.memory),
        (sizing.NETWORK_IN, totals.written, machine.network, 0.0, limits.network),
        (sizing.NETWORK_OUT, totals.followed + totals.read, machine.network, 0.0, limits.network),
        (sizing.DISK_WRITE, totals.written, machine.disk_write, 0.0, limits.disk_speed),
        (sizing.DISK_READ, totals.read * cluster.cold_reads, machine.disk_read, 0.0, limits.disk_speed),
        (sizing.DISK_SPACE, size.disk, machine.disk, 0.0, limits.disk_space),
    )  # fmt: skip
    left = size.machines - size.lose
    uses = []
    for resource, whole, capacity, fixed, limit in rows:
        amount = whole / size.machines + fixed
        after = (whole / left + fixed) / capacity
        uses.append(Use(resource, amount, capacity, amount / capacity, after, limit))
    return tuple(uses)


def _cost(inputs: Inputs, loads: tuple[TopicLoad, ...], size: Size) -> dict[str, float]:
    prices, totals = inputs.prices, size.totals
    crossing = sum(
        load.in_average * zone_crossings(inputs, load.replicas, load.topic.groups) for load in loads
    )
    return {
        MACHINES: size.machines * size.machine.price_month,
        DISKS: size.disk / inputs.limits.disk_space / GB * prices.disk_gb_month,
        ACROSS_ZONES: crossing * MONTH_S / GB * prices.zone_gb,
        EGRESS: totals.read_average * MONTH_S / GB * prices.egress_gb,
    }


def zone_crossings(inputs: Inputs, replicas: int, groups: int) -> float:
    """Return how often a stored byte crosses zones: to its leader, followers and consumers.

    Producers and readers that do not know of zones are in the leader's zone once in `zones`.
    """
    zones = inputs.cluster.zones
    if zones < 2:
        return 0.0
    elsewhere = 1 - 1 / zones
    crowded, rest = divmod(replicas, zones)
    in_each = [crowded + 1] * rest + [crowded] * (zones - rest)
    to_followers = replicas - sum(count * count for count in in_each) / replicas
    has_own_replica = min(replicas, zones) / zones
    away = elsewhere if not inputs.cluster.rack_aware else 1 - has_own_replica
    return elsewhere + to_followers + groups * away


def with_topics(inputs: Inputs, **changes: object) -> Inputs:
    """Apply the same changes to every topic."""
    topics = tuple(replace(topic, **changes) for topic in inputs.topics)  # type: ignore[arg-type]  # fields of Topic
    return replace(inputs, topics=topics)
