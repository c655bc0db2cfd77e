"""Fetch requests that go straight to their handler, and what a client makes of the answers."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from penstock.broker.partitions.partition import Partition
from penstock.kafka.context import Context
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.handlers import fetch
from penstock.kafka.leader_confirmation import LeaderConfirmations
from penstock.kafka.overtaken import Refusals
from penstock.kafka.promise import Promise
from penstock.kafka.security import ANONYMOUS, AllowAll
from penstock.model.configs import resolve_broker_config
from penstock.model.errors import BrokerError
from penstock.node.tasks import Tasks
from penstock.storage.files import FileSlice
from penstock.wire.api_keys import ApiKey
from penstock.wire.header import RequestHeader
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tests.support.engine import Engine

BY_NAME: Final = 12
BY_ID: Final = 16
ALL: Final = 1 << 30
UNKNOWN_ID: Final = bytes(15) + b"\xfe"

Key = tuple[str, int]  # topic and index


class Part(NamedTuple):
    """What a client asks of one partition."""

    offset: int = 0
    max_bytes: int = ALL
    leader_epoch: int = -1


class Told(NamedTuple):
    """What an answer says of one partition."""

    error: int
    high_watermark: int
    log_start: int
    data: bytes


class Server:
    """Fetches from an engine's partitions."""

    def __init__(self, engine: Engine, limit: int = 10, **settings: object) -> None:
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.engine = engine
        self.sessions = FetchSessions(limit, iter(range(1, 1 << 20)).__next__)
        self.tasks = Tasks()
        self.holds = True  # whether what follows on the connection waits for the last fetch
        self.services: Any = SimpleNamespace(
            replicas=engine.replicas,
            sessions=self.sessions,
            refusals=Refusals(),
            confirmations=LeaderConfirmations(engine.clock, self.tasks.spawn),
            clock=engine.clock,
            cluster=SimpleNamespace(config=resolve_broker_config(texts), look_again=lambda: None),
            authorizer=AllowAll(),
            spawn=self.tasks.spawn,
            metrics=engine.metrics,
        )

    def handle(self, request: FetchRequest, version: int) -> Any:
        """The answer, or a future of it. Raises BrokerError when the whole request is refused."""
        header = RequestHeader(ApiKey.FETCH, version, 1, "test")
        context = Context(self.services, header, ANONYMOUS, "TEST", "host")

        async def handled() -> Any:
            return fetch.handle(request, context)

        answer = self.engine.runner.run(handled())
        self.holds = context.holds
        return answer

    def fetch(self, request: FetchRequest, version: int) -> FetchResponse:
        """An answer that is there at once."""
        response = self.handle(request, version)
        assert isinstance(response, FetchResponse), "it waits"
        return response


class Reader:
    """A client. It knows topics by the id that they had when it first asked for them."""

    def __init__(self, server: Server, version: int = BY_NAME, isolation: int = 0) -> None:
        self.server = server
        self.version = version
        self.isolation = isolation
        self.session_id = 0
        self.epoch = 0
        self.ids: dict[str, bytes] = {}

    def learn(self, topic: str) -> None:
        """Its id, as Metadata would tell it."""
        found = self.server.engine.replicas.topics.get(topic)
        if found is not None:
            self.ids[topic] = found.id

    def request(
        self,
        parts: Mapping[Key, Part],
        forgotten: Iterable[Key] = (),
        *,
        session_id: int = 0,
        epoch: int = -1,
        **limits: Any,
    ) -> FetchRequest:
        """Sessionless unless a session is named."""
        topics: list[FetchTopic] = []
        named: str | None = None
        for (topic, index), part in parts.items():
            wanted = FetchPartition(
                partition=index,
                fetch_offset=part.offset,
                partition_max_bytes=part.max_bytes,
                current_leader_epoch=part.leader_epoch,
            )
            if topic != named:
                named = topic
                topics.append(FetchTopic(**self._name(topic), partitions=[]))
            topics[-1].partitions.append(wanted)
        gone = [ForgottenTopic(**self._name(topic), partitions=[i]) for topic, i in forgotten]
        fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": ALL, **limits}
        return FetchRequest(
            isolation_level=self.isolation,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=gone,
            **fields,
        )

    def _name(self, topic: str) -> dict[str, Any]:
        if self.version < 13:
            return {"topic": topic}
        if topic not in self.ids:
            self.learn(topic)
        return {"topic_id": self.ids.setdefault(topic, UNKNOWN_ID)}

    def full(self, parts: Mapping[Key, Part], **limits: Any) -> dict[Key, Told]:
        """Without a session."""
        response = self.server.fetch(self.request(parts, **limits), self.version)
        assert response.session_id == 0
        return self.told(response)

    def begin(self, parts: Mapping[Key, Part], **limits: Any) -> dict[Key, Told]:
        """A full fetch that begins a session."""
        request = self.request(parts, session_id=self.session_id, epoch=0, **limits)
        response = self.server.fetch(request, self.version)
        self.session_id, self.epoch = response.session_id, 1
        return self.told(response)

    def next_request(
        self, parts: Mapping[Key, Part], forgotten: Iterable[Key] = (), **limits: Any
    ) -> FetchRequest:
        request = self.request(
            parts, forgotten, session_id=self.session_id, epoch=self.epoch, **limits
        )
        self.epoch = 1 if self.epoch == (1 << 31) - 1 else self.epoch + 1
        return request

    def go_on(
        self, parts: Mapping[Key, Part], forgotten: Iterable[Key] = (), **limits: Any
    ) -> dict[Key, Told]:
        """The session's next fetch: only what is new is asked for, and told."""
        response = self.server.fetch(self.next_request(parts, forgotten, **limits), self.version)
        assert response.session_id == self.session_id
        return self.told(response)

    def told(self, response: FetchResponse) -> dict[Key, Told]:
        found: dict[Key, Told] = {}
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic or self._topic_of(topic.topic_id), data.partition_index)
                assert key not in found, "told twice in one answer"
                found[key] = told_of(data)
        return found

    def _topic_of(self, topic_id: bytes) -> str:
        for name, known in self.ids.items():
            if known == topic_id:
                return name
        raise AssertionError(f"an answer for {topic_id.hex()}, which nobody asked for")


def told_of(data: PartitionData) -> Told:
    pieces = data.records if isinstance(data.records, list) else []
    records = b"".join(piece.read() for piece in pieces if isinstance(piece, FileSlice))
    return Told(data.error_code, data.high_watermark, data.log_start_offset, records)


def refusal_of(server: Server, request: FetchRequest, version: int) -> int:
    """The code with which a whole request is refused."""
    try:
        server.handle(request, version)
    except BrokerError as error:
        return error.code
    raise AssertionError("it was not refused")


def watchers(partition: Partition) -> int:
    return len(partition.watchers or ())


def is_waiting(answer: object) -> bool:
    return isinstance(answer, Promise) and not answer.done()
