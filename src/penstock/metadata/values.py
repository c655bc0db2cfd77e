"""The keys of the store and what they hold. Every value is JSON with a version; an unknown one is never skipped in silence."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from penstock.metadata.store import StoreError
from penstock.model.features import UNTOLD, Levels, Ranges
from penstock.model.ids import TopicId, format_topic_id

VERSION: Final = 1  # that is level 1 of the feature penstock.version
CHUNK_PARTITIONS: Final = 64  # partitions of a topic that share a key

META: Final = "meta"
CONTROLLER: Final = "controller"
PRODUCER_IDS: Final = "pid"
FEATURES_PREFIX: Final = "feat/"

_encoder: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_decoder: Final = json.JSONDecoder()


class Endpoint(NamedTuple):
    """Where clients reach a broker through one of its listeners."""

    host: str
    port: int


class LiveBroker(NamedTuple):
    """A running broker, as it announced itself. The lease of its key is its session."""

    incarnation: str
    listeners: Mapping[str, Endpoint]
    rack: str | None
    directory_id: str
    lease: int
    last_shutdown: str = (
        "clean"  # or process-crash, power-loss: the worst since it saw itself registered
    )
    previous_epoch: int = 0  # of its last session, registered or not, as its data directory knows
    features: Ranges = UNTOLD  # that it supports
    is_cordoned: bool = False  # by its own settings: it shall get no new replicas


class Vote(NamedTuple):
    """What one broker says of another that it should hear of."""

    epoch: int  # of the suspect's session
    is_cut_off: bool  # nothing comes back from its host; False: nothing is heard of it


class Registration(NamedTuple):
    """A member of the cluster, running or not, as the controller knows it."""

    epoch: int
    rack: str | None
    fenced: bool  # it may not lead, nor join an ISR
    directory_id: str
    in_controlled_shutdown: bool = False
    gone: bool = (
        False  # its session has ended, and what it led and held in sync was given to others
    )
    features: Ranges = UNTOLD  # that it supported when it last ran
    disk_failed: bool = (
        False  # in its present session, or in its last one: nobody knows what is on it
    )


class PartitionImage(NamedTuple):
    leader: int  # -1: nobody leads
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]  # the first is the preferred leader
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: bool = False
    last_known_elr: tuple[
        int, ...
    ] = ()  # nobody leads, and these were in sync until they lost power
    unclean_epoch: int = -1  # the last one that began without all that was committed before it

    @property
    def replication_factor(self) -> int:
        """Replicas that are being added do not count before they are in sync."""
        return len(self.replicas) - len(self.adding)


# keys


def live_key(broker_id: int) -> str:
    return f"live/{broker_id}"


def registration_key(broker_id: int) -> str:
    return f"reg/{broker_id}"


def vote_key(suspect: int, voter: int) -> str:
    return f"vote/{suspect}/{voter}"


def topic_key(name: str) -> str:
    return f"t/{name}"


def chunks_prefix(topic_id: TopicId) -> str:
    return f"p/{format_topic_id(topic_id)}/"


def chunk_key(topic_id: TopicId, chunk: int) -> str:
    return f"p/{format_topic_id(topic_id)}/{chunk:05}"


def tombstone_key(topic_id: TopicId) -> str:
    return f"dead/{format_topic_id(topic_id)}"


def topic_config_key(name: str) -> str:
    return f"cfg/topic/{name}"


def broker_config_key(name: str) -> str:
    """`name` is a broker's id, or empty for the defaults of all brokers."""
    return f"cfg/broker/{name}"


def group_config_key(name: str) -> str:
    return f"cfg/group/{name}"


def feature_key(name: str) -> str:
    return f"{FEATURES_PREFIX}{name}"


# values


def encode(**fields: Any) -> bytes:
    return _encoder.encode({"v": VERSION, **fields}).encode()


def decode(key: str, value: bytes) -> dict[str, Any]:
    try:
        fields = _decoder.decode(value.decode())
    except ValueError as error:
        raise StoreError(f"metadata key {key} cannot be read: {error}") from None
    version = fields.get("v") if isinstance(fields, dict) else None
    if version != VERSION:
        raise StoreError(
            f"metadata key {key} has version {version}; this broker understands {VERSION}: upgrade it"
        )
    checked: dict[str, Any] = fields
    return checked


def encode_live(live: LiveBroker) -> bytes:
    return encode(**live._asdict() | {"features": dict(live.features)})


def decode_live(fields: Mapping[str, Any]) -> LiveBroker:
    listeners = {name: Endpoint(*at) for name, at in fields["listeners"].items()}
    known = {name: fields[name] for name in LiveBroker._fields if name in fields}
    return LiveBroker(**known | {"listeners": listeners, "features": _ranges(fields)})


def encode_registration(registration: Registration) -> bytes:
    return encode(**registration._asdict() | {"features": dict(registration.features)})


def decode_registration(fields: Mapping[str, Any]) -> Registration:
    """What was written before a field existed has its default."""
    known = {name: fields[name] for name in Registration._fields if name in fields}
    return Registration(**known | {"features": _ranges(fields)})


def _ranges(fields: Mapping[str, Any]) -> Ranges:
    told = fields.get("features")
    return UNTOLD if told is None else {name: Levels(*levels) for name, levels in told.items()}


def encode_chunk(partitions: Sequence[PartitionImage]) -> bytes:
    """Rows without names, and without the empty lists at their end: this is the bulk of all metadata.

    JSON by hand: twice as fast as the library where a broker's loss rewrites every chunk.
    """
    rows = ",".join([_row(*partition) for partition in partitions])
    return f'{{"v":{VERSION},"p":[{rows}]}}'.encode()


def decode_chunk(
    fields: Mapping[str, Any], shared: dict[tuple[int, ...], tuple[int, ...]]
) -> tuple[PartitionImage, ...]:
    """`shared` keeps one tuple for all partitions with the same replicas: there are few of those."""

    def lists(ids: list[int]) -> tuple[int, ...]:
        known = tuple(ids)
        return shared.setdefault(known, known)

    return tuple(
        [
            PartitionImage(row[0], row[1], row[2], lists(row[3]), lists(row[4]))
            if len(row) == 5
            else PartitionImage._make(
                [
                    *row[:3],
                    *map(lists, row[3:8]),
                    bool(row[8]),
                    lists(row[9] if row[9:] else []),
                    row[10] if row[10:] else -1,
                ]
            )
            for row in fields["p"]
        ]
    )


def _row(
    leader: int,
    leader_epoch: int,
    partition_epoch: int,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    recovering: bool,
    last_known_elr: tuple[int, ...],
    unclean_epoch: int,
) -> str:
    row = f"{leader},{leader_epoch},{partition_epoch},{_ids(replicas)},{_ids(isr)}"
    is_unclean = unclean_epoch >= 0
    if elr or adding or removing or recovering or last_known_elr or is_unclean:
        row = f"{row},{_ids(elr)},{_ids(adding)},{_ids(removing)},{int(recovering)}"
    if last_known_elr or is_unclean:
        row = f"{row},{_ids(last_known_elr)}"
    if is_unclean:
        row = f"{row},{unclean_epoch}"
    return f"[{row}]"


@lru_cache(maxsize=1 << 16)
def _ids(ids: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, ids))}]"
