"""What the controller decided: writes, the state of the store that they rest on, and what to answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from penstock.metadata.image import ChunkId, ClusterImage
from penstock.metadata.store import NO_REVISION, Compare, Put, Write
from penstock.metadata.values import PartitionImage, chunk_key, encode_chunk
from penstock.model.configs import BrokerConfig

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[T_co]):
    """Holds only while every compare does. The last write makes the others visible."""

    result: T_co
    writes: Sequence[Write] = ()
    compares: Sequence[Compare] = ()


class Rules(NamedTuple):
    """What the operator allows: the broker's settings, and those of them that were set by name."""

    config: BrokerConfig
    broker_defaults: Mapping[str, str]


def unchanged(image: ClusterImage, key: str) -> Compare:
    """The key is as the image has it: a write that was delayed cannot undo a later one (C2)."""
    return Compare(key, mod_revision=image.key_revisions.get(key, NO_REVISION))


def chunk_change(
    image: ClusterImage, chunk: ChunkId, partitions: Sequence[PartitionImage]
) -> Decision[None]:
    key = chunk_key(*chunk)
    return Decision(None, [Put(key, encode_chunk(partitions))], [unchanged(image, key)])
