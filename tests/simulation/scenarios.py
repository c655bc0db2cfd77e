"""Schedules that chance would hardly ever make: each leads to where one rule alone keeps records safe."""

from collections.abc import Callable

from penstock.metadata.values import PartitionImage
from tests.simulation.clients.admin import create_topic, delete_topic
from tests.simulation.clients.client import TOPIC, Client
from tests.simulation.clients.producers import LeaderAcked, Producer
from tests.simulation.loop import Broken, Stuck
from tests.simulation.machine import Machine
from tests.simulation.network import Link
from tests.simulation.simulation import Result, Shape, Simulation, describe
from tests.simulation.store import HOST as STORE
from tests.simulation.store import live_keys
from tests.support.checker import History

ONE: Shape = Shape(partitions=1)
THREE: Shape = Shape(partitions=3)  # each broker leads one
FOUR: Shape = Shape(brokers=4, partitions=4)  # of each partition, one broker has no replica
SYNCED: Shape = Shape(partitions=1, configs=(("flush.messages", "1"),))


def a_fetch_arrives_after_its_sender_lost_power(sim: Simulation) -> Result:
    """A follower's last fetch says that it has everything; by then it has lost everything and runs anew."""
    begin(sim, producers=1)
    index = next(it for it in range(3) if sim.leader(it) is not sim.controller)
    leader = sim.leader(index)
    follower = next(it for it in sim.machines.values() if it not in (leader, sim.controller))
    theirs, ours = leader.partitions[index], follower.partitions[index]
    sim.world.run_until(
        lambda: theirs.log.next_offset == ours.log.next_offset, 5, "the follower has everything"
    )
    heal = sim.network.cut([(follower.host, leader.host)])
    sim.world.run_for(0.5)
    sim.stop_producing()
    links = _held(sim, follower.host, leader.host)
    assert links, "a fetch is on its way"
    for link in links:
        link.outlives_power = True
    follower.lose_power(entirely=True)
    sim.world.run_for(3)  # its session ends; all others have is committed
    follower.boot()
    sim.world.run_until(lambda: follower.is_up, 20, "it runs again")
    sim.world.run_until(lambda: _is_admitted(leader, follower), 20, "its leader knows that it does")
    for link in links:
        link.force()
    sim.world.run_for(2)
    heal()
    return end(sim)


def a_leader_hears_only_that_its_session_is_over(sim: Simulation) -> Result:
    """It can reach clients, and neither the store nor the other brokers."""
    begin(sim, producers=8)
    leader = sim.leader()
    others = [it.host for it in sim.machines.values() if it is not leader]
    heals = [
        sim.network.cut([(leader.host, STORE)]),
        sim.network.cut(
            [(leader.host, it) for it in others] + [(it, leader.host) for it in others]
        ),
    ]
    lease = live_keys(sim.core.entries)[leader.broker_id].lease
    assert lease is not None
    sim.core.revoke(lease)
    assert leader.node is not None
    cluster = leader.node.cluster
    sim.world.run_until(lambda: not cluster.epoch, 5, "it hears of it")
    heals.append(sim.network.cut([(STORE, leader.host)]))
    sim.world.run_for(3)
    for heal in heals:
        heal()
    return end(sim)


def the_last_one_in_sync_loses_power(sim: Simulation) -> Result:
    """Nobody else has what it took since the others left; so it must not have called that committed."""
    begin(sim)
    leader = sim.leader()
    others = [it for it in sim.machines.values() if it is not leader]
    sim.world.run_until(
        lambda: all(_end_of(leader) > _end_of(it) for it in others), 10, "it has more than they"
    )
    for machine in others:
        machine.crash()
    sim.world.run_until(lambda: _isr(sim) == (leader.broker_id,), 20, "it is alone in sync")
    sim.world.run_for(1)
    leader.lose_power(entirely=True)
    for machine in others:
        machine.boot()
    sim.world.run_for(4)
    leader.boot()
    return end(sim)


def a_leader_cannot_have_its_change_committed(sim: Simulation) -> Result:
    """It would like to go on without a follower, and reaches neither that one nor the controller."""
    begin(sim)
    index = next(it for it in range(3) if sim.leader(it) is not sim.controller)
    leader = sim.leader(index)
    pairs = [(leader.host, it.host) for it in sim.machines.values() if it is not leader]
    heal = sim.network.cut(pairs + [(other, one) for one, other in pairs])
    sim.world.run_for(8)
    heal()
    return end(sim)


def a_leader_is_cut_off_from_its_followers(sim: Simulation) -> Result:
    """Clients, the store and the controller's key are in its reach: only what it takes cannot be committed (gray failure)."""
    begin(sim)
    for leader in (_leader_but_not_controller(sim), sim.controller):
        assert leader is not None
        led = [index for index in range(3) if sim.leader(index) is leader]
        heal = sim.network.cut(_between(sim, leader))
        _go_on(sim, led)
        sim.world.run_for(5)
        heal()
        sim.world.run_until(sim.invariants.all_in_sync, 60, "all are in sync again")
    return end(sim)


def a_leader_is_cut_off_from_the_controller(sim: Simulation) -> Result:
    """The controller is a follower as well: in sync, and it can neither fetch nor be told that it lags."""
    begin(sim)
    leader, controller = _leader_but_not_controller(sim), sim.controller
    assert controller is not None
    led = [index for index in range(3) if sim.leader(index) is leader]
    pairs = [(leader.host, controller.host), (controller.host, leader.host)]
    heal = sim.network.cut(pairs)
    _go_on(sim, led)
    sim.world.run_for(3)
    heal()
    return end(sim)


def a_follower_is_cut_off_from_its_leader(sim: Simulation) -> Result:
    """Its word alone is not enough to replace the leader: the follower may be the one that is cut off."""
    begin(sim)
    leader, follower = sim.leader(), sim.bystander()
    if sim.leader() is sim.controller:
        follower = next(it for it in sim.machines.values() if it is not leader)
    epoch = state(sim).leader_epoch
    heal = sim.network.cut([(leader.host, follower.host), (follower.host, leader.host)])
    sim.world.run_for(12)
    if state(sim).leader_epoch != epoch:
        raise Broken(f"the leader was replaced: {state(sim)}")
    heal()
    return end(sim)


def a_leader_is_cut_off_from_the_store_alone(sim: Simulation) -> Result:
    """Others lead in its place, and nobody can tell it: what it acknowledged alone would be lost (B5)."""
    begin(sim)
    leader = sim.leader()
    alone = _leader_acked(sim, leader)
    heal = sim.network.cut([(leader.host, STORE), (STORE, leader.host)])
    begun_s = sim.world.now_s
    sim.world.run_for(12)
    late_s = [at_s - begun_s for at_s in alone.acked_s if at_s > begun_s + 8]
    if late_s:
        raise Broken(f"B5: acknowledged {late_s[-1]:.1f} s after it was cut off")
    alone.is_stopping = True
    heal()
    return end(sim)


def the_store_is_down(sim: Simulation) -> Result:
    """The brokers reach each other, and go on with what they know (B5)."""
    begin(sim)
    alone = _leader_acked(sim, sim.leader())
    sim.core.is_down = True
    sim.world.run_for(10)
    before = {it: it.acked for it in sim.producers}
    sim.world.run_for(2)
    if sim.world.now_s - alone.acked_s[-1] > 1 or any(
        it.acked == acked for it, acked in before.items()
    ):
        raise Broken("B5: nothing is acknowledged without the store")
    sim.core.is_down = False
    alone.is_stopping = True
    return end(sim)


def the_controller_dies_while_another_broker_starts(sim: Simulation) -> Result:
    """Who takes the office may have just come: the cluster was running, and nobody is to be waited for (C4)."""
    begin(sim)
    for _ in range(6):
        old = sim.controller
        assert old is not None
        starting = next(it for it in sim.machines.values() if it is not old)
        starting.crash()
        sim.world.run_for(3)
        starting.boot()
        sim.world.run_until(lambda it=starting: _has_session(it), 10, "it has a session")  # type: ignore[misc]
        old.crash()
        _within(sim, 3, lambda it=old: not _leads(sim, it), "others lead")  # type: ignore[misc]
        old.boot()
        sim.world.run_until(
            lambda: sim.all_up() and sim.invariants.all_in_sync(), 60, "all is well"
        )
    return end(sim)


def the_whole_cluster_starts_again(sim: Simulation) -> Result:
    """One broker comes back first; in the end each leads its share, long before the balance of every 5 minutes."""
    begin(sim)
    for machine in sim.machines.values():
        machine.crash()
    sim.world.run_for(3)
    first, *others = sim.machines.values()
    first.boot()
    sim.world.run_for(9)
    for machine in others:
        machine.boot()
    sim.world.run_until(lambda: sim.all_up() and sim.invariants.all_in_sync(), 60, "all is well")
    _within(sim, 12, lambda: len({sim.leader(it) for it in range(3)}) == 3, "each leads its share")
    return end(sim)


def power_is_lost_and_the_first_start_after_it_fails(sim: Simulation) -> Result:
    begin(sim)
    follower = sim.bystander()
    sim.stop_producing()
    sim.world.run_for(2)
    follower.lose_power(entirely=True)
    sim.core.is_down = True
    follower.boot()
    sim.world.run_until(lambda: follower.runs >= 3, 20, "two starts have failed")
    sim.core.is_down = False
    return end(sim)


def followers_come_back_to_a_partition_where_nothing_is_written(sim: Simulation) -> Result:
    begin(sim)
    leader = sim.leader()
    sim.stop_producing()
    others = [it for it in sim.machines.values() if it is not leader]
    for machine in others:
        machine.crash()
    sim.world.run_for(5)
    for machine in others:
        machine.boot()
    return end(sim)


def power_is_lost_everywhere(sim: Simulation) -> Result:
    """With `flush.messages=1` nothing is acknowledged before it is on the disks."""
    begin(sim)
    for machine in sim.machines.values():
        machine.lose_power(entirely=True)
    sim.world.run_for(1)
    for machine in sim.machines.values():
        machine.boot()
        sim.world.run_for(0.4)
    return end(sim)


def a_topic_is_deleted_and_made_again_while_a_broker_is_away(sim: Simulation) -> Result:
    """I8: what comes back serves the new topic, and nothing of the old one."""
    sim.begin()
    away = sim.bystander()
    old = {place[0] for place in sim.invariants.states}
    writer = Producer(sim.loop, list(sim.machines), "old", (TOPIC, 0), History())
    writing = sim.loop.spawn(writer.run(), "old")
    sim.world.run_for(1)
    away.crash()
    writer.is_stopping = True
    sim.world.run_until(writing.done, 30, "the last of the old topic is acknowledged")
    remade = sim.loop.spawn(_make_again(sim), "make-again")
    sim.world.run_until(remade.done, 30, "the topic is made again")
    away.boot()
    sim.begin_clients()
    sim.world.run_for(2)
    result = end(sim)
    for machine in sim.machines.values():
        assert machine.node is not None
        assert not old & set(machine.node.replicas.topics_by_id), f"{machine.host} has the old one"
    return result


async def _make_again(sim: Simulation) -> None:
    client = Client(sim.loop, [it.broker_id for it in sim.machines.values() if it.is_up], "admin")
    await delete_topic(client)
    await create_topic(client, TOPIC, sim.shape.partitions, dict(sim.shape.configs))


def everybody_crashes_again_and_again(sim: Simulation) -> Result:
    """Nobody is up for long, and leaders change while followers are behind (KIP-101, KIP-279)."""
    begin(sim)
    rng = sim.world.rng
    for _ in range(12):
        first, second = rng.sample(list(sim.machines.values()), 2)
        first.crash()
        sim.world.run_for(rng.uniform(0.02, 0.3))
        second.crash()
        sim.world.run_for(rng.uniform(0.02, 0.3))
        second.boot()
        sim.world.run_for(rng.uniform(0.02, 0.5))
        first.boot()
        sim.world.run_for(rng.uniform(0.1, 1.2))
    return end(sim)


def begin(sim: Simulation, producers: int = 2) -> None:
    sim.begin()
    sim.begin_clients(producers)
    sim.world.run_for(1)


def end(sim: Simulation) -> Result:
    sim.settle()
    return sim.judge()


def _end_of(machine: Machine) -> int:
    return machine.partitions[0].log.next_offset


def _isr(sim: Simulation) -> tuple[int, ...]:
    return state(sim).isr


def state(sim: Simulation, index: int = 0) -> PartitionImage:
    return sim.invariants.state(TOPIC, index)


def _leader_but_not_controller(sim: Simulation) -> Machine:
    leaders = [sim.leader(index) for index in range(sim.shape.partitions)]
    return next(it for it in leaders if it is not sim.controller)


def _between(sim: Simulation, machine: Machine) -> list[tuple[str, str]]:
    """Both ways, of a machine and all others."""
    others = [it.host for it in sim.machines.values() if it is not machine]
    return [pair for it in others for pair in ((machine.host, it), (it, machine.host))]


def _leader_acked(sim: Simulation, machine: Machine) -> LeaderAcked:
    client = LeaderAcked(sim.loop, machine.broker_id, sim.history)
    sim.loop.spawn(client.run(), client.name)
    sim.world.run_until(lambda: len(client.acked_s) > 3, 10, "some are acknowledged")
    return client


def _has_session(machine: Machine) -> bool:
    cluster = None if machine.node is None else machine.node.cluster
    return cluster is not None and bool(cluster.epoch)


def _leads(sim: Simulation, machine: Machine) -> bool:
    return any(it.leader in (machine.broker_id, -1) for it in sim.invariants.states.values())


def _within(sim: Simulation, limit_s: float, what: Callable[[], bool], why: str) -> None:
    """A promise, which it is a fault not to keep."""
    try:
        sim.world.run_until(what, limit_s, why)
    except Stuck as error:
        raise Broken(f"{error}\n{describe(sim)}") from None


def _go_on(sim: Simulation, partitions: list[int]) -> None:
    """What is sent there is acknowledged within 5 s, as promised; but for what was on its way already."""
    sim.world.run_for(0.5)
    before = {it: it.acked for it in sim.producers if it.partition in partitions}
    _within(
        sim, 4.5, lambda: all(it.acked > acked for it, acked in before.items()), "producers go on"
    )


def _held(sim: Simulation, client: str, server: str) -> list[Link]:
    """Connections on which something is held back."""
    links = sim.network.links
    return [it for it in links if it.held and (it.client_host, it.server_host) == (client, server)]


def _is_admitted(at: Machine, who: Machine) -> bool:
    """As the one has heard of the other."""
    assert at.node is not None
    known = at.node.cluster.image.brokers.get(who.broker_id)
    return known is not None and not known.fenced
