"""Every broker setting: Kafka's names, units and defaults, and our own under `penstock.`.

Those of Kafka that change nothing here are in `ineffective_configs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from penstock.model.ineffective_configs import INEFFECTIVE_SETTINGS
from penstock.model.settings import Setting, Table, Update
from penstock.model.topic_configs import TOPIC_SETTINGS as _TOPIC
from penstock.model.units import DOUBLE_MAX, INT_MAX, LONG_MAX

_CLUSTER_WIDE: Final = Update.CLUSTER_WIDE
_READ_ONLY: Final = Update.READ_ONLY

_broker = Table()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings in force for one broker. `BrokerConfig()` is a broker that was told nothing."""

    # fmt: off

    # who it is, where it listens, where its data is
    broker_id: int = _broker.integer(
        "broker.id", 1, "Number of this broker, unique in its cluster.", at_least=0, kafka_default="-1",
    )
    broker_rack: str | None = _broker.string(
        "broker.rack", None, "Rack, zone or machine; replicas of a partition are spread over racks.",
    )
    listeners: str = _broker.string(
        "listeners", "PLAINTEXT://127.0.0.1:9092", kafka_default="PLAINTEXT://:9092",
        doc="Addresses to listen on, comma-separated: [NAME=][PROTOCOL://]HOST:PORT.",
    )
    advertised_listeners: str | None = _broker.string(
        "advertised.listeners", None, "Addresses that clients are told; those of listeners unless set.",
    )
    inter_broker_listener_name: str | None = _broker.string(
        "inter.broker.listener.name", None, "Listener for traffic between brokers; the first unless set.",
    )
    log_dirs: str = _broker.string(
        "log.dirs", "penstock-data",
        doc="The data directory. A second disk is a second broker.",
    )
    cordoned_log_dirs: str = _broker.string(
        "cordoned.log.dirs", "", choices=("", "*"), update=Update.PER_BROKER,
        doc="*: this broker gets no new replicas; it keeps those that it has.",
    )

    # topics
    num_partitions: int = _broker.integer(
        "num.partitions", 1, "Partitions of a topic that is created without a count.", at_least=1,
    )
    default_replication_factor: int = _broker.integer(
        "default.replication.factor", -1, at_least=-1, kafka_default="1",
        doc="Replicas of a topic that is created without a count; -1 is one on each registered broker, at most 3.",
    )
    auto_create_topics_enable: bool = _broker.boolean(
        "auto.create.topics.enable", True, "Whether a client that asks for an unknown topic creates it.",
    )
    delete_topic_enable: bool = _broker.boolean("delete.topic.enable", True, "Whether topics can be deleted.")
    max_request_partition_size_limit: int = _broker.integer(
        "max.request.partition.size.limit", 2000, "Partitions in one DescribeTopicPartitions response.", at_least=1,
    )
    penstock_partitions_per_broker_max: int = _broker.integer(
        "penstock.partitions.per.broker.max", 200_000, "Replicas that one broker may hold.", at_least=1,
    )
    penstock_partitions_per_request_max: int = _broker.integer(
        "penstock.partitions.per.request.max", 10_000, "Partitions that one request may create.", at_least=1,
    )

    # connections and requests
    connections_max_idle_ms: int = _broker.long(
        "connections.max.idle.ms", 600_000, "Silence after which a connection is closed; -1 is never.", at_least=-1,
    )
    max_connections: int = _broker.integer(
        "max.connections", INT_MAX, "Connections that the broker takes at once.", at_least=0, update=_CLUSTER_WIDE,
    )
    max_connections_per_ip: int = _broker.integer(
        "max.connections.per.ip", INT_MAX, "Connections taken from one address.", at_least=0, update=_CLUSTER_WIDE,
    )
    socket_request_max_bytes: int = _broker.integer(
        "socket.request.max.bytes", 104_857_600, at_least=1,
        doc="Largest request frame; a larger one closes its connection.",
    )
    queued_max_request_bytes: int = _broker.long(
        "queued.max.request.bytes", 268_435_456, at_least=-1, kafka_default="-1",
        doc="Memory for requests in flight; past it, by one request at most, the broker stops reading. -1 is no limit.",
    )
    fetch_max_bytes: int = _broker.integer(
        "fetch.max.bytes", 57_671_680, "Most bytes of records in one Fetch response.", at_least=1024,
    )
    max_incremental_fetch_session_cache_slots: int = _broker.integer(
        "max.incremental.fetch.session.cache.slots", 1000, "Fetch sessions that are remembered.", at_least=0,
    )

    # defaults of topics
    compression_type: str = _broker.twin("compression.type", _TOPIC["compression.type"])
    compression_gzip_level: int = _broker.twin("compression.gzip.level", _TOPIC["compression.gzip.level"])
    compression_lz4_level: int = _broker.twin("compression.lz4.level", _TOPIC["compression.lz4.level"])
    compression_zstd_level: int = _broker.twin("compression.zstd.level", _TOPIC["compression.zstd.level"])
    log_cleaner_delete_retention_ms: int = _broker.twin("log.cleaner.delete.retention.ms", _TOPIC["delete.retention.ms"])
    log_cleaner_max_compaction_lag_ms: int = _broker.twin("log.cleaner.max.compaction.lag.ms", _TOPIC["max.compaction.lag.ms"])
    log_cleaner_min_cleanable_ratio: float = _broker.twin("log.cleaner.min.cleanable.ratio", _TOPIC["min.cleanable.dirty.ratio"])
    log_cleaner_min_compaction_lag_ms: int = _broker.twin("log.cleaner.min.compaction.lag.ms", _TOPIC["min.compaction.lag.ms"])
    log_cleanup_policy: frozenset[str] = _broker.twin("log.cleanup.policy", _TOPIC["cleanup.policy"])
    log_flush_interval_messages: int = _broker.twin("log.flush.interval.messages", _TOPIC["flush.messages"])
    log_flush_interval_ms: int | None = _broker.twin("log.flush.interval.ms", _TOPIC["flush.ms"], default=None, synonyms=_TOPIC["flush.ms"].synonyms)
    log_flush_scheduler_interval_ms: int = _broker.twin("log.flush.scheduler.interval.ms", _TOPIC["flush.ms"], update=_READ_ONLY)
    log_index_interval_bytes: int = _broker.twin("log.index.interval.bytes", _TOPIC["index.interval.bytes"])
    log_index_size_max_bytes: int = _broker.twin("log.index.size.max.bytes", _TOPIC["segment.index.bytes"])
    log_local_retention_bytes: int = _broker.twin("log.local.retention.bytes", _TOPIC["local.retention.bytes"])
    log_local_retention_ms: int = _broker.twin("log.local.retention.ms", _TOPIC["local.retention.ms"])
    log_message_timestamp_after_max_ms: int = _broker.twin("log.message.timestamp.after.max.ms", _TOPIC["message.timestamp.after.max.ms"])
    log_message_timestamp_before_max_ms: int = _broker.twin("log.message.timestamp.before.max.ms", _TOPIC["message.timestamp.before.max.ms"])
    log_message_timestamp_type: str = _broker.twin("log.message.timestamp.type", _TOPIC["message.timestamp.type"])
    log_preallocate: bool = _broker.twin("log.preallocate", _TOPIC["preallocate"])
    log_retention_bytes: int = _broker.twin("log.retention.bytes", _TOPIC["retention.bytes"])
    log_retention_ms: int | None = _broker.twin("log.retention.ms", _TOPIC["retention.ms"], default=None, synonyms=_TOPIC["retention.ms"].synonyms)
    log_retention_minutes: int | None = _broker.integer(
        "log.retention.minutes", None, "log.retention.ms in minutes, if that is not set.", at_least=-1,
    )
    log_retention_hours: int = _broker.integer(
        "log.retention.hours", 168, "log.retention.ms in hours, if nothing finer is set.", at_least=-1,
    )
    log_roll_ms: int | None = _broker.twin("log.roll.ms", _TOPIC["segment.ms"], default=None, synonyms=_TOPIC["segment.ms"].synonyms)
    log_roll_hours: int = _broker.integer(
        "log.roll.hours", 168, "log.roll.ms in hours, if that is not set.", at_least=1,
    )
    log_roll_jitter_ms: int | None = _broker.twin("log.roll.jitter.ms", _TOPIC["segment.jitter.ms"], default=None, synonyms=_TOPIC["segment.jitter.ms"].synonyms)
    log_roll_jitter_hours: int = _broker.integer(
        "log.roll.jitter.hours", 0, "log.roll.jitter.ms in hours, if that is not set.", at_least=0,
    )
    log_segment_bytes: int = _broker.twin("log.segment.bytes", _TOPIC["segment.bytes"])
    log_segment_delete_delay_ms: int = _broker.twin("log.segment.delete.delay.ms", _TOPIC["file.delete.delay.ms"])
    message_max_bytes: int = _broker.twin("message.max.bytes", _TOPIC["max.message.bytes"])
    min_insync_replicas: int = _broker.twin("min.insync.replicas", _TOPIC["min.insync.replicas"])
    unclean_leader_election_enable: bool = _broker.twin("unclean.leader.election.enable", _TOPIC["unclean.leader.election.enable"])

    # upkeep of logs
    log_retention_check_interval_ms: int = _broker.long(
        "log.retention.check.interval.ms", 300_000, "How often old segments are looked for.", at_least=1,
    )
    log_flush_offset_checkpoint_interval_ms: int = _broker.integer(
        "log.flush.offset.checkpoint.interval.ms", 5000, at_least=1, kafka_default="60000",
        doc="How often recovery points are written.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = _broker.integer(
        "log.flush.start.offset.checkpoint.interval.ms", 5000, at_least=1, kafka_default="60000",
        doc="How often log start offsets are written.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = _broker.long(
        "replica.high.watermark.checkpoint.interval.ms", 5000, "How often high watermarks are written.", at_least=1,
    )
    log_cleaner_enable: bool = _broker.boolean("log.cleaner.enable", True, "Whether compacted topics are compacted.")
    log_cleaner_backoff_ms: int = _broker.long(
        "log.cleaner.backoff.ms", 15_000, "Pause when there is nothing to compact.", at_least=0, update=_CLUSTER_WIDE,
    )
    log_cleaner_dedupe_buffer_size: int = _broker.long(
        "log.cleaner.dedupe.buffer.size", 134_217_728, at_least=1_048_576, update=_CLUSTER_WIDE,
        doc="Memory for the keys of one compaction.",
    )
    log_cleaner_io_max_bytes_per_second: float = _broker.double(
        "log.cleaner.io.max.bytes.per.second", DOUBLE_MAX, at_least=1, update=_CLUSTER_WIDE,
        doc="Most bytes that compaction reads and writes in a second.",
    )
    penstock_scrub_bytes_per_second: int = _broker.long(
        "penstock.scrub.bytes.per.second", 4_194_304, at_least=0,
        doc="Rate at which closed segments are re-read and checked; 0 is off.",
    )
    penstock_open_files_max: int = _broker.integer(
        "penstock.open.files.max", 8192, at_least=16,
        doc="Segment files that are held open; fewer where the process may open only few files (ulimit -n).",
    )
    penstock_dirty_bytes_max: int = _broker.long(
        "penstock.dirty.bytes.max", 268_435_456, at_least=1_048_576,
        doc="Appended bytes that may wait for the disk before writing them back begins.",
    )
    penstock_disk_hang_max_ms: int = _broker.long(
        "penstock.disk.hang.max.ms", 30_000, at_least=100,
        doc="A sync that has not returned for so long is taken as failed: the data directory goes offline, and other brokers lead.",
    )
    penstock_disk_reserve_bytes: int = _broker.long(
        "penstock.disk.reserve.bytes", 67_108_864, at_least=0,
        doc="Free space from which a full disk takes appends again.",
    )

    # groups and offsets
    group_initial_rebalance_delay_ms: int = _broker.integer(
        "group.initial.rebalance.delay.ms", 0, at_least=0, kafka_default="3000",
        doc="Wait for more members before a new group's first rebalance.",
    )
    group_min_session_timeout_ms: int = _broker.integer(
        "group.min.session.timeout.ms", 6000, "Shortest session timeout that a member may ask for.", at_least=1,
    )
    group_max_session_timeout_ms: int = _broker.integer(
        "group.max.session.timeout.ms", 1_800_000, "Longest session timeout that a member may ask for.", at_least=1,
    )
    group_max_size: int = _broker.integer("group.max.size", INT_MAX, "Members of one classic group.", at_least=1)
    group_consumer_assignors: frozenset[str] = _broker.listing(
        "group.consumer.assignors", "uniform,range", "Server-side assignors.", choices=("uniform", "range"),
    )
    group_consumer_heartbeat_interval_ms: int = _broker.integer(
        "group.consumer.heartbeat.interval.ms", 5000, "Heartbeat interval given to members.", at_least=1,
    )
    group_consumer_min_heartbeat_interval_ms: int = _broker.integer(
        "group.consumer.min.heartbeat.interval.ms", 5000, "Shortest heartbeat interval of a group.", at_least=1,
    )
    group_consumer_max_heartbeat_interval_ms: int = _broker.integer(
        "group.consumer.max.heartbeat.interval.ms", 15_000, "Longest heartbeat interval of a group.", at_least=1,
    )
    group_consumer_session_timeout_ms: int = _broker.integer(
        "group.consumer.session.timeout.ms", 45_000, "Silence after which a member is dropped.", at_least=1,
    )
    group_consumer_min_session_timeout_ms: int = _broker.integer(
        "group.consumer.min.session.timeout.ms", 45_000, "Shortest session timeout of a group.", at_least=1,
    )
    group_consumer_max_session_timeout_ms: int = _broker.integer(
        "group.consumer.max.session.timeout.ms", 60_000, "Longest session timeout of a group.", at_least=1,
    )
    group_consumer_max_size: int = _broker.integer(
        "group.consumer.max.size", INT_MAX, "Members of one consumer group.", at_least=1,
    )
    offset_metadata_max_bytes: int = _broker.integer(
        "offset.metadata.max.bytes", 4096, "Longest text that a commit may carry.", at_least=0,
    )
    offsets_retention_minutes: int = _broker.integer(
        "offsets.retention.minutes", 10_080, "How long an empty group's offsets are kept.", at_least=1,
    )
    offsets_retention_check_interval_ms: int = _broker.long(
        "offsets.retention.check.interval.ms", 600_000, "How often old offsets are looked for.", at_least=1,
    )
    offsets_topic_num_partitions: int = _broker.integer(
        "offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets.", at_least=1,
    )
    offsets_topic_replication_factor: int = _broker.short(
        "offsets.topic.replication.factor", 3, at_least=1,
        doc="Replicas of __consumer_offsets, as far as there are brokers.",
    )
    offsets_topic_segment_bytes: int = _broker.integer(
        "offsets.topic.segment.bytes", 104_857_600, "Segment size of __consumer_offsets.", at_least=1,
    )

    # producers and transactions
    producer_id_expiration_ms: int = _broker.integer(
        "producer.id.expiration.ms", 86_400_000, at_least=1, update=_CLUSTER_WIDE,
        doc="Silence after which a producer's sequence is forgotten.",
    )
    producer_id_expiration_check_interval_ms: int = _broker.integer(
        "producer.id.expiration.check.interval.ms", 600_000, "How often silent producers are looked for.", at_least=1,
    )
    transaction_max_timeout_ms: int = _broker.integer(
        "transaction.max.timeout.ms", 900_000, "Longest transaction timeout that a producer may ask for.", at_least=1,
    )
    transactional_id_expiration_ms: int = _broker.integer(
        "transactional.id.expiration.ms", 604_800_000, at_least=1,
        doc="Silence after which a transactional id is forgotten.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _broker.integer(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", 10_000, at_least=1,
        doc="How often overdue transactions are looked for.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _broker.integer(
        "transaction.remove.expired.transaction.cleanup.interval.ms", 3_600_000, at_least=1,
        doc="How often expired transactional ids are looked for.",
    )
    transaction_state_log_min_isr: int = _broker.integer(
        "transaction.state.log.min.isr", 2, "min.insync.replicas of __transaction_state.", at_least=1,
    )
    transaction_state_log_num_partitions: int = _broker.integer(
        "transaction.state.log.num.partitions", 50, "Partitions of __transaction_state.", at_least=1,
    )
    transaction_state_log_replication_factor: int = _broker.short(
        "transaction.state.log.replication.factor", 3, at_least=1,
        doc="Replicas of __transaction_state, as far as there are brokers.",
    )
    transaction_state_log_segment_bytes: int = _broker.integer(
        "transaction.state.log.segment.bytes", 104_857_600, "Segment size of __transaction_state.", at_least=1,
    )

    # the cluster
    broker_session_timeout_ms: int = _broker.integer(
        "broker.session.timeout.ms", 2000, at_least=100, kafka_default="9000",
        doc="Silence after which a broker counts as dead.",
    )
    broker_heartbeat_interval_ms: int = _broker.integer(
        "broker.heartbeat.interval.ms", 500, at_least=1, kafka_default="2000",
        doc="How often a broker tells the controller how far it is.",
    )
    controlled_shutdown_enable: bool = _broker.boolean(
        "controlled.shutdown.enable", True, "Whether a broker that stops first has others take over what it leads.",
    )
    unclean_recovery_strategy: str = _broker.string(
        "unclean.recovery.strategy", "balanced", choices=("balanced", "none"),
        doc="When all in-sync replicas lost power: the one with the most leads once all are back (balanced), or an operator decides (none).",
    )
    auto_leader_rebalance_enable: bool = _broker.boolean(
        "auto.leader.rebalance.enable", True, "Whether preferred leaders are put back from time to time.",
    )
    leader_imbalance_check_interval_seconds: int = _broker.long(
        "leader.imbalance.check.interval.seconds", 300, "How often leaders are balanced.", at_least=1,
    )
    leader_imbalance_per_broker_percentage: int = _broker.integer(
        "leader.imbalance.per.broker.percentage", 10, at_least=0,
        doc="Share of the partitions that prefer a broker which others may lead.",
    )
    penstock_refused_means_dead: bool = _broker.boolean(
        "penstock.refused.means.dead", True,
        doc="Whether a broker whose address refuses connections counts as dead at once; not behind a proxy.",
    )
    replica_lag_time_max_ms: int = _broker.long(
        "replica.lag.time.max.ms", 10_000, at_least=1, kafka_default="30000", update=_CLUSTER_WIDE,
        doc="Lag after which a follower leaves the in-sync replicas.",
    )
    replica_fetch_wait_max_ms: int = _broker.integer(
        "replica.fetch.wait.max.ms", 500, "Longest wait of a follower's fetch for data.", at_least=1, update=_CLUSTER_WIDE,
    )
    replica_fetch_min_bytes: int = _broker.integer(
        "replica.fetch.min.bytes", 1, "What a follower's fetch waits for.", at_least=0, update=_CLUSTER_WIDE,
    )
    replica_fetch_max_bytes: int = _broker.integer(
        "replica.fetch.max.bytes", 1_048_576, "Most that a follower fetches of one partition.", at_least=0, update=_CLUSTER_WIDE,
    )
    replica_fetch_response_max_bytes: int = _broker.integer(
        "replica.fetch.response.max.bytes", 4_194_304, at_least=0, kafka_default="10485760", update=_CLUSTER_WIDE,
        doc="Most that a follower fetches at once; it is checked and written without a pause.",
    )
    leader_replication_throttled_rate: int = _broker.long(
        "leader.replication.throttled.rate", LONG_MAX, at_least=0, update=Update.PER_BROKER,
        doc="Bytes a second that this broker sends to throttled replicas that are not in sync.",
    )
    follower_replication_throttled_rate: int = _broker.long(
        "follower.replication.throttled.rate", LONG_MAX, at_least=0, update=Update.PER_BROKER,
        doc="Bytes a second that this broker fetches for throttled replicas of its own that are not in sync.",
    )
    replica_socket_timeout_ms: int = _broker.integer(
        "replica.socket.timeout.ms", 30_000, "Silence of a leader after which its connection is given up.", at_least=1,
    )
    penstock_metadata: str | None = _broker.string(
        "penstock.metadata", None,
        doc="Metadata store: sqlite:PATH or etcd://HOST:PORT,…/NAME; a file in the data directory unless set.",
    )
    penstock_metadata_changes_max: int = _broker.long(
        "penstock.metadata.changes.max", 100_000, at_least=1000,
        doc="Changes that the embedded store keeps for brokers that lag behind.",
    )
    penstock_http: str = _broker.string(
        "penstock.http", "127.0.0.1:9644", "Address of metrics and health checks, or off.",
    )
    # fmt: on


EFFECTIVE_SETTINGS: Final = _broker.rows  # each an attribute of BrokerConfig
BROKER_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {**EFFECTIVE_SETTINGS, **INEFFECTIVE_SETTINGS}
)
assert not EFFECTIVE_SETTINGS.keys() & INEFFECTIVE_SETTINGS.keys(), "a setting is declared twice"
