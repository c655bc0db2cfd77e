"""The event loops of simulated processes, by themselves."""

import gc
import warnings

from tests.simulation.loop import SimLoop, World


def test_a_task_that_is_started_while_its_process_ends_is_ended_too() -> None:
    """A process may end within a callback; what its `finally` starts never runs."""
    world, ran = World(1), []
    loop = SimLoop(world, "process")

    async def shut_down() -> None:
        ran.append("it")

    async def serve() -> None:
        try:
            loop.kill()
            raise KeyError
        finally:
            await loop.create_task(shut_down())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.spawn(serve(), "serve")
        world.step()
        world.finish()
        gc.collect()
    assert [str(it.message) for it in caught] == []
    assert ran == []
