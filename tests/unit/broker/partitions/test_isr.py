"""Changes of the in-sync replicas that a leader asks for, and the controller's answers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions import isr as isr_module
from penstock.broker.partitions.isr import IsrKeeper
from penstock.metadata.image import PartitionImage
from penstock.model.configs import resolve_broker_config
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataResponse,
    TopicDataResponse,
)
from tests.support.clocks import ManualClock
from tests.support.engine import Engine

ME, ANN, BOB = 1, 2, 3


class Controller:
    """Answers nothing until it is told to."""

    def __init__(self) -> None:
        self.asked: list[AlterPartitionRequest] = []
        self.answers: asyncio.Queue[AlterPartitionResponse | BrokerError] = asyncio.Queue()

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.asked.append(request)
        answer = await self.answers.get()
        if isinstance(answer, BrokerError):
            raise answer
        return answer


def keeper_of(controller: Controller) -> IsrKeeper:
    cluster: Any = SimpleNamespace(
        broker_id=ME,
        epoch=7,
        config=resolve_broker_config({}),
        image=SimpleNamespace(brokers={}, registrations={}),
        alter_partition=controller.alter_partition,
    )
    return IsrKeeper(cluster, SimpleNamespace(), ManualClock(), BrokerMetrics())  # type: ignore[arg-type] # as much of them as it needs


async def ticks() -> None:
    """Let everything run that can."""
    for _ in range(30):
        await asyncio.sleep(0)


def test_a_change_without_an_answer_stands_until_there_is_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been committed (R6): until that is known, both the old and the new members count."""
    monkeypatch.setattr(isr_module, "_BATCH_S", 0.0)
    monkeypatch.setattr(isr_module, "_RETRY_S", 0.0)
    partition = engine.partition(min_insync_replicas=1)
    partition.lead(ME, PartitionImage(ME, 5, 10, (ME, ANN, BOB), (ME, ANN)))
    leadership = partition.leadership
    assert leadership is not None
    controller = Controller()

    async def run() -> None:
        keeper = keeper_of(controller)
        keeper.start(lambda work, _name: asyncio.get_running_loop().create_task(work))
        try:
            keeper.isr_changes(partition, (ME,))
            await ticks()
            assert len(controller.asked) == 1
            controller.answers.put_nowait(BrokerError("lost", ErrorCode.REQUEST_TIMED_OUT))
            await ticks()
            assert len(controller.asked) == 2
            assert leadership.proposed == (ME,)
            done = PartitionDataResponse(
                partition_index=0, leader_id=ME, leader_epoch=5, isr=[ME], partition_epoch=11
            )
            topic = TopicDataResponse(topic_id=partition.topic.id, partitions=[done])
            controller.answers.put_nowait(AlterPartitionResponse(topics=[topic]))
            await ticks()
        finally:
            keeper.close()

    engine.run(run())
    assert (leadership.isr.members, leadership.proposed) == ((ME,), None)
