import asyncio
import gc
from typing import Any

from penstock.broker.coordinators.shard import PendingReply
from penstock.broker.coordinators.verification import LocalCheck
from penstock.model.errors import BrokerError, ErrorCode
from penstock.transactions.state import Producer


def test_a_failed_check_that_nobody_waits_for_is_no_error_of_the_loop() -> None:
    """The request was refused for another reason: the disk failed, for example, while the check was written."""
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        asked = PendingReply()
        asked.future = loop.create_future()
        check = LocalCheck(
            asked.future, Producer(1, 0), lambda _producer, _partition: ErrorCode.NONE
        )
        asked.refuse(BrokerError("the shard was lost"))
        await asyncio.sleep(0)
        del check, asked
        gc.collect()

    asyncio.run(run())
    assert complaints == []
