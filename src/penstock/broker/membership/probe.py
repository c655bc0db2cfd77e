"""What becomes of a connection to an address: whether a process listens there, and whether its host is there at all.

A process that hangs is reached: the kernel of its host takes connections for it.
"""

import asyncio
from enum import Enum

from penstock.metadata.values import Endpoint


class Reach(Enum):
    OPEN = "somebody listens"
    REFUSED = "the host is there, and nobody listens"
    SILENT = "nothing came back in time, or there is no way to the host"


async def probe(address: Endpoint, timeout_s: float) -> Reach:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(asyncio.Protocol, *address)
    except ConnectionRefusedError:
        return Reach.REFUSED
    except (OSError, TimeoutError):
        return Reach.SILENT
    transport.close()
    return Reach.OPEN
