"""One broker, put together: the only place that names concrete classes, and the order of start and stop.

Start: lock the directory, bind the addresses, join the cluster, recover the logs, then listen. Stop is
the same backwards, and leaves the mark of a clean end only when every log was closed well.
"""

import asyncio
import gc
import logging
import os
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from penstock.broker.cluster import Cluster
from penstock.broker.hosting import Hosting
from penstock.broker.membership import Identity
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.replicas import Replicas
from penstock.http.server import HttpServer
from penstock.kafka.context import Services
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.memory import FrameMemory
from penstock.kafka.security import AllowAll
from penstock.kafka.server import ConnectionLimits, Loop, bind
from penstock.kafka.server import Listener as Door
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import MetadataStore
from penstock.metadata.values import Endpoint
from penstock.model.clock import Clock
from penstock.model.errors import InvalidConfig
from penstock.node.clock import SystemClock
from penstock.node.listeners import Address, Listener
from penstock.node.settings import Settings
from penstock.node.tasks import Tasks
from penstock.storage.directory import DataDirectory

_log = logging.getLogger(__name__)

_DISK_THREADS: Final = 4
_NO_LIMIT: Final = 1 << 62
_STORE_FILE: Final = "metadata.sqlite"


class Node:
    """A broker in this process. Started once, stopped once."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.config = settings.config
        self.metrics = BrokerMetrics()
        self._clock = clock or SystemClock()
        self._tasks = Tasks()
        self._doors: list[Door] = []
        self._http: HttpServer | None = None
        self._not_ready = "the broker is starting"
        self._running = AsyncExitStack()  # what was started, to be stopped backwards
        self._replicas: Replicas | None = None

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
        return (
            f"penstock ready broker={self.config.broker_id} listen={self.bootstrap} "
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
            await self._running.aclose()
            await self._tasks.close()
            raise
        self._not_ready = ""
        gc.collect()
        gc.freeze()  # what lives from here on lives long: full collections need not look at it

    async def _start(self) -> None:
        config, settings = self.config, self.settings
        directory = DataDirectory(config.log_dirs, open_files_limit=config.penstock_open_files_max)
        self._running.callback(directory.close)
        sockets = [bind(*_bindable(listener.bind)) for listener in settings.listeners]
        for sock in sockets:
            self._running.callback(sock.close)
        threads = ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="disk")
        self._running.callback(threads.shutdown, cancel_futures=True)
        replicas = Replicas(
            directory, self.metrics, asyncio.get_running_loop(), threads, self._clock
        )
        self._replicas = replicas
        identity = Identity(
            broker_id=config.broker_id,
            directory_id=directory.id,
            session_timeout_ms=config.broker_session_timeout_ms,
            rack=config.broker_rack,
            last_shutdown=directory.ending.value,
        )
        cluster = Cluster(self._open_store(), identity, self._tasks.spawn, settings.overrides())
        self._running.push_async_callback(cluster.stop)
        await cluster.load()
        Hosting(replicas, cluster).begin()
        self._open_doors(sockets, self._services(replicas, cluster))
        advertised = {
            listener.name: Endpoint(*_advertised(listener, door))
            for listener, door in zip(settings.listeners, self._doors, strict=True)
        }
        await cluster.join(advertised)
        await self._open_http()

    def _open_store(self) -> MetadataStore:
        kind, _, rest = (self.config.penstock_metadata or "sqlite:").partition(":")
        if kind != "sqlite":
            raise InvalidConfig(
                f"metadata store '{self.config.penstock_metadata}' is not supported; "
                "use sqlite:PATH, or leave it out for a file in the data directory"
            )
        path = Path(rest) if rest else Path(self.config.log_dirs) / _STORE_FILE
        changes_max = self.config.penstock_metadata_changes_max
        return SqliteStore(path, self._clock, changes_max=changes_max)

    def _services(self, replicas: Replicas, cluster: Cluster) -> Services:
        sessions = FetchSessions(
            self.config.max_incremental_fetch_session_cache_slots, lambda: secrets.randbits(31)
        )
        return Services(
            broker_id=self.config.broker_id,
            clock=self._clock,
            replicas=replicas,
            cluster=cluster,
            metrics=self.metrics,
            authorizer=AllowAll(),
            sessions=sessions,
            spawn=self._tasks.spawn,
        )

    def _open_doors(self, sockets: list[socket.socket], services: Services) -> None:
        config = self.config
        memory = FrameMemory(_unless_negative(config.queued_max_request_bytes))
        loop = Loop(
            asyncio.get_running_loop(), memory, config.socket_request_max_bytes, self._tasks.spawn
        )
        limits = ConnectionLimits(config.max_connections, config.max_connections_per_ip)
        idle_s = _unless_negative(config.connections_max_idle_ms) / 1000
        for listener, sock in zip(self.settings.listeners, sockets, strict=True):
            door = Door(listener.name, sock, services, loop, limits, idle_s)
            door.open()
            self._doors.append(door)
            self._running.callback(door.close)

    async def _open_http(self) -> None:
        if self.settings.http is not None:
            self._http = HttpServer(self.metrics.registry, self._readiness)
            self._running.push_async_callback(self._http.close)
            await self._http.start(*_bindable(self.settings.http))

    async def stop(self) -> None:
        """End every connection, close every log, and give up the place in the cluster."""
        self._not_ready = "the broker is stopping"
        _log.info("stopping broker=%d", self.config.broker_id)
        await self._running.aclose()
        await self._tasks.close()
        _log.info("stopped broker=%d", self.config.broker_id)


def _bindable(address: Address) -> tuple[str, int]:
    return address.host or "0.0.0.0", address.port


def _advertised(listener: Listener, door: Door) -> tuple[str, int]:
    return listener.advertised.host, listener.advertised.port or door.address[1]


def _unless_negative(limit: int) -> int:
    return _NO_LIMIT if limit < 0 else limit
