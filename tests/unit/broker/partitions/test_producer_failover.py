"""A follower that becomes the leader knows the producers that wrote to the leader before it."""

from pathlib import Path

from penstock.broker.partitions.topic import Read
from penstock.metadata.image import PartitionImage
from tests.support.engine import Engine, running_engine
from tests.unit.broker.partitions.test_replication import Keeper
from tests.unit.storage.logs import batch

ME, ANN = 1, 2
DAY_MS = 86_400_000


def state(leader: int, epoch: int) -> PartitionImage:
    return PartitionImage(leader, epoch, epoch, (ME, ANN), (ME, ANN))


def test_a_batch_of_old_records_that_is_sent_again_to_the_next_leader_is_a_duplicate(
    engine: Engine, tmp_path: Path
) -> None:
    with running_engine(tmp_path / "other") as other:
        engine.replicas.replication, other.replicas.replication = Keeper(), Keeper()
        leader, follower = engine.partition(), other.partition()
        leader.lead(ME, state(ME, 5))
        follower.follow(state(ME, 5))
        now_ms = engine.clock.wall_ms()

        def sent() -> memoryview:
            """A backfill: records keep the time of what they tell of."""
            old_ms = now_ms - 2 * DAY_MS
            return batch(time_ms=old_ms, producer_id=9, producer_epoch=0, base_sequence=0)

        appended = leader.append(sent(), now_ms=now_ms)
        read = leader.read_as_replica((ANN, 7), 0, -1, 1 << 20, at_least_one=True)
        assert isinstance(read, Read)
        follower.append_replicated(memoryview(b"".join(it.read() for it in read.slices)))
        for partition in (leader, follower):
            assert partition.log.producers.expire(600_000, DAY_MS) == 0, "housekeeping"

        follower.lead(ANN, state(ANN, 6))
        again = follower.append(sent(), now_ms=now_ms)
        assert (again.base_offset, again.duplicate) == (appended.base_offset, True)
