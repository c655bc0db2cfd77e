"""Parsers of the texts under /proc and /sys. A text that is not as expected is unknown: `None`, never an error."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.doctor.host_facts import Limits, Mount, Nic

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_RELEASE: Final = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)
_CHOSEN: Final = re.compile(r"\[(\w+)\]", re.ASCII)
_NUMBER: Final = re.compile(r"-?\d{1,20}", re.ASCII)
_UNLIMITED_BYTES: Final = 1 << 60  # cgroup v1 writes "no limit" as a number near 2^63
_STEAL: Final = 7  # column of /proc/stat
_TIMES: Final = 8  # user to steal; guest times are part of user


def whole(text: str | None) -> int | None:
    """The number that is the whole text."""
    stripped = (text or "").strip()
    return int(stripped) if _NUMBER.fullmatch(stripped) else None


def natural(text: str | None) -> int | None:
    number = whole(text)
    return number if number is not None and number >= 0 else None


def last_of_three(text: str | None) -> int | None:
    """The maximum of `tcp_rmem` and `tcp_wmem`."""
    words = (text or "").split()
    return natural(words[2]) if len(words) == 3 else None


def chosen(text: str | None) -> str | None:
    """`madvise` of `always [madvise] never`."""
    match = _CHOSEN.search(text or "")
    return match[1] if match else None


def kernel_release(text: str | None) -> tuple[int, int] | None:
    """`(6, 18)` of `6.18.44-generic`."""
    match = _RELEASE.match((text or "").strip())
    return (int(match[1]), int(match[2])) if match else None


def open_files(text: str | None) -> Limits | None:
    """The line `Max open files` of /proc/PID/limits."""
    for line in (text or "").split("\n"):
        if line.startswith("Max open files"):
            words = line.split()[3:5]
            numbers = [None if word == "unlimited" else natural(word) for word in words]
            is_whole = len(words) == 2 and all(
                number is not None or word == "unlimited"
                for number, word in zip(numbers, words, strict=True)
            )
            return Limits(*numbers) if is_whole else None
    return None


def kilobytes(text: str | None, name: str) -> int | None:
    """Bytes of a line such as `MemTotal:  24684084 kB`."""
    for line in (text or "").split("\n"):
        key, colon, rest = line.partition(":")
        if colon and key == name:
            words = rest.split()
            amount = natural(words[0]) if len(words) == 2 and words[1] == "kB" else None
            return None if amount is None else amount * 1024
    return None


def counters(text: str | None) -> dict[str, int]:
    """Lines of a name and a number: cpu.stat, memory.events."""
    found = {}
    for line in (text or "").split("\n"):
        words = line.split()
        number = natural(words[1]) if len(words) == 2 else None
        if number is not None:
            found[words[0]] = number
    return found


def throttled_share(text: str | None) -> float | None:
    """Periods in which the CPU quota was used up, of all periods, in cpu.stat. No quota, no periods."""
    found = counters(text)
    if not found:
        return None
    periods = found.get("nr_periods", 0)
    return found.get("nr_throttled", 0) / periods if periods else 0.0


def steal_share(text: str | None) -> float | None:
    """Time that the hypervisor gave to others, of all time, in the first line of /proc/stat."""
    first = (text or "").split("\n", 1)[0].split()
    if not first or first[0] != "cpu":
        return None
    times = [natural(word) for word in first[1 : _TIMES + 1]]
    known = [time for time in times if time is not None]
    total = sum(known)
    return known[_STEAL] / total if len(known) == _TIMES and total else None


def cpu_max(text: str | None) -> float | None:
    """Cores of cgroup v2's `cpu.max`: `150000 100000` is 1.5, `max 100000` is no limit."""
    words = (text or "").split()
    if len(words) != 2:
        return None
    period = natural(words[1])
    if not period:
        return None
    if words[0] == "max":
        return math.inf
    quota = natural(words[0])
    return quota / period if quota else None


def cpu_quota_v1(quota: str | None, period: str | None) -> float | None:
    """Cores of cgroup v1's two files; a quota of -1 is no limit."""
    quota_us, period_us = whole(quota), natural(period)
    if quota_us is None or not period_us:
        return None
    return quota_us / period_us if quota_us > 0 else math.inf


def memory_limit(text: str | None) -> float | None:
    """Bytes of `memory.max` (v2) or `memory.limit_in_bytes` (v1)."""
    if (text or "").strip() == "max":
        return math.inf
    number = natural(text)
    if number is None:
        return None
    return math.inf if number >= _UNLIMITED_BYTES else float(number)


def cgroup_paths(text: str | None) -> dict[str, str]:
    """The path for each controller of /proc/PID/cgroup; `""` is cgroup v2."""
    found: dict[str, str] = {}
    for line in (text or "").split("\n"):
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            for controller in parts[1].split(","):
                found[controller] = parts[2]
    return found


def mounts(text: str | None) -> list[Mount]:
    """The lines of /proc/self/mountinfo; lines that are not whole are left out."""
    found = []
    for line in (text or "").split("\n"):
        front, separator, back = line.partition(" - ")
        left, right = front.split(" "), back.split(" ")
        if separator and len(left) >= 6 and len(right) >= 3:
            options = dict.fromkeys((*left[5].split(","), *right[2].split(",")))
            found.append(Mount(_unescaped(left[4]), right[0], tuple(options), left[2]))
    return found


def mount_of(path: str, all_mounts: Iterable[Mount]) -> Mount | None:
    """The mount that holds an absolute path: the longest, and of two at one place the later."""
    best: Mount | None = None
    for mount in all_mounts:
        inside = path == mount.path or path.startswith(mount.path.rstrip("/") + "/")
        if inside and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best


def nic(name: str, texts: Mapping[str, str | None]) -> Nic:
    """An interface from its files in /sys/class/net; counters that cannot be read count as 0."""

    def total(*names: str) -> int:
        return sum(natural(texts.get(f"statistics/{file}")) or 0 for file in names)

    speed = whole(texts.get("speed"))
    duplex = (texts.get("duplex") or "").strip()
    return Nic(
        name,
        speed if speed is not None and speed > 0 else None,
        duplex if duplex in ("full", "half") else None,
        total("rx_packets", "tx_packets"),
        total("rx_errors", "tx_errors"),
        total("rx_dropped", "tx_dropped"),
    )


def _unescaped(text: str) -> str:
    r"""`\040` is a space."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
