"""Broker settings of Kafka 4.3 that change nothing here, each with the reason. Clients and files may set them.

They are checked by type and bounds, stored and described like any other, and the log warns of them.
A setting on which safety depends is not among the accepted ones: `_refused` takes only its off value.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from penstock.model.settings import Kind, Setting, Update, Value, split_list
from penstock.model.units import INT_MAX, LONG_MAX, Unit

_BROKER: Final[Mapping[str, Any]] = MappingProxyType({"update": Update.PER_BROKER})
_ALL: Final[Mapping[str, Any]] = MappingProxyType({"update": Update.CLUSTER_WIDE})
_LISTENER: Final[Mapping[str, Any]] = MappingProxyType({"update": Update.PER_LISTENER})

NO_TIERS: Final = "tiered storage is not available"


def _row(name: str, kind: Kind, default: Value, more: Mapping[str, Any]) -> Setting:
    return Setting(name, kind, default, "", unit=Unit.of(name))._replace(**more)


def _int(name: str, default: int | None, at_least: int | None = None, **more: Any) -> Setting:
    return _row(name, Kind.INT, default, {"at_least": at_least, **more})


def _short(name: str, default: int, at_least: int, **more: Any) -> Setting:
    return _row(name, Kind.SHORT, default, {"at_least": at_least, **more})


def _long(name: str, default: int, at_least: int | None = None, **more: Any) -> Setting:
    return _row(name, Kind.LONG, default, {"at_least": at_least, **more})


def _double(name: str, default: float, **more: Any) -> Setting:
    return _row(name, Kind.DOUBLE, default, more)


def _bool(name: str, default: bool, **more: Any) -> Setting:
    return _row(name, Kind.BOOLEAN, default, more)


def _text(name: str, default: str | None = None, **more: Any) -> Setting:
    return _row(name, Kind.STRING, default, more)


def _class(name: str, default: str | None = None, **more: Any) -> Setting:
    return _row(name, Kind.CLASS, default, more)


def _secret(name: str, **more: Any) -> Setting:
    return _row(name, Kind.PASSWORD, None, more)


def _list(name: str, default: str = "", **more: Any) -> Setting:
    return _row(name, Kind.LIST, frozenset(split_list(default)), more)


def _accepted(reason: str, *rows: Setting) -> Iterable[Setting]:
    doc = f"No effect: {reason}."
    return (row._replace(no_effect=reason, doc=doc) for row in rows)


def _refused(reason: str, row: Setting) -> Setting:
    return row._replace(unsupported=reason, doc=f"Only its default is accepted: {reason}.")


# fmt: off
_ROWS: Final = (
    *_accepted(
        "the metadata store elects the controller; there is no KRaft quorum and no metadata log",
        _list("controller.listener.names"),
        _long("controller.performance.always.log.threshold.ms", 2000, 0),
        _long("controller.performance.sample.period.ms", 60_000, 100),
        _int("controller.quorum.append.linger.ms", 25, 0),
        _bool("controller.quorum.auto.join.enable", False),
        _list("controller.quorum.bootstrap.servers"),
        _int("controller.quorum.election.backoff.max.ms", 1000, 0),
        _int("controller.quorum.election.timeout.ms", 1000, 0),
        _int("controller.quorum.fetch.max.bytes", 1_048_576, 1),
        _int("controller.quorum.fetch.snapshot.max.bytes", 1_048_576, 1),
        _int("controller.quorum.fetch.timeout.ms", 2000, 0),
        _int("controller.quorum.request.timeout.ms", 2000, 0),
        _int("controller.quorum.retry.backoff.ms", 20, 0),
        _list("controller.quorum.voters"),
        _int("controller.socket.timeout.ms", 30_000),
        _int("initial.broker.registration.timeout.ms", 60_000),
        _text("metadata.log.dir"),
        _long("metadata.log.max.record.bytes.between.snapshots", 20_971_520, 1),
        _long("metadata.log.max.snapshot.interval.ms", 3_600_000, 0),
        _int("metadata.log.segment.bytes", 1_073_741_824, 8_388_608),
        _long("metadata.log.segment.ms", 604_800_000),
        _int("metadata.max.idle.interval.ms", 500, 0),
        _long("metadata.max.retention.bytes", 104_857_600),
        _long("metadata.max.retention.ms", 604_800_000),
        _list("process.roles", choices=("broker", "controller"), may_be_empty=True),
        _long("server.max.startup.time.ms", LONG_MAX, 0),
        _long("unclean.leader.election.interval.ms", 300_000, 1),
        _bool("unstable.api.versions.enable", False),
        _bool("unstable.feature.versions.enable", False),
    ),
    *_accepted(
        "one event loop serves all connections, and threads are not counted by settings",
        _int("background.threads", 10, 1, **_ALL),
        _int("group.coordinator.background.threads", 2, 1),
        _int("group.coordinator.threads", 4, 1),
        _double("log.cleaner.io.buffer.load.factor", 0.9, **_ALL),
        _int("log.cleaner.io.buffer.size", 524_288, 0, **_ALL),
        _int("log.cleaner.threads", 1, 0, **_ALL),
        _int("num.io.threads", 8, 1, **_ALL),
        _int("num.network.threads", 3, 1, **_ALL),
        _int("num.recovery.threads.per.data.dir", 2, 1, **_ALL),
        _int("num.replica.alter.log.dirs.threads", None),
        _int("num.replica.fetchers", 1, 1, **_ALL),
        _int("queued.max.requests", 500, 1),
    ),
    *_accepted(
        "requests that wait are dropped as soon as they are answered",
        _int("delete.records.purgatory.purge.interval.requests", 1),
        _int("fetch.purgatory.purge.interval.requests", 1000),
        _int("producer.purgatory.purge.interval.requests", 1000),
        _int("share.fetch.purgatory.purge.interval.requests", 1000),
    ),
    *_accepted(
        "the operating system sizes the buffers of sockets, and brokers have time limits of their own",
        _int("replica.socket.receive.buffer.bytes", 65_536),
        _int("request.timeout.ms", 30_000),
        _long("socket.connection.setup.timeout.max.ms", 30_000),
        _long("socket.connection.setup.timeout.ms", 10_000),
        _int("socket.listen.backlog.size", 50, 1),
        _int("socket.receive.buffer.bytes", 102_400),
        _int("socket.send.buffer.bytes", 102_400),
    ),
    *_accepted(
        "connections are limited in number (max.connections, max.connections.per.ip), not by rate or address",
        _int("max.connection.creation.rate", INT_MAX, 0, **_ALL),
        _text("max.connections.per.ip.overrides", "", **_ALL),
    ),
    *_accepted(
        "a broker has one data directory",
        _int("alter.log.dirs.replication.quota.window.num", 11, 1),
        _int("alter.log.dirs.replication.quota.window.size.seconds", 1, 1),
        _long("log.dir.failure.timeout.ms", 30_000, 1),
        _long("replica.alter.log.dirs.io.max.bytes.per.second", LONG_MAX, 1, **_BROKER),
    ),
    *_accepted(
        "the work it tunes is done in another way here",
        _int("add.partitions.to.txn.retry.backoff.max.ms", 100, 0),
        _int("add.partitions.to.txn.retry.backoff.ms", 20, 1),
        _int("group.coordinator.append.linger.ms", -1, -1),
        _int("group.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, **_ALL),
        _long("log.initial.task.delay.ms", 30_000, 0),
        _int("offsets.load.buffer.size", 5_242_880, 1),
        _int("offsets.topic.compression.codec", 0),
        _int("replica.fetch.backoff.ms", 1000, 0),
        _int("transaction.state.log.load.buffer.size", 5_242_880, 1),
    ),
    *_accepted(
        "a commit waits until its replicas have it, or the coordinator moves",
        _int("offsets.commit.timeout.ms", 5000, 1),
    ),
    *_accepted(
        "a consumer with client.rack always reads from the closest replica",
        _text("replica.selector.class"),
    ),
    *_accepted(
        "partitions of a transaction are always verified",
        _bool("transaction.partition.verification.enable", True, **_ALL),
    ),
    *_accepted(
        "consumer groups are on from group.version 1, and groups change their protocol in both directions",
        _text("group.consumer.migration.policy", "bidirectional", form="(?i:disabled|downgrade|upgrade|bidirectional)", form_doc="disabled, downgrade, upgrade or bidirectional"),
        _list("group.coordinator.rebalance.protocols", "classic,consumer,streams", choices=("consumer", "classic", "share", "streams")),
    ),
    *_accepted(
        "the coordinator assigns in the heartbeat that makes it necessary",
        _int("group.consumer.assignment.interval.ms", 1000, 0, **_ALL),
        _int("group.consumer.max.assignment.interval.ms", 15_000, 0),
        _int("group.consumer.min.assignment.interval.ms", 0, 0),
        _int("group.consumer.regex.refresh.interval.ms", 600_000, 10_000),
    ),
    *_accepted(
        "there are no share groups",
        _int("group.share.assignment.interval.ms", 1000, 0, **_ALL),
        _list("group.share.assignors", "simple"),
        _int("group.share.delivery.count.limit", 5, 2, at_most=10),
        _int("group.share.heartbeat.interval.ms", 5000, 1),
        _int("group.share.initialize.retry.interval.ms", 30_000, 1),
        _int("group.share.max.assignment.interval.ms", 15_000, 0),
        _int("group.share.max.delivery.count.limit", 10, 5, at_most=25),
        _int("group.share.max.heartbeat.interval.ms", 15_000, 1),
        _int("group.share.max.partition.max.record.locks", 4000, 2000, at_most=10_000),
        _int("group.share.max.record.lock.duration.ms", 60_000, 30_000, at_most=3_600_000),
        _int("group.share.max.session.timeout.ms", 60_000, 1),
        _int("group.share.max.share.sessions", 2000, 1),
        _int("group.share.max.size", 200, 1, at_most=1000),
        _int("group.share.min.assignment.interval.ms", 0, 0),
        _int("group.share.min.delivery.count.limit", 2, 2, at_most=5),
        _int("group.share.min.heartbeat.interval.ms", 5000, 1),
        _int("group.share.min.partition.max.record.locks", 100, 100, at_most=2000),
        _int("group.share.min.record.lock.duration.ms", 15_000, 1000, at_most=30_000),
        _int("group.share.min.session.timeout.ms", 45_000, 1),
        _int("group.share.partition.max.record.locks", 2000, 100, at_most=10_000),
        _text("group.share.persister.class.name", "org.apache.kafka.server.share.persister.DefaultStatePersister"),
        _int("group.share.record.lock.duration.ms", 30_000, 1000, at_most=3_600_000),
        _int("group.share.session.timeout.ms", 45_000, 1),
        _int("share.coordinator.append.linger.ms", -1, -1),
        _int("share.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, **_ALL),
        _int("share.coordinator.cold.partition.snapshot.interval.ms", 300_000, 1),
        _int("share.coordinator.load.buffer.size", 5_242_880, 1),
        _int("share.coordinator.snapshot.update.records.per.snapshot", 500, 0),
        _int("share.coordinator.state.topic.compression.codec", 0),
        _short("share.coordinator.state.topic.min.isr", 2, 1),
        _int("share.coordinator.state.topic.num.partitions", 50, 1),
        _int("share.coordinator.state.topic.prune.interval.ms", 300_000, 1),
        _short("share.coordinator.state.topic.replication.factor", 3, 1),
        _int("share.coordinator.state.topic.segment.bytes", 104_857_600, 1),
        _int("share.coordinator.threads", 1, 1),
        _int("share.coordinator.write.timeout.ms", 5000, 1),
    ),
    *_accepted(
        "there are no streams groups",
        _int("group.streams.assignment.interval.ms", 1000, 0, **_ALL),
        _int("group.streams.heartbeat.interval.ms", 5000, 1),
        _int("group.streams.initial.rebalance.delay.ms", 3000, 0),
        _int("group.streams.max.assignment.interval.ms", 15_000, 0),
        _int("group.streams.max.heartbeat.interval.ms", 15_000, 1),
        _int("group.streams.max.session.timeout.ms", 60_000, 1),
        _int("group.streams.max.size", INT_MAX, 1),
        _int("group.streams.max.standby.replicas", 2, 0),
        _int("group.streams.min.assignment.interval.ms", 0, 0),
        _int("group.streams.min.heartbeat.interval.ms", 5000, 1),
        _int("group.streams.min.session.timeout.ms", 45_000, 1),
        _int("group.streams.num.standby.replicas", 0, 0),
        _int("group.streams.session.timeout.ms", 45_000, 1),
    ),
    *_accepted(
        "there are no client quotas; replication is throttled as the settings of brokers and topics say",
        _int("controller.quota.window.num", 11, 1),
        _int("controller.quota.window.size.seconds", 1, 1),
        _int("quota.window.num", 11, 1),
        _int("quota.window.size.seconds", 1, 1),
        _int("replication.quota.window.num", 11, 1),
        _int("replication.quota.window.size.seconds", 1, 1),
    ),
    *_accepted(
        "metrics are served over HTTP (penstock.http), and clients push none",
        _int("kafka.metrics.polling.interval.secs", 10, 1),
        _list("kafka.metrics.reporters"),
        _list("metric.reporters", "org.apache.kafka.common.metrics.JmxReporter", **_ALL),
        _int("metrics.num.samples", 2, 1),
        _text("metrics.recording.level", "INFO", choices=("INFO", "DEBUG", "TRACE")),
        _long("metrics.sample.window.ms", 30_000, 1),
        _int("telemetry.max.bytes", 1_048_576, 1),
    ),
    *_accepted(
        NO_TIERS,
        _bool("follower.fetch.last.tiered.offset.enable", False, **_ALL),
        _int("remote.fetch.max.wait.ms", 500, 1, **_ALL),
        _long("remote.list.offsets.request.timeout.ms", 30_000, 1, **_ALL),
        _long("remote.log.index.file.cache.total.size.bytes", 1_073_741_824, 1, **_ALL),
        _long("remote.log.index.file.cache.ttl.ms", 900_000, 1),
        _int("remote.log.manager.copier.thread.pool.size", 10, 1, **_ALL),
        _long("remote.log.manager.copy.max.bytes.per.second", LONG_MAX, 1, **_ALL),
        _int("remote.log.manager.copy.quota.window.num", 11, 1),
        _int("remote.log.manager.copy.quota.window.size.seconds", 1, 1),
        _int("remote.log.manager.expiration.thread.pool.size", 10, 1, **_ALL),
        _long("remote.log.manager.fetch.max.bytes.per.second", LONG_MAX, 1, **_ALL),
        _int("remote.log.manager.fetch.quota.window.num", 11, 1),
        _int("remote.log.manager.fetch.quota.window.size.seconds", 1, 1),
        _int("remote.log.manager.follower.thread.pool.size", 2, 1, **_ALL),
        _long("remote.log.manager.task.interval.ms", 30_000, 1),
        _long("remote.log.manager.task.retry.backoff.max.ms", 30_000, 1),
        _long("remote.log.manager.task.retry.backoff.ms", 500, 1),
        _double("remote.log.manager.task.retry.jitter", 0.2, at_least=0, at_most=0.5),
        _int("remote.log.manager.thread.pool.size", 2, 1),
        _int("remote.log.metadata.custom.metadata.max.bytes", 128, 0),
        _text("remote.log.metadata.manager.class.name", "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"),
        _text("remote.log.metadata.manager.class.path"),
        _text("remote.log.metadata.manager.impl.prefix", "rlmm.config."),
        _text("remote.log.metadata.manager.listener.name"),
        _int("remote.log.reader.max.pending.tasks", 100, 1),
        _int("remote.log.reader.threads", 10, 1, **_ALL),
        _text("remote.log.storage.manager.class.name"),
        _text("remote.log.storage.manager.class.path"),
        _text("remote.log.storage.manager.impl.prefix", "rsm.config."),
    ),
    *_accepted(
        "listeners have no authentication, and there are no delegation tokens",
        _int("connection.failed.authentication.delay.ms", 100, 0),
        _long("connections.max.reauth.ms", 0),
        _long("delegation.token.expiry.check.interval.ms", 3_600_000, 1),
        _long("delegation.token.expiry.time.ms", 86_400_000, 1),
        _long("delegation.token.max.lifetime.ms", 604_800_000, 1),
        _secret("delegation.token.secret.key"),
        _list("early.start.listeners"),
        _class("principal.builder.class", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", **_BROKER),
        _class("sasl.client.callback.handler.class"),
        _list("sasl.enabled.mechanisms", "GSSAPI", **_BROKER),
        _secret("sasl.jaas.config", **_BROKER),
        _text("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", **_BROKER),
        _long("sasl.kerberos.min.time.before.relogin", 60_000, **_BROKER),
        _list("sasl.kerberos.principal.to.local.rules", "DEFAULT", **_BROKER),
        _text("sasl.kerberos.service.name", **_BROKER),
        _double("sasl.kerberos.ticket.renew.jitter", 0.05, **_BROKER),
        _double("sasl.kerberos.ticket.renew.window.factor", 0.8, **_BROKER),
        _class("sasl.login.callback.handler.class"),
        _class("sasl.login.class"),
        _int("sasl.login.connect.timeout.ms", None),
        _int("sasl.login.read.timeout.ms", None),
        _short("sasl.login.refresh.buffer.seconds", 300, 0, at_most=3600, **_BROKER),
        _short("sasl.login.refresh.min.period.seconds", 60, 0, at_most=900, **_BROKER),
        _double("sasl.login.refresh.window.factor", 0.8, at_least=0.5, at_most=1.0, **_BROKER),
        _double("sasl.login.refresh.window.jitter", 0.05, at_least=0, at_most=0.25, **_BROKER),
        _long("sasl.login.retry.backoff.max.ms", 10_000),
        _long("sasl.login.retry.backoff.ms", 100),
        _text("sasl.mechanism.controller.protocol", "GSSAPI"),
        _text("sasl.mechanism.inter.broker.protocol", "GSSAPI", **_BROKER),
        _text("sasl.oauthbearer.assertion.algorithm", "RS256", form="(?i:es256|rs256)", form_doc="ES256 or RS256"),
        _text("sasl.oauthbearer.assertion.claim.aud"),
        _int("sasl.oauthbearer.assertion.claim.exp.seconds", 300, 0, at_most=86_400),
        _text("sasl.oauthbearer.assertion.claim.iss"),
        _bool("sasl.oauthbearer.assertion.claim.jti.include", False),
        _int("sasl.oauthbearer.assertion.claim.nbf.seconds", 60, 0, at_most=3600),
        _text("sasl.oauthbearer.assertion.claim.sub"),
        _text("sasl.oauthbearer.assertion.file"),
        _text("sasl.oauthbearer.assertion.private.key.file"),
        _secret("sasl.oauthbearer.assertion.private.key.passphrase"),
        _text("sasl.oauthbearer.assertion.template.file"),
        _text("sasl.oauthbearer.client.credentials.client.id"),
        _secret("sasl.oauthbearer.client.credentials.client.secret"),
        _int("sasl.oauthbearer.clock.skew.seconds", 30),
        _list("sasl.oauthbearer.expected.audience"),
        _text("sasl.oauthbearer.expected.issuer"),
        _long("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000),
        _long("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000),
        _long("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100),
        _text("sasl.oauthbearer.jwks.endpoint.url"),
        _class("sasl.oauthbearer.jwt.retriever.class", "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever"),
        _class("sasl.oauthbearer.jwt.validator.class", "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator"),
        _text("sasl.oauthbearer.scope"),
        _text("sasl.oauthbearer.scope.claim.name", "scope"),
        _text("sasl.oauthbearer.sub.claim.name", "sub"),
        _text("sasl.oauthbearer.token.endpoint.url"),
        _class("sasl.server.callback.handler.class"),
        _int("sasl.server.max.receive.size", 524_288),
        _text("security.providers"),
    ),
    *_accepted(
        "listeners have no TLS; a listener that asks for it is refused at start",
        _text("listener.security.protocol.map", "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", **_BROKER),
        _bool("ssl.allow.dn.changes", False),
        _bool("ssl.allow.san.changes", False),
        _list("ssl.cipher.suites", **_BROKER),
        _text("ssl.client.auth", "none", choices=("required", "requested", "none"), **_BROKER),
        _list("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", **_BROKER),
        _text("ssl.endpoint.identification.algorithm", "https", **_BROKER),
        _class("ssl.engine.factory.class", **_BROKER),
        _secret("ssl.key.password", **_LISTENER),
        _text("ssl.keymanager.algorithm", "SunX509", **_BROKER),
        _secret("ssl.keystore.certificate.chain", **_LISTENER),
        _secret("ssl.keystore.key", **_LISTENER),
        _text("ssl.keystore.location", **_LISTENER),
        _secret("ssl.keystore.password", **_LISTENER),
        _text("ssl.keystore.type", "JKS", **_LISTENER),
        _text("ssl.principal.mapping.rules", "DEFAULT"),
        _text("ssl.protocol", "TLSv1.3", **_BROKER),
        _text("ssl.provider", **_BROKER),
        _text("ssl.secure.random.implementation", **_BROKER),
        _text("ssl.trustmanager.algorithm", "PKIX", **_BROKER),
        _secret("ssl.truststore.certificates", **_LISTENER),
        _text("ssl.truststore.location", **_LISTENER),
        _secret("ssl.truststore.password", **_LISTENER),
        _text("ssl.truststore.type", "JKS", **_LISTENER),
    ),
    _refused("there is no authorizer, so every request is allowed", _text("authorizer.class.name", "")),
    _refused("there are no policies for topics", _class("create.topic.policy.class.name")),
    _refused("there are no policies for settings", _class("alter.config.policy.class.name")),
    _refused("there are no client quotas", _class("client.quota.callback.class")),
    _refused("values are taken as they are written", _list("config.providers")),
    _refused("brokers speak plaintext to each other", _text("security.inter.broker.protocol", "PLAINTEXT")),
    _refused(NO_TIERS, _bool("remote.log.storage.system.enable", False)),
    _refused("two-phase commit is not available", _bool("transaction.two.phase.commit.enable", False)),
    _refused("set broker.id", _int("node.id", None, 0)),
    _refused("set log.dirs", _text("log.dir")),
)
# fmt: on

INEFFECTIVE_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({it.name: it for it in _ROWS})
assert len(INEFFECTIVE_SETTINGS) == len(_ROWS), "a setting is declared twice"
