"""The life of a broker as the controller decides it: registered, unfenced, leaving, lost, struck off.

Each decision can be made again after a part of it was committed: it then holds what is left to do.
The registration is written last, so that it tells that everything before it was done.
"""

from typing import Final

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.chunk_rewrites import rewrite
from penstock.metadata.rules.cordons import cordon_removed
from penstock.metadata.rules.decisions import Decision, Rules, unchanged
from penstock.metadata.rules.failed_replicas import deprived
from penstock.metadata.rules.feature_levels import in_force
from penstock.metadata.rules.partition_rules import (
    NOBODY,
    ElectionContext,
    ElectionSettings,
    elected,
    settled,
    without,
)
from penstock.metadata.store import NO_REVISION, Compare, Delete, Put, Revision, Write
from penstock.metadata.values import (
    LiveBroker,
    PartitionImage,
    Registration,
    encode_registration,
    live_key,
    registration_key,
)
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.features import misfit

CLEAN: Final = "clean"
PROCESS_CRASH: Final = "process-crash"
POWER_LOSS: Final = "power-loss"
EMPTY_DISK: Final = "empty-disk"  # or an old copy of it: what it held is not known


def brokers_to_register(image: ClusterImage) -> list[int]:
    """Brokers with a session that the controller has not dealt with yet. They come before anything else (B2)."""
    return [
        broker_id
        for broker_id in image.live
        if broker_id not in image.registrations
        or image.registrations[broker_id].epoch != image.brokers[broker_id].epoch
    ]


def lost_brokers(image: ClusterImage) -> list[int]:
    """Brokers whose session has ended, and whose partitions have not been given to others yet."""
    return [
        broker_id
        for broker_id, registration in image.registrations.items()
        if broker_id not in image.live and not registration.gone
    ]


def register_broker(
    image: ClusterImage, broker_id: int, rules: Rules, *, is_cold_start: bool = False
) -> list[Decision[None]]:
    """B2, E3, E4: what a new session does to the partitions of the broker; then its registration, fenced.

    A restart is an election (C3): where the broker goes on leading, the leader epoch grows, so that what
    a lost tail held and what is written in its place are never taken for the same. When all brokers
    start together, one that crashed stays where it was, lest the first of them lead everything (C4).
    """
    if broker_id not in brokers_to_register(image):
        return []
    live, epoch = image.live[broker_id], image.brokers[broker_id].epoch
    if misfit(in_force(image), live.features):  # the level was raised while it started (O9)
        return []
    ending = last_ending(live, image.registrations.get(broker_id))
    if is_cold_start and ending == PROCESS_CRASH:
        ending = CLEAN
    context = ElectionContext(image, rules, leaving=broker_id)

    def step(partition: PartitionImage, settings: ElectionSettings) -> PartitionImage:
        return _after_restart(partition, broker_id, ending, context.able, settings)

    changes = rewrite(image, image.chunks_on(broker_id), context, step)
    registration = Registration(epoch, live.rack, True, live.directory_id, features=live.features)
    return [*changes, _registered(image, broker_id, registration, session=epoch)]


def last_ending(live: LiveBroker, known: Registration | None) -> str:
    """How the last run of a broker ended, as far as its data is what the controller knows of."""
    if known is None or known.directory_id != live.directory_id:
        return EMPTY_DISK
    if live.previous_epoch < known.epoch:  # what it had in that session is not what it has now
        return EMPTY_DISK
    if known.disk_failed:  # the kernel may have dropped what it could not write
        return POWER_LOSS
    return live.last_shutdown if live.last_shutdown in (CLEAN, PROCESS_CRASH) else POWER_LOSS


def _after_restart(
    partition: PartitionImage,
    broker_id: int,
    ending: str,
    able: frozenset[int],
    settings: ElectionSettings,
) -> PartitionImage:
    if broker_id not in partition.isr and broker_id not in partition.elr:
        return _after_absence(partition, broker_id, ending, settings)
    if _stays(partition, broker_id, ending, able, settings):
        is_leader = partition.leader == broker_id
        return settled(partition, partition, settings, reelected=True) if is_leader else partition
    after = without(partition, broker_id, settings, intact=ending == PROCESS_CRASH)
    if ending == POWER_LOSS:
        after = after._replace(last_known_elr=(*after.last_known_elr, broker_id))
    if partition.leader in (broker_id, NOBODY):
        after = elected(after, able, unclean=settings.unclean)
    return settled(partition, after, settings)


def _after_absence(
    partition: PartitionImage, broker_id: int, ending: str, settings: ElectionSettings
) -> PartitionImage:
    """Of a replica that was not in sync any more."""
    if ending != EMPTY_DISK or broker_id not in partition.last_known_elr:
        return partition
    kept = tuple(member for member in partition.last_known_elr if member != broker_id)
    return settled(partition, partition._replace(last_known_elr=kept), settings)


def _stays(
    partition: PartitionImage,
    broker_id: int,
    ending: str,
    able: frozenset[int],
    settings: ElectionSettings,
) -> bool:
    """Whether a broker that restarted is as much in sync as before. `able` are others than it (E3, E4)."""
    if ending == CLEAN:
        return True
    if not able.isdisjoint(partition.isr or partition.elr):
        return False
    if ending == PROCESS_CRASH:
        return True
    if ending == POWER_LOSS and settings.flushes_each:
        return True
    return partition.replication_factor == 1 and {*partition.isr, *partition.elr} == {broker_id}


def unfence_broker(image: ClusterImage, broker_id: int, rules: Rules) -> list[Decision[None]]:
    """Lets a registered broker take part, once it knows of its registration: it leads what nobody else can."""
    known, broker = image.registrations.get(broker_id), image.brokers.get(broker_id)
    if known is None or broker is None or known.epoch != broker.epoch:
        return []
    if known.in_controlled_shutdown:
        return []
    context = ElectionContext(image, rules, joining=broker_id)

    def step(partition: PartitionImage, settings: ElectionSettings) -> PartitionImage:
        if partition.leader != NOBODY:
            return partition
        after = elected(partition, context.able, unclean=settings.unclean)
        return settled(partition, after, settings)

    changes = rewrite(image, image.chunks_on(broker_id), context, step)
    if not known.fenced:
        return changes
    unfenced = known._replace(fenced=False)
    return [*changes, _registered(image, broker_id, unfenced, session=known.epoch)]


def broker_lost(image: ClusterImage, broker_id: int, rules: Rules) -> list[Decision[None]]:
    """C5: a broker without a session leaves every ISR, and others lead in its place; then it is fenced."""
    known = image.registrations.get(broker_id)
    if known is None or known.gone or broker_id in image.live:
        return []
    context = ElectionContext(image, rules, leaving=broker_id)

    def step(partition: PartitionImage, settings: ElectionSettings) -> PartitionImage:
        if broker_id not in partition.isr:
            return partition
        after = without(partition, broker_id, settings)
        if partition.leader in (broker_id, NOBODY):
            after = elected(after, context.able, unclean=settings.unclean)
        return settled(partition, after, settings)

    changes = rewrite(image, image.chunks_on(broker_id), context, step)
    lost = known._replace(fenced=True, in_controlled_shutdown=False, gone=True)
    return [*changes, _registered(image, broker_id, lost, session=NO_REVISION)]


def begin_shutdown(image: ClusterImage, broker_id: int, rules: Rules) -> list[Decision[None]]:
    """O1: a broker that wants to stop hands over what it leads and leaves every ISR; nothing is given back to it.

    It stays where nobody else in the ISR can lead.
    """
    known, broker = image.registrations.get(broker_id), image.brokers.get(broker_id)
    if known is None or broker is None or known.epoch != broker.epoch:
        return []
    context = ElectionContext(image, rules, leaving=broker_id)

    def step(partition: PartitionImage, settings: ElectionSettings) -> PartitionImage:
        if broker_id not in partition.isr or partition.leader == NOBODY:
            return partition
        after = without(partition, broker_id, settings)
        if partition.leader == broker_id:
            if context.able.isdisjoint(after.isr):
                return partition
            after = elected(after, context.able, unclean=False)
        return settled(partition, after, settings)

    changes = rewrite(image, image.chunks_on(broker_id), context, step)
    if known.in_controlled_shutdown:
        return changes
    leaving = known._replace(in_controlled_shutdown=True)
    return [*changes, _registered(image, broker_id, leaving, session=known.epoch)]


def disk_failed(image: ClusterImage, broker_id: int, rules: Rules) -> list[Decision[None]]:
    """L4: a broker whose data directory failed leaves every ISR and ELR, and others lead, until it starts anew.

    It stays where no other replica has all that is committed.
    """
    known, broker = image.registrations.get(broker_id), image.brokers.get(broker_id)
    if known is None or broker is None or known.epoch != broker.epoch:
        return []
    context = ElectionContext(image, rules, leaving=broker_id)

    def step(partition: PartitionImage, settings: ElectionSettings) -> PartitionImage:
        return deprived(partition, broker_id, context.able, settings) or partition

    changes = rewrite(image, image.chunks_on(broker_id), context, step)
    if known.in_controlled_shutdown and known.disk_failed:
        return changes
    failed = known._replace(in_controlled_shutdown=True, disk_failed=True)
    return [*changes, _registered(image, broker_id, failed, session=known.epoch)]


def unregister_broker(image: ClusterImage, broker_id: int, rules: Rules) -> list[Decision[None]]:
    """Strikes a broker off that will not come back. Its replicas stay assigned to it, as in Kafka: move them."""
    if broker_id not in image.registrations:
        raise BrokerError(
            f"broker {broker_id} is not registered; {sorted(image.registrations)} are",
            ErrorCode.BROKER_ID_NOT_REGISTERED,
        )
    if broker_id in image.live:
        raise BrokerError(
            f"broker {broker_id} is running: stop it, then unregister it", ErrorCode.INVALID_REQUEST
        )
    key = registration_key(broker_id)
    is_absent = Compare(live_key(broker_id), create_revision=NO_REVISION)
    writes: list[Write] = [Delete(key)]
    compares = [unchanged(image, key), is_absent]
    cordon = cordon_removed(image, broker_id)
    if cordon is not None:
        writes.append(cordon[1])
        compares.append(unchanged(image, cordon[0]))
    struck_off: Decision[None] = Decision(None, writes, compares)
    return [*broker_lost(image, broker_id, rules)[:-1], struck_off]


def _registered(
    image: ClusterImage, broker_id: int, registration: Registration, *, session: int
) -> Decision[None]:
    """Holds only while the broker's session is that one."""
    key = registration_key(broker_id)
    is_as_known = Compare(live_key(broker_id), create_revision=Revision(session))
    return Decision(
        None, [Put(key, encode_registration(registration))], [unchanged(image, key), is_as_known]
    )
