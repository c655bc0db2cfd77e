"""Single requests on plain blocking sockets, for what a load generator has to know before and after."""

import socket
import time
from struct import Struct
from typing import Final

from benchmarks.frames import frame
from penstock.model.errors import ErrorCode
from penstock.wire.header import decode_response_header
from penstock.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

_INT: Final = Struct(">i")
_INIT_PRODUCER_ID_VERSION: Final = 4
_LIST_OFFSETS_VERSION: Final = 5
_LATEST: Final = -1
_LOAD_IN_PROGRESS: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
_RETRY_S: Final = 0.05
_PATIENCE_S: Final = 30.0


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def exchange(sock: socket.socket, request: bytes) -> bytes:
    """One answer to one request, on a blocking socket."""
    sock.sendall(request)
    return read_answer(sock)


def read_answer(sock: socket.socket) -> bytes:
    (size,) = _INT.unpack(_read(sock, 4))
    return _read(sock, size)


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        received = sock.recv(size - len(data))
        if not received:
            raise ConnectionError("the broker closed the connection")
        data += received
    return data


def init_producer_id(sock: socket.socket) -> int:
    """Kafka may first have to fetch some itself, and says so."""
    version = _INIT_PRODUCER_ID_VERSION
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        reply = memoryview(exchange(sock, frame(request, version)))
        _, at = decode_response_header(reply, InitProducerIdRequest.api_key, version)
        response = InitProducerIdResponse.decode(reply[at:], version)
        if not response.error_code:
            return response.producer_id
        if response.error_code != _LOAD_IN_PROGRESS or time.monotonic() > end_s:
            raise SystemExit(f"no producer id: code {response.error_code}")
        time.sleep(_RETRY_S)


def end_offsets(sock: socket.socket, topic: str, partitions: int) -> list[int]:
    """Where each partition ends, for one who consumes."""
    asked = [ListOffsetsPartition(partition_index=i, timestamp=_LATEST) for i in range(partitions)]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)]
    )
    reply = exchange(sock, frame(request, _LIST_OFFSETS_VERSION))
    answer = ListOffsetsResponse.decode(reply[4:], _LIST_OFFSETS_VERSION)
    found = {it.partition_index: it for it in answer.topics[0].partitions}
    if codes := {it.error_code for it in found.values()} - {0}:
        raise SystemExit(f"no end offsets: codes {codes}")
    return [found[i].offset for i in range(partitions)]
