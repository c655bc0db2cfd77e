"""Texts of /proc and /sys are read as they are written, and any other text is unknown, never an error."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.doctor import proc
from penstock.doctor.host_facts import Limits, Mount, Nic

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max open files            1024                 524288               files     
Max locked memory         8388608              8388608              bytes     
"""  # noqa: W291
MEMORY = "MemTotal:       24684084 kB\nSwapTotal:       2097148 kB\nSwapFree:        1048572 kB\n"
MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 27 8:17 / /var/lib/my\040data rw,noatime shared:3 - xfs /dev/sdb1 rw,attr2
33 27 0:44 / /mnt rw,relatime - nfs4 host:/x rw,vers=4.2
"""
CPU_STAT = "usage_usec 9\nnr_periods 200\nnr_throttled 50\nthrottled_usec 7\n"


def test_limits_of_open_files() -> None:
    assert proc.open_files(LIMITS) == Limits(1024, 524288)
    assert proc.open_files(LIMITS.replace("524288", "unlimited")) == Limits(1024, None)


@pytest.mark.parametrize(
    "text", [None, "", "Max open files", "Max open files 1024", "Max open files x y files"]
)
def test_limits_that_are_not_whole_are_unknown(text: str | None) -> None:
    assert proc.open_files(text) is None


def test_memory_in_bytes() -> None:
    assert proc.kilobytes(MEMORY, "MemTotal") == 24684084 * 1024
    assert proc.kilobytes(MEMORY, "Cached") is None
    assert proc.kilobytes("MemTotal: 5 MB", "MemTotal") is None
    assert proc.kilobytes("MemTotal: many kB", "MemTotal") is None
    assert proc.kilobytes("MemTotal:", "MemTotal") is None


def test_a_mount_holds_what_is_below_it() -> None:
    mounts = proc.mounts(MOUNTS)
    at = proc.mount_of("/var/lib/my data/penstock", mounts)
    assert at == Mount("/var/lib/my data", "xfs", ("rw", "noatime", "attr2"), "8:17")
    root = proc.mount_of("/var/lib/my data 2", mounts)
    assert root is not None
    assert root.kind == "ext4"
    assert proc.mount_of("/mnt", mounts) == mounts[3]
    assert proc.mount_of("/mntx", mounts) == mounts[1]
    assert proc.mount_of("/", []) is None


def test_the_later_of_two_mounts_at_one_place_is_in_force() -> None:
    again = MOUNTS + "40 27 0:50 / /mnt rw - tmpfs none rw\n"
    found = proc.mount_of("/mnt/x", proc.mounts(again))
    assert found is not None
    assert found.kind == "tmpfs"


def test_mounts_that_are_not_whole_are_left_out() -> None:
    assert proc.mounts("22 27 0:21 / /proc rw\n - \n\nx - y z\n") == []
    assert proc.mounts(None) == []


def test_the_release_of_a_kernel() -> None:
    assert proc.kernel_release("6.18.44-fc-v669") == (6, 18)
    assert proc.kernel_release("4.4") == (4, 4)
    assert proc.kernel_release("six") is None
    assert proc.kernel_release(None) is None


def test_the_choice_in_brackets() -> None:
    assert proc.chosen("always [madvise] never\n") == "madvise"
    assert proc.chosen("always madvise") is None


def test_the_maximum_of_three() -> None:
    assert proc.last_of_three("4096\t131072\t33554432\n") == 33554432
    assert proc.last_of_three("4096 131072") is None
    assert proc.last_of_three("1 2 x") is None


def test_limits_of_cgroup_v2() -> None:
    assert proc.cpu_max("150000 100000\n") == 1.5
    assert proc.cpu_max("max 100000\n") == math.inf
    for text in (None, "", "max", "x 100000", "100000 0", "0 100000", "max x"):
        assert proc.cpu_max(text) is None
    assert proc.memory_limit("max\n") == math.inf
    assert proc.memory_limit("1073741824\n") == 1 << 30


def test_limits_of_cgroup_v1() -> None:
    assert proc.cpu_quota_v1("50000\n", "100000\n") == 0.5
    assert proc.cpu_quota_v1("-1\n", "100000\n") == math.inf
    assert proc.cpu_quota_v1("0\n", "100000\n") == math.inf
    assert proc.cpu_quota_v1("50000", None) is None
    assert proc.cpu_quota_v1("50000", "0") is None
    assert proc.memory_limit("9223372036854771712\n") == math.inf
    assert proc.memory_limit("-5") is None


def test_paths_of_control_groups() -> None:
    assert proc.cgroup_paths("0::/system.slice/penstock.service\n") == {
        "": "/system.slice/penstock.service"
    }
    text = "4:memory:/a/b\n2:cpu,cpuacct:/c\nnonsense\n3:x:relative\n"
    assert proc.cgroup_paths(text) == {"memory": "/a/b", "cpu": "/c", "cpuacct": "/c"}


def test_the_share_of_throttled_periods() -> None:
    assert proc.throttled_share(CPU_STAT) == 0.25
    assert proc.throttled_share("usage_usec 9\n") == 0.0
    assert proc.throttled_share("") is None


def test_the_share_of_stolen_time() -> None:
    assert proc.steal_share("cpu  10 10 10 50 5 0 5 10 3 0\ncpu0 1\n") == 0.1
    for text in (None, "", "cpu", "cpu 1 2 3", "cpu a b c d e f g h", "cpu 0 0 0 0 0 0 0 0", "x 1"):
        assert proc.steal_share(text) is None


def test_an_interface_and_its_counters() -> None:
    texts: dict[str, str | None] = {
        "speed": "10000\n",
        "duplex": "full\n",
        "statistics/rx_packets": "90\n",
        "statistics/tx_packets": "10\n",
        "statistics/rx_errors": "1\n",
        "statistics/tx_dropped": "2\n",
        "statistics/tx_errors": "odd",
    }
    assert proc.nic("eth0", texts) == Nic("eth0", 10000, "full", 100, 1, 2)
    virtual = proc.nic("eth0", {"speed": "-1\n", "duplex": "unknown\n"})
    assert virtual == Nic("eth0", None, None, 0, 0, 0)


words = st.sampled_from(
    ["cpu", "max", "-1", "0", "7", "99999999999999999999", "Max open files", ":", "::/", " - ", "/", "\\", r"\040", "[", "]", "kB", "MemTotal:", "\n", "\t", " ", "²", "x"]
)  # fmt: skip
texts = st.one_of(st.text(max_size=200), st.lists(words, max_size=40).map("".join))


@given(texts)
def test_no_text_is_an_error(text: str) -> None:
    for parse in (
        proc.whole,
        proc.natural,
        proc.last_of_three,
        proc.chosen,
        proc.kernel_release,
        proc.open_files,
        proc.counters,
        proc.throttled_share,
        proc.steal_share,
        proc.cpu_max,
        proc.memory_limit,
        proc.cgroup_paths,
        proc.mounts,
    ):
        parse(text)
    proc.kilobytes(text, "MemTotal")
    proc.cpu_quota_v1(text, text)
    proc.nic("eth0", {"speed": text, "duplex": text, "statistics/rx_errors": text})
    proc.mount_of("/var", proc.mounts(text))


@given(texts)
def test_shares_are_shares(text: str) -> None:
    for share in (proc.steal_share(text),):
        assert share is None or 0 <= share <= 1


@given(st.integers(0, 2**63), st.integers(1, 10**6))
def test_a_quota_is_read_as_it_is_written(quota: int, period: int) -> None:
    expected = quota / period if quota else None
    assert proc.cpu_max(f"{quota} {period}\n") == expected


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map("/".__add__))
def test_any_path_of_a_mount_is_found_again(path: str) -> None:
    escaped = path.replace("\\", r"\134").replace(" ", r"\040")
    [mount] = proc.mounts(f"1 2 8:1 / {escaped} rw - ext4 /dev/sda1 rw\n")
    assert mount.path == path
