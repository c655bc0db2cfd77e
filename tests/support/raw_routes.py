"""Raw connections to the brokers of a cluster: each question goes to who leads, or coordinates, what it is about."""

from typing import Final

from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tests.support.raw_client import RawClient

ANYONE: Final = ("", "", 0)
Place = tuple[str, str, int]  # leader, group or transaction; its name; a partition
_KINDS: Final = {"group": 0, "transaction": 1}
_PATIENCE_S: Final = 5.0  # of one answer: its broker may be gone


class Routes:
    """Of a single address no questions are asked: it is the way to everything."""

    def __init__(self, bootstrap: str) -> None:
        self._addresses = bootstrap.split(",")
        self._clients: dict[str, RawClient] = {}
        self._ways: dict[Place, str] = {}

    def client_for(self, place: Place) -> RawClient:
        """Raises OSError when nobody can be asked, or nobody is there."""
        if len(self._addresses) == 1:
            return self._client(self._addresses[0])
        if place == ANYONE:
            return self._anyone()
        if place not in self._ways:
            self._ways[place] = self._found(place)
        return self._client(self._ways[place])

    def forget(self, place: Place) -> None:
        """It may have moved."""
        self._ways.pop(place, None)

    def close(self) -> None:
        for client in self._clients.values():
            client.socket.close()
        self._clients = {}
        self._ways = {}

    def _client(self, address: str) -> RawClient:
        if address not in self._clients:
            one = len(self._addresses) == 1
            self._clients[address] = (
                RawClient(address) if one else RawClient(address, patience_s=_PATIENCE_S)
            )
        return self._clients[address]

    def _anyone(self) -> RawClient:
        for address in self._addresses:
            try:
                return self._client(address)
            except OSError:
                continue
        raise ConnectionError("no broker can be reached")

    def _found(self, place: Place) -> str:
        kind, name, number = place
        if kind in _KINDS:
            request = FindCoordinatorRequest(key=name, key_type=_KINDS[kind])
            found = self._anyone().ask(request, FindCoordinatorResponse, 3)
            if found.error_code:
                raise ConnectionError(f"nobody coordinates {name}")
            return f"{found.host}:{found.port}"
        return self._leader(name, number)

    def _leader(self, topic: str, number: int) -> str:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        found = self._anyone().ask(request, MetadataResponse, 9)
        brokers = {it.node_id: f"{it.host}:{it.port}" for it in found.brokers}
        for partition in found.topics[0].partitions:
            if partition.partition_index == number and partition.leader_id in brokers:
                return brokers[partition.leader_id]
        raise ConnectionError(f"nobody leads {topic}-{number}")
