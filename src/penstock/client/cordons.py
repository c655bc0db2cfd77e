"""Brokers that get no new replicas (KIP-1066), because they are to leave: who they are, and how one becomes one."""

from collections.abc import Iterable
from typing import Final

from penstock.client import reassignments
from penstock.client.errors import ClientError
from penstock.client.pool import Broker, Pool
from penstock.client.reassignments import Members
from penstock.client.settings import BROKER, change, describe
from penstock.model.errors import ErrorCode

_CORDON: Final = "cordoned.log.dirs"
_ALL: Final = "*"


async def members(pool: Pool) -> Members:
    """All registered brokers, with those that are cordoned."""
    found = await reassignments.members(pool)
    return found._replace(cordoned=await cordoned(pool, [node.id for node in found.running]))


async def cordoned(pool: Pool, brokers: Iterable[int]) -> frozenset[int]:
    """Of these, each of which is asked itself; one that does not answer is left out."""
    found = set()
    for broker_id in brokers:
        asked = [(BROKER, str(broker_id))]
        try:
            if await describe(pool, Broker(broker_id), asked, (_CORDON,)):
                found.add(broker_id)
        except ClientError as error:
            if not error.is_retriable and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                raise
    return frozenset(found)


async def cordon(pool: Pool, broker_id: int) -> bool:
    """False: the cluster is of a version that knows nothing of it."""
    try:
        await change(pool, {(BROKER, str(broker_id)): {_CORDON: _ALL}})
    except ClientError as error:
        if error.code is not ErrorCode.INVALID_CONFIG:
            raise
        return False
    return True


async def uncordon(pool: Pool, broker_id: int) -> None:
    await change(pool, {(BROKER, str(broker_id)): {_CORDON: None}})
