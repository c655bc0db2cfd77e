"""A broker that stops may cancel the task of a handler before its first step: nothing is left behind."""

import asyncio
import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from penstock.kafka.apis import APIS
from penstock.kafka.slices import SlicedAppend
from penstock.model.steps import finish
from penstock.node.tasks import Tasks
from penstock.wire.api_keys import ApiKey
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.stage import RUNNING, staged


@contextmanager
def no_warnings() -> Iterator[None]:
    """Python warns of a coroutine that was never awaited."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(it.message) for it in caught] == []


def test_a_handler_that_did_not_start_is_closed() -> None:
    with no_warnings(), staged() as stage:
        peer = stage.connect()
        peer.ask(1, RUNNING)
        peer.socket.sendall(peer.unsent)

        async def stop() -> None:
            peer.connection._on_readable()
            (answer,) = peer.connection._line.answers
            await stage.tasks.close()
            assert answer.future is not None
            assert answer.future.cancelled()

        stage.runner.run(stop())
        assert len(stage.handled) == 1


def test_a_slice_whose_handler_did_not_start_is_closed() -> None:
    class Appends:
        waiting = None
        is_sent_again = True

        async def append(self, _: ProduceRequest) -> ProduceResponse:
            raise AssertionError("it is not to run")

    data = [PartitionProduceData(index=0, records=None)]
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=data)])
    slices = APIS[ApiKey.PRODUCE].slices
    assert slices is not None

    async def stop() -> None:
        tasks = Tasks()
        context: Any = SimpleNamespace(holds=False)
        sliced = SlicedAppend(
            slices.parts,
            Appends(),
            context,
            lambda part, _: part,
            lambda later: tasks.spawn(later, "Produce"),
        )
        finish(sliced.steps(request, lambda: False, lambda: 0.0))
        assert len(tasks) == 1
        await tasks.close()

    with no_warnings():
        asyncio.run(stop())
