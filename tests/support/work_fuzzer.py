"""Requests that cause much work, against a broker in this process: the longest callback of its loop, for each API.

The broker runs on a loop of asyncio, whose callbacks can be measured, in CPU time of its thread.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Final, NamedTuple, Self
from unittest.mock import patch

import uvloop

from penstock.kafka.apis import APIS
from penstock.testing import Broker
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.wire.schema import Message
from tests.support.bombs import many_headers, many_records, zeros
from tests.support.fuzzer import SETTINGS
from tests.support.inflated import inflations
from tests.support.plausible import World
from tests.support.raw_client import RawClient, encode_request
from tests.support.stalls import Stalls, measured_stalls
from tests.unit.wire.catalogue import all_messages

_PARTITIONS: Final = 2
_TOPICS: Final = {"fuzz-0": "delete", "fuzz-1": "delete", "compacted": "compact"}
_LARGEST_FRAME_BYTES: Final = 16 << 20
_LAST_WORD_ID: Final = b"\x5e\xa1\x5e\xa1"
_LAST_WORD: Final = encode_request(ApiVersionsRequest(), 0, int.from_bytes(_LAST_WORD_ID, "big"))
_MB: Final = 1 << 20


class Costly(NamedTuple):
    """A request and the longest that the loop was held by it."""

    stall_ms: float
    api: str
    what: str
    outcome: str
    callback: str


class WorkFuzzer:
    """Sends one request at a time, so that what is measured is its own."""

    def __init__(self, broker: Broker, stalls: Stalls, seed: int) -> None:
        self._broker = broker
        self._stalls = stalls
        self._random = Random(seed)
        for name, policy in _TOPICS.items():
            broker.create_topic(name, partitions=_PARTITIONS, settings={"cleanup.policy": policy})
        with RawClient(broker.bootstrap) as client:
            topics = client.ask(MetadataRequest(topics=None), MetadataResponse, 12).topics
        self._world = World({it.name: it.topic_id for it in topics if it.name}, _PARTITIONS)

    @classmethod
    @contextmanager
    def started(cls, seed: int) -> Iterator[Self]:
        with ExitStack() as stack:
            stack.enter_context(patch.object(uvloop, "new_event_loop", asyncio.new_event_loop))
            stalls = stack.enter_context(measured_stalls())
            broker = stack.enter_context(Broker(SETTINGS))
            yield cls(broker, stalls, seed)

    def run(self, share: float = 1.0) -> Iterator[Costly]:
        """The bombs, then each API with arrays as long as it allows; `share`: of these requests, chosen by the seed."""
        yield from self._bombs()
        requests = {m.api_key: m for m in all_messages() if m.__name__.endswith("Request")}
        for key, api in APIS.items():
            for version in sorted({api.min_version, api.max_version}):
                for found in inflations(
                    requests[key], version, self._world, self._random, api.max_elements - 100, share
                ):
                    what = f"v{version}, {found.elements:,} {found.kind} elements in {found.path}"
                    yield self._send(api.name, found.request, version, what)

    def _bombs(self) -> Iterator[Costly]:
        now_ms = 1_700_000_000_000
        for name, batch in (
            ("30 million headers", many_headers(30_000_000, now_ms)),
            ("300,000 records", many_records(300_000, now_ms)),
            ("100 MiB of zeros", zeros(100 * _MB, now_ms)),
            ("60 MiB of zeros", zeros(60 * _MB, now_ms)),
        ):
            for topic in _TOPICS:
                data = PartitionProduceData(index=0, records=memoryview(batch))
                produced = TopicProduceData(name=topic, partition_data=[data])
                request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[produced])
                yield self._send("Produce", request, 9, f"{name} to {topic}")
                asked = ListOffsetsPartition(partition_index=0, timestamp=now_ms + 1)
                search = ListOffsetsRequest(
                    topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
                )
                yield self._send("ListOffsets", search, 7, f"by time, after {name} to {topic}")

    def _send(self, api: str, request: Message, version: int, what: str) -> Costly:
        try:
            frame = encode_request(request, version)
        except ValueError as error:
            return Costly(0.0, api, what, f"not sent: {error}", "")
        if len(frame) > _LARGEST_FRAME_BYTES:
            return Costly(0.0, api, what, "not sent: too large", "")
        del request
        gc.collect()
        gc.freeze()  # what this process holds besides is not the broker's to look at
        self._stalls.reset()
        outcome = self._answered(frame)
        what += f", {len(frame) / 1024:,.0f} KiB"
        return Costly(self._stalls.longest_ms, api, what, outcome, self._stalls.callback)

    def _answered(self, frame: bytes) -> str:
        with RawClient(self._broker.bootstrap) as client:
            try:
                client.socket.sendall(frame + _LAST_WORD)
                while not client.receive().startswith(_LAST_WORD_ID):
                    pass
            except ConnectionError:
                return "closed"
            except TimeoutError:
                return "hangs"
        return "answered"


def worst_of_each(costs: Iterator[Costly]) -> list[Costly]:
    worst: dict[str, Costly] = {}
    for cost in costs:
        known = worst.get(cost.api)
        if known is None or cost.stall_ms > known.stall_ms:
            worst[cost.api] = cost
    return sorted(worst.values(), reverse=True)
