"""Partitions and brokers that are not well, why, and what to do about it. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.client.reassignments import Members, Place, Places
from penstock.model.ids import TopicPartition


class Problem(NamedTuple):
    partition: str
    problem: str
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    remedy: str


def facts(members: Members, places: Places, min_isrs: dict[str, int]) -> dict[str, Any]:
    found = list(problems(members, places, min_isrs))
    missing = [
        {"broker": broker_id, "remedy": absence_remedy(broker_id, places)}
        for broker_id in members.missing
    ]
    return {
        "healthy": not (found or missing or members.controller_id is None),
        "brokers": len(members.running),
        "controller": members.controller_id,
        "missing_brokers": missing,
        "moves": sum(place.is_moving for place in places.values()),
        "problems": [problem._asdict() for problem in found],
    }


def problems(members: Members, places: Places, min_isrs: dict[str, int]) -> Iterator[Problem]:
    running = frozenset(node.id for node in members.running)
    for at, place in places.items():
        found = _diagnosis(at, place, running, min_isrs.get(at.topic, 1))
        if found is not None:
            problem, remedy = found
            leader = place.leader if place.leader >= 0 else None
            yield Problem(str(at), problem, leader, place.replicas, place.isr, remedy)


def _diagnosis(
    at: TopicPartition, place: Place, running: frozenset[int], min_isr: int
) -> tuple[str, str] | None:
    """New replicas of a move are not missed: nothing is worse than before it."""
    lacking = [member for member in place.original if member not in place.isr]
    if place.leader < 0:
        return "no leader", _leaderless(at, place, running)
    if place.offline:
        return "offline replica", (
            f"broker {_listed(place.offline)} cannot use what it has on disk of it: its log names the"
            " file and the damage; a replica that is in sync elsewhere rebuilds it"
        )
    if len(place.isr) < min(min_isr, len(place.original)):
        return "under min ISR", (
            f"producers with acks=all wait until {min_isr} are in sync: "
            + _lagging(lacking, running)
        )
    if lacking:
        return "under-replicated", _lagging(lacking, running)
    return None


def _leaderless(at: TopicPartition, place: Place, running: frozenset[int]) -> str:
    unclean = f"penstock cluster elect --unclean {at} --yes"
    whole = place.isr or place.eligible
    absent = [member for member in whole if member not in running]
    if absent:
        return (
            f"start broker {_listed(absent)}: it has everything that was acknowledged; if it is gone"
            f" for good: {unclean}, which loses what only it had"
        )
    if whole:
        return "a leader is about to be elected; look again in a moment"
    if running.isdisjoint(place.replicas):
        return f"start one of brokers {_listed(place.replicas)}"
    if absent := [member for member in place.replicas if member not in running]:
        return (
            f"none of its replicas is known to have everything: start broker {_listed(absent)} too, and"
            f" the one with the most leads; if it is gone for good: {unclean}"
        )
    return (
        f"none of its replicas is known to have everything: the one with the most leads in a moment,"
        f" unless unclean.recovery.strategy is none; then: {unclean}"
    )


def _lagging(lacking: Sequence[int], running: frozenset[int]) -> str:
    absent = [member for member in lacking if member not in running]
    if absent:
        return (
            f"start broker {_listed(absent)}; if it will not come back:"
            f" penstock broker decommission {absent[0]}"
        )
    return f"broker {_listed(lacking)} is catching up; if that does not end, its log says why"


def absence_remedy(broker_id: int, places: Places) -> str:
    holds = sum(broker_id in place.replicas for place in places.values())
    command = f"penstock broker decommission {broker_id} --unregister"
    held = f" (it has {holds} replica{'s' if holds > 1 else ''})" if holds else ""
    return f"start it{held}; if it will not come back: {command}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
