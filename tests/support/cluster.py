"""Several `penstock serve` processes that are one cluster, to be killed, paused, stopped and started one by one."""

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import confluent_kafka.admin

from penstock.records.batch import BatchHeader, split_batches
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.wire.schema import Message
from tests.support.ports import kept_port
from tests.support.raw_client import RawClient
from tests.support.server import PATIENCE_S, Server, until

rd: Any = confluent_kafka.admin  # its stubs hide half of its names
Answer = TypeVar("Answer", bound=Message)

GROUP: Final = 0  # kinds of coordinators
TRANSACTION: Final = 1

_ASK_PATIENCE_S: Final = 5.0  # of one question; a broker may be cut off
_LINES_OF_LOG: Final = 80
_CHARS_OF_ERROR: Final = 500
_LOG_OF: Final = "the end of the log of broker"
_QUICK: Final = {  # a cluster is there to be broken: brokers notice as soon as they would for a user
    "broker.session.timeout.ms": "2000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


class PartitionView(NamedTuple):
    """What clients are told of a partition; the newest of what the brokers say."""

    leader: int  # -1: none
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]


class Place(NamedTuple):
    """Where a broker runs: the front of its command, and the address on which it listens."""

    run_in: Sequence[str] = ()
    host: str = "127.0.0.1"


HERE: Final = Place()


class ClusterOfServers:
    """Brokers 1 to N. Their data and their ports outlive their processes."""

    def __init__(
        self,
        home: Path,
        brokers: int = 3,
        settings: Mapping[str, object] | None = None,
        *,
        store: str | None = None,
        racks: Sequence[str] = (),
        places: Mapping[int, Place] | None = None,
        variables: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        """`store`: `sqlite:…` (the default, in `home`) or `etcd://…`. `places`, `variables`: by broker."""
        self.home = home
        self.store = store or f"sqlite:{home / 'metadata.sqlite'}"
        self._paused: set[int] = set()
        self.servers: dict[int, Server] = {}
        for number in range(1, brokers + 1):
            place = (places or {}).get(number, HERE)
            own: dict[str, object] = {
                "broker.id": number,
                "penstock.metadata": self.store,
                "listeners": f"{place.host}:{kept_port()}",
                "penstock.http": f"{place.host}:{kept_port()}",
            }
            if racks:
                own["broker.rack"] = racks[(number - 1) % len(racks)]
            directory = home / f"broker-{number}"
            directory.mkdir(parents=True, exist_ok=True)
            self.servers[number] = Server(
                directory,
                _QUICK | dict(settings or {}) | own,
                run_in=place.run_in,
                variables=(variables or {}).get(number),
            )

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        dead = [number for number, server in self.servers.items() if server.has_died]
        for server in self.servers.values():
            server.__exit__(None, None, None)
        if error is None:
            assert not dead, f"brokers {dead} ended by themselves; {self.log_tail(dead[0])}"
        else:
            self.explain(error)

    def explain(self, error: BaseException) -> None:
        """Adds what the brokers said to what went wrong, which is told again below so much."""
        if not getattr(error, "__notes__", None) or _LOG_OF not in "".join(error.__notes__):
            for number in self.servers:
                error.add_note(f"{_LOG_OF} {number}:\n{self.log_tail(number)}")
            error.add_note(f"what failed, once more: {str(error)[:_CHARS_OF_ERROR]}")

    # Running ---------------------------------------------------------------------------------

    def start_all(self) -> None:
        """All that do not run, at the same time; returns when each knows all."""
        begun = [(server, server.launch()) for server in self._stopped()]
        for server, process in begun:
            server.await_ready(process)
        self.wait_brokers()

    def kill_all(self) -> None:
        self.kill(*self.running)

    def kill(self, *numbers: int) -> None:
        """SIGKILL, of all these at the same moment: nothing is flushed, nobody is told."""
        self._paused.difference_update(numbers)
        for number in numbers:
            self.servers[number].process.kill()
        for number in numbers:
            self.servers[number].wait()

    def stop(self, number: int) -> None:
        """As an operator would."""
        server = self.servers[number]
        assert server.stop() == 0, self.log_tail(number)

    def start(self, number: int) -> None:
        """Returns when the broker is ready; `wait_brokers` when the others know."""
        self.servers[number].start()

    def pause(self, number: int) -> None:
        """SIGSTOP: its connections stay, and it answers nothing."""
        self.servers[number].process.send_signal(signal.SIGSTOP)
        self._paused.add(number)

    def resume(self, number: int) -> None:
        self.servers[number].process.send_signal(signal.SIGCONT)
        self._paused.discard(number)

    @property
    def running(self) -> list[int]:
        """Brokers that have a process, paused ones too."""
        return [number for number, server in self.servers.items() if server.is_running]

    @property
    def responsive(self) -> list[int]:
        return [number for number in self.running if number not in self._paused]

    def _stopped(self) -> list[Server]:
        return [server for server in self.servers.values() if not server.is_running]

    # What they say ---------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The addresses of all."""
        return ",".join(server.bootstrap for server in self.servers.values())

    def log_tail(self, number: int, lines: int = _LINES_OF_LOG) -> str:
        return "\n".join(self.servers[number].log.splitlines()[-lines:])

    def events(self, name: str) -> dict[int, list[str]]:
        """Log lines of one event by broker; of its present or last run."""
        return {number: server.events(name) for number, server in self.servers.items()}

    def ask(
        self, number: int, message: Message, answer: type[Answer], version: int
    ) -> Answer | None:
        """What one broker answers; None when it cannot be reached."""
        try:
            with RawClient(self.servers[number].bootstrap, patience_s=_ASK_PATIENCE_S) as client:
                return client.ask(message, answer, version)
        except OSError:
            return None

    def views(self, topics: Iterable[str] = ()) -> Iterator[tuple[int, MetadataResponse]]:
        """What each broker that answers says of the cluster and of these topics."""
        wanted = [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        for number in self.responsive:
            found = self.ask(number, request, MetadataResponse, 9)
            if found is not None:
                yield number, found

    def partition(self, topic: str, partition: int = 0) -> PartitionView:
        """As of the newest leader epoch that any broker tells of."""
        told = [
            PartitionView(
                found.leader_id,
                found.leader_epoch,
                tuple(found.replica_nodes),
                frozenset(found.isr_nodes),
            )
            for _, view in self.views([topic])
            for known in view.topics
            for found in known.partitions
            if found.partition_index == partition
        ]
        return max(told, key=lambda view: view.leader_epoch, default=_NOTHING_KNOWN)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Waits until there is one that runs."""
        found = -1

        def has_leader() -> bool:
            nonlocal found
            found = self.partition(topic, partition).leader
            return found in self.responsive

        until(has_leader, f"somebody leads {topic}-{partition}")
        return found

    def controller(self) -> int:
        """Waits until all that answer agree on one of them."""
        said: set[int] = set()

        def agreed() -> bool:
            said.clear()
            said.update(view.controller_id for _, view in self.views())
            return len(said) == 1 and said <= set(self.responsive)

        until(agreed, "there is a controller")
        return said.pop()

    def coordinator_of(self, key: str, kind: int = GROUP) -> int:
        """Of a group or a transactional id; waits until there is one."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        found = -1

        def is_there() -> bool:
            nonlocal found
            for number in self.responsive:
                answer = self.ask(number, request, FindCoordinatorResponse, 4)
                if answer is not None and answer.coordinators[0].error_code == 0:
                    found = answer.coordinators[0].node_id
                    return found in self.responsive
            return False

        until(is_there, f"somebody coordinates {key}")
        return found

    # Waiting ---------------------------------------------------------------------------------

    def wait_brokers(self, numbers: Iterable[int] | None = None) -> None:
        """Until every broker that answers tells clients of exactly these (default: all that run)."""
        wanted = set(self.responsive if numbers is None else numbers)

        def known_to_all() -> bool:
            views = [{broker.node_id for broker in view.brokers} for _, view in self.views()]
            return len(views) == len(self.responsive) and all(view == wanted for view in views)

        until(known_to_all, f"every broker knows {sorted(wanted)}")

    def wait_isr(self, topic: str, partition: int = 0, size: int = 3) -> None:
        until(
            lambda: len(self.partition(topic, partition).isr) == size,
            f"{topic}-{partition} has {size} replicas in sync",
        )

    def wait_healthy(self) -> None:
        """Until every partition of every topic has a leader and all of its replicas in sync."""
        self.wait_brokers()
        try:
            until(lambda: not self.unhealthy(), "every partition is healthy")
        except AssertionError as error:
            error.add_note("\n".join(self.unhealthy()))
            raise

    def unhealthy(self) -> list[str]:
        """Partitions that lack a leader or replicas in sync, as any broker sees it."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        found = []
        for number in self.responsive:
            view = self.ask(number, request, MetadataResponse, 9)
            if view is None:
                found.append(f"broker {number} does not answer")
                continue
            found += [
                f"{topic.name}-{partition.partition_index} has leader {partition.leader_id} in "
                f"epoch {partition.leader_epoch}, replicas {partition.replica_nodes}, "
                f"in sync {partition.isr_nodes}, says broker {number}"
                for topic in view.topics
                for partition in topic.partitions
                if partition.leader_id < 0
                or len(partition.isr_nodes) < len(partition.replica_nodes)
            ]
        return found

    def reassign(self, topic: str, partition: int, replicas: list[int]) -> bool:
        """Ask every broker that answers, until one of them forwards it. Return whether it counts."""
        wanted = ReassignablePartition(partition_index=partition, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=5000, topics=[ReassignableTopic(name=topic, partitions=[wanted])]
        )
        for number in self.responsive:
            found = self.ask(number, request, AlterPartitionReassignmentsResponse, 0)
            if found is not None and not found.error_code:
                return not found.responses[0].partitions[0].error_code
        return False

    # Topics ----------------------------------------------------------------------------------

    @cached_property
    def admin(self) -> Any:
        return rd.AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
            }
        )

    def create_topic(
        self, name: str, *, partitions: int = 1, replicas: int = 3, **config: object
    ) -> str:
        """Settings with underscores for dots. Returns when all replicas are in sync."""
        texts = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = rd.NewTopic(name, partitions, replicas, config=texts)
        self.admin.create_topics([topic])[name].result(PATIENCE_S)
        for partition in range(partitions):
            self.wait_isr(name, partition, replicas)
        return name

    def batches(
        self, number: int, topic: str, partition: int = 0
    ) -> list[tuple[BatchHeader, bytes]]:
        """What a broker has on its disk, batch by batch."""
        return [
            (header, bytes(batch))
            for path in self.servers[number].segments(topic, partition)
            for header, batch in split_batches(memoryview(path.read_bytes()))
        ]

    def check_replicas_agree(self, topic: str, partition: int = 0) -> None:
        """Same offset, same bytes, on every replica that is in sync; none has more than another.
        Nobody may be producing."""
        members = sorted(self.partition(topic, partition).isr)
        assert members, f"{topic}-{partition} has no replica in sync"
        logs: dict[int, list[tuple[BatchHeader, bytes]]] = {}

        def caught_up() -> bool:
            logs.update({number: self.batches(number, topic, partition) for number in members})
            return len({_end(log) for log in logs.values()}) == 1

        until(caught_up, f"replicas {members} of {topic}-{partition} end at the same offset")
        first = {header.base_offset: batch for header, batch in logs[members[0]]}
        for number in members[1:]:
            other = {header.base_offset: batch for header, batch in logs[number]}
            differing = [at for at in first if at in other and first[at] != other[at]]
            assert not differing, (
                f"{topic}-{partition}: brokers {members[0]} and {number} differ from offset "
                f"{differing[0]} on"
            )


_NOTHING_KNOWN: Final = PartitionView(-1, -1, (), frozenset())


def _end(log: Sequence[tuple[BatchHeader, bytes]]) -> int:
    return log[-1][0].next_offset if log else 0
