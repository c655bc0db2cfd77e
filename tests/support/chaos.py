"""Faults of a cluster, to be chosen at random: each breaks something and mends it again."""

import time
from collections.abc import Callable
from random import Random
from typing import Final

from tests.support.cluster import GROUP, TRANSACTION, ClusterOfServers
from tests.support.etcd import Etcd, EtcdMember
from tests.support.network import Network
from tests.support.workload import GROUP as GROUP_ID
from tests.support.workload import TOPIC, TRANSACTIONAL_ID

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
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._tell = tell
        self._network = network
        self._etcd = etcd
        self._faults: list[Fault] = [
            self.kill,
            self.kill_two,
            self.kill_all,
            self.kill_again_while_it_starts,
            self.pause,
            self.restart,
        ]
        if network is not None:
            self._faults += [self.isolate, self.cut_two, self.cut_one_way, self.lose]
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
