"""Where new replicas go: brokers of one topic evenly, racks in turn, then the least loaded broker."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.cordons import cordoned
from penstock.model.errors import BrokerError, ErrorCode


class Candidate(NamedTuple):
    broker_id: int
    rack: str | None
    fenced: bool  # taken only when the others do not suffice
    replica_count: int  # in the whole cluster


class _Rack:
    """What the brokers of a rack got so far: of the topic, and of the partition in hand."""

    __slots__ = ("brokers", "here", "replicas")

    def __init__(self) -> None:
        self.brokers = 0
        self.replicas = 0
        self.here = 0

    @property
    def fill(self) -> float:
        return (self.replicas + self.here) / self.brokers


class _Broker:
    """What a broker got so far of the topic that is being placed."""

    __slots__ = ("candidate", "leaders", "rack", "replicas")

    def __init__(self, candidate: Candidate, rack: _Rack) -> None:
        self.candidate = candidate
        self.rack = rack
        self.leaders = 0
        self.replicas = 0
        rack.brokers += 1

    def cost(self, tie: int) -> tuple[bool, int, float, int, int, int]:
        """The lowest is chosen."""
        load = self.candidate.replica_count + self.replicas
        rack = self.rack
        return (self.candidate.fenced, rack.here, rack.fill, self.replicas, load, tie)


def place(
    candidates: Sequence[Candidate],
    *,
    seed: str,
    first_partition: int,
    partition_count: int,
    replication_factor: int,
    existing: Sequence[tuple[int, ...]] = (),
) -> list[tuple[int, ...]]:
    """The replicas of each new partition, the preferred leader first.

    `existing` are the replicas of the partitions that the topic already has. `seed` (the topic's name)
    breaks ties, so that the partners of a broker differ from partition to partition.
    """
    assert replication_factor <= len(candidates), "the caller checks that there are enough brokers"
    racks: defaultdict[str | None, _Rack] = defaultdict(_Rack)
    brokers = {it.broker_id: _Broker(it, racks[it.rack]) for it in candidates}
    for replicas in existing:
        _count([brokers[broker_id] for broker_id in replicas if broker_id in brokers])
    salt = crc32(seed.encode())
    placed = []
    for partition in range(first_partition, first_partition + partition_count):
        chosen = _choose(list(brokers.values()), (salt, partition), replication_factor)
        _count(chosen)
        placed.append(chosen)
    while sum(map(_relieve, placed)):
        continue
    return [tuple(broker.candidate.broker_id for broker in replicas) for replicas in placed]


def _relieve(replicas: list[_Broker]) -> bool:
    """Hands the lead to a replica that leads two partitions less, if there is one. Each such step evens out."""
    leader = replicas[0]
    relief = min(replicas, key=lambda broker: (broker.candidate.fenced, broker.leaders))
    if relief.candidate.fenced or leader.leaders - relief.leaders < 2:
        return False
    leader.leaders -= 1
    relief.leaders += 1
    replicas.remove(relief)
    replicas.insert(0, relief)
    return True


def _choose(brokers: list[_Broker], salt: tuple[int, int], count: int) -> list[_Broker]:
    """The brokers of one partition, its leader first."""
    # Numbers hash alike in every process. A CRC would not do: it is linear, so the order that it
    # gives to two brokers hardly depends on the salt.
    ties = {broker: hash((*salt, broker.candidate.broker_id)) for broker in brokers}
    chosen: list[_Broker] = []
    for _ in range(count):
        best = min(brokers, key=lambda broker: broker.cost(ties[broker]))
        brokers.remove(best)
        best.rack.here += 1
        chosen.append(best)
    for broker in chosen:
        broker.rack.here = 0
    leader = min(chosen, key=lambda it: (it.candidate.fenced, it.leaders, -it.replicas))
    return [leader, *(broker for broker in chosen if broker is not leader)]


def _count(replicas: Sequence[_Broker]) -> None:
    for position, broker in enumerate(replicas):
        broker.replicas += 1
        broker.rack.replicas += 1
        broker.leaders += position == 0


def check_replicas(
    image: ClusterImage, assignments: Mapping[int, Sequence[int]], replication_factor: int
) -> list[tuple[int, ...]]:
    """The replicas that somebody chose by hand, in order; raises if the cluster cannot have them."""
    for partition, replicas in assignments.items():
        if not replicas:
            raise _invalid_assignment(f"partition {partition} has no replicas")
        if len(replicas) != replication_factor:
            raise _invalid_assignment(
                f"partition {partition} has {len(replicas)} replicas, others have {replication_factor}"
            )
        if len(set(replicas)) < len(replicas):
            raise _invalid_assignment(f"partition {partition} names a broker twice: {replicas}")
        for broker_id in replicas:
            if broker_id not in image.brokers:
                raise _invalid_assignment(
                    f"partition {partition} names broker {broker_id}, which is not registered"
                )
        closed = cordoned(image, replicas)
        if closed:
            raise _invalid_assignment(
                f"partition {partition} names brokers {closed}, which get no new replicas"
                " (cordoned.log.dirs)"
            )
        if all(image.brokers[broker_id].fenced for broker_id in replicas):
            raise _invalid_assignment(f"none of the brokers of partition {partition} is running")
    return [tuple(replicas) for replicas in assignments.values()]


def _invalid_assignment(message: str) -> BrokerError:
    return BrokerError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
