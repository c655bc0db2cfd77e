import asyncio
import gc

import pytest

from penstock.node.tasks import Tasks


def test_a_task_that_nobody_else_holds_runs_to_its_end() -> None:
    async def scenario() -> bool:
        tasks = Tasks()
        done = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0)
            gc.collect()
            done.set()

        tasks.spawn(work(), "work")
        await done.wait()
        await asyncio.sleep(0)
        return len(tasks) == 0

    assert asyncio.run(scenario())


def test_an_error_is_logged_with_its_trace_and_can_still_be_awaited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="a bug"):
            await Tasks().spawn(fail(), "scrub")

    asyncio.run(scenario())
    (record,) = caplog.records
    assert record.getMessage() == "task-failed task=scrub"
    assert record.exc_info is not None
    assert "a bug" in str(record.exc_info[1])


def test_closing_cancels_what_runs_and_waits_for_its_clean_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> list[str]:
        tasks = Tasks()
        heard: list[str] = []
        started = asyncio.Event()

        async def work() -> None:
            try:
                started.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                heard.append("cleaned up")

        tasks.spawn(work(), "work")
        await started.wait()
        await tasks.close()
        return heard

    assert asyncio.run(scenario()) == ["cleaned up"]
    assert caplog.records == []


def test_a_task_may_close_the_others_and_itself_live_on() -> None:
    async def scenario() -> str:
        tasks = Tasks()

        async def stop() -> str:
            await tasks.close()
            return "stopped"

        return await tasks.spawn(stop(), "stop")

    assert asyncio.run(scenario()) == "stopped"


def test_nothing_starts_after_the_end() -> None:
    async def work() -> None: ...

    async def scenario() -> None:
        tasks = Tasks()
        await tasks.close()
        with pytest.raises(RuntimeError, match="late was started after"):
            tasks.spawn(work(), "late")

    asyncio.run(scenario())
