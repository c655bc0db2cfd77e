"""What a plan is made from: topics, cluster, machines, prices, limits and measured CPU costs.

Quantities are bytes, seconds and messages. Rates are averages; `peak` multiplies them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from penstock.planner.quantities import DAY_S

EXAMPLE_MACHINE: Final = "example"


class PlanError(ValueError):
    """An input that no plan can be made from. The message is one line that names the input."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The load of one topic, or of several that are alike."""

    name: str = "all"
    rate: float = 0.0  # messages a second, average
    message: float = 1000.0  # bytes of key, value and headers
    peak: float = 1.0  # highest rate / average rate
    retention: float = 7.0 * DAY_S
    replication_factor: int = 3
    min_insync_replicas: int = 0  # 0: one less than there are replicas, and one at least
    groups: int = 1  # consumer groups that read every message
    members: int = 1  # consumers of the largest group
    compression: float = 1.0  # uncompressed bytes / compressed bytes
    batch: float = 64.0  # messages in a record batch
    partitions: int = 0  # 0: as many as are needed
    segment: float = 2.0**30  # segment.bytes
    kept: float = (
        0.0  # bytes of one copy; 0: rate x retention (compacted topics have no such product)
    )
    framed: bool = True  # False: `message` is what one message takes in the log, as measured

    @property
    def acknowledged_by(self) -> int:
        """Replicas that must have a message before acks=all acknowledges it."""
        return self.min_insync_replicas or max(1, self.replication_factor - 1)


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine that brokers run on. Its disk is paid by the GB, not with the machine."""

    cores: int = 16  # one broker a core; two cores are left to the kernel
    memory: float = 64e9
    network: float = 1.25e9  # bytes a second, each way
    disk_write: float = 500e6
    disk_read: float = 1e9
    disk: float = 7.5e12
    price_month: float = 500.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Example prices. Replace them: no real ones are known here."""

    currency: str = "$"
    disk_gb_month: float = 0.10
    zone_gb: float = 0.02  # across zones, both directions together
    egress_gb: float = 0.0  # what consumers read from outside of the network


@dataclass(frozen=True, slots=True)
class Limits:
    """How full a plan may make each resource at the peak."""

    cpu: float = 0.70
    network: float = 0.70
    disk_speed: float = 0.70
    disk_space: float = 0.80
    memory: float = 0.80


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds for a GB in the log, as measured in docs/benchmarks/results.md.

    `penstock plan --calibrate` measures them on another machine.
    """

    append: float = 0.98
    batch: float = 19e-6  # seconds for each batch that a producer sends
    serve_follower: float = 0.66
    follow: float = 1.92
    read: float = 0.19


@dataclass(frozen=True, slots=True)
class Cluster:
    """Requirements for the cluster as a whole."""

    brokers: int = (
        0  # check exactly so many, each on a machine of its own; 0: as many as are needed
    )
    lose: int = -1  # machines that may be lost at the peak; -1: one if anything is replicated
    zones: int = 1
    rack_aware: bool = True  # consumers read from a replica in their own zone
    cold_reads: float = 0.0  # share of reads that the page cache misses
    lag: float = 60.0  # seconds of writes that the page cache holds for consumers


@dataclass(frozen=True, slots=True)
class Inputs:
    topics: tuple[Topic, ...]
    cluster: Cluster = Cluster()
    machine_name: str = ""  # empty: the cheapest of `machines`
    machines: Mapping[str, Machine] = field(
        default_factory=lambda: MappingProxyType({EXAMPLE_MACHINE: Machine()})
    )
    prices: Prices = Prices()
    limits: Limits = Limits()
    cpu: Cpu = Cpu()
    own_prices: bool = False  # prices were given, not taken from the example
    notes: tuple[str, ...] = ()  # where the inputs come from
