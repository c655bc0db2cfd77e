"""Where new replicas go: brokers of one topic evenly, racks in turn, then the least loaded broker."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from penstock.metadata.image import ClusterImage
from penstock.model.errors import BrokerError, ErrorCode


class Candidate(NamedTuple):
    broker_id: int
    rack: str | None
    fenced: bool  # taken only when the others do not suffice
    replica_count: int  # in the whole cluster


class _Tally:
    """What a broker got so far of the topic that is being placed."""

    __slots__ = ("candidate", "leaders", "replicas")

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.leaders = 0
        self.replicas = 0


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
    tallies = {candidate.broker_id: _Tally(candidate) for candidate in candidates}
    for replicas in existing:
        _count(tallies, replicas)
    placed = []
    salt = crc32(seed.encode())
    for partition in range(first_partition, first_partition + partition_count):
        replicas = _replicas(tallies, (salt, partition), replication_factor)
        _count(tallies, replicas)
        placed.append(replicas)
    return placed


def _replicas(tallies: Mapping[int, _Tally], salt: tuple[int, int], count: int) -> tuple[int, ...]:
    # Numbers hash alike in every process. A CRC would not do: it is linear, so the order that it
    # gives to two brokers hardly depends on the salt.
    ties = {broker_id: hash((*salt, broker_id)) for broker_id in tallies}
    racks: dict[str | None, int] = {}
    chosen: list[int] = []
    for _ in range(count):
        best = min(
            (broker_id for broker_id in tallies if broker_id not in chosen),
            key=lambda broker_id: _cost(tallies[broker_id], racks, ties[broker_id]),
        )
        chosen.append(best)
        rack = tallies[best].candidate.rack
        racks[rack] = racks.get(rack, 0) + 1
    leader = min(chosen, key=lambda it: (tallies[it].candidate.fenced, tallies[it].leaders))
    return (leader, *(broker_id for broker_id in chosen if broker_id != leader))


def _cost(
    tally: _Tally, racks: Mapping[str | None, int], tie: int
) -> tuple[bool, int, int, int, int]:
    broker = tally.candidate
    in_rack = racks.get(broker.rack, 0)
    return (broker.fenced, in_rack, tally.replicas, broker.replica_count + tally.replicas, tie)


def _count(tallies: Mapping[int, _Tally], replicas: tuple[int, ...]) -> None:
    for position, broker_id in enumerate(replicas):
        tally = tallies.get(broker_id)
        if tally is not None:
            tally.replicas += 1
            tally.leaders += position == 0


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
        if all(image.brokers[broker_id].fenced for broker_id in replicas):
            raise _invalid_assignment(f"none of the brokers of partition {partition} is running")
    return [tuple(replicas) for replicas in assignments.values()]


def _invalid_assignment(message: str) -> BrokerError:
    return BrokerError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
