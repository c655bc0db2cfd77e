import subprocess
import sys
from threading import Event

import pytest

from penstock.storage import syncs as syncs_module
from penstock.storage.syncs import Syncs
from penstock.storage.threads import DaemonThreads


def test_work_is_done_by_as_many_threads_as_were_asked_for() -> None:
    first, second = Event(), Event()

    def meet(mine: Event, other: Event) -> bool:
        mine.set()
        return other.wait(60)

    with DaemonThreads(2, "t") as threads:
        met = [threads.submit(meet, first, second), threads.submit(meet, second, first)]
        assert all(future.result(60) for future in met)
        assert list(threads.map(lambda number: number * 2, range(100))) == list(range(0, 200, 2))


def test_what_fails_fails_for_whoever_waits_for_it() -> None:
    def fail() -> None:
        raise ValueError("no")

    with DaemonThreads(1, "t") as threads:
        failed = threads.submit(fail)
        assert threads.submit(int, "7").result(60) == 7
        with pytest.raises(ValueError, match="no"):
            failed.result()


def test_after_its_end_nothing_is_begun() -> None:
    threads = DaemonThreads(1, "t")
    running, go_on = Event(), Event()

    def wait() -> bool:
        running.set()
        return go_on.wait(60)

    begun = threads.submit(wait)
    waiting = threads.submit(int, "7")
    running.wait(60)
    threads.shutdown(wait=False, cancel_futures=True)
    go_on.set()
    threads.shutdown()
    assert begun.result(60)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError):
        threads.submit(int, "8")


def test_a_process_ends_although_a_thread_hangs() -> None:
    program = (
        "from threading import Event\n"
        "from penstock.storage.threads import DaemonThreads\n"
        "begun = Event()\n"
        "DaemonThreads(1, 't').submit(lambda: begun.set() or Event().wait())\n"
        "begun.wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_sync_that_does_not_return_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(syncs_module, "monotonic", lambda: now_s)
    syncs = Syncs()
    with syncs.of("/data/t/00.log"):
        for _ in range(6):
            now_s += 5
            assert syncs.hung(30) is None
        now_s += 1
        assert syncs.hung(30) == "/data/t/00.log: a sync has not returned for 31 s"
    assert syncs.hung(30) is None


def test_time_in_which_the_process_was_stopped_does_not_count_for_a_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(syncs_module, "monotonic", lambda: now_s)
    syncs = Syncs()
    with syncs.of("/data/t/00.log"):
        assert syncs.hung(30) is None
        now_s += 3600  # counts as 7.5 s
        for _ in range(5):
            assert syncs.hung(30) is None
            now_s += 5
        assert syncs.hung(30) == "/data/t/00.log: a sync has not returned for 32 s"


def test_a_sync_that_hangs_is_found_however_seldom_anybody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy process, or a limit of milliseconds."""
    now_s = 100.0
    monkeypatch.setattr(syncs_module, "monotonic", lambda: now_s)
    syncs = Syncs()
    with syncs.of("/data/t/00.log"):
        for _ in range(4):
            now_s += 1000
            assert syncs.hung(30) is None
        now_s += 1000
        assert syncs.hung(30) is not None
