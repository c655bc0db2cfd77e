"""Bugs in the controller's decisions, reassignment, the store and the image that brokers have of it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from penstock.broker.controller.committer import Committer
from penstock.broker.membership.image_feed import ImageFeed
from penstock.metadata.rules import decisions, partition_rules, reassignment_rules, registration
from penstock.metadata.rules.partition_rules import elected
from penstock.metadata.rules.registration import POWER_LOSS, PROCESS_CRASH
from penstock.metadata.store import Committed, Compare
from penstock.metadata.values import CONTROLLER
from tests.simulation.planted.probe import Probe, replaced, replaced_everywhere

Planted = AbstractContextManager[Any]


# Elections ---------------------------------------------------------------------------------------


def any_replica_is_elected(probe: Probe) -> Planted:
    """The first replica that runs leads, in sync or not."""

    def elect(original: Any, partition: Any, able: Any, *, unclean: bool) -> Any:
        right = original(partition, able, unclean=unclean)
        first = next((it for it in partition.replicas if it in able), None)
        if first is None or right.leader == first:
            return right
        probe.deviates()
        isr = partition.isr if first in partition.isr else (first, *partition.isr)
        return partition._replace(leader=first, isr=isr)

    return replaced_everywhere(probe, partition_rules, "elected", elect)


def elections_keep_the_epoch(probe: Probe) -> Planted:
    """C3: the leader epoch does not grow with a new leader."""

    def settled(original: Any, before: Any, after: Any, *rest: Any, **more: Any) -> Any:
        found = original(before, after, *rest, **more)
        probe.deviates(found.leader_epoch != before.leader_epoch)
        return found._replace(leader_epoch=before.leader_epoch)

    return replaced(probe, registration, "settled", settled)


def restarts_keep_the_epoch(probe: Probe) -> Planted:
    """C3: a broker that restarted goes on to lead in the epoch that it had."""

    def settled(original: Any, *rest: Any, reelected: bool = False) -> Any:
        probe.deviates(reelected)
        return original(*rest)

    return replaced(probe, registration, "settled", settled)


def eligible_replicas_stay_eligible(probe: Probe) -> Planted:
    """A replica outside the ISR stays eligible while others commit without it (KIP-966)."""

    def standing(original: Any, partition: Any, settings: Any) -> Any:
        probe.deviates(partition.elr != original(partition, settings))
        return partition.elr

    return replaced_everywhere(probe, partition_rules, "standing_elr", standing)


def power_loss_counts_as_a_crash(probe: Probe) -> Planted:
    """E3: a broker that has lost what it had not synced stays eligible."""

    def ending(original: Any, *arguments: Any) -> Any:
        found = original(*arguments)
        probe.deviates(found == POWER_LOSS)
        return PROCESS_CRASH if found == POWER_LOSS else found

    return replaced(probe, registration, "last_ending", ending)


def unclean_elections_are_not_told(probe: Probe) -> Planted:
    """Followers of a leader that was elected uncleanly do not know that records may be lost."""

    def elect(original: Any, *arguments: Any, **more: Any) -> Any:
        found = original(*arguments, **more)
        probe.deviates(found.recovering)
        return found._replace(recovering=False)

    return replaced_everywhere(probe, partition_rules, "elected", elect)


# Reassignment ------------------------------------------------------------------------------------


def moves_end_early(probe: Probe) -> Planted:
    """O2: replicas are taken away before the added ones are in sync."""

    def completed(original: Any, before: Any, after: Any, able: Any, settings: Any) -> Any:
        right = original(before, after, able, settings)
        isr = tuple(it for it in after.isr if it not in after.removing)
        if not after.removing or not isr or right.replicas == reassignment_rules.target(after):
            return right
        moved = after._replace(
            replicas=reassignment_rules.target(after), isr=isr, adding=(), removing=()
        )
        if moved.leader not in isr:
            moved = elected(moved, able, unclean=False)
        probe.deviates()
        return partition_rules.settled(before, moved, settings)

    return replaced_everywhere(probe, reassignment_rules, "completed", completed)


def added_replicas_count_at_once(probe: Probe) -> Planted:
    """O2: a move ends with its new replicas in the ISR, whether they have caught up or not."""

    def completed(original: Any, before: Any, after: Any, able: Any, settings: Any) -> Any:
        right = original(before, after, able, settings)
        if not reassignment_rules.is_moving(right):
            return right
        found = original(
            before,
            after._replace(isr=tuple(dict.fromkeys((*after.isr, *after.adding)))),
            able,
            settings,
        )
        probe.deviates(found != right)
        return found

    return replaced_everywhere(probe, reassignment_rules, "completed", completed)


# The store ---------------------------------------------------------------------------------------


class _Unfenced:
    """A store that is not told to compare the controller's office."""

    def __init__(self, store: Any, probe: Probe) -> None:
        self._store = store
        self._probe = probe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, compares: Any, writes: Any) -> Any:
        kept = [it for it in compares if it.key != CONTROLLER]
        self._probe.deviates(len(kept) < len(compares))
        return await self._store.commit(kept, writes)


def former_controllers_write(probe: Probe) -> Planted:
    """C1: a decision is written, also when another controller was elected meanwhile."""

    def init(original: Any, committer: Any, store: Any, feed: Any) -> None:
        original(committer, _Unfenced(store, probe), feed)

    return replaced(probe, Committer, "__init__", init)


def decisions_on_an_old_state(probe: Probe) -> Planted:
    """C2: a decision is written, also when what it rests on has changed."""

    def unchanged(_original: Any, _image: Any, key: str) -> Compare:
        probe.deviates()
        return Compare(key)

    return replaced_everywhere(probe, decisions, "unchanged", unchanged)


@contextmanager
def former_controllers_write_on_an_old_state(probe: Probe) -> Iterator[None]:
    """Neither the office nor the state is compared: each compare hides the other's lack."""
    with former_controllers_write(probe), decisions_on_an_old_state(probe):
        yield


def unknown_commits_count_as_done(probe: Probe) -> Planted:
    """The controller takes a commit whose outcome is unknown for one that happened."""

    async def settle(original: Any, committer: Any, write: Any) -> Any:
        found = await original(committer, write)
        probe.deviates(not isinstance(found, Committed))
        return Committed(found.revision)

    return replaced(probe, Committer, "_settle", settle)


def reload_tells_nobody(probe: Probe) -> Planted:
    """A broker that had to read the metadata anew does not act on what has changed in it."""

    async def reload(_original: Any, feed: Any) -> None:
        feed.image = await feed._loaded()
        probe.deviates()

    return replaced(probe, ImageFeed, "_reload", reload)
