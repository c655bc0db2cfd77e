"""Every metric of a broker, named once. What Kafka's dashboards show has the name that they ask for; the rest is `penstock_`.

Handles are taken once and kept by whoever counts; what can be read off the broker itself is read at each scrape.
"""

from collections.abc import Callable, Iterable
from typing import Final

from penstock.telemetry.instruments import Counter
from penstock.telemetry.registry import Registry, Sample

# attribute of TopicMetrics: (metric, help)
_TOPIC_COUNTERS: Final = {
    "messages_in": ("messagesin", "Records that producers wrote."),
    "bytes_in": ("bytesin", "Bytes of record batches that producers wrote."),
    "bytes_out": ("bytesout", "Bytes of record batches that consumers were sent."),
    "bytes_rejected": ("bytesrejected", "Bytes of record batches that were refused."),
    "replication_bytes_in": ("replicationbytesin", "Bytes that came from leaders."),
    "replication_bytes_out": ("replicationbytesout", "Bytes that went to followers."),
    "produce_requests": ("totalproducerequests", "Produce requests, counted once a partition."),
    "fetch_requests": ("totalfetchrequests", "Fetch requests, counted once a partition."),
    "failed_produce_requests": ("failedproducerequests", "Produce requests that failed."),
    "failed_fetch_requests": ("failedfetchrequests", "Fetch requests that failed."),
}


class TopicMetrics:
    """The counters of one topic: `topic.bytes_in.value += n`."""

    __slots__ = tuple(_TOPIC_COUNTERS)

    messages_in: Counter
    bytes_in: Counter
    bytes_out: Counter
    bytes_rejected: Counter
    replication_bytes_in: Counter
    replication_bytes_out: Counter
    produce_requests: Counter
    fetch_requests: Counter
    failed_produce_requests: Counter
    failed_fetch_requests: Counter


class RequestMetrics:
    """The counters of one API."""

    __slots__ = ("errors", "requests", "total_ms")

    def __init__(self, families: "_RequestFamilies", api_name: str) -> None:
        self.requests: Final = families.requests.labels(api_name)
        self.errors: Final = families.errors.labels(api_name)
        self.total_ms: Final = families.total_ms.labels(api_name)

    def done(self, elapsed_s: float) -> None:
        """A request was answered, `elapsed_s` after it had been read."""
        self.requests.value += 1
        self.total_ms.observe(elapsed_s * 1000)


class _RequestFamilies:
    def __init__(self, registry: Registry) -> None:
        prefix, labels = "kafka_network_requestmetrics", ["request"]
        self.requests: Final = registry.counter(
            f"{prefix}_requests_total", "Requests answered.", labels
        )
        self.errors: Final = registry.counter(
            f"{prefix}_errors_total", "Requests that a fault of the broker's own failed.", labels
        )
        self.total_ms: Final = registry.histogram(
            f"{prefix}_totaltimems",
            "Time from a request's last byte to its answer, waiting included.",
            labels,
        )


class ReplicationMetrics:
    """How the replicas of this broker's partitions fare."""

    def __init__(self, registry: Registry) -> None:
        manager = "kafka_server_replicamanager"
        self.isr_shrinks: Final = registry.counter(
            f"{manager}_isrshrinks_total", "In-sync replicas that were taken out."
        ).labels()
        self.isr_expands: Final = registry.counter(
            f"{manager}_isrexpands_total", "In-sync replicas that came back."
        ).labels()
        self.rebuilt: Final = registry.counter(
            "penstock_replicas_rebuilt_total", "Damaged replicas begun anew from their leaders."
        ).labels()
        self.stopped: Final = registry.counter(
            "penstock_replicas_stopped_total",
            "Replicas that stopped, for their leaders lack what was committed: an operator must decide.",
        ).labels()
        self.elections: Final = registry.counter(
            "kafka_controller_controllerstats_leaderelections_total",
            "Partitions that got another leader, counted by the controller.",
        ).labels()


class ListenerMetrics:
    """The connections of one listener."""

    __slots__ = ("closed", "connections", "opened", "refused")

    def __init__(self, families: "_ListenerFamilies", listener: str) -> None:
        self.connections: Final = families.connections.labels(listener)
        self.opened: Final = families.opened.labels(listener)
        self.closed: Final = families.closed.labels(listener)
        self.refused: Final = families.refused.labels(listener)


class _ListenerFamilies:
    def __init__(self, registry: Registry) -> None:
        prefix, labels = "kafka_server_socket_server_metrics", ["listener"]
        self.connections: Final = registry.gauge(
            f"{prefix}_connection_count", "Connections that are open.", labels
        )
        self.opened: Final = registry.counter(
            f"{prefix}_connection_creation_total", "Connections taken.", labels
        )
        self.closed: Final = registry.counter(
            f"{prefix}_connection_close_total", "Connections ended.", labels
        )
        self.refused: Final = registry.counter(
            "penstock_connections_refused_total", "Connections closed because of a limit.", labels
        )


class RetentionMetrics:
    """What retention deleted."""

    def __init__(self, registry: Registry) -> None:
        self.segments: Final = registry.counter(
            "penstock_retention_deleted_segments_total", "Segments that retention deleted."
        ).labels()
        self.bytes: Final = registry.counter(
            "penstock_retention_deleted_bytes_total", "Bytes that retention deleted."
        ).labels()


class ScrubMetrics:
    """What reading closed segments again showed."""

    def __init__(self, registry: Registry) -> None:
        self.segments: Final = registry.counter(
            "penstock_scrub_segments_total", "Closed segments whose checksums were read again."
        ).labels()
        self.bytes: Final = registry.counter(
            "penstock_scrub_bytes_total", "Bytes whose checksums were read again."
        ).labels()
        self.damaged: Final = registry.counter(
            "penstock_scrub_damaged_segments_total", "Closed segments found damaged."
        ).labels()


class CompactionMetrics:
    """What the log cleaner did."""

    def __init__(self, registry: Registry) -> None:
        self.runs: Final = registry.counter(
            "penstock_compaction_runs_total", "Compactions of a partition that were completed."
        ).labels()
        self.failures: Final = registry.counter(
            "penstock_compaction_failures_total", "Compactions of a partition that failed."
        ).labels()
        self.bytes_read: Final = registry.counter(
            "penstock_compaction_read_bytes_total", "Bytes that compaction read."
        ).labels()
        self.bytes_written: Final = registry.counter(
            "penstock_compaction_written_bytes_total", "Bytes that compaction wrote."
        ).labels()
        self.unreadable_batches: Final = registry.counter(
            "penstock_compaction_unreadable_batches_total",
            "Batches that do not decode, which compaction kept as they are.",
        ).labels()


class RecoveryMetrics:
    """What the check after an unclean stop found."""

    def __init__(self, registry: Registry) -> None:
        self.remaining_logs: Final = registry.gauge(
            "kafka_log_logmanager_remaininglogstorecover", "Logs that recovery has still to check."
        ).labels()
        self.logs: Final = registry.counter(
            "penstock_recovery_logs_total", "Logs that were checked after an unclean stop."
        ).labels()
        self.bytes: Final = registry.counter(
            "penstock_recovery_read_bytes_total", "Bytes that recovery checked."
        ).labels()
        self.truncated_bytes: Final = registry.counter(
            "penstock_recovery_truncated_bytes_total", "Bytes of torn tails that recovery cut off."
        ).labels()
        self.seconds: Final = registry.gauge(
            "penstock_recovery_seconds", "How long the last recovery took."
        ).labels()


class BrokerMetrics:
    """The handles of one broker's metrics, over one registry."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.registry: Final = Registry() if registry is None else registry
        self._topic_families: Final = {
            attribute: self.registry.counter(
                f"kafka_server_brokertopicmetrics_{metric}_total", help_text, ["topic"]
            )
            for attribute, (metric, help_text) in _TOPIC_COUNTERS.items()
        }
        self._request_families: Final = _RequestFamilies(self.registry)
        self._listener_families: Final = _ListenerFamilies(self.registry)
        self._topics: dict[str, TopicMetrics] = {}
        self._requests: dict[str, RequestMetrics] = {}
        self._listeners: dict[str, ListenerMetrics] = {}
        self.disk_full: Final = self.registry.gauge(
            "penstock_disk_full", "1 while appends are refused because the disk is full."
        ).labels()
        self.directory_offline: Final = self.registry.gauge(
            "penstock_data_directory_offline", "1 after the disk failed: nothing is served from it."
        ).labels()
        self.flush_ms: Final = self.registry.histogram(
            "kafka_log_logflushstats_logflushrateandtimems", "Time of one fsync of a log."
        ).labels()
        self.replication: Final = ReplicationMetrics(self.registry)
        self.retention: Final = RetentionMetrics(self.registry)
        self.scrub: Final = ScrubMetrics(self.registry)
        self.compaction: Final = CompactionMetrics(self.registry)
        self.recovery: Final = RecoveryMetrics(self.registry)

    def topic(self, name: str) -> TopicMetrics:
        """The counters of a topic; the same ones until it is forgotten."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = TopicMetrics()
            for attribute, family in self._topic_families.items():
                setattr(found, attribute, family.labels(name))
        return found

    def forget_topic(self, name: str) -> None:
        """A deleted topic is no longer reported."""
        if self._topics.pop(name, None) is not None:
            for family in self._topic_families.values():
                family.remove(name)

    def request(self, api_name: str) -> RequestMetrics:
        """The counters of an API, by Kafka's name for it: `Produce`. The names come from our own table, never from a client."""
        found = self._requests.get(api_name)
        if found is None:
            found = self._requests[api_name] = RequestMetrics(self._request_families, api_name)
        return found

    def listener(self, name: str) -> ListenerMetrics:
        found = self._listeners.get(name)
        if found is None:
            found = self._listeners[name] = ListenerMetrics(self._listener_families, name)
        return found

    def read_replicas(
        self,
        *,
        partitions: Callable[[], float],
        leaders: Callable[[], float],
        under_replicated: Callable[[], float],
        under_min_isr: Callable[[], float],
        offline: Callable[[], float],
    ) -> None:
        """Where the numbers of this broker's replicas are read at each scrape."""
        for metric, help_text, read in (
            ("partitioncount", "Replicas on this broker.", partitions),
            ("leadercount", "Partitions that this broker leads.", leaders),
            ("underreplicatedpartitions", "Led, with a replica out of sync.", under_replicated),
            ("underminisrpartitioncount", "Led, below min.insync.replicas.", under_min_isr),
            ("offlinereplicacount", "Replicas whose directory is offline.", offline),
        ):
            self.registry.gauge_from(f"kafka_server_replicamanager_{metric}", help_text, read)

    def read_replica_lag(self, lag: Callable[[], Iterable[Sample]]) -> None:
        """Where the lag of each follower is read at each scrape: ((broker,), records)."""
        self.registry.gauges_from(
            "penstock_replica_lag_records",
            "What a follower lacks of a log, at most.",
            ["broker"],
            lag,
        )

    def read_controller(
        self,
        *,
        active: Callable[[], float],
        topics: Callable[[], float],
        partitions: Callable[[], float],
        offline_partitions: Callable[[], float],
        active_brokers: Callable[[], float],
        fenced_brokers: Callable[[], float],
    ) -> None:
        """Where the cluster's numbers are read at each scrape."""
        for metric, help_text, read in (
            ("activecontrollercount", "1 on the broker that is the controller.", active),
            ("globaltopiccount", "Topics of the cluster.", topics),
            ("globalpartitioncount", "Partitions of the cluster.", partitions),
            ("offlinepartitionscount", "Partitions without a leader.", offline_partitions),
            ("activebrokercount", "Brokers that take part.", active_brokers),
            ("fencedbrokercount", "Brokers that are fenced.", fenced_brokers),
        ):
            self.registry.gauge_from(f"kafka_controller_kafkacontroller_{metric}", help_text, read)

    def read_logs(
        self,
        *,
        size_bytes: Callable[[], Iterable[Sample]],
        segments: Callable[[], Iterable[Sample]],
        start_offset: Callable[[], Iterable[Sample]],
        end_offset: Callable[[], Iterable[Sample]],
    ) -> None:
        """Where each log's numbers are read at each scrape: ((topic, partition), value), from a snapshot."""
        for metric, help_text, read in (
            ("size", "Bytes of a partition's log.", size_bytes),
            ("numlogsegments", "Segments of a partition's log.", segments),
            ("logstartoffset", "First offset of a partition's log.", start_offset),
            ("logendoffset", "Offset after the last of a partition's log.", end_offset),
        ):
            name = f"kafka_log_log_{metric}"
            self.registry.gauges_from(name, help_text, ["topic", "partition"], read)

    def read_groups(
        self,
        *,
        groups: Callable[[], float],
        offsets: Callable[[], float],
        waiting: Callable[[], float],
        stopped: Callable[[], float],
        states: Callable[[], Iterable[Sample]],
    ) -> None:
        """Where the numbers of this broker's groups are read at each scrape. `states`: ((type, state), groups)."""
        for metric, help_text, read in (
            ("kafka_server_groupmetadatamanager_numgroups", "Groups coordinated here.", groups),
            ("kafka_server_groupmetadatamanager_numoffsets", "Offsets kept for groups.", offsets),
            ("penstock_group_requests_waiting", "Group requests that wait.", waiting),
            (
                "penstock_group_shards_stopped",
                "Partitions of __consumer_offsets whose groups cannot be read back.",
                stopped,
            ),
        ):
            self.registry.gauge_from(metric, help_text, read)
        self.registry.gauges_from(
            "penstock_groups", "Groups by type and state.", ["type", "state"], states
        )

    def read_transactions(
        self, *, stopped: Callable[[], float], states: Callable[[], Iterable[Sample]]
    ) -> None:
        """Where the numbers of this broker's transactions are read at each scrape. `states`: ((state,), ids)."""
        self.registry.gauge_from(
            "penstock_transaction_shards_stopped",
            "Partitions of __transaction_state whose transactions cannot be read back.",
            stopped,
        )
        self.registry.gauges_from(
            "penstock_transactions", "Transactional ids by state.", ["state"], states
        )

    def read_process(
        self,
        *,
        disk_free_bytes: Callable[[], float],
        request_memory_bytes: Callable[[], float],
        fetch_sessions: Callable[[], float],
        waiting: Callable[[], Iterable[Sample]],
    ) -> None:
        """Where the numbers of the process are read at each scrape. `waiting`: (("Fetch",), requests that wait)."""
        self.registry.gauge_from(
            "penstock_disk_free_bytes", "Bytes free for the data directory.", disk_free_bytes
        )
        self.registry.gauge_from(
            "penstock_request_memory_bytes", "Bytes of requests in flight.", request_memory_bytes
        )
        self.registry.gauge_from(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            "Fetch sessions that are remembered.",
            fetch_sessions,
        )
        self.registry.gauges_from(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "Requests that wait.",
            ["delayedoperation"],
            waiting,
        )
