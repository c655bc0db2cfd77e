"""Faults of a cluster, to be chosen at random: each breaks something and mends it again."""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from random import Random
from typing import Final

from tests.support.cluster import GROUP, TRANSACTION, ClusterOfServers
from tests.support.etcd import Etcd, EtcdMember
from tests.support.faulty_disk import FaultyDisk
from tests.support.network import Network
from tests.support.server import until
from tests.support.workload import GROUP as GROUP_ID
from tests.support.workload import TOPIC, TRANSACTIONAL_ID

_INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
_FLOOD: Final = 500  # connections
_LONGEST_S: Final = 8.0  # four sessions: long enough to be replaced, or not

Fault = Callable[[], None]


class Chaos:
    """Random, and the same for the same seed. What it does is told to `tell`, one line each."""

    def __init__(
        self,
        cluster: ClusterOfServers,
        rng: Random,
        tell: Callable[[str], None],
        network: Network | None = None,
        etcd: Etcd | None = None,
        disks: Mapping[int, FaultyDisk] | None = None,
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._tell = tell
        self._network = network
        self._etcd = etcd
        self._disks = disks or {}
        self._faults: list[Fault] = [
            self.kill,
            self.kill_two,
            self.kill_all,
            self.kill_again_while_it_starts,
            self.pause,
            self.restart,
            self.move_while_too_few_are_in_sync,
        ]
        if network is not None:
            self._faults += [self.isolate, self.cut_two, self.cut_one_way, self.lose]
        if self._disks:
            self._faults += [self.slow_disk, self.slow_disk, self.flood, self.flood]
        if etcd is not None:
            self._faults += [self.kill_of_etcd, self.pause_of_etcd, self.kill_with_etcd]

    def strike(self) -> None:
        """One fault, from its beginning to its end."""
        self._rng.choice(self._faults)()

    # Processes ---------------------------------------------------------------------------------

    def kill(self) -> None:
        victim = self._victim()
        away_s = self._some_time_s()
        self._tell(f"kill {victim}, start it after {away_s:.1f} s")
        self._cluster.kill(victim)
        time.sleep(away_s)
        self._cluster.start(victim)

    def kill_two(self) -> None:
        """Back to back, and back in any order."""
        victims = self._rng.sample(list(self._cluster.servers), 2)
        between_s, away_s = self._rng.choice([0.0, self._some_time_s()]), self._some_time_s()
        self._tell(f"kill {victims}, {between_s:.1f} s apart, start them after {away_s:.1f} s")
        if between_s:
            self._cluster.kill(victims[0])
            time.sleep(between_s)
            self._cluster.kill(victims[1])
        else:
            self._cluster.kill(*victims)
        time.sleep(away_s)
        self._rng.shuffle(victims)
        for victim in victims:
            self._cluster.start(victim)

    def kill_all(self) -> None:
        self._tell("kill all, start all")
        self._cluster.kill_all()
        self._cluster.start_all()

    def kill_again_while_it_starts(self) -> None:
        victim = self._victim()
        self._tell(f"kill {victim}, and again soon after it started")
        self._cluster.kill(victim)
        for _ in range(2):
            self._cluster.start(victim)
            time.sleep(self._rng.uniform(0, 0.5))
            self._cluster.kill(victim)
        self._cluster.start(victim)

    def pause(self) -> None:
        victim = self._victim()
        away_s = self._some_time_s()
        self._tell(f"pause {victim} for {away_s:.1f} s")
        self._cluster.pause(victim)
        time.sleep(away_s)
        self._cluster.resume(victim)

    def restart(self) -> None:
        victim = self._victim()
        self._tell(f"restart {victim}")
        self._cluster.stop(victim)
        self._cluster.start(victim)

    # Coordinators ------------------------------------------------------------------------------

    def move_while_too_few_are_in_sync(self) -> None:
        """Kill two of three, move a partition to the survivor, start the others, move it back.

        The survivor may lead already: then it leads again, in a new epoch, and reads the same
        coordinator state once more.
        """
        topic, number = self._rng.choice(
            [(topic, number) for topic in (TOPIC, *_INTERNAL) for number in range(3)]
        )
        survivor, *victims = self._rng.sample(list(self._cluster.servers), 3)
        pause_s = self._rng.uniform(0, 1)
        self._tell(f"kill {victims}, move {topic}-{number} to {survivor} {pause_s:.1f} s later")
        self._cluster.kill(*victims)
        time.sleep(pause_s)
        self._reassign(topic, number, [survivor])
        time.sleep(self._some_time_s())
        for victim in victims:
            self._cluster.start(victim)
        self._reassign(topic, number, [survivor, *victims])
        self._cluster.wait_isr(topic, number)

    def _reassign(self, topic: str, number: int, replicas: list[int]) -> None:
        """Retry until the controller takes it: the last one may just have been killed."""
        until(
            lambda: self._cluster.reassign(topic, number, replicas),
            f"{topic}-{number} is assigned to {replicas}",
        )

    # Resources ---------------------------------------------------------------------------------

    def slow_disk(self) -> None:
        victim, away_s = self._victim(), self._some_time_s()
        operation, delay_ms = self._rng.choice(["sync", "write"]), self._rng.choice([20, 100, 500])
        self._tell(f"each {operation} of {victim} takes {delay_ms} ms for {away_s:.1f} s")
        self._disks[victim].slow_down(operation, "/", delay_ms)
        time.sleep(away_s)
        self._disks[victim].heal()

    def flood(self) -> None:
        """Open more connections than the broker has descriptors."""
        victim, away_s = self._victim(), self._some_time_s()
        host, _, port = self._cluster.servers[victim].bootstrap.rpartition(":")
        self._tell(f"{_FLOOD} connections to {victim} for {away_s:.1f} s")
        with ExitStack() as opened:
            for _ in range(_FLOOD):
                try:
                    opened.enter_context(socket.create_connection((host, int(port)), 1.0))
                except OSError:  # its queue of new connections is full
                    break
            time.sleep(away_s)

    # The network -------------------------------------------------------------------------------

    def isolate(self) -> None:
        victim = self._victim()
        self._cut(f"isolate {victim}", lambda network: network.isolate(victim))

    def cut_two(self) -> None:
        one, other = self._rng.sample(list(self._cluster.servers), 2)
        self._cut(f"cut {one} from {other}", lambda network: network.cut(one, other))

    def cut_one_way(self) -> None:
        one, other = self._rng.sample(list(self._cluster.servers), 2)
        self._cut(f"cut {one} to {other}", lambda network: network.cut_one_way(one, other))

    def lose(self) -> None:
        victim, percent = self._victim(), self._rng.choice([5, 20, 50])
        what = f"lose {percent} % of what is sent to {victim}"
        self._cut(what, lambda network: network.lose(victim, percent))

    def _cut(self, what: str, cut: Callable[[Network], None]) -> None:
        assert self._network is not None
        away_s = self._some_time_s()
        self._tell(f"{what} for {away_s:.1f} s")
        cut(self._network)
        time.sleep(away_s)
        self._network.heal()

    # etcd --------------------------------------------------------------------------------------

    def kill_of_etcd(self) -> None:
        etcd, member = self._member()
        away_s = self._some_time_s()
        self._tell(f"kill etcd {member.name} for {away_s:.1f} s")
        member.kill()
        time.sleep(away_s)
        etcd.start(member)

    def pause_of_etcd(self) -> None:
        _, member = self._member()
        away_s = self._some_time_s()
        self._tell(f"pause etcd {member.name} for {away_s:.1f} s")
        member.pause()
        time.sleep(away_s)
        member.resume()

    def kill_with_etcd(self) -> None:
        """A broker and the leader of etcd, at the same moment."""
        assert self._etcd is not None
        victim, member = self._victim(), self._etcd.leader()
        self._tell(f"kill {victim}, and etcd {member.name}, which leads")
        member.kill()
        self._cluster.kill(victim)
        time.sleep(self._some_time_s())
        self._etcd.start(member)
        self._cluster.start(victim)

    def _member(self) -> tuple[Etcd, EtcdMember]:
        assert self._etcd is not None
        return self._etcd, self._rng.choice(self._etcd.members)

    # Choices -----------------------------------------------------------------------------------

    def _victim(self) -> int:
        """Any broker, or one that matters."""
        choose: Callable[[], int] = self._rng.choice(
            [
                lambda: self._rng.choice(list(self._cluster.servers)),
                lambda: self._cluster.leader_of(TOPIC, 0),
                self._cluster.controller,
                lambda: self._cluster.coordinator_of(GROUP_ID, GROUP),
                lambda: self._cluster.coordinator_of(TRANSACTIONAL_ID, TRANSACTION),
            ]
        )
        return choose()

    def _some_time_s(self) -> float:
        """Short ones are as likely as long ones."""
        return float(_LONGEST_S ** self._rng.uniform(-1, 1))
