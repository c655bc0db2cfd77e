"""One broker, put together: the only place that names concrete classes, and the order of start and stop.

Start: lock the directory, open the store, join the cluster, recover the logs, then listen. Stop is the
same backwards, and leaves the mark of a clean end only when every log was closed well.
"""

import asyncio
import gc
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from penstock.broker.cluster import Cluster
from penstock.broker.hosting import Hosting
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.replicas import Replicas
from penstock.http.server import HttpServer
from penstock.kafka.context import Services
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.memory import FrameMemory
from penstock.kafka.security import AllowAll
from penstock.kafka.server import ConnectionLimits, Listener, Loop, bind
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.values import Endpoint
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError
from penstock.node.clock import SystemClock
from penstock.node.listeners import Address
from penstock.node.settings import Settings
from penstock.node.tasks import Tasks
from penstock.storage.directory import DataDirectory

_log = logging.getLogger(__name__)

_DISK_THREADS: Final = 4
_NO_LIMIT_BYTES: Final = 1 << 62


class StartFailed(Exception):
    """The broker cannot start here; the message is for the operator."""


class Node:
    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._tasks = Tasks()
        self._listeners: list[Listener] = []
        self._not_ready: list[str] = ["the broker is starting"]
        self.metrics = BrokerMetrics()
