"""Many producers that begin a transaction the moment the last one has ended: every refusal is one that clients retry."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.ids import TopicPartition
from tests.support.cluster import ClusterOfServers
from tests.support.raw_transactions import NEW, OLD, RawTransactional

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

TOPIC, PARTITIONS = "t", 3
PRODUCERS, TRANSACTIONS = 16, 12
_PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfServers]:
    """Few partitions of transaction states: writes of others are always on their way in each."""
    settings = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 3}
    with ClusterOfServers(Path(tmp_path_factory.mktemp("cluster")), 3, settings) as started:
        started.create_topic(TOPIC, partitions=PARTITIONS, min_insync_replicas=2)
        yield started


@pytest.mark.parametrize("version", [OLD, NEW], ids=["old", "new"])
def test_transactions_that_follow_each_other_at_once_all_commit(
    cluster: ClusterOfServers, version: int
) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with RawTransactional(
                cluster.bootstrap, f"tx-{version}-{number}", version=version
            ) as producer:
                producer.initialize()
                for turn in range(TRANSACTIONS):
                    for step in range(2):
                        producer.send(TOPIC, (number + turn + step) % PARTITIONS, b"x")
                    producer.send_offsets(f"group-{number}", {TopicPartition(TOPIC, 0): turn})
                    producer.end(committed=turn % 4 != 3)
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)
