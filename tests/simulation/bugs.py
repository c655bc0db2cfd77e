"""Bugs of the kind that replication has had, to be planted: a simulation that never fails has proved nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from penstock.broker.controller.broker_lifecycle import BrokerLifecycle
from penstock.broker.controller.upkeep import Upkeep
from penstock.broker.membership.isolation_vote import IsolationVote
from penstock.broker.membership.leader_reachability import LeaderReachability
from penstock.broker.partitions.follower import Followers
from penstock.broker.partitions.isr import IsrKeeper
from penstock.broker.partitions.metadata_applier import MetadataApplier
from penstock.broker.partitions.partition import Partition
from penstock.kafka.handlers import fetch, produce
from penstock.metadata.rules import gray_failures
from penstock.metadata.rules.gray_failures import Evidence
from penstock.metadata.values import PartitionImage
from penstock.replication.leader import Leadership
from penstock.storage import markers
from penstock.storage.recovery import Ending

Bug = Callable[[], AbstractContextManager[Any]]


@contextmanager
def truncation_to_the_high_watermark() -> Iterator[None]:
    """KIP-101: a new follower drops what it does not know to be committed."""
    follow = Followers.follow
    epochs: dict[Partition, int] = {}

    def careless(followers: Followers, partition: Partition) -> None:
        known = epochs.get(partition)
        epochs[partition] = partition.leader_epoch
        if (
            known != partition.leader_epoch
            and partition.failure is None
            and partition.leader_id >= 0
        ):
            partition.cut(partition.high_watermark)
        follow(followers, partition)

    with mock.patch.object(Followers, "follow", careless):
        yield


@contextmanager
def an_isr_change_that_counts_before_it_is_committed() -> Iterator[None]:
    """Where a leader that is out of reach is left in peace: else it would hardly come to ask for a change."""

    def hasty(leadership: Leadership) -> tuple[int, ...]:
        return leadership.isr.members if leadership.proposed is None else leadership.proposed

    with (
        mock.patch.object(Leadership, "maximal", property(hasty)),
        accusations_that_nobody_hears(),
    ):
        yield


@contextmanager
def a_loss_of_power_that_nobody_is_told_of() -> Iterator[None]:
    read = markers.read_last_run

    def silent(*args: Any, **more: Any) -> markers.LastRun:
        return read(*args, **more)._replace(untold=Ending.CLEAN)

    with mock.patch.object(markers, "read_last_run", silent):
        yield


@contextmanager
def fetches_of_a_session_that_is_over() -> Iterator[None]:
    """KIP-903: neither the leader nor the controller knows of which run of a broker it hears."""

    def believing(_replica_id: int, _epoch: int, _context: Any) -> None:
        """Whatever it says."""

    def unknown(keeper: Any, _partition: Partition, broker_id: int) -> int:
        return keeper._cluster.epoch if broker_id == keeper._cluster.broker_id else -1

    with (
        mock.patch.object(fetch, "_check_session", believing),
        mock.patch.object(IsrKeeper, "_epoch_of", unknown),
    ):
        yield


@contextmanager
def a_leader_that_goes_on_without_a_session() -> Iterator[None]:
    """B4."""
    take_roles = MetadataApplier._take_roles

    def stubborn(applier: MetadataApplier) -> None:
        cluster = applier._cluster
        if not applier._may_lead or cluster.epoch:
            take_roles(applier)

    with mock.patch.object(MetadataApplier, "_take_roles", stubborn):
        yield


@contextmanager
def accusations_that_nobody_hears() -> Iterator[None]:
    """Kafka's way: whoever holds its session leads, whether its followers reach it or not."""

    async def deaf(_reachability: LeaderReachability) -> None:
        """Let them talk."""

    def trusting(_isolation_vote: IsolationVote) -> dict[int, int]:
        return {}

    with (
        mock.patch.object(LeaderReachability, "attend", deaf),
        mock.patch.object(IsolationVote, "_suspects", trusting),
    ):
        yield


def a_vote_that_needs_no_majority() -> AbstractContextManager[Any]:
    """Whoever is cut off votes the others out."""
    return mock.patch.object(IsolationVote, "_is_majority", lambda _, count: count > 0)


def a_follower_that_is_believed_on_its_own() -> AbstractContextManager[Any]:
    """Whoever is cut off takes the leader with it."""
    replaced = gray_failures._replaced

    def credulous(before: PartitionImage, evidence: Evidence, *rest: Any) -> PartitionImage:
        leader = before.leader
        accused = any(leader in said for said in evidence.accusations.values())
        accusations = {
            it: said | {leader} if accused else said for it, said in evidence.accusations.items()
        }
        return replaced(before, evidence._replace(accusations=accusations), *rest)

    return mock.patch.object(gray_failures, "_replaced", credulous)


def a_leader_that_trusts_its_last_word_of_the_store() -> AbstractContextManager[Any]:
    """B5: without the store it takes for granted that it still leads."""
    return mock.patch.object(produce, "check_contact", return_value=None)


@contextmanager
def a_controller_that_takes_its_own_start_for_everybodys() -> Iterator[None]:
    """C4: it waits for who just died."""
    with (
        mock.patch.object(BrokerLifecycle, "_end_patience"),
        mock.patch.object(BrokerLifecycle, "_notice"),
    ):
        yield


def leaders_that_stay_where_they_are() -> AbstractContextManager[Any]:
    """Until the balance of every five minutes."""
    return mock.patch.object(Upkeep, "balance_soon")


@contextmanager
def a_high_watermark_that_moves_below_min_isr() -> Iterator[None]:
    """KIP-966: what only the last replica has is told to be committed."""
    high_watermark = Leadership.high_watermark

    def lone(leadership: Leadership, present: int, own_end: int, **more: Any) -> int:
        return high_watermark(leadership, present, own_end, **(more | {"min_isr": 0}))

    with mock.patch.object(Leadership, "high_watermark", lone):
        yield
