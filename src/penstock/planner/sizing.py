"""Compute how many machines a load needs, and what binds.

The average sizes what is kept, the peak sizes what passes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from penstock.planner.inputs import Cluster, Cpu, Inputs, Machine, PlanError, Topic
from penstock.planner.quantities import DAY_S

GB: Final = 1e9
MAX_MACHINES: Final = 100_000

RECORD_BYTES: Final = 12  # framing of a record: lengths, deltas, attributes
BATCH_BYTES: Final = 61  # header of a record batch
INDEX_SHARE: Final = 20 / 4096  # 20 bytes of index entries for every 4 KiB of log
PARTITION_BYTES_S: Final = 10e6  # what one partition should take at the peak
SEGMENT_S: Final = 7 * DAY_S  # segment.ms: a segment is closed after this time at the latest
BROKER_BYTES: Final = (
    60e6 + 2**28
)  # resident memory, and requests in flight (queued.max.request.bytes)
REPLICA_BYTES: Final = 2e3  # memory of a replica
CACHE_SHARE: Final = 0.30  # of a machine's memory that the page cache gets at least
KERNEL_CORES: Final = 2
SPREAD_SHARE: Final = 0.10  # a topic with so much of the load is spread over all machines

CPU: Final = "CPU"
MEMORY: Final = "memory"
NETWORK_IN: Final = "network in"
NETWORK_OUT: Final = "network out"
DISK_WRITE: Final = "disk write"
DISK_READ: Final = "disk read"
DISK_SPACE: Final = "disk space"
REPLICAS: Final = "replicas"  # these two bind when no resource asks for more machines than they do
ZONES: Final = "zones"


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """What one topic brings, before it is known how many machines there are."""

    topic: Topic
    stored: float  # bytes of one message in the log
    in_average: float  # bytes a second into the leader's log
    in_peak: float
    kept: float  # bytes of one copy

    @property
    def replicas(self) -> int:
        return self.topic.replication_factor

    @property
    def disk(self) -> float:
        """Bytes of all copies and their indexes, without open segments."""
        return self.kept * self.replicas * (1 + INDEX_SHARE)

    def partitions(self, machines: int, share: float) -> int:
        """Return enough for rate and consumers; a large topic gets a multiple of the machines."""
        if self.topic.partitions:
            return self.topic.partitions
        needed = max(1, math.ceil(self.in_peak / PARTITION_BYTES_S), self.topic.members)
        if share < SPREAD_SHARE and needed < machines:
            return needed
        return math.ceil(needed / machines) * machines

    def open_segments(self, partitions: int) -> float:
        """Return the bytes that retention cannot delete yet: it deletes closed segments."""
        if self.topic.kept:
            return 0.0
        written = self.in_average / partitions * SEGMENT_S
        return min(self.topic.segment, written) * partitions * self.replicas


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all topics. Rates are bytes a second at the peak unless they say otherwise."""

    messages: float  # a second, average
    payload: float  # bytes of messages a second, average, uncompressed
    in_average: float
    in_peak: float
    kept: float
    disk: float  # all copies with indexes
    written: float  # by all replicas
    followed: float  # from leaders to followers
    read: float  # by consumer groups
    read_average: float
    cpu_cores: float  # busy at the peak


@dataclass(frozen=True, slots=True)
class Size:
    """Machines for some load: what each resource asks for, and what follows."""

    machine: Machine
    cluster: Cluster
    totals: Totals
    partitions: tuple[int, ...]  # of each topic
    replicas: int  # of all partitions
    open_segments: float  # bytes
    needed: Mapping[str, float]  # machines by resource, at its limit
    machines: int
    brokers_each: int
    lose: int
    binds: str

    @property
    def brokers(self) -> int:
        return self.machines * self.brokers_each

    @property
    def disk(self) -> float:
        return self.totals.disk + self.open_segments

    @property
    def fits(self) -> bool:
        """Whether the machines carry the load after the losses that they must survive."""
        return max(self.needed.values()) <= self.machines - self.lose


def load_of(topic: Topic) -> TopicLoad:
    stored = topic.message
    if topic.framed:
        stored = (topic.message + RECORD_BYTES) / topic.compression + BATCH_BYTES / topic.batch
    in_average = topic.rate * stored
    kept = topic.kept or in_average * topic.retention
    return TopicLoad(topic, stored, in_average, in_average * topic.peak, kept)


def cpu_cores(load: TopicLoad, cpu: Cpu) -> float:
    """Return the cores that all brokers together keep busy at the topic's peak."""
    followers = load.replicas - 1
    a_gb = cpu.append + followers * (cpu.serve_follower + cpu.follow) + load.topic.groups * cpu.read
    batches = load.topic.rate * load.topic.peak / load.topic.batch
    return load.in_peak / GB * a_gb + batches * cpu.batch


def total(loads: Sequence[TopicLoad], cpu: Cpu) -> Totals:
    return Totals(
        messages=sum(load.topic.rate for load in loads),
        payload=sum(load.topic.rate * load.topic.message for load in loads),
        in_average=sum(load.in_average for load in loads),
        in_peak=sum(load.in_peak for load in loads),
        kept=sum(load.kept for load in loads),
        disk=sum(load.disk for load in loads),
        written=sum(load.in_peak * load.replicas for load in loads),
        followed=sum(load.in_peak * (load.replicas - 1) for load in loads),
        read=sum(load.in_peak * load.topic.groups for load in loads),
        read_average=sum(load.in_average * load.topic.groups for load in loads),
        cpu_cores=sum(cpu_cores(load, cpu) for load in loads),
    )


def size(inputs: Inputs, machine: Machine) -> Size:
    """Size the cluster. Partitions and machines depend on each other: repeat until both are stable."""
    loads = [load_of(topic) for topic in inputs.topics]
    totals = total(loads, inputs.cpu)
    if totals.messages <= 0:
        raise PlanError("rate: no messages a second; give --rate, for example --rate 5000")
    fixed = inputs.cluster.brokers
    lose = _losses(inputs)
    floor = max(max(load.replicas for load in loads) + lose, inputs.cluster.zones)
    machines = fixed or floor
    for step in count():
        partitions = tuple(_partitions(load, machines, totals) for load in loads)
        found = _size(inputs, machine, totals, loads, partitions, machines, lose)
        wanted = math.ceil(max(found.needed.values())) + lose
        if fixed or wanted <= machines:
            return found
        # open segments make some plans creep up: longer steps end that soon, and cost 0.1 % each
        machines = _bounded(max(wanted, machines + machines * step // 1000), found.binds)
    raise AssertionError("count() has no end")


def _size(
    inputs: Inputs,
    machine: Machine,
    totals: Totals,
    loads: Sequence[TopicLoad],
    partitions: tuple[int, ...],
    machines: int,
    lose: int,
) -> Size:
    replicas = sum(load.replicas * number for load, number in zip(loads, partitions, strict=True))
    open_segments = sum(
        load.open_segments(number) for load, number in zip(loads, partitions, strict=True)
    )
    needed = _needed(inputs, machine, totals, totals.disk + open_segments, replicas)
    binds = max(needed, key=lambda resource: needed[resource])
    if not inputs.cluster.brokers and math.ceil(needed[binds]) + lose < machines:
        has_more_zones = max(load.replicas for load in loads) + lose < inputs.cluster.zones
        binds = ZONES if has_more_zones else REPLICAS
    cores = totals.cpu_cores / inputs.limits.cpu
    each = 1 if inputs.cluster.brokers else max(1, math.ceil(cores / (machines - lose)))
    return Size(
        machine, inputs.cluster, totals, partitions, replicas, open_segments,
        needed, machines, each, lose, binds,
    )  # fmt: skip


def _needed(
    inputs: Inputs, machine: Machine, totals: Totals, disk: float, replicas: int
) -> dict[str, float]:
    limits, cluster = inputs.limits, inputs.cluster
    cores = totals.cpu_cores / limits.cpu
    network = machine.network * limits.network
    return {
        CPU: cores / (1 if cluster.brokers else brokers_most(machine)),
        MEMORY: _memory(inputs, machine, totals, replicas, cores),
        NETWORK_IN: totals.written / network,
        NETWORK_OUT: (totals.followed + totals.read) / network,
        DISK_WRITE: totals.written / (machine.disk_write * limits.disk_speed),
        DISK_READ: totals.read * cluster.cold_reads / (machine.disk_read * limits.disk_speed),
        DISK_SPACE: disk / (machine.disk * limits.disk_space),
    }


def brokers_most(machine: Machine) -> int:
    return max(1, machine.cores - KERNEL_CORES)


def _memory(inputs: Inputs, machine: Machine, totals: Totals, replicas: int, cores: float) -> float:
    """Return the machines that hold brokers and page cache, with one broker each at least."""
    usable = machine.memory * inputs.limits.memory
    for_brokers = usable - CACHE_SHARE * machine.memory
    if for_brokers <= BROKER_BYTES:
        raise PlanError(
            f"memory: a machine with {machine.memory / GB:.3g} GB has no room for one broker "
            f"({BROKER_BYTES / GB:.2f} GB) beside the page cache"
        )
    more_brokers = 0.0 if inputs.cluster.brokers else max(0.0, math.ceil(cores) - 1) * BROKER_BYTES
    processes = more_brokers + replicas * REPLICA_BYTES
    cache = totals.written * inputs.cluster.lag
    return max(
        (processes + cache) / (usable - BROKER_BYTES), processes / (for_brokers - BROKER_BYTES)
    )


def _partitions(load: TopicLoad, machines: int, totals: Totals) -> int:
    return load.partitions(machines, load.in_peak / totals.in_peak)


def _losses(inputs: Inputs) -> int:
    """Return how many machines may be lost; raise for a cluster that cannot exist."""
    cluster = inputs.cluster
    most = max(topic.replication_factor for topic in inputs.topics)
    for topic in inputs.topics:
        if topic.acknowledged_by > topic.replication_factor:
            raise PlanError(
                f"min_insync_replicas: {topic.acknowledged_by} is more than the "
                f"{topic.replication_factor} replicas of {topic.name!r}: no write would succeed"
            )
    if cluster.brokers and most > cluster.brokers:
        raise PlanError(
            f"replication_factor: {most} replicas need at least {most} brokers, "
            f"and there are {cluster.brokers}"
        )
    if cluster.brokers and cluster.zones > cluster.brokers:
        raise PlanError(
            f"zones: {cluster.zones} zones need a broker each, and there are {cluster.brokers}"
        )
    if cluster.lose >= 0:
        if cluster.brokers and cluster.lose >= cluster.brokers:
            raise PlanError(
                f"lose: of {cluster.brokers} brokers at most {cluster.brokers - 1} may be lost, "
                f"not {cluster.lose}"
            )
        return cluster.lose
    return 1 if most > 1 else 0


def _bounded(machines: int, binds: str) -> int:
    if machines > MAX_MACHINES:
        raise PlanError(
            f"the load needs more than {MAX_MACHINES:,} machines ({binds} binds); "
            "check rate, message size and retention"
        )
    return machines
