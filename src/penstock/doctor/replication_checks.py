"""Checks of replicas: what is not well now, and what would be lost with one broker or one rack."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from penstock.client import health
from penstock.doctor.cluster_facts import INTERNAL, ClusterFacts
from penstock.doctor.findings import Check, Found, Severity, counted, listed

_MOST_REMEDIES: Final = 5  # of one kind of problem


def _unhealthy(*kinds: str) -> Callable[[ClusterFacts], Iterator[Found]]:
    """The diagnosis of `penstock cluster health`, one finding for each remedy."""

    def rule(facts: ClusterFacts) -> Iterator[Found]:
        by_remedy: dict[tuple[str, str], list[str]] = {}
        for problem in facts.problems:
            if problem.problem in kinds:
                by_remedy.setdefault((problem.problem, problem.remedy), []).append(
                    problem.partition
                )
        groups = sorted(by_remedy.items(), key=lambda item: -len(item[1]))
        for (kind, remedy), partitions in groups[:_MOST_REMEDIES]:
            yield Found(f"{kind}: {listed(partitions)}", remedy, partitions)
        rest = [partition for _, partitions in groups[_MOST_REMEDIES:] for partition in partitions]
        if rest:
            yield Found(f"{listed(rest)}: the same", "see: penstock cluster health", rest)

    return rule


def _missing_brokers(facts: ClusterFacts) -> Iterator[Found]:
    missing = facts.members.missing
    if missing:
        remedy = health.absence_remedy(missing[0], facts.places)
        more = "" if len(missing) == 1 else f" (broker {missing[0]}; the others likewise)"
        names = [str(broker_id) for broker_id in missing]
        yield Found(f"{_are_down(names)}", remedy + more, names)


def _are_down(names: list[str]) -> str:
    verb = "is" if len(names) == 1 else "are"
    return f"{'broker' if len(names) == 1 else 'brokers'} {listed(names)} {verb} not running"


def _unreachable_brokers(facts: ClusterFacts) -> Iterator[Found]:
    for broker_id, reason in sorted(facts.unreachable.items())[:_MOST_REMEDIES]:
        yield Found(
            f"broker {broker_id} runs, and cannot be reached from here: {reason}",
            "see in its log whether it hangs; else mend its advertised address (penstock serve"
            " --advertise HOST:PORT), the name service or the firewall between",
            [str(broker_id)],
        )


def _no_controller(facts: ClusterFacts) -> Iterator[Found]:
    if facts.members.controller_id is None:
        yield Found(
            "no broker is the controller",
            "look again in a moment; if it stays so, check the metadata store and the brokers' logs",
        )


def _single_broker(facts: ClusterFacts) -> Iterator[Found]:
    if len(facts.members.brokers) == 1:
        yield Found(
            "the cluster has one broker",
            "run three or more: penstock serve --broker-id N --metadata STORE",
        )


def _topics(facts: ClusterFacts, factor: int = 1) -> Iterator[tuple[str, int]]:
    """Topics of users with at least so many replicas, when there are brokers for more than one."""
    if len(facts.members.brokers) > 1:
        for topic, replicas in facts.replication_factors.items():
            if topic not in INTERNAL and replicas >= factor:
                yield topic, replicas


def _raise_factor(topic: str, facts: ClusterFacts) -> str:
    wanted = min(3, len(facts.members.brokers))
    plan = f"penstock reassign plan --topic {topic} --replication-factor {wanted} --out plan.json"
    return f"{plan}; penstock reassign execute plan.json"


def _one_replica(facts: ClusterFacts) -> Iterator[Found]:
    found = [topic for topic, replicas in _topics(facts) if replicas == 1]
    if found:
        fact = f"{counted(len(found), 'topic')} with replication factor 1: {listed(found)}"
        yield Found(fact, _raise_factor(found[0], facts), found)


def _strict_min_isr(facts: ClusterFacts) -> Iterator[Found]:
    found = [
        topic
        for topic, replicas in _topics(facts, 2)
        if (facts.number(topic, "min.insync.replicas") or 0) >= replicas
    ]
    if found:
        topic = found[0]
        lower = max(1, facts.replication_factors[topic] - 1)
        yield Found(
            f"min.insync.replicas is the replication factor or more: {listed(found)}",
            f"penstock topic alter {topic} -c min.insync.replicas={lower}"
            if lower > 1
            else f"{_raise_factor(topic, facts)}; then min.insync.replicas=2",
            found,
        )


def _loose_min_isr(facts: ClusterFacts) -> Iterator[Found]:
    found = [
        topic for topic, _ in _topics(facts, 2) if facts.number(topic, "min.insync.replicas") == 1
    ]
    if found:
        alter = f"penstock topic alter {found[0]} -c min.insync.replicas=2"
        has_two = facts.replication_factors[found[0]] == 2
        yield Found(
            f"min.insync.replicas is 1: {listed(found)}",
            f"{_raise_factor(found[0], facts)}; then {alter}" if has_two else alter,
            found,
        )


def _unclean(facts: ClusterFacts) -> Iterator[Found]:
    found = [
        topic
        for topic, settings in facts.topics.items()
        if settings.get("unclean.leader.election.enable") == "true"
    ]
    if found:
        yield Found(
            f"unclean elections are allowed: {listed(found)}",
            f"penstock topic alter {found[0]} -c unclean.leader.election.enable=false",
            found,
        )


def _internal_factor(facts: ClusterFacts) -> Iterator[Found]:
    brokers = len(facts.members.brokers)
    for topic, replicas in facts.replication_factors.items():
        if topic in INTERNAL and replicas < min(3, brokers):
            fact = f"{topic} has {counted(replicas, 'replica')}; there are {brokers} brokers"
            yield Found(fact, _raise_factor(topic, facts), [topic])


def _offsets_not_compacted(facts: ClusterFacts) -> Iterator[Found]:
    for topic in sorted(INTERNAL & facts.topics.keys()):
        policies = facts.policies(topic)
        if policies and "compact" not in policies and topic != "__share_group_state":
            yield Found(
                f"{topic} has cleanup.policy={','.join(sorted(policies))}",
                f"penstock topic alter {topic} -c cleanup.policy=compact",
                [topic],
            )


# Racks -------------------------------------------------------------------------------------------


def _unset_racks(facts: ClusterFacts) -> Iterator[Found]:
    without = [str(broker_id) for broker_id, rack in facts.racks.items() if not rack]
    if without and len(without) < len(facts.racks):
        yield Found(
            f"brokers without a rack, where others have one: {listed(without)}",
            "penstock serve --rack NAME (or broker.rack in its settings), and restart it",
            without,
        )


def _one_rack(facts: ClusterFacts) -> Iterator[Found]:
    racks = facts.racks
    if len({rack for rack in racks.values() if rack}) < 2:
        return
    found = []
    for at, place in facts.places.items():
        used = {racks.get(member) for member in place.target}
        if len(place.target) > 1 and len(used) == 1 and None not in used:
            found.append(str(at))
    if found:
        yield Found(
            f"{counted(len(found), 'partition')} with all replicas in one rack: {listed(found)}",
            "penstock cluster balance --replicas --dry-run, then without --dry-run",
            found,
        )


def _uneven_racks(facts: ClusterFacts) -> Iterator[Found]:
    sizes = Counter(rack for rack in facts.racks.values() if rack)
    if len(sizes) > 1 and max(sizes.values()) > min(sizes.values()):
        listing = listed([f"{rack} has {count}" for rack, count in sorted(sizes.items())])
        yield Found(
            f"racks have different numbers of brokers: {listing}",
            "run the same number of brokers in each rack",
            list(sizes),
        )


_P, _W, _N = Severity.PROBLEM, Severity.WARNING, Severity.NOTE

REPLICATION_CHECKS: Final[tuple[Check[ClusterFacts], ...]] = (
    Check("no-leader", _P, "a partition has no leader", "It can be neither written nor read.", _unhealthy("no leader")),
    Check("under-min-isr", _P, "fewer replicas in sync than min.insync.replicas", "Producers with acks=all cannot write.", _unhealthy("under min ISR")),
    Check("offline-replica", _P, "a broker cannot use a replica that is on its disk", "One copy fewer, until it is rebuilt.", _unhealthy("offline replica")),
    Check("under-replicated", _W, "a replica is not in sync", "One copy fewer, until it catches up.", _unhealthy("under-replicated")),
    Check("broker-missing", _P, "a registered broker does not run", "Its replicas fall behind, and the others carry its load.", _missing_brokers),
    Check("broker-unreachable", _P, "a broker that runs does not answer at its advertised address", "Clients from here cannot use the partitions that it leads.", _unreachable_brokers),
    Check("no-controller", _P, "no broker is the controller", "Leaders are not elected, and topics cannot be changed.", _no_controller),
    Check("single-broker", _W, "the cluster has one broker", "Its failure stops everything, and its disk holds the only copy.", _single_broker),
    Check("one-replica", _W, "a topic has replication factor 1, and there are more brokers", "The failure of one broker stops its partitions; the loss of its disk loses their messages.", _one_replica),
    Check("min-isr-all", _W, "min.insync.replicas is the replication factor or more", "Producers with acks=all stop when any one broker stops, also in a rolling restart.", _strict_min_isr),
    Check("min-isr-one", _W, "min.insync.replicas is 1 with two or more replicas", "A message may be acknowledged that only one broker has, and be lost with it.", _loose_min_isr),
    Check("unclean-elections", _W, "unclean.leader.election.enable is true", "A replica that lacks acknowledged messages may lead, and they are lost.", _unclean),
    Check("internal-replicas", _P, "an internal topic has fewer replicas than it could have, up to 3", "Groups and transactions stop, or lose their state, with one broker.", _internal_factor),
    Check("internal-not-compacted", _P, "an internal topic is not compacted", "Committed offsets or the state of transactions are deleted with age.", _offsets_not_compacted),
    Check("rack-unset", _W, "some brokers have a rack and others have none", "Replicas cannot be spread over racks.", _unset_racks),
    Check("one-rack", _W, "all replicas of a partition are in one of several racks", "The loss of that rack loses the partition.", _one_rack),
    Check("racks-uneven", _N, "racks have different numbers of brokers", "Brokers of small racks carry more replicas than others.", _uneven_racks),
)  # fmt: skip
