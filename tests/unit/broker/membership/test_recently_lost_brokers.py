"""Who is told of although it is gone, and for how long."""

from penstock.broker.membership.recently_lost_brokers import RecentlyLostBrokers
from penstock.metadata.image import BrokerInfo, ClusterImage, Delta
from penstock.metadata.store import Revision, Snapshot


class World:
    """Broker 2, as it comes and goes."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.recently_lost = RecentlyLostBrokers(lambda: self.now_s)
        self._image = ClusterImage.of(Snapshot(Revision(1), {}))

    def see(self, broker: BrokerInfo | None) -> None:
        self._image.brokers.clear()
        if broker is not None:
            self._image.brokers[2] = broker
        self.recently_lost.take(self._image, Delta(Revision(1), brokers=[2]))


RUNNING = BrokerInfo(2, 7, {}, None, False, "d")
FENCED = RUNNING._replace(epoch=8, fenced=True)


def test_a_broker_that_died_is_told_of_for_three_seconds() -> None:
    world = World()
    world.see(RUNNING)
    assert world.recently_lost.brokers() == []
    for state in (None, FENCED, None):  # it does not come back so soon
        world.see(state)
        assert world.recently_lost.brokers() == [RUNNING]
    world.now_s += 3
    assert world.recently_lost.brokers() == []


def test_a_broker_that_is_back_is_not_told_of_twice() -> None:
    world = World()
    for state in (RUNNING, None, RUNNING):
        world.see(state)
    assert world.recently_lost.brokers() == []


def test_who_says_that_it_leaves_and_who_never_took_part_is_gone_at_once() -> None:
    world = World()
    for state in (FENCED, None, RUNNING, RUNNING._replace(in_controlled_shutdown=True), None):
        world.see(state)
    assert world.recently_lost.brokers() == []
