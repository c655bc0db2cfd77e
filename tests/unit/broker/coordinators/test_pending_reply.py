"""A question to a coordinator is answered once, also if nobody waits any more."""

import asyncio
import gc
from typing import Any

from penstock.broker.coordinators.shard import PendingReply
from penstock.model.errors import BrokerError


def test_a_refusal_that_nobody_waits_for_is_not_complained_of() -> None:
    complaints: list[dict[str, Any]] = []

    async def refuse() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        asked = PendingReply()
        asked.future = loop.create_future()
        asked.refuse(BrokerError("lost"))
        del asked
        gc.collect()

    asyncio.run(refuse())
    assert complaints == []
