"""Checks of load and disks: balance between brokers, hot partitions and keys, and whether retention fits."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from penstock.doctor.cluster_facts import INTERNAL, ClusterFacts
from penstock.doctor.findings import Check, Found, Severity, counted, listed
from penstock.doctor.units import duration, percent, size
from penstock.model.ids import TopicPartition

_UNEVEN: Final = 1.2  # times the even share
_FEW: Final = 3  # replicas or leaders more than the even share: below, they cannot be more even
_BYTES: Final = 1 << 30
_HOT: Final = 2.0  # times the even share of a topic
_BUSY_TOPIC: Final = 100.0  # messages a second; below, a partition cannot be called hot
_HOT_KEY: Final = 0.5  # of the messages of a hot partition
_LEAST_KEYS: Final = 100  # messages in a sample
_LONGEST_KEY: Final = 40
_LEAST_AGE_MS: Final = 600_000  # of a log whose growth is measured
_FILLING: Final = 0.8
_FULL: Final = 0.95


def _uneven(
    loads: Mapping[int, float], least: float, shown: Callable[[float], str], noun: str, remedy: str
) -> Iterator[Found]:
    if len(loads) < 2:
        return
    share = sum(loads.values()) / len(loads)
    heavy = [
        broker_id
        for broker_id, load in sorted(loads.items(), key=lambda item: (-item[1], item[0]))
        if load > share * _UNEVEN and load - share >= least
    ]
    if heavy:
        rows = [f"broker {broker_id} has {shown(loads[broker_id])}" for broker_id in heavy]
        fact = f"{noun} are uneven: {listed(rows)}; the even share is {shown(share)}"
        yield Found(fact, remedy, [str(broker_id) for broker_id in heavy])


def _running(facts: ClusterFacts) -> list[int]:
    return [node.id for node in facts.members.running]


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _uneven_leaders(facts: ClusterFacts) -> Iterator[Found]:
    leaders: Counter[int] = Counter(place.leader for place in facts.places.values())
    loads = {broker_id: float(leaders[broker_id]) for broker_id in _running(facts)}
    remedy = (
        "penstock cluster balance (preferred leaders), or with --replicas where those are uneven"
    )
    return _uneven(loads, _FEW, _count, "leaders", remedy)


def _uneven_replicas(facts: ClusterFacts) -> Iterator[Found]:
    held: Counter[int] = Counter()
    for place in facts.places.values():
        held.update(place.target)
    loads = {broker_id: float(held[broker_id]) for broker_id in _running(facts)}
    remedy = "penstock cluster balance --replicas --dry-run, then without --dry-run"
    return _uneven(loads, _FEW, _count, "replicas", remedy)


def _uneven_bytes(facts: ClusterFacts) -> Iterator[Found]:
    loads = {
        broker_id: float(sum(disk.sizes_bytes.values()))
        for broker_id, disk in sorted(facts.disks.items())
    }
    largest: dict[TopicPartition, int] = {}
    if loads:
        largest = facts.disks[max(loads, key=lambda broker_id: loads[broker_id])].sizes_bytes
    top = max(largest, key=lambda at: largest[at], default=None)
    plan = f"penstock reassign plan --topic {top.topic if top else 'NAME'} --brokers N,N"
    return _uneven(loads, _BYTES, size, "bytes", f"move a large topic (largest first): {plan}")


# Hot partitions and keys -------------------------------------------------------------------------


def hot_partitions(rates: Mapping[TopicPartition, float]) -> list[tuple[TopicPartition, float]]:
    """Partitions with more than twice the even share of their topic, and their multiple, the hottest first."""
    totals: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for at, rate in rates.items():
        totals[at.topic] += rate
        counts[at.topic] += 1
    hot = [
        (at, rate * counts[at.topic] / totals[at.topic])
        for at, rate in rates.items()
        if totals[at.topic] >= _BUSY_TOPIC and rate > _HOT * totals[at.topic] / counts[at.topic]
    ]
    hot.sort(key=lambda row: (-rates[row[0]], row[0]))
    return hot


def _hot(facts: ClusterFacts) -> Iterator[Found]:
    hot = hot_partitions(facts.rates)
    if hot:
        rows = [
            f"{at} ({facts.rates[at]:,.0f} messages/s, {times:.1f} times its share)"
            for at, times in hot
        ]
        yield Found(
            f"hot: {listed(rows)}",
            "use keys with more values, or send without keys",
            [str(at) for at, _ in hot],
        )


def _hot_keys(facts: ClusterFacts) -> Iterator[Found]:
    for at, sample in sorted(facts.keys.items()):
        if sample.messages < _LEAST_KEYS or not sample.commonest:
            continue
        key, count = sample.commonest[0]
        if key is not None and count > _HOT_KEY * sample.messages:
            share = percent(count / sample.messages)
            yield Found(
                f"key {shown_key(key)} is {share} of {sample.messages:,} sampled messages of {at}",
                "split the key (KEY-1, KEY-2, …), or send its messages without a key",
                [str(at)],
            )


def shown_key(key: bytes) -> str:
    """A key as people can read it, at most 40 characters."""
    text = key[: _LONGEST_KEY * 4].decode("utf-8", "replace")
    printable = "".join(letter if letter.isprintable() else "�" for letter in text)
    return repr(
        printable if len(printable) <= _LONGEST_KEY else printable[: _LONGEST_KEY - 1] + "…"
    )


# Disks and retention -----------------------------------------------------------------------------


def _disks_between(low: float, high: float) -> Callable[[ClusterFacts], Iterator[Found]]:
    def rule(facts: ClusterFacts) -> Iterator[Found]:
        rows = []
        for broker_id, disk in sorted(facts.disks.items()):
            if disk.total_bytes > 0 and disk.usable_bytes >= 0:
                used = 1 - disk.usable_bytes / disk.total_bytes
                if low < used <= high:
                    rows.append(f"broker {broker_id} ({percent(used)})")
        if rows:
            yield Found(
                f"disks are filling: {listed(rows)}",
                "lower retention (penstock topic alter NAME -c retention.ms=1d), add disk, or move"
                " replicas: penstock cluster balance --replicas",
                rows,
            )

    return rule


def projected_bytes(facts: ClusterFacts, at: TopicPartition, size_bytes: int) -> float | None:
    """The size that a log comes to at the growth of its lifetime so far; None: unknown or without limit."""
    first_ms = facts.first_timestamps_ms.get(at)
    retention_ms = facts.number(at.topic, "retention.ms")
    if first_ms is None or retention_ms is None or "delete" not in facts.policies(at.topic):
        return None
    age_ms = facts.now_ms - first_ms
    if age_ms < _LEAST_AGE_MS:
        return None
    limit_bytes = facts.number(at.topic, "retention.bytes")
    projected = size_bytes / age_ms * retention_ms if retention_ms >= 0 else None
    if limit_bytes is not None and limit_bytes >= 0:
        most = limit_bytes + (facts.number(at.topic, "segment.bytes") or 0)
        return most if projected is None else min(projected, most)
    return projected


def _does_not_fit(facts: ClusterFacts) -> Iterator[Found]:
    for broker_id, disk in sorted(facts.disks.items()):
        growth: Counter[str] = Counter()
        for at, size_bytes in disk.sizes_bytes.items():
            projected = projected_bytes(facts, at, size_bytes)
            if projected is not None and projected > size_bytes:
                growth[at.topic] += round(projected - size_bytes)
        needed = sum(growth.values())
        if 0 <= disk.usable_bytes < needed:
            topic = growth.most_common(1)[0][0]
            yield Found(
                f"broker {broker_id} needs {size(needed)} more for what retention keeps,"
                f" and has {size(disk.usable_bytes)} (most of it: {topic})",
                f"penstock topic alter {topic} -c retention.ms=… (or retention.bytes), or add disk",
                [name for name, _ in growth.most_common()],
            )


def _unlimited(facts: ClusterFacts) -> Iterator[Found]:
    found = [
        topic
        for topic in facts.topics
        if topic not in INTERNAL
        and facts.policies(topic) == {"delete"}
        and facts.number(topic, "retention.ms") == -1
        and facts.number(topic, "retention.bytes") == -1
    ]
    if found:
        yield Found(
            f"{counted(len(found), 'topic')} without any limit of retention: {listed(found)}",
            f"penstock topic alter {found[0]} -c retention.bytes=100GB, if messages may go",
            found,
        )


def _long_segments(facts: ClusterFacts) -> Iterator[Found]:
    found = []
    for topic in facts.topics:
        retention_ms = facts.number(topic, "retention.ms") or -1
        segment_ms = facts.number(topic, "segment.ms") or -1
        is_short = topic not in INTERNAL and 0 < retention_ms < segment_ms
        if is_short and facts.policies(topic) == {"delete"}:
            found.append(topic)
    if found:
        topic = found[0]
        segment_ms, retention_ms = (
            facts.number(topic, name) or 0 for name in ("segment.ms", "retention.ms")
        )
        yield Found(
            f"segment.ms is longer than retention.ms: {listed(found)}"
            f" ({topic}: {duration(segment_ms)} and {duration(retention_ms)})",
            f"penstock topic alter {topic} -c segment.ms={max(1, retention_ms // 4)}",
            found,
        )


_P, _W, _N = Severity.PROBLEM, Severity.WARNING, Severity.NOTE

LOAD_CHECKS: Final[tuple[Check[ClusterFacts], ...]] = (
    Check("leaders-uneven", _W, "a broker leads 20 % more partitions than its share, and at least 3", "The broker that leads does most of the work.", _uneven_leaders),
    Check("replicas-uneven", _N, "a broker has 20 % more replicas than its share, and at least 3", "Disk and network of that broker fill first.", _uneven_replicas),
    Check("bytes-uneven", _N, "a broker has 20 % more bytes than its share, and at least 1 GiB", "Its disk fills first.", _uneven_bytes),
    Check("hot-partition", _W, "a partition gets more than twice its share of a topic with 100 messages/s or more", "One broker and one member of each group carry it; more partitions do not help.", _hot),
    Check("hot-key", _W, "one key is more than half of the sampled messages of a hot partition", "All messages of a key go to one partition.", _hot_keys),
    Check("broker-disk-filling", _W, "more than 80 % of a broker's disk is used", "A full disk makes the broker reject writes.", _disks_between(_FILLING, _FULL)),
    Check("broker-disk-full", _P, "more than 95 % of a broker's disk is used", "A full disk makes the broker reject writes.", _disks_between(_FULL, 1.0)),
    Check("retention-too-long", _P, "logs that grow as they have so far need more disk than there is before retention deletes", "The disk fills before the first message is old enough to be deleted.", _does_not_fit),
    Check("retention-unlimited", _N, "neither retention.ms nor retention.bytes limits a topic", "It grows until the disk is full.", _unlimited),
    Check("segment-outlives-retention", _N, "segment.ms is longer than retention.ms", "Segments are deleted whole, by their newest message: while writes go on, old messages stay for up to segment.ms.", _long_segments),
)  # fmt: skip
