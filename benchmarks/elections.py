"""The controller's CPU time when brokers come and go: `python -m benchmarks.elections [--partitions N] [--chunk N]`.

Three brokers hold every partition and lead a third of them each. Nothing is written to a store: what
commits cost is in benchmarks.metadata.
"""

import argparse
import gc
from collections.abc import Callable, Sequence
from time import process_time
from typing import TypeVar

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.decisions import Decision, Rules
from penstock.metadata.rules.elections import balance_leaders
from penstock.metadata.rules.isr_changes import IsrChange, Member, alter_partition
from penstock.metadata.rules.registration import (
    begin_shutdown,
    broker_lost,
    register_broker,
    unfence_broker,
)
from penstock.metadata.rules.topic_writes import chunk_writes, topic_row
from penstock.metadata.store import Change, Changes, Entry, Put, Revision, Snapshot
from penstock.metadata.values import (
    Endpoint,
    LiveBroker,
    PartitionImage,
    Registration,
    encode_live,
    encode_registration,
    live_key,
    registration_key,
)
from penstock.model.configs import resolve_broker_config
from penstock.model.ids import TopicId

T = TypeVar("T")

BROKERS = (1, 2, 3)
RULES = Rules(resolve_broker_config({}), {})
REQUEST_CHANGES = 500


class Cluster:
    """An image, and what is committed to it at once."""

    def __init__(self, partition_count: int, chunk: int) -> None:
        self.revision = Revision(len(BROKERS))
        entries: dict[str, bytes] = {}
        for number in range(partition_count // chunk):
            topic_id = TopicId((number + 1).to_bytes(16, "big"))
            rows = [_partition(number * chunk + place) for place in range(chunk)]
            puts = [*chunk_writes(topic_id, rows), topic_row(f"t-{number}", topic_id, chunk)]
            entries.update({put.key: put.value for put in puts})
        known = {
            key: Entry(value, self.revision, self.revision, None) for key, value in entries.items()
        }
        for broker_id in BROKERS:
            epoch = Revision(broker_id)
            registration = Registration(epoch, None, False, "d")
            value = encode_registration(registration)
            known[registration_key(broker_id)] = Entry(value, epoch, epoch, None)
            known[live_key(broker_id)] = Entry(_live(broker_id), epoch, epoch, None)
        self.image, spent_ms = timed(lambda: ClusterImage.of(Snapshot(self.revision, known)))
        report("load the image", spent_ms)
        gc.freeze()

    def commit(self, decisions: Sequence[Decision[object]]) -> None:
        puts = [write for decision in decisions for write in decision.writes]
        self._apply({put.key: put.value for put in puts if isinstance(put, Put)})

    def session(self, broker_id: int, *, runs: bool) -> None:
        self._apply({live_key(broker_id): _live(broker_id) if runs else None})

    def _apply(self, values: dict[str, bytes | None] | dict[str, bytes]) -> None:
        self.revision = now = Revision(self.revision + 1)
        changes = [
            Change(key, now, None if value is None else Entry(value, now, now, None))
            for key, value in values.items()
        ]
        _, spent_ms = timed(lambda: self.image.apply(Changes(now, changes)))
        if len(changes) > 1:
            report("  ... and to apply it", spent_ms, f"{len(changes)} keys")


def _partition(number: int) -> PartitionImage:
    first = number % 3
    replicas = BROKERS[first:] + BROKERS[:first]
    return PartitionImage(replicas[0], 3, 5, replicas, replicas)


def _live(broker_id: int) -> bytes:
    listeners = {"PLAINTEXT": Endpoint("host", 9092)}
    return encode_live(LiveBroker("i", listeners, None, "d", 1, "process-crash", broker_id))


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = process_time()
    result = work()
    return result, (process_time() - start) * 1000


def report(what: str, spent_ms: float, note: str = "") -> None:
    print(f"{what:45} {spent_ms:9.1f} ms  {note}")


def decide(cluster: Cluster, what: str, work: Callable[[], Sequence[Decision[object]]]) -> None:
    decisions, spent_ms = timed(work)
    written = [put for it in decisions for put in it.writes if isinstance(put, Put)]
    size_bytes = sum(len(put.value) for put in written)
    report(what, spent_ms, f"{len(decisions)} decisions, {size_bytes / 1e6:.1f} MB")
    cluster.commit(decisions)


def alter(image: ClusterImage) -> list[Decision[object]]:
    """Broker 2 asks for what it leads: broker 1 is in sync again."""
    led = [
        (topic.id, number, row)
        for topic in list(image.topics.values())[:REQUEST_CHANGES]
        for number, row in enumerate(topic.partitions)
        if row.leader == 2
    ]
    members = Member(1), Member(2), Member(3)
    changes = [
        IsrChange(topic_id, number, row.leader_epoch, row.partition_epoch, members)
        for topic_id, number, row in led[:REQUEST_CHANGES]
    ]
    outcomes = alter_partition(image, RULES, 2, 2, changes)
    return [outcome for outcome in outcomes if isinstance(outcome, Decision)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--chunk", type=int, default=10, help="partitions of each topic, up to 64")
    options = parser.parse_args()
    cluster = Cluster(options.partitions, options.chunk)
    image = cluster.image
    cluster.session(1, runs=False)
    decide(cluster, "broker 1 is lost", lambda: broker_lost(image, 1, RULES))
    assert image.leader_counts[1] == 0
    cluster.session(1, runs=True)
    decide(cluster, "it registers again", lambda: register_broker(image, 1, RULES))
    decide(cluster, "it is unfenced", lambda: unfence_broker(image, 1, RULES))
    decide(cluster, f"{REQUEST_CHANGES} changes of an ISR", lambda: alter(image))
    decide(cluster, "leaders are balanced", lambda: balance_leaders(image, RULES, max_moves=500))
    decide(cluster, "broker 2 hands over", lambda: begin_shutdown(image, 2, RULES))


if __name__ == "__main__":
    main()
