"""Spoiled frames against a real broker, slice by slice; after each slice the broker must be as well as before.

A slice is a function of the seed and its number alone (but for topic ids), so that it can be sent again on its own.
"""

import re
import socket
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import psutil

from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.record import decode_records
from penstock.records.validation import check_client_batch, check_keys
from penstock.testing import Broker
from penstock.wire.header import decode_request_header
from penstock.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import Message, decode_for
from tests.support.mutations import spoil, spoil_batch
from tests.support.plausible import Valid, World, plausible_batch, valid_requests
from tests.support.raw_client import RawClient, encode_request
from tests.unit.wire.catalogue import all_messages

SETTINGS: Final = {  # so that requests which are in order after all cannot fill the machine
    "auto.create.topics.enable": False,
    "penstock.partitions.per.broker.max": 200,
    "penstock.partitions.per.request.max": 50,
    "log.segment.bytes": 1 << 20,
    "log.retention.bytes": 1 << 20,
}
_STEADY: Final = "steady"  # no frame names it, so no frame can take it away
_TARGETS: Final = ("fuzz-0", "fuzz-1", "compacted")
_PARTITIONS: Final = 2
_AFTER_CRASH: Final = -1  # no slice
_CRC: Final = slice(17, 21)  # of a batch: the same before and after it was stamped
_DELETE_TOPICS: Final = 20
_BUSIEST: Final = (0, 1)  # produce and fetch
_ROUND_FRAMES: Final = 2500  # between two looks at what there is to aim at
_OPEN_AT_ONCE: Final = 64
_UNSPOILED: Final = 0.3  # of the connections: they send one frame that is in order
_LAST_WORD_ID: Final = b"\x5e\xa1\x5e\xa1"
_LAST_WORD: Final = encode_request(ApiVersionsRequest(), 0, int.from_bytes(_LAST_WORD_ID, "big"))
_WILDNESS: Final = (0.0, 0.0, 0.02, 0.02, 0.05, 0.1, 0.3)
_FRAMES_EACH: Final = (1, 1, 1, 2, 4, 8)  # of one connection
_TROUBLE: Final = re.compile(r"^\S+ (?:ERROR|CRITICAL) .*$|Traceback", re.MULTILINE)
_TRACE: Final = re.compile(r"^\S+ \w+ (?P<event>.*)\n(?P<trace>(?:    .*\n)+)", re.MULTILINE)


@dataclass
class Health:
    """What was seen of the broker, and everything about it that is not well."""

    frames: int = 0
    connections: int = 0
    answered_bytes: int = 0
    rss_mb: list[float] = field(default_factory=list)
    troubles: Counter[str] = field(default_factory=Counter)


class _Opened(NamedTuple):
    client: RawClient
    asked: bytes | None  # None: it sent what deserves no answer


class Fuzzer:
    """Owns no broker: it is given one whose settings are SETTINGS, and the file that it logs to."""

    def __init__(self, broker: Broker, log: Path, seed: int) -> None:
        self.health = Health()
        self._broker = broker
        self._process = psutil.Process(broker.pid)
        self._log = log
        self._log_read = 0
        self._seed = seed
        with RawClient(broker.bootstrap) as client:
            versions = client.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
        self._apis: list[ApiVersion] = versions.api_keys
        broker.create_topic(_STEADY)

    def run_slice(self, number: int, frames: int) -> None:
        """Send so many frames, wait for every connection's end, then look at the broker."""
        random = Random(f"{self._seed}/{number}")
        for first in range(0, frames, _ROUND_FRAMES):
            self._run_round(number, min(_ROUND_FRAMES, frames - first), random)
        self._look(number)

    def _run_round(self, number: int, frames: int, random: Random) -> None:
        valid = _seeds(self._apis, self._world(), random)
        opened: deque[_Opened] = deque()
        sent = 0
        while sent < frames:
            if random.random() < _UNSPOILED:
                opened.append(self._ask(random.choice(valid).frame))
                sent += 1
            else:
                count = min(random.choice(_FRAMES_EACH), frames - sent)
                burst = b"".join(spoil(random.choice(valid), valid, random) for _ in range(count))
                opened.append(self._offend(burst))
                sent += count
            if len(opened) > _OPEN_AT_ONCE:
                self._await_end(opened.popleft(), number)
        while opened:
            self._await_end(opened.popleft(), number)
        self.health.frames += sent

    def look_after_crash(self) -> None:
        """What the frames left behind on disk must not trouble the next start."""
        self._broker.kill()
        self._broker.start()
        self._process = psutil.Process(self._broker.pid)
        with RawClient(self._broker.bootstrap) as client:
            for name in self._world().topics:
                self._check_end(client, name)
        self._look(_AFTER_CRASH)

    def _world(self) -> World:
        """Topics to aim at; those that a frame has deleted are made again."""
        with RawClient(self._broker.bootstrap) as client:
            while len(topics := self._topics(client)) < len(_TARGETS):  # one may go meanwhile
                for name in (it for it in _TARGETS if it not in topics):
                    settings = {"cleanup.policy": "compact"} if name == "compacted" else {}
                    self._broker.create_topic(name, partitions=_PARTITIONS, settings=settings)
        return World({name: topics[name] for name in _TARGETS}, _PARTITIONS)

    def _topics(self, client: RawClient) -> dict[str, bytes]:
        wanted = [MetadataRequestTopic(name=name) for name in _TARGETS]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = client.ask(request, MetadataResponse, 12)
        return {
            topic.name: topic.topic_id
            for topic in answer.topics
            if topic.name is not None and topic.error_code == ErrorCode.NONE
        }

    def _ask(self, frame: bytes) -> "_Opened":
        """A frame in order, and another after it that is surely answered."""
        client = RawClient(self._broker.bootstrap)
        self.health.connections += 1
        try:
            client.socket.sendall(frame + _LAST_WORD)
        except ConnectionError:
            pass  # it was hung up on before the last word was out
        return _Opened(client, frame)

    def _offend(self, burst: bytes) -> "_Opened":
        client = RawClient(self._broker.bootstrap)
        self.health.connections += 1
        try:
            client.socket.sendall(burst)
            client.socket.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # it has heard enough
        return _Opened(client, None)

    def _await_end(self, opened: "_Opened", number: int) -> None:
        """An offender is hung up on, since it closed its own end; who asked is answered, or hung up on. Else it hangs."""
        client, frame = opened
        try:
            if frame is None:
                self.health.answered_bytes += len(client.await_hang_up())
            else:
                self._await_last_word(client)
        except ConnectionError:
            pass
        except TimeoutError:
            what = "a connection was not closed" if frame is None else f"no answer to {frame.hex()}"
            self.health.troubles[f"slice {number}: {what}"] += 1
        finally:
            client.socket.close()

    def _await_last_word(self, client: RawClient) -> None:
        while True:
            answer = client.receive()
            self.health.answered_bytes += len(answer)
            if answer.startswith(_LAST_WORD_ID):
                return

    def _look(self, number: int) -> None:
        if not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE:
            raise AssertionError(
                f"seed {self._seed}, slice {number}: the broker is gone\n{self._tail()}"
            )
        try:
            with RawClient(self._broker.bootstrap) as client:
                self._check_service(client)
        except (TimeoutError, ConnectionError) as error:
            self.health.troubles[f"slice {number}: no service: {error!r}"] += 1
        self.health.rss_mb.append(self._process.memory_info().rss / 1e6)
        self._read_log(number)

    def _check_service(self, client: RawClient) -> None:
        """Another connection is answered, and what it writes it can read."""
        client.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
        batch = plausible_batch(Random(0))
        data = PartitionProduceData(index=0, records=memoryview(batch))
        topic = TopicProduceData(name=_STEADY, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        written = client.ask(request, ProduceResponse, 9).responses[0].partition_responses[0]
        assert written.error_code == ErrorCode.NONE, written.error_message
        wanted = FetchPartition(
            partition=0, fetch_offset=written.base_offset, partition_max_bytes=1 << 20
        )
        fetch = FetchRequest(topics=[FetchTopic(topic=_STEADY, partitions=[wanted])])
        read = client.ask(fetch, FetchResponse, 11).responses[0].partitions[0]
        assert isinstance(read.records, memoryview), read.error_code
        assert read.records[_CRC] == batch[_CRC], "other bytes came back"

    def _check_end(self, client: RawClient, name: str) -> None:
        """Each of its logs opens, and has an end."""
        wanted = [ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(_PARTITIONS)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=wanted)])
        for partition in client.ask(request, ListOffsetsResponse, 5).topics[0].partitions:
            assert partition.error_code == ErrorCode.NONE, f"{name}: code {partition.error_code}"

    def _read_log(self, number: int) -> None:
        """Errors and traces are bugs; warnings about our frames are what the log is for."""
        with self._log.open("rb") as file:
            file.seek(self._log_read)
            text = file.read().decode(errors="replace")
            self._log_read = file.tell()
        traces = 0
        for match in _TRACE.finditer(text):
            *_, place, error = match["trace"].strip().split("\n")[-3:]
            event = " ".join(match["event"].split()[:2])
            self.health.troubles[f"{event}: {error.strip()[:200]} [{place.strip()[:120]}]"] += 1
            traces += 1
        for match in _TROUBLE.finditer(text):
            if not match.group().startswith("Traceback") and not traces:
                self.health.troubles[f"slice {number}: {match.group()[25:200]}"] += 1

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-50:])


def _seeds(apis: list[ApiVersion], world: World, random: Random) -> list[Valid]:
    """Well-formed frames to start from, from the plausible to the absurd. Few delete what others aim at."""
    kept = [api for api in apis if api.api_key != _DELETE_TOPICS or random.random() < 0.2]
    kept += 4 * [api for api in apis if api.api_key in _BUSIEST]
    return [
        valid for wild in _WILDNESS for valid in valid_requests(kept, world, random, wildness=wild)
    ]


class DecoderFuzzer:
    """The same frames, without a broker: whatever the bytes, a decoder returns or says why not."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._requests = {
            message.api_key: message
            for message in all_messages()
            if message.__name__.endswith("Request")
        }
        self.decoded = 0
        self.refused = 0

    def run(self, frames: int) -> None:
        valid = self._valid()
        for number in range(frames):
            if number % 20_000 == 19_999:
                valid = self._valid()
            if self._random.random() < 0.3:
                self._decode_batch()
            else:
                self._decode(spoil(self._random.choice(valid), valid, self._random)[4:])

    def _valid(self) -> list[Valid]:
        apis = [
            ApiVersion(
                api_key=message.api_key,
                min_version=message.versions[0],
                max_version=message.versions[-1],
            )
            for message in self._requests.values()
        ]
        world = World({name: self._random.randbytes(16) for name in _TARGETS}, _PARTITIONS)
        return _seeds(apis, world, self._random)

    def _decode(self, frame: bytes) -> None:
        try:
            header, at = decode_request_header(memoryview(frame))
            request: type[Message] | None = self._requests.get(header.api_key)
            if request is not None and header.api_version in request.versions:
                decode_for(request, header.api_version)(memoryview(frame), at)
        except MalformedMessage:
            self.refused += 1
        else:
            self.decoded += 1

    def _decode_batch(self) -> None:
        batch = bytearray(plausible_batch(self._random))
        spoil_batch(batch, self._random)
        try:
            header = check_client_batch(memoryview(batch), max_batch_bytes=1 << 20, now_ms=0)
            check_keys(batch, header, 1 << 20)
            decode_records(batch, header, 1 << 20)
            list(iter_headers(memoryview(batch)))
        except BrokerError:
            self.refused += 1
        else:
            self.decoded += 1
