"""The connection to whoever gives the records of a partition: its leader, or a replica of the same rack."""

from typing import Final

from penstock.client.connection import Address
from penstock.client.errors import RETRIABLE, ClientError, describe, error_code
from penstock.model.errors import ErrorCode
from penstock.model.ids import NO_TOPIC_ID, TopicPartition
from penstock.spark.cluster import Cluster, Location
from penstock.spark.connection import BlockingConnection, Buffer
from penstock.spark.options import Fetching
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

_LAST_WITHOUT_IDS: Final = 12  # from version 13 on a topic is named by its id
_ANSWERS_BEFORE_GONE: Final = 5  # a broker may learn of a topic later than others
MOVED: Final = RETRIABLE | {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}


class OutOfRange(Exception):
    """The leader has no such offset."""


class Gone(Exception):
    """The topic that was to be read does not exist any more."""


class Leader:
    """The connection to whoever leads the partition, found anew after a failure."""

    def __init__(self, partition: TopicPartition, location: Location, how: Fetching) -> None:
        self._partition = partition
        self._topic_id = location.topic_id
        self._address: Address | None = location.leader
        self._how = how
        self._rack = how.rack
        self._is_near = False  # a replica of our rack is asked, and not the leader
        self._connection: BlockingConnection | None = None
        self._cluster: Cluster | None = None
        self._absences = 0
        self.connections = 0  # opened so far

    def close(self) -> None:
        self._hang_up()
        if self._cluster is not None:
            self._cluster.close()

    def abort(self) -> None:
        """From another thread."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def fetch(self, position: int, size_bytes: int, buffer: Buffer) -> PartitionData:
        """Raises ClientError for whatever may be different next time."""
        try:
            data = self._ask(position, size_bytes, buffer)
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                if not self._is_near:
                    raise OutOfRange
                raise _not_now(f"the replica that is near does not have offset {position} yet")
            _check(data.error_code, self._partition)
        except ClientError as error:
            if error.code in MOVED:
                self._look_again()
            raise
        self._absences = 0
        if data.preferred_read_replica >= 0:
            self._turn_to(data.preferred_read_replica)
        elif (
            self._is_near and not data.records
        ):  # it lags: the leader has what was planned to be read
            self._look_again()
        return data

    def bounds(self) -> tuple[int, int]:
        """The offset of the first record, and the one after the last."""
        cluster, partition = self._asked(), self._partition
        try:
            return cluster.earliest([partition])[partition], cluster.latest([partition])[partition]
        except ClientError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise self._deleted() from None
            raise

    def _ask(self, position: int, size_bytes: int, buffer: Buffer) -> PartitionData:
        connection = self._connected()
        at_most = FetchRequest.versions[-1]
        if self._topic_id == NO_TOPIC_ID:
            at_most = _LAST_WITHOUT_IDS
        version = connection.version_for(FetchRequest, at_most)
        asked = FetchPartition(
            partition=self._partition.partition,
            fetch_offset=position,
            partition_max_bytes=size_bytes,
        )
        topic = FetchTopic(topic=self._partition.topic, topic_id=self._topic_id, partitions=[asked])
        request = FetchRequest(
            max_wait_ms=self._how.max_wait_ms,
            min_bytes=1,
            max_bytes=size_bytes,
            isolation_level=int(self._how.read_committed),
            rack_id=self._rack,
            topics=[topic],
        )
        answer = connection.request(request, FetchResponse, version, buffer)
        _check(answer.error_code, self._partition)
        return answer.responses[0].partitions[0]

    def _connected(self) -> BlockingConnection:
        if self._connection is None:
            self._connection = BlockingConnection(
                self._address or self._found(),
                client_id=self._how.client_id,
                timeout_ms=self._how.request_timeout_ms,
                receive_buffer_bytes=self._how.receive_buffer_bytes,
            )
            self.connections += 1
        return self._connection

    def _found(self) -> Address:
        location = self._asked().locate(self._partition)
        if location is None:
            self._absences += 1
            if self._absences >= _ANSWERS_BEFORE_GONE:
                raise self._deleted()
            raise _not_now(f"{self._partition} does not exist at the moment")
        if location.topic_id != self._topic_id and NO_TOPIC_ID not in (
            location.topic_id,
            self._topic_id,
        ):
            raise Gone(f"topic {self._partition.topic!r} was deleted and created again")
        if location.leader is None:
            raise _not_now(f"{self._partition} has no leader at the moment")
        self._address = location.leader
        return location.leader

    def _deleted(self) -> "Gone":
        return Gone(f"topic {self._partition.topic!r} was deleted")

    def _asked(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._how)
        return self._cluster

    def _turn_to(self, replica: int) -> None:
        """The leader says who is nearer (KIP-392), and gives no records to who asks with a rack."""
        self._hang_up()
        self._address = self._asked().address_of(replica)
        self._is_near = self._address is not None
        self._rack = self._rack if self._is_near else ""

    def _look_again(self) -> None:
        """For the leader. Who was sent away from it in vain stays with it from then on."""
        self._hang_up()
        self._address = None
        self._rack = "" if self._is_near else self._rack
        self._is_near = False

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _check(number: int, partition: TopicPartition) -> None:
    if number != ErrorCode.NONE:
        raise ClientError(f"{partition}: {describe(number)}", error_code(number))


def _not_now(message: str) -> ClientError:
    return ClientError(message, ErrorCode.LEADER_NOT_AVAILABLE)
