"""Schedules for sessions of brokers (KIP-903): what a follower had in an earlier one counts for nothing."""

from tests.simulation.clients.client import TOPIC
from tests.simulation.machine import Machine
from tests.simulation.scenarios import begin, end, state
from tests.simulation.simulation import Result, Simulation
from tests.simulation.store_troubles import Trouble, Way


def a_follower_loses_power_while_its_return_is_asked_for(sim: Simulation) -> Result:
    """KIP-903: what it had when its leader asked for it is gone; the request must not count for what it has since."""
    begin(sim)
    controller = sim.controller
    assert controller is not None
    index = next(it for it in range(4) if controller.broker_id not in state(sim, it).replicas)
    leader = sim.leader(index)
    others = [sim.machines[it] for it in state(sim, index).replicas]
    follower = next(it for it in others if it is not leader)
    follower.crash()
    sim.world.run_until(
        lambda: follower.broker_id not in state(sim, index).isr, 20, "it is out of sync"
    )
    sim.world.run_for(1)
    heal = sim.network.cut([(leader.host, controller.host), (controller.host, leader.host)])
    follower.boot()
    leadership = next(it.leadership for it in leader.partitions if it.index == index)
    assert leadership is not None
    sim.world.run_until(lambda: leadership.proposed is not None, 20, "its leader asks for it")
    before = leadership.follower(follower.broker_id)
    assert before is not None
    epoch = before.broker_epoch
    follower.lose_power(entirely=True)
    sim.world.run_for(3.7)
    follower.boot()
    sim.world.run_until(lambda: before.broker_epoch > epoch, 20, "it fetches in its new session")
    catch_up = sim.network.cut([(leader.host, follower.host)])  # much is missing, and takes long
    sim.world.run_for(0.8)  # the request of before has had its time, and is made anew
    heal()
    sim.world.run_for(1)
    catch_up()
    return end(sim)


def a_follower_comes_back_while_the_controller_cannot_write(sim: Simulation) -> Result:
    """It is in sync until the controller has dealt with its new session, and its leader must not count on it."""
    begin(sim)
    leader, follower = sim.leader(), sim.bystander()
    slow = next(it for it in sim.machines.values() if it not in (leader, follower))
    heal = sim.network.cut([(leader.host, slow.host)])
    sim.world.run_until(lambda: _end_of(follower) > _end_of(slow), 2, "only one has the newest")
    sim.world.run_for(0.1)
    controller = sim.controller
    assert controller is not None
    trouble = Trouble(frozenset((controller.host,)), frozenset(("commit",)), Way.LOST)
    sim.core.troubles.begin(trouble)
    epoch = _session(leader, follower)
    follower.lose_power(entirely=True)
    sim.world.run_for(0.05)
    follower.boot()
    sim.world.run_until(
        lambda: _session(leader, follower) > epoch, 5, "its leader hears of its new session"
    )
    heal()
    sim.world.run_for(0.5)
    sim.core.troubles.end(trouble)
    return end(sim)


def an_isr_change_is_written_after_its_member_lost_power(sim: Simulation) -> Result:
    """The controller had decided on it in time. The write hangs on the session in which the member had caught up."""
    begin(sim)
    leader, follower = sim.leader(), sim.bystander()
    follower.crash()
    sim.world.run_until(lambda: follower.broker_id not in state(sim).isr, 20, "it is out of sync")
    sim.world.run_for(1)
    controller = sim.controller
    assert controller is not None
    follower.boot()
    leadership = leader.partitions[0].leadership
    assert leadership is not None
    sim.world.run_until(lambda: leadership.proposed is not None, 20, "its leader asks for it")
    trouble = Trouble(frozenset((controller.host,)), frozenset(("commit",)), Way.LATE)
    sim.core.troubles.begin(trouble)
    before = leadership.follower(follower.broker_id)
    assert before is not None
    epoch = before.broker_epoch
    sim.world.run_for(0.1)
    follower.lose_power(entirely=True)
    follower.boot()
    sim.core.troubles.end(trouble)
    sim.world.run_until(lambda: before.broker_epoch > epoch, 20, "it fetches in its new session")
    catch_up = sim.network.cut([(leader.host, follower.host)])
    sim.world.run_for(4)
    catch_up()
    return end(sim)


def _end_of(machine: Machine) -> int:
    return next(it for it in machine.partitions if it.topic.name == TOPIC).log.next_offset


def _session(at: Machine, who: Machine) -> int:
    """The session of a broker, as another one knows it; 0 if it has none."""
    assert at.node is not None
    known = at.node.cluster.image.brokers.get(who.broker_id)
    return 0 if known is None else int(known.epoch)
