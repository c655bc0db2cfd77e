"""What brokers of different versions must agree on before any of them uses it: features, each at a level in force (O9).

A broker supports a range of levels. The level in force is raised by an operator, when every broker supports it.
So a new format comes with a new level: it is read by whoever supports that, and written only where it is in force.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

PENSTOCK_VERSION: Final = "penstock.version"  # of the values in the metadata store
GROUP_VERSION: Final = "group.version"  # 1: the consumer protocol (KIP-848)
MIRROR_VERSION: Final = "mirror.version"  # 1: topics that mirror those of other clusters
TRANSACTION_VERSION: Final = "transaction.version"  # 1: state with tagged fields; 2: KIP-890

CONSUMER_PROTOCOL: Final = 1  # of GROUP_VERSION
MIRRORED_TOPICS: Final = 1  # of MIRROR_VERSION
TAGGED_STATE: Final = 1  # of TRANSACTION_VERSION


class Levels(NamedTuple):
    """From the least to the most, both of them included."""

    least: int
    most: int

    def includes(self, level: int) -> bool:
        return self.least <= level <= self.most

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


Ranges = Mapping[str, Levels]

SUPPORTED: Final[Ranges] = MappingProxyType(
    {
        GROUP_VERSION: Levels(0, 1),
        MIRROR_VERSION: Levels(0, 1),
        PENSTOCK_VERSION: Levels(1, 1),
        TRANSACTION_VERSION: Levels(0, 2),
    }
)
LOSSLESS_DOWN_TO: Final[Mapping[str, int]] = MappingProxyType(
    {  # below, a broker may meet what it cannot read: groups of the consumer protocol, mirrors, tagged fields
        GROUP_VERSION: 1,
        MIRROR_VERSION: MIRRORED_TOPICS,
        PENSTOCK_VERSION: 1,
        TRANSACTION_VERSION: TAGGED_STATE,
    }
)
UNTOLD: Final[Ranges] = MappingProxyType(
    {  # by a broker that is older than this table, and of a cluster that was made by one
        GROUP_VERSION: Levels(0, 1),
        PENSTOCK_VERSION: Levels(1, 1),
        TRANSACTION_VERSION: Levels(0, 2),
    }
)
_UNKNOWN: Final = Levels(0, 0)


def highest(ranges: Ranges) -> dict[str, int]:
    """What a new cluster begins with."""
    return {name: levels.most for name, levels in ranges.items()}


def range_of(name: str, ranges: Ranges) -> Levels:
    """What is not known at all can only be off."""
    return ranges.get(name, _UNKNOWN)


def misfit(in_force: Mapping[str, int], ranges: Ranges) -> str | None:
    """Why a broker with these ranges cannot take part: the level, the range and the remedy."""
    for name, level in sorted(in_force.items()):
        levels = range_of(name, ranges)
        if not levels.includes(level):
            return _misfit(name, level, levels)
    return None


def _misfit(name: str, level: int, levels: Levels) -> str:
    if level > levels.most:
        remedy = "start it with a newer version of Penstock"
    else:
        remedy = (
            f"raise the level first (penstock cluster features upgrade --to {name}={levels.least}),"
            " or start it with an older version of Penstock"
        )
    return f"the cluster has {name} at level {level}, and this broker supports {levels}: {remedy}"
