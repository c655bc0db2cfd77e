"""The simulated store is a store like the others."""

from penstock.metadata.store import MetadataStore
from tests.simulation.loop import SimLoop, World
from tests.simulation.network import Network
from tests.simulation.store import StoreCore, StoreView
from tests.support.seed import chosen_seed
from tests.unit.metadata.store_contract import Scenario, StoreContract


class TestSimulatedStore(StoreContract):
    def run(self, scenario: Scenario) -> None:
        self._world = World(chosen_seed())
        self._core = StoreCore(self._world)
        self._network = Network(self._world)
        loop = SimLoop(self._world, "test")
        self._network.host_of[loop] = "test"
        self._loop = loop

        async def main() -> None:
            store, other = self.open(), self.open()
            await scenario(store, other)
            await store.close()
            await other.close()

        task = loop.spawn(main(), "test")
        try:
            self._world.run_until(task.done, 60, "the scenario comes to its end")
            task.result()
        finally:
            self._world.finish()

    def open(self) -> MetadataStore:
        return StoreView(self._core, self._network, self._loop)

    def let_pass(self, elapsed_ms: int) -> None:
        self._world.now_s += elapsed_ms / 1000
