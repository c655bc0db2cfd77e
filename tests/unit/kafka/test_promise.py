"""An answer that comes later is heard of at once, and once."""

import asyncio

import pytest

from penstock.kafka.promise import Promise


def heard(promise: Promise[int]) -> list[Promise[int]]:
    calls: list[Promise[int]] = []
    promise.add_done_callback(calls.append)
    return calls


def test_whoever_waits_hears_in_that_moment_and_of_the_first_outcome_only() -> None:
    promise: Promise[int] = Promise()
    first, second = heard(promise), heard(promise)
    promise.set_result(1)
    promise.set_result(2)
    promise.set_exception(ValueError("late"))
    promise.cancel()
    assert first == second == [promise]
    assert (promise.done(), promise.cancelled()) == (True, False)
    assert (promise.result(), promise.exception()) == (1, None)


def test_a_broken_promise_and_one_that_nobody_wants_say_so() -> None:
    broken: Promise[int] = Promise()
    calls = heard(broken)
    broken.set_exception(error := ValueError("no"))
    assert (calls, broken.exception(), broken.cancelled()) == ([broken], error, False)

    unwanted: Promise[int] = Promise()
    calls = heard(unwanted)
    unwanted.cancel()
    unwanted.set_result(1)
    assert (calls, unwanted.exception(), unwanted.cancelled()) == ([unwanted], None, True)


def test_it_can_be_awaited_before_and_after_it_comes() -> None:
    async def main() -> None:
        promise: Promise[int] = Promise()
        asyncio.get_running_loop().call_soon(promise.set_result, 7)
        assert [await promise, await promise] == [7, 7]

        broken: Promise[int] = Promise()
        broken.set_exception(ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await broken

        unwanted: Promise[int] = Promise()
        unwanted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unwanted

    asyncio.run(main())


def test_whoever_stops_awaiting_it_does_not_disturb_it() -> None:
    async def main() -> None:
        promise: Promise[int] = Promise()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await promise
        promise.set_result(1)
        assert await promise == 1

    asyncio.run(main())
