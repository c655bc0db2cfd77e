"""What the partitions of one topic share, what a read of one gives, and what they ask of the broker around them."""

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from penstock.broker.metrics import TopicMetrics
from penstock.metadata.image import INTERNAL_TOPICS
from penstock.model.configs import TopicConfig
from penstock.model.errors import BrokerError, DiskFull, StorageFault
from penstock.model.ids import TopicId
from penstock.storage.files import FileSlice
from penstock.storage.log import AbortedTxn, Log

if TYPE_CHECKING:
    from penstock.broker.partitions.partition import Partition

P_contra = TypeVar("P_contra", contravariant=True)


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Read(NamedTuple):
    """Whole batches, as slices of files, and what the reader should know of the log beside them."""

    slices: list[FileSlice]
    size_bytes: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    next_offset: int  # where to read on
    aborted: list[AbortedTxn] | None  # None: not asked for
    end_offset: int  # of what this reader may see


class Mirror(NamedTuple):
    """A topic that is another cluster's, or was and is in promotion."""

    source: str  # empty: it is no mirror any more
    promotion: int


class Topic:
    """What the partitions of one topic share."""

    __slots__ = (
        "config",
        "id",
        "internal",
        "metrics",
        "mirror",
        "name",
        "partitions",
        "sync_each_append",
    )

    def __init__(
        self,
        name: str,
        topic_id: TopicId,
        config: TopicConfig,
        metrics: TopicMetrics,
        promotion: int = 0,
    ) -> None:
        self.name = name
        self.id = topic_id
        self.internal = name in INTERNAL_TOPICS
        self.metrics = metrics
        self.partitions: list[Partition | None] = []  # None: hosted elsewhere
        self.configure(config, promotion)

    def configure(self, config: TopicConfig, promotion: int = 0) -> None:
        self.config = config
        source = config.penstock_mirror_source
        self.mirror = Mirror(source, promotion) if source or promotion else None
        self.sync_each_append = config.flush_messages == 1


class Host(Protocol[P_contra]):
    """What a partition asks of the broker around it."""

    loop: asyncio.AbstractEventLoop

    def open_log(self, partition: P_contra) -> Log: ...
    def saved_high_watermark(self, partition: P_contra) -> int:
        """As it was last written down; 0: never."""

    @property
    def unable(self) -> BrokerError | None:
        """Why appends cannot be taken now."""

    def refuse_when_unable(self) -> None:
        """Raise when appends cannot be taken now: the disk is full or the directory is offline."""

    def grew(self, partition: P_contra) -> None:
        """There is more to read: wake who waits at the end of this tick."""

    def has_unsynced(self, partition: P_contra) -> None:
        """It has been written to for the first time since it was last made durable."""

    def sync_soon(self, partition: P_contra) -> None:
        """Make its tail durable; `synced` is called when it is."""

    def disk_is_full(self, error: DiskFull) -> None: ...
    def disk_failed(self, error: StorageFault) -> None: ...

    # of a partition with other replicas

    def monotonic_ms(self) -> int: ...
    def is_awaited(self, broker_id: int, caught_up_ms: int) -> bool:
        """Whether a replica is about to be in sync: it may be, and was up to date a short while ago."""

    def fell_behind(self, partition: P_contra) -> None:
        """Not all of its in-sync replicas have all of its log: see that they do, or leave."""

    def isr_changes(self, partition: P_contra, members: tuple[int, ...]) -> None:
        """Ask the controller for these in-sync replicas."""

    def log_failed(self, partition: P_contra) -> None:
        """Its log is damaged: it can only be had anew, from another replica."""

    def replica_stopped(self, partition: P_contra) -> None:
        """Its log has what was committed and its leader lacks: it is kept, and not in sync any more."""

    def made_durable(self, partition: P_contra) -> None:
        """What its follower has is on the disk, and may be told to the leader."""
