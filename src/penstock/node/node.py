"""One broker, put together: the only place that names concrete classes, and the order of start and stop.

Start: lock the directory, bind the addresses, recover the logs, listen, join the cluster, then answer. Stop
is the same backwards, and leaves the mark of a clean end only when every log was closed well.
"""

import asyncio
import errno
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from penstock.broker.controller.cluster import Cluster
from penstock.broker.coordinators.groups import GroupCoordinator
from penstock.broker.coordinators.transactions import TransactionCoordinator
from penstock.broker.maintenance.full_disk_handoff import FullDiskHandoff
from penstock.broker.maintenance.housekeeping import Housekeeping
from penstock.broker.maintenance.repair import Repair
from penstock.broker.membership.session import Identity
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions.follower import Followers
from penstock.broker.partitions.isr import IsrKeeper
from penstock.broker.partitions.metadata_applier import MetadataApplier
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.broker.partitions.throttles import Throttles
from penstock.http.server import HttpServer
from penstock.kafka.context import Services
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.leader_confirmation import LeaderConfirmations
from penstock.kafka.memory import FrameMemory
from penstock.kafka.overtaken import Refusals
from penstock.kafka.security import AllowAll
from penstock.kafka.server import ConnectionLimits, Loop, bind
from penstock.kafka.server import Listener as Door
from penstock.metadata.sqlite.store import SqliteStore
from penstock.metadata.store import MetadataStore
from penstock.metadata.values import Endpoint
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, InvalidConfig, StorageFault
from penstock.model.ids import TopicId
from penstock.node import descriptors
from penstock.node.clock import SystemClock
from penstock.node.gauges import Gauges
from penstock.node.listeners import Address, warn_if_open_to_all
from penstock.node.settings import Settings
from penstock.node.tasks import Tasks
from penstock.storage.directory import DataDirectory
from penstock.storage.threads import DaemonThreads

_log = logging.getLogger(__name__)

Marks = dict[TopicId, dict[int, int]]  # high watermarks of partitions

_DISK_THREADS: Final = 4  # for cold reads and for what has time
_SYNC_THREADS: Final = 2  # one for flushes, one for checkpoints
_DISK_LOOK_S: Final = 0.2
_DISK_RESERVE_BYTES: Final = 4 << 20
_NO_LIMIT: Final = 1 << 62
_NOTE_AGAIN_S: Final = 0.5
_STORE_FILE: Final = "metadata.sqlite"


class Node:
    """A broker in this process. Started once, stopped once."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.config = settings.config
        self.metrics = BrokerMetrics()
        self._clock = clock or SystemClock()
        self._tasks = Tasks()
        self._requests = Tasks()  # handlers that are coroutines; end before the logs are closed
        self._chores = Tasks()  # likewise
        self._disk_threads = DaemonThreads(_DISK_THREADS, "disk")
        self._sync_threads = DaemonThreads(_SYNC_THREADS, "sync")
        self._compaction_threads = DaemonThreads(1, "compaction")
        self._doors: list[Door] = []
        self._sockets: list[socket.socket] = []
        self._not_ready = "the broker is starting"
        self._directory: DataDirectory | None = None
        self._replicas: ReplicaManager | None = None
        self._followers: Followers | None = None
        self._cluster: Cluster | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._housekeeping: Housekeeping | None = None
        self._http: HttpServer | None = None

    # What others see ---------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        host, port = self._doors[0].address
        return str(Address(host, port))

    @property
    def http(self) -> str:
        address = self.settings.http
        if address is None or self._http is None:
            return "off"
        return str(address._replace(port=self._http.port))

    @property
    def ready_line(self) -> str:
        listen = ",".join(str(Address(*door.address)) for door in self._doors)
        return (
            f"penstock ready broker={self.config.broker_id} listen={listen} "
            f"http={self.http} data={os.path.abspath(self.config.log_dirs)} pid={os.getpid()}"
        )

    def _readiness(self) -> list[str]:
        reasons = [self._not_ready] if self._not_ready else []
        if self._replicas is not None and self._replicas.unable is not None:
            reasons.append(str(self._replicas.unable))
        return reasons

    # Start and stop ----------------------------------------------------------------------------

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self._shut_down()
            raise
        self._not_ready = ""

    async def stop(self) -> None:
        """End every connection, close every log, and give up the place in the cluster."""
        self._not_ready = "the broker is stopping"
        _log.info("stopping broker=%d", self.config.broker_id)
        if self._cluster is not None:
            await self._cluster.hand_over()
        await self._shut_down()
        _log.info("stopped broker=%d", self.config.broker_id)

    async def _start(self) -> None:
        config = self.config
        self._descriptors = descriptors.divide(
            descriptors.raise_limit(), config.penstock_open_files_max
        )
        self._directory = directory = DataDirectory(
            config.log_dirs,
            open_files_limit=self._descriptors.segment_files,
            queued_files_limit=self._descriptors.answers,
            disk_reserve_bytes=min(config.penstock_disk_reserve_bytes, _DISK_RESERVE_BYTES),
        )
        self._bind_sockets()
        await self._open_http()
        self._replicas = replicas = ReplicaManager(
            directory,
            self.metrics,
            asyncio.get_running_loop(),
            self._disk_threads,
            self._clock,
            sync_threads=self._sync_threads,
            compaction_threads=self._compaction_threads,
        )
        self._cluster = cluster = Cluster(
            self._open_store(),
            self._identity(directory),
            self._tasks.spawn,
            self.settings.overrides(),
        )
        await cluster.load(
            cluster_id=directory.cluster_id, least_revision=directory.store_revision or 0
        )
        directory.join(cluster.cluster_id, config.broker_id)
        replicas.throttles = throttles = Throttles(cluster, self._clock)
        self._followers = followers = Followers(cluster, self._chores.spawn, throttles)
        self._isr = IsrKeeper(cluster, followers, self._clock, self.metrics)
        replicas.replication = self._isr
        self._repair = Repair(replicas, cluster, followers)
        replicas.on_damage = replicas.on_stop = self._repair.failed
        replicas.has_copies = self._repair.has_copies
        replicas.on_shortfall = self._repair.fell_short
        applier = MetadataApplier(replicas, cluster, followers)
        applier.begin()
        await replicas.recover()
        self._groups = groups = GroupCoordinator(
            replicas, cluster, self._clock, self._chores.spawn, self.metrics
        )
        self._transactions = transactions = TransactionCoordinator(
            replicas, cluster, groups, self._clock, self._chores.spawn, self.metrics
        )
        self._build_doors(self._services(replicas, cluster, groups, transactions))
        cluster.on_session(lambda epoch: self._note(directory.note_broker_epoch, epoch))
        cluster.on_registered(lambda epoch: self._note(directory.note_registered, epoch))
        cluster.withdraw_when(lambda: replicas.is_offline)
        cluster.accuse(followers.unreachable)
        cluster.on_connection(replicas.connection_changed)
        await cluster.join(self._advertised())
        self._isr.start(self._chores.spawn)
        self._repair.start(self._chores.spawn)
        FullDiskHandoff(replicas, cluster, self._clock).start(self._chores.spawn)
        groups.begin()  # joining gave new epochs: what was read before would be read again
        transactions.begin()
        for door in self._doors:
            door.open()
        self._housekeeping = Housekeeping(replicas, cluster, applier, self._clock)
        self._housekeeping.start(self._chores.spawn)
        self._open_gauges(replicas, cluster)

    def _note(self, note: Callable[[int], None], epoch: int) -> None:
        """On disk before anybody else knows of the session: who restarts says which was its last.

        Without room or a descriptor it is written as soon as there is: until then the next run would
        name an older session, and its logs would count as incomplete.
        """
        try:
            note(epoch)
        except StorageFault as fault:
            if self._housekeeping is None or self._replicas is None:
                raise
            self._replicas.disk_failed(fault)
        except BrokerError as error:
            _log.warning("session-not-noted epoch=%d error=%s", epoch, error)
            self._chores.spawn(self._note_later(note, epoch), "note-session")

    async def _note_later(self, note: Callable[[int], None], epoch: int) -> None:
        await asyncio.sleep(_NOTE_AGAIN_S)
        if self._cluster is not None and self._cluster.epoch == epoch:
            self._note(note, epoch)

    async def _shut_down(self) -> None:
        """A step that fails keeps no other from being taken."""
        for end in self._ends():
            try:
                ending = end()
                if ending is not None:
                    await ending
            except Exception:  # noqa: BLE001 - logged, with its trace
                _log.exception("stop-failed step=%s", end.__qualname__)

    def _ends(self) -> Iterator[Callable[[], Awaitable[None] | None]]:
        """Backwards, as far as the start had come."""
        if self._cluster is not None:
            yield self._cluster.begin_to_leave
        yield from (door.close for door in self._doors)
        yield from (sock.close for sock in self._sockets)
        yield self._requests.close
        if self._transactions is not None:
            yield self._transactions.close
        if self._groups is not None:
            yield self._groups.close
        if self._housekeeping is not None:
            yield self._housekeeping.stop
        if self._followers is not None:
            yield self._followers.stop
        yield self._chores.close
        if self._replicas is not None:
            yield self._replicas.stop
        yield self._finish_with_disk
        if self._cluster is not None:
            yield self._cluster.stop
        if self._http is not None:
            yield self._http.close
        yield self._tasks.close

    async def _finish_with_disk(self) -> None:
        """However long it takes, unless a sync hangs: then the next start has something to check."""
        threads, limit_s = DaemonThreads(1, "close"), self.config.penstock_disk_hang_max_ms / 1000
        loop = asyncio.get_running_loop()
        closing = self._tasks.spawn(self._close_when_flushed(loop, threads), "close-directory")
        while not (await asyncio.wait([closing], timeout=_DISK_LOOK_S))[0]:
            hung = self._directory.syncs.hung(limit_s) if self._directory is not None else None
            if hung is not None:
                _log.critical("unclean-stop error=%s", hung)
                threads.shutdown(wait=False)
                return
        threads.shutdown()
        closing.result()

    async def _close_when_flushed(
        self, loop: asyncio.AbstractEventLoop, threads: DaemonThreads
    ) -> None:
        marks: Marks = {}
        if self._replicas is not None:
            await self._replicas.flushes_ended()
            marks = self._replicas.high_watermarks()  # here: topics may still come and go
        await loop.run_in_executor(threads, self._close_directory, marks)

    def _close_directory(self, marks: Marks) -> None:
        """In a thread, so that a second signal is heard when the disk takes its time. Nobody else
        uses the directory any more."""
        directory, replicas = self._directory, self._replicas
        ended = directory.syncs.waiting("the stop") if directory is not None else None
        for threads in (self._compaction_threads, self._disk_threads, self._sync_threads):
            # what waits is given up, but for syncs: they note faults
            threads.shutdown(cancel_futures=threads is not self._sync_threads)
        if ended is not None:
            ended()
        if directory is None:
            return
        if replicas is not None and replicas.is_offline:
            directory.abandon()
            return
        if self._cluster is not None and self._housekeeping is not None:  # it had joined
            directory.store_revision = self._cluster.image.revision
        try:
            directory.close(marks)
        except (
            StorageFault,
            BrokerError,
        ) as error:  # the next start will check what is left undone
            _log.critical("unclean-stop error=%s", error)

    def _identity(self, directory: DataDirectory) -> Identity:
        return Identity(
            broker_id=self.config.broker_id,
            directory_id=directory.id,
            session_timeout_ms=self.config.broker_session_timeout_ms,
            rack=self.config.broker_rack,
            last_shutdown=directory.last_run.untold.value,
            previous_epoch=directory.last_run.broker_epoch or 0,
            is_cordoned=bool(self.config.cordoned_log_dirs),
        )

    def _advertised(self) -> dict[str, Endpoint]:
        """An advertised port of 0 is the port that was bound."""
        return {
            listener.name: Endpoint(
                listener.advertised.host, listener.advertised.port or door.address[1]
            )
            for listener, door in zip(self.settings.listeners, self._doors, strict=True)
        }

    def _bind_sockets(self) -> None:
        for listener in self.settings.listeners:
            try:
                self._sockets.append(bind(*_bindable(listener.bind)))
            except OSError as error:
                raise _cannot_listen("--listen", listener.bind, error) from error
            warn_if_open_to_all(listener.name, *self._sockets[-1].getsockname()[:2])

    def _open_store(self) -> MetadataStore:
        named = self.config.penstock_metadata or "sqlite:"
        if named.startswith("etcd:"):
            return _open_etcd(named, self.config.broker_id)
        kind, _, rest = named.partition(":")
        if kind != "sqlite":
            raise InvalidConfig(
                f"metadata store '{named}' is not supported; use sqlite:PATH or"
                " etcd://HOST:PORT,…/NAME, or leave it out for a file in the data directory"
            )
        path = Path(rest) if rest else Path(self.config.log_dirs) / _STORE_FILE
        changes_max = self.config.penstock_metadata_changes_max
        return SqliteStore(path, self._clock, changes_max=changes_max)

    def _services(
        self,
        replicas: ReplicaManager,
        cluster: Cluster,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
    ) -> Services:
        self._sessions = FetchSessions(
            self.config.max_incremental_fetch_session_cache_slots, lambda: secrets.randbits(31)
        )
        return Services(
            broker_id=self.config.broker_id,
            clock=self._clock,
            replicas=replicas,
            cluster=cluster,
            groups=groups,
            transactions=transactions,
            metrics=self.metrics,
            authorizer=AllowAll(),
            sessions=self._sessions,
            refusals=Refusals(),
            confirmations=LeaderConfirmations(self._clock, self._requests.spawn),
            spawn=self._requests.spawn,
        )

    def _build_doors(self, services: Services) -> None:
        """Before this broker has joined, a client would be told of a cluster without brokers, and some
        never ask again (librdkafka): they may connect, and are answered later."""
        config = self.config
        self._memory = FrameMemory(_unless_negative(config.queued_max_request_bytes))
        loop = Loop(
            asyncio.get_running_loop(),
            self._memory,
            config.socket_request_max_bytes,
            self._requests.spawn,
        )
        limits = ConnectionLimits(
            lambda: services.cluster.config.max_connections,
            lambda: services.cluster.config.max_connections_per_ip,
            self._descriptors.connections,
        )
        idle_s = _unless_negative(config.connections_max_idle_ms) / 1000
        for listener, sock in zip(self.settings.listeners, self._sockets, strict=True):
            door = Door(listener.name, sock, services, loop, limits, idle_s)
            door.listen()
            self._doors.append(door)

    def _open_gauges(self, replicas: ReplicaManager, cluster: Cluster) -> None:
        """What is read off the broker at each scrape."""
        Gauges(replicas, cluster, self._memory, self._sessions).register(self.metrics)

    async def _open_http(self) -> None:
        if self.settings.http is not None:
            self._http = HttpServer(self.metrics.registry, self._readiness)
            try:
                await self._http.start(*_bindable(self.settings.http))
            except OSError as error:
                raise _cannot_listen("--http", self.settings.http, error) from error
            for address in self._http.addresses:
                warn_if_open_to_all("http", *address)


def _open_etcd(url: str, broker_id: int) -> MetadataStore:
    """Who uses no etcd need not have its packages, nor wait for them to load."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else it writes to stderr, in its own form
    try:
        from penstock.metadata.etcd.settings import parse_etcd_url
        from penstock.metadata.etcd.store import EtcdStore
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"metadata store '{url}' needs {error.name}: pip install 'penstock[etcd]'"
        ) from error
    return EtcdStore(parse_etcd_url(url), first_member=broker_id)


def _cannot_listen(flag: str, address: Address, error: OSError) -> BrokerError:
    has_no_address = isinstance(error, socket.gaierror)  # its numbers are its own
    reason = "it has no address" if has_no_address else os.strerror(error.errno or 0).lower()
    question = "is another broker running there? " if error.errno == errno.EADDRINUSE else ""
    return BrokerError(
        f"cannot listen on {address}: {reason}; {question}choose another address with {flag}"
    )


def _bindable(address: Address) -> tuple[str, int]:
    return address.host or "0.0.0.0", address.port


def _unless_negative(limit: int) -> int:
    return _NO_LIMIT if limit < 0 else limit
