"""Every topic setting of Kafka 4, and one of our own. What is listed is honoured, or refused by name."""

from dataclasses import dataclass
from typing import Final

from penstock.model.settings import Table
from penstock.model.units import LONG_MAX

_NO_TIERS: Final = "tiered storage is not available"

_REPLICA: Final = r"\*|\d+:\d+"
_REPLICA_DOC: Final = "PARTITION:BROKER, or * for all"

CODECS: Final = ("gzip", "snappy", "lz4", "zstd")

_topic = Table()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings in force for one topic. `TopicConfig()` is what a topic without any has."""

    # fmt: off

    cleanup_policy: frozenset[str] = _topic.listing(
        "cleanup.policy", "delete", choices=("compact", "delete"), may_be_empty=True, synonyms=("log.cleanup.policy",),
        doc="What happens to old data: delete drops whole segments past retention, compact keeps the newest value of each key; empty keeps everything.",
    )
    compression_type: str = _topic.string(
        "compression.type", "producer", choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), synonyms=("compression.type",),
        doc="Codec in which batches are stored; producer keeps the sender's, another one recompresses.",
    )
    compression_gzip_level: int = _topic.integer(
        "compression.gzip.level", -1, choices=("-1", "1", "2", "3", "4", "5", "6", "7", "8", "9"), synonyms=("compression.gzip.level",),
        doc="Level for compression.type=gzip: 1 to 9, or -1 for the codec's own default.",
    )
    compression_lz4_level: int = _topic.integer(
        "compression.lz4.level", 9, at_least=1, at_most=17, synonyms=("compression.lz4.level",),
        doc="Level for compression.type=lz4.",
    )
    compression_zstd_level: int = _topic.integer(
        "compression.zstd.level", 3, at_least=-131072, at_most=22, synonyms=("compression.zstd.level",),
        doc="Level for compression.type=zstd.",
    )
    delete_retention_ms: int = _topic.long(
        "delete.retention.ms", 86_400_000, at_least=0, synonyms=("log.cleaner.delete.retention.ms",),
        doc="How long a compacted topic keeps tombstones, so that readers can see a deletion.",
    )
    file_delete_delay_ms: int = _topic.long(
        "file.delete.delay.ms", 60_000, at_least=0, synonyms=("log.segment.delete.delay.ms",),
        doc="Time between taking a segment out of the log and removing its file.",
    )
    flush_messages: int = _topic.long(
        "flush.messages", LONG_MAX, at_least=1, synonyms=("log.flush.interval.messages",),
        doc="Records after which the log is forced to disk; 1 makes every acknowledgement wait for the disk.",
    )
    flush_ms: int = _topic.long(
        "flush.ms", LONG_MAX, at_least=0, synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        doc="Longest time that an appended record waits before the log is forced to disk.",
    )
    follower_replication_throttled_replicas: frozenset[str] = _topic.listing(
        "follower.replication.throttled.replicas", "", form=_REPLICA, form_doc=_REPLICA_DOC,
        doc="Replicas (partition:broker, or *) whose fetching is throttled.",
    )
    index_interval_bytes: int = _topic.integer(
        "index.interval.bytes", 4096, at_least=0, synonyms=("log.index.interval.bytes",),
        doc="Bytes of log between two entries of its offset index.",
    )
    leader_replication_throttled_replicas: frozenset[str] = _topic.listing(
        "leader.replication.throttled.replicas", "", form=_REPLICA, form_doc=_REPLICA_DOC,
        doc="Replicas (partition:broker, or *) that, while they lead, send at a throttled rate to who is not in sync.",
    )
    local_retention_bytes: int = _topic.long(
        "local.retention.bytes", -2, at_least=-2, synonyms=("log.local.retention.bytes",), unsupported=_NO_TIERS,
        doc="Size of the local part of a tiered log; -2 means retention.bytes.",
    )
    local_retention_ms: int = _topic.long(
        "local.retention.ms", -2, at_least=-2, synonyms=("log.local.retention.ms",), unsupported=_NO_TIERS,
        doc="Age of the local part of a tiered log; -2 means retention.ms.",
    )
    max_compaction_lag_ms: int = _topic.long(
        "max.compaction.lag.ms", LONG_MAX, at_least=1, synonyms=("log.cleaner.max.compaction.lag.ms",),
        doc="Longest time that a record may stay uncompacted.",
    )
    max_message_bytes: int = _topic.integer(
        "max.message.bytes", 1_048_588, at_least=0, synonyms=("message.max.bytes",),
        doc="Largest record batch that is accepted, as it travels (after compression).",
    )
    message_timestamp_after_max_ms: int = _topic.long(
        "message.timestamp.after.max.ms", 3_600_000, at_least=0, synonyms=("log.message.timestamp.after.max.ms",),
        doc="How far ahead of the broker's clock a record's CreateTime may be.",
    )
    message_timestamp_before_max_ms: int = _topic.long(
        "message.timestamp.before.max.ms", LONG_MAX, at_least=0, synonyms=("log.message.timestamp.before.max.ms",),
        doc="How far behind the broker's clock a record's CreateTime may be.",
    )
    message_timestamp_type: str = _topic.string(
        "message.timestamp.type", "CreateTime", choices=("CreateTime", "LogAppendTime"), synonyms=("log.message.timestamp.type",),
        doc="Whose time a record carries: the producer's (CreateTime) or the broker's (LogAppendTime).",
    )
    min_cleanable_dirty_ratio: float = _topic.double(
        "min.cleanable.dirty.ratio", 0.5, at_least=0, at_most=1, synonyms=("log.cleaner.min.cleanable.ratio",),
        doc="Share of uncompacted bytes from which a log is compacted.",
    )
    min_compaction_lag_ms: int = _topic.long(
        "min.compaction.lag.ms", 0, at_least=0, synonyms=("log.cleaner.min.compaction.lag.ms",),
        doc="Time for which a record is safe from compaction.",
    )
    min_insync_replicas: int = _topic.integer(
        "min.insync.replicas", 1, at_least=1, synonyms=("min.insync.replicas",), kafka_default="1",
        doc="In-sync replicas that acks=all needs. Unless set: 2 where the replication factor is 3 or more, else 1.",
    )
    penstock_mirror_source: str = _topic.string(
        "penstock.mirror.source", "",
        doc="The cluster whose topic this one mirrors. While it is set only MirrorAppend writes; to remove it makes the topic one of its own.",
    )
    preallocate: bool = _topic.boolean(
        "preallocate", False, synonyms=("log.preallocate",), unsupported="segment files grow as they are written",
        doc="Whether a new segment's file gets its full size at once.",
    )
    remote_log_copy_disable: bool = _topic.boolean(
        "remote.log.copy.disable", False, unsupported=_NO_TIERS,
        doc="Whether a tiered topic stops copying to remote storage.",
    )
    remote_log_delete_on_disable: bool = _topic.boolean(
        "remote.log.delete.on.disable", False, unsupported=_NO_TIERS,
        doc="Whether remote data goes when tiering is turned off.",
    )
    remote_storage_enable: bool = _topic.boolean(
        "remote.storage.enable", False, "Whether old segments move to remote storage.", unsupported=_NO_TIERS,
    )
    retention_bytes: int = _topic.long(
        "retention.bytes", -1, synonyms=("log.retention.bytes",),
        doc="Size of a partition from which its oldest segments are deleted; -1 is no limit.",
    )
    retention_ms: int = _topic.long(
        "retention.ms", 604_800_000, at_least=-1, synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc="Age from which segments are deleted; -1 is no limit.",
    )
    segment_bytes: int = _topic.integer(
        "segment.bytes", 1_073_741_824, at_least=14, synonyms=("log.segment.bytes",),
        doc="Size from which a new segment is begun.",
    )
    segment_index_bytes: int = _topic.integer(
        "segment.index.bytes", 10_485_760, at_least=4, synonyms=("log.index.size.max.bytes",),
        doc="Largest size of a segment's index; a full index begins a new segment.",
    )
    segment_jitter_ms: int = _topic.long(
        "segment.jitter.ms", 0, at_least=0, synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        doc="Random part taken off segment.ms, so that segments do not all roll at once.",
    )
    segment_ms: int = _topic.long(
        "segment.ms", 604_800_000, at_least=1, synonyms=("log.roll.ms", "log.roll.hours"),
        doc="Age from which a new segment is begun, even if the old one is not full.",
    )
    unclean_leader_election_enable: bool = _topic.boolean(
        "unclean.leader.election.enable", False, synonyms=("unclean.leader.election.enable",),
        doc="Whether a replica that is not in sync may lead as a last resort, at the price of lost records.",
    )
    # fmt: on


TOPIC_SETTINGS: Final = _topic.rows
