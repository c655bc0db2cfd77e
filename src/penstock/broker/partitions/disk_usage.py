"""What the partitions take up on the disk, and what room is left. A log that nobody uses stays closed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.model.errors import BrokerError, DiskFull, ErrorCode, StorageFault
from penstock.model.ids import TopicPartition
from penstock.storage.usage import Room, log_size_bytes, room

_UNKNOWN: Final = Room(-1, -1)


@dataclass(slots=True)
class DiskUsage:
    path: str
    room: Room = _UNKNOWN
    sizes_bytes: dict[TopicPartition, int] = field(default_factory=dict)
    failure: StorageFault | None = None


async def disk_usage(replicas: ReplicaManager, partitions: Iterable[Partition]) -> DiskUsage:
    """Raises BrokerError when the data directory is offline."""
    usage = DiskUsage(replicas.directory.path)
    if replicas.unable is not None and not isinstance(replicas.unable, DiskFull):
        raise replicas.unable.again()
    closed: dict[TopicPartition, str] = {}
    for partition in partitions:
        if not partition.is_open:
            closed[partition.name] = replicas.directory.partition_path(*partition.name)
        elif partition.failure is None:
            usage.sizes_bytes[partition.name] = partition.log.size_bytes

    def measure(usage: DiskUsage) -> None:
        try:
            usage.room = room(usage.path)
            for name, path in closed.items():
                usage.sizes_bytes[name] = log_size_bytes(path)
        except StorageFault as fault:
            usage.failure = fault

    await replicas.run_in_thread(lambda: measure(usage))
    if usage.failure is not None:
        raise BrokerError(str(usage.failure), ErrorCode.KAFKA_STORAGE_ERROR)
    return usage
