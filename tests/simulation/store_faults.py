"""Faults between brokers and the store: some calls, of some brokers, fail, come late or are never answered."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tests.simulation.machine import Machine
from tests.simulation.store import StoreCore
from tests.simulation.store_troubles import CALLS, WATCH, Trouble, Way

Heal = Callable[[], None]
Begun = tuple[float, Heal] | None

_SLOW_S: Final = (0.05, 0.3, 0.8)
_WATCH_S: Final = (0.05, 0.4, 1.5)  # a member of etcd that lags has its watchers lag
_WAYS: Final = (Way.LOST, Way.UNANSWERED, Way.UNANSWERED, Way.LATE, Way.LATE, Way.REFUSED, Way.SLOW)
_LASTS_S: Final = (0.2, 6.0)


class StoreFaults:
    """`someone` chooses a machine, `controller` is the one in office."""

    def __init__(
        self,
        core: StoreCore,
        machines: Sequence[Machine],
        someone: Callable[[], Machine],
        controller: Callable[[], Machine | None],
    ) -> None:
        self._core = core
        self._rng: Random = core.world.rng
        self._machines = machines
        self._someone = someone
        self._controller = controller

    def trouble_store(self) -> Begun:
        """Calls of one kind, or of all kinds, go wrong for some brokers."""
        rng = self._rng
        calls = rng.choice((("commit",), ("commit",), ("keep_alive",), ("read", "snapshot"), CALLS))
        trouble = Trouble(
            self._hosts(),
            frozenset(calls),
            rng.choice(_WAYS),
            rng.choice((0.3, 0.7, 1.0)),
            rng.choice(_SLOW_S),
        )
        return self._begin(trouble)

    def trouble_commits(self) -> Begun:
        """Whether what the controller decides is written, nobody knows for a while."""
        controller = self._controller()
        if controller is None:
            return None
        way = self._rng.choice((Way.LOST, Way.UNANSWERED, Way.LATE, Way.LATE, Way.SLOW))
        return self._begin(
            Trouble(frozenset((controller.host,)), frozenset(("commit",)), way, 1.0, _SLOW_S[-1])
        )

    def delay_watch(self, machine: Machine | None = None) -> Begun:
        """Brokers hear late of what others have written, and write at once."""
        hosts = self._hosts() if machine is None else frozenset((machine.host,))
        return self._begin(
            Trouble(hosts, frozenset((WATCH,)), Way.SLOW, 1.0, self._rng.choice(_WATCH_S))
        )

    def forget_changes(self) -> Begun:
        """Watches break, and before they begin anew the store drops the changes that they lack."""
        hosts = self._hosts()
        for view in self._core.views:
            if view.host in hosts:
                view.break_watches()
        return self._rng.uniform(0.05, 1.2), self._core.forget_changes

    def _begin(self, trouble: Trouble) -> Begun:
        self._core.world.note(
            f"{sorted(trouble.hosts)}: {sorted(trouble.calls)} {trouble.way.value}"
            f" {trouble.share} {trouble.slow_s}"
        )
        self._core.troubles.begin(trouble)
        return self._rng.uniform(*_LASTS_S), lambda: self._core.troubles.end(trouble)

    def _hosts(self) -> frozenset[str]:
        """The controller, somebody, or everybody."""
        chosen, controller = self._rng.random(), self._controller()
        if chosen < 0.4 and controller is not None:
            return frozenset((controller.host,))
        if chosen < 0.8:
            return frozenset((self._someone().host,))
        return frozenset(it.host for it in self._machines)
