"""What operators ask of a cluster while it runs: moves, elections, settings, more partitions. Each is sent once."""

from collections.abc import Sequence
from typing import Final, TypeVar

from penstock.model.errors import BrokerError
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from penstock.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.wire.schema import Message
from tests.simulation.clients.client import Client

Response = TypeVar("Response", bound=Message)
Place = tuple[str, int]  # topic and partition

_PREFERRED: Final = 0
_UNCLEAN: Final = 1
_TOPIC: Final = 2  # kind of resource
_SET: Final = 0
_TIMEOUT_MS: Final = 3000


class Operator(Client):
    """Brokers may reject a request, and a response may be lost: then it is as if nobody had asked."""

    async def move(self, moves: Sequence[tuple[Place, Sequence[int] | None]]) -> None:
        """To these brokers; None: cancel the move."""
        topics = [
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(
                        partition_index=index,
                        replicas=None if replicas is None else list(replicas),
                    )
                ],
            )
            for (topic, index), replicas in moves
        ]
        request = AlterPartitionReassignmentsRequest(timeout_ms=2000, topics=topics)
        await self._ask(request, AlterPartitionReassignmentsResponse)

    async def elect_preferred(self) -> None:
        """Of all partitions."""
        request = ElectLeadersRequest(
            election_type=_PREFERRED, topic_partitions=None, timeout_ms=2000
        )
        await self._ask(request, ElectLeadersResponse)

    async def elect_unclean(self, place: Place) -> None:
        """Any replica, where nobody leads."""
        request = ElectLeadersRequest(
            election_type=_UNCLEAN,
            topic_partitions=[TopicPartitions(topic=place[0], partitions=[place[1]])],
            timeout_ms=2000,
        )
        await self._ask(request, ElectLeadersResponse)

    async def configure(self, topic: str, name: str, value: str) -> None:
        resource = AlterConfigsResource(
            resource_type=_TOPIC,
            resource_name=topic,
            configs=[AlterableConfig(name=name, config_operation=_SET, value=value)],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        await self._ask(request, IncrementalAlterConfigsResponse)

    async def grow(self, topic: str, partitions: int) -> None:
        wanted = CreatePartitionsTopic(name=topic, count=partitions, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=2000)
        await self._ask(request, CreatePartitionsResponse)

    async def _ask(self, request: Message, response: type[Response]) -> Response | None:
        try:
            connection = await self.any_connection()
            return await connection.request(request, response, timeout_ms=_TIMEOUT_MS)
        except BrokerError:
            return None
