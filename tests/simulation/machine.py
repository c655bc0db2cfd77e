"""A machine with a broker on it: the node as it is shipped, on a simulated disk, network, clock and store.

The only parts that are not the product's: sockets are accepted by a door of the simulation, the lease is kept
by a timer instead of a thread, and what is random comes from the seed.
"""

import asyncio
import contextlib
import os
import random
from asyncio import events
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from unittest import mock

from penstock.broker.membership.lease_renewer import LeaseRenewer
from penstock.broker.partitions.partition import Partition
from penstock.kafka.connection import Connection
from penstock.kafka.context import Services
from penstock.kafka.memory import FrameMemory
from penstock.kafka.server import Listener, Loop
from penstock.metadata.store import LeaseId, MetadataStore, StoreError
from penstock.model.errors import BrokerError, StorageFault
from penstock.node.node import Node
from penstock.node.settings import Settings, load_settings
from penstock.storage.directory import DataDirectory
from penstock.storage.threads import DaemonThreads
from tests.simulation.clocks import MachineClock
from tests.simulation.disk import Faults, SimDisk
from tests.simulation.loop import SimLoop, World
from tests.simulation.network import Door, Network, WireSocket
from tests.simulation.store import StoreCore, StoreView
from tests.simulation.syscalls import Syscalls
from tests.simulation.threads import ProcessEnded, SimThread

PORT: Final = 9092
_RESTART_S: Final = 0.5
_THREADS_LOOK_S: Final = 0.01


def host_of(broker_id: int) -> str:
    return f"b{broker_id}"


def rack_of(broker_id: int) -> str:
    return f"rack{broker_id}"


class Machine:
    """Runs a broker; starts it again when it ends by itself, as a supervisor does."""

    def __init__(
        self,
        world: World,
        network: Network,
        core: StoreCore,
        broker_id: int,
        directory: str,
        settings: dict[str, str],
    ) -> None:
        self.world = world
        self.network = network
        self.core = core
        self.broker_id = broker_id
        self.host = host_of(broker_id)
        self.directory = directory
        self.clock = MachineClock(world)
        self.disk = SimDisk(directory, self.clock.wall_ms)
        self.boots = 1
        self.runs = 0
        self.loop: SimLoop | None = None
        self.node: SimNode | None = None
        self._stopping: SimNode | None = None
        self.is_wanted = False
        self.thread_delay_s = 0.0
        self.calls_left: int | None = None  # so many changes of files until `end_at_call`
        self.cut_calls: int | None = None  # what `calls_left` becomes when it cuts a log
        self.end_at_call: Callable[[], None] = self.crash
        self._is_unwinding = False  # the process ended within a callback that is not over
        self.disk.before_call = self._before_call
        self.on_crash: Callable[[], None] = lambda: None
        self.on_power_loss: Callable[[], None] = lambda: None
        self._settings = settings
        os.makedirs(directory, exist_ok=True)

    @property
    def is_up(self) -> bool:
        return self.node is not None and self.node.is_started

    @property
    def is_offline(self) -> bool:
        """Whether the broker has given up its disk."""
        replicas = None if self.node is None else self.node.replicas
        return replicas is not None and replicas.is_offline

    @property
    def is_about_to_lose_power(self) -> bool:
        """Whether its power is to fail at a system call that has not come yet."""
        return self.calls_left is not None and self.end_at_call == self.lose_power

    @property
    def has_disk_trouble(self) -> bool:
        faults = self.disk.faults
        is_ample = faults.free_bytes is None and faults.free_descriptors is None
        return not (faults.is_sound and is_ample) or self.thread_delay_s > 0

    def slow_down(self, thread_delay_s: float) -> None:
        """From now on what waits for the disk takes so much longer."""
        self.thread_delay_s = thread_delay_s
        if self.loop is not None:
            self.loop.thread_delay_s = thread_delay_s

    @property
    def partitions(self) -> list[Partition]:
        replicas = None if self.node is None else self.node.replicas
        return [] if replicas is None else list(replicas.partitions())

    def _before_call(self, changes: bool) -> None:
        """Before a system call on its files: here the process may end, and its threads may stop."""
        if self._is_unwinding:
            raise ProcessEnded
        thread = SimThread.current
        if thread is not None:
            thread.before_call()
        if not changes or self.calls_left is None or Faults.are_off:
            return
        self.calls_left -= 1
        if self.calls_left < 0 and self.loop is not None:
            self.calls_left = None
            self._is_unwinding = thread is None
            self.loop.when_unwound = self._unwound
            self.world.note(f"{self.host} ends at a system call")
            self.on_crash()
            self.end_at_call()
            raise ProcessEnded

    def begin_cut(self) -> None:
        """It is about to cut a log."""
        if self.cut_calls is not None and self.calls_left is None:
            self.calls_left, self.cut_calls = self.cut_calls, None

    def _unwound(self) -> None:
        self._is_unwinding = False

    def start(self) -> None:
        self.is_wanted = True
        if self.loop is not None:
            return
        self.runs += 1
        self.disk.restart()
        self.loop = loop = SimLoop(
            self.world,
            f"{self.host}.{self.runs}",
            self.network,
            broker_id=self.broker_id,
            clock=self.clock,
        )
        loop.thread_delay_s = self.thread_delay_s
        self.network.host_of[loop] = self.host
        loop.spawn(self._serve(loop), "serve")

    async def _serve(self, loop: SimLoop) -> None:
        options = [f"{name}={value}" for name, value in self._settings.items()]
        flags = {
            "--data": self.directory,
            "--broker-id": str(self.broker_id),
            "--listen": f"{self.host}:{PORT}",
            "--http": "off",
        }
        settings = load_settings(options=options, flags=flags)
        self.node = node = SimNode(settings, self, loop)
        try:
            await node.start()
        except (StoreError, BrokerError, StorageFault) as error:
            what = str(error).replace(self.directory, self.host)  # its path is another in each run
            self.world.note(f"{loop.name} did not start: {what}")
            self._end(silently=False)
            self.world.call_later(_RESTART_S, self._restart)

    def _restart(self) -> None:
        if self.is_wanted and self.loop is None and self.host not in self.network.dark:
            self.start()

    def stop(self) -> None:
        """Cleanly, as on SIGTERM."""
        self.is_wanted = False
        if self.loop is not None and self.node is not None and self._stopping is not self.node:
            self._stopping = self.node  # a second signal changes nothing
            self.loop.spawn(self._stop(self.node), "stop")

    async def _stop(self, node: "SimNode") -> None:
        await node.stop()
        self._end(silently=False)
        self.world.call_later(_RESTART_S, self._restart)  # if it is wanted again meanwhile

    def crash(self) -> None:
        """The process is gone; what it wrote is in the page cache."""
        self.is_wanted = False
        self.world.note(f"{self.host} crashes")
        self._end(silently=False)

    def lose_power(self, *, entirely: bool = False) -> None:
        """`entirely`: nothing is left of what was not synced; else the seed chooses."""
        self.is_wanted = False
        self.world.note(f"{self.host} loses power")
        self.network.dark.add(self.host)
        self._end(silently=True)
        self.on_power_loss()
        self.disk.lose_power(None if entirely else self.world.rng)
        self.boots += 1
        self.clock.boot()

    def boot(self) -> None:
        """Power is back, or the process is to run again."""
        self.network.power_is_back(self.host)
        self.start()

    def _end(self, *, silently: bool) -> None:
        loop, node = self.loop, self.node
        self.loop = self.node = None
        if loop is None:
            return
        loop.kill()
        self.network.died(loop, silently=silently)
        if node is not None:
            node.let_go_of_lock()


class SimNode(Node):
    def __init__(self, settings: Settings, machine: Machine, loop: SimLoop) -> None:
        super().__init__(settings, machine.clock)
        self._machine = machine
        self._sim_loop = loop

    @property
    def is_started(self) -> bool:
        return not self._not_ready

    @property
    def replicas(self) -> Any:
        return self._replicas

    @property
    def cluster(self) -> Any:
        return self._cluster

    def let_go_of_lock(self) -> None:
        """The kernel does, when a process ends; unless it has let go by itself, and the number is another file's."""
        directory = self._directory
        if directory is None:
            return
        with contextlib.suppress(OSError):
            is_lock = os.path.samestat(
                os.fstat(directory._lock_fd), os.stat(f"{directory.path}/lock")
            )
            if is_lock:
                os.close(directory._lock_fd)
        directory._lock_fd = -1

    async def _close_when_flushed(
        self, loop: asyncio.AbstractEventLoop, threads: DaemonThreads
    ) -> None:
        """The product waits for its other threads in a thread. Here that would stop the whole simulation."""
        while self._sim_loop.threads:  # noqa: ASYNC110 - they tell nobody that they end
            await asyncio.sleep(_THREADS_LOOK_S)
        await super()._close_when_flushed(loop, threads)

    def _bind_sockets(self) -> None:
        """There are none."""

    def _open_store(self) -> MetadataStore:
        return StoreView(self._machine.core, self._machine.network, self._sim_loop)

    def _build_doors(self, services: Services) -> None:
        door = SimDoor(
            self._machine.network, self._machine.host, services, self._sim_loop, self._tasks.spawn
        )
        door.listen()
        self._doors.append(cast(Any, door))
        self._memory = FrameMemory(1 << 30)


class SimDoor:
    """A listener of the simulation, with the broker's own connections behind it."""

    def __init__(
        self, network: Network, host: str, services: Services, loop: SimLoop, spawn: Any
    ) -> None:
        self.name = "PLAINTEXT"
        self.services = services
        self.address = host, PORT
        self._network = network
        self._loop = Loop(loop, FrameMemory(1 << 30), 100 << 20, spawn)
        self._loop.peer_has_closed = network.peer_has_closed
        self._door = Door(loop, host, self._accept)
        self._connections: dict[Connection, None] = {}

    def listen(self) -> None:
        self._network.listen(self.address, self._door)

    def open(self) -> None:
        self._network.open(self._door)

    def close(self) -> None:
        self._network.close(self._door)
        for connection in list(self._connections):
            connection.close("the broker is stopping", expected=True)

    def forget(self, connection: Connection) -> None:
        del self._connections[connection]

    def _accept(self, sock: WireSocket) -> None:
        connection = Connection(cast(Any, sock), cast(Listener, self), self._loop, "peer")
        self._connections[connection] = None


class SimLeaseRenewer(LeaseRenewer):
    """Renews from a timer: a simulated process that is paused has no thread that goes on."""

    def hold(self, lease: LeaseId) -> None:
        loop = asyncio.get_running_loop()
        self._lease = lease
        self._good_until_s = loop.time() + self._ttl_s
        if self._loop is None:
            self._loop = loop
            self._tick_s = loop.time()
            self._tick()
            loop.call_later(self._ttl_s / 4, self._renew_soon)

    async def stop(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def _renew_soon(self) -> None:
        loop, lease = self._loop, self._lease
        if self._ended.is_set() or loop is None:
            return
        loop.call_later(self._ttl_s / 4, self._renew_soon)
        if lease is not None and loop.time() - self._tick_s < self._ttl_s / 2:
            cast(SimLoop, loop).create_task(self._renew_once(lease, loop.time()), name="renew")

    async def _renew_once(self, lease: LeaseId, sent_s: float) -> None:
        try:
            left_ms = await self._store.keep_alive(lease)
        except StoreError:
            return
        if left_ms > 0:
            self._good_until_s = sent_s + self._ttl_s
        elif not self._ended.is_set():
            self._on_gone(lease)


class OrderedSet(dict[Any, None]):
    """A set whose order does not hang on addresses in memory."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def __sub__(self, others: Any) -> "OrderedSet":
        return OrderedSet((item, None) for item in self if item not in others)


@contextlib.contextmanager
def simulated(world: World, machines: dict[str, Machine]) -> Iterator[None]:
    """What the product takes from the machine it runs on comes from the simulation instead."""

    def directory(path: str, **more: Any) -> DataDirectory:
        machine = machines[path]
        boot_id = f"boot-{machine.boots}"
        return DataDirectory(path, boot_id=boot_id, **more)

    def now_s() -> float:
        loop = events._get_running_loop()
        return world.now_s if loop is None else loop.time()

    def some_bytes(size: int) -> bytes:
        return world.rng.randbytes(size)

    network = next(iter(machines.values())).network
    disks = {path: machine.disk for path, machine in machines.items()}
    with (
        Syscalls(disks).replaced(),
        mock.patch("penstock.node.node.DataDirectory", directory),
        mock.patch("penstock.broker.membership.session.LeaseRenewer", SimLeaseRenewer),
        mock.patch("penstock.broker.membership.lease_renewer.monotonic", now_s),
        mock.patch("penstock.broker.membership.recently_lost_brokers.monotonic", now_s),
        mock.patch("penstock.storage.syncs.monotonic", now_s),
        mock.patch("penstock.broker.coordinators.shard.set", OrderedSet, create=True),
        mock.patch("penstock.broker.partitions.waiters.set", OrderedSet, create=True),
        mock.patch("penstock.node.tasks.set", OrderedSet, create=True),
        mock.patch("penstock.broker.coordinators.shard.set", OrderedSet, create=True),
        mock.patch.object(os, "urandom", some_bytes),
        mock.patch.object(os, "sendfile", network.send_file),
        mock.patch.object(random, "_urandom", some_bytes),
    ):
        yield
