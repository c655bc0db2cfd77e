"""What operators do while faults go on: no fault, and it must do no harm. Partitions move, are cancelled, elected, set anew."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from tests.simulation.clients.operator import Operator
from tests.simulation.simulation import Simulation

Heal = Callable[[], None]
Begun = tuple[float, Heal] | None
Place = tuple[str, int]

_REPLICAS: Final = (1, 2, 2, 3, 3, 3)  # of a partition that moves; one where records may be lost
_MIN_ISR: Final = "min.insync.replicas"
_MIN_ISR_MAX: Final = 3


class Operations:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._rng = sim.world.rng
        self._operator = Operator(sim.loop, list(sim.machines), "operator")

    def move(self) -> Begun:
        """A partition of any topic goes to other brokers, to more or to fewer of them."""
        self._move([self._someplace()])
        return 0.0, _nothing

    def move_all(self) -> Begun:
        """All partitions of a topic, in one request each: the broker that stays may be a slow one."""
        topic = self._someplace()[0]
        self._move([place for place in self._places() if place[0] == topic])
        return 0.0, _nothing

    def move_and_cancel(self) -> Begun:
        place = self._someplace()
        self._move([place])
        return self._rng.uniform(0.02, 3), lambda: self._do(self._operator.move([(place, None)]))

    def elect_preferred(self) -> Begun:
        self._do(self._operator.elect_preferred())
        return 0.0, _nothing

    def elect_unclean(self) -> Begun:
        """Of a partition whose records may be lost: any replica leads, if nobody does."""
        lossy = [it for it in self._places() if it[0] in self._sim.lossy_topics]
        if not lossy:
            return None
        self._do(self._operator.elect_unclean(self._rng.choice(lossy)))
        return 0.0, _nothing

    def change_min_isr(self) -> Begun:
        """For a while all replicas must be in sync, or two of them again."""
        topic = self._someplace()[0]
        if topic in self._sim.lossy_topics or topic.startswith("__"):
            return None
        self._do(self._operator.configure(topic, _MIN_ISR, str(_MIN_ISR_MAX)))
        heal = lambda: self._do(self._operator.configure(topic, _MIN_ISR, "2"))  # noqa: E731
        return self._rng.uniform(0.1, 4), heal

    def _move(self, places: list[Place]) -> None:
        rng, brokers = self._rng, list(self._sim.machines)
        moves = []
        for place in places:
            replicas = rng.choice(_REPLICAS)
            if place[0] not in self._sim.lossy_topics:
                replicas = max(replicas, 2)
            moves.append((place, rng.sample(brokers, min(replicas, len(brokers)))))
        self._do(self._operator.move(moves))

    def _someplace(self) -> Place:
        """One of the topic that every cluster has, half of the time."""
        return self._rng.choice(self._sim.places if self._rng.random() < 0.5 else self._places())

    def _places(self) -> list[Place]:
        return self._sim.invariants.places

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._sim.loop.spawn(work, "operator")


def _nothing() -> None:
    """There is nothing to undo."""
