"""The worker process: does the work, says what went wrong, and never outlives its broker."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import psutil
import pytest

from penstock.storage.compaction import Round
from penstock.storage.worker import Worker, WorkerFailed
from tests.unit.storage.compacted import (
    ALLOWANCE,
    NOW_MS,
    candidate_of,
    config,
    open_compacted,
    read_offsets,
    run,
    write_keys,
)


def test_rounds_run_in_one_process_of_low_priority_until_it_is_closed(tmp_path: Path) -> None:
    worker, log = Worker(), open_compacted(str(tmp_path), topic_config=config())
    assert not worker.is_running
    for number in range(2):
        value = b"%d" % number
        write_keys(log, [(b"a", value), (b"b", value)], [(b"a", value)])
        run(Round(candidate_of(log), ALLOWANCE, worker, NOW_MS))
        assert worker.is_running
    assert read_offsets(log) == [4, 5]
    (child,) = _children()
    assert child.nice() == min(19, 10 + os.getpriority(os.PRIO_PROCESS, 0))
    worker.close()
    assert not worker.is_running
    assert _children() == []


def _children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _is_worker(child)]


def _is_worker(child: psutil.Process) -> bool:
    try:
        return "penstock.storage.worker" in child.cmdline()
    except psutil.NoSuchProcess:  # one of another test, which has ended since it was listed
        return False


def test_a_failure_is_told_and_the_next_task_is_done(tmp_path: Path) -> None:
    worker, log = Worker(), open_compacted(str(tmp_path))
    write_keys(log, [(b"a", b"1")], [(b"a", b"2")])
    round_ = Round(candidate_of(log), ALLOWANCE, worker, NOW_MS)
    missing = round_.job._replace(directory=str(tmp_path / "nowhere"))
    with pytest.raises(WorkerFailed, match=r"clean: .*No such file"):
        worker.clean(missing)
    run(round_)
    assert read_offsets(log) == [1]
    worker.close()


def test_closing_ends_a_task_that_is_under_way(tmp_path: Path) -> None:
    worker, log = Worker(), open_compacted(str(tmp_path))
    write_keys(log, [(b"a", b"1")], [(b"a", b"2")])
    slow = ALLOWANCE._replace(io_bytes_per_second=1e-3)
    round_ = Round(candidate_of(log), slow, worker, NOW_MS)
    failures: list[WorkerFailed] = []

    def wait() -> None:
        try:
            round_.clean()
        except WorkerFailed as failure:
            failures.append(failure)

    waiting = Thread(target=wait)
    waiting.start()
    while not worker.is_running:
        pass
    worker.end()
    waiting.join()
    assert len(failures) == 1
    round_ = Round(candidate_of(log), ALLOWANCE, worker, NOW_MS)
    run(round_)  # another process does it
    assert read_offsets(log) == [1]
    worker.close()


def test_a_worker_that_dies_is_a_failure_and_is_replaced(tmp_path: Path) -> None:
    worker, log = Worker(), open_compacted(str(tmp_path))
    write_keys(log, [(b"a", b"1")], [(b"a", b"2")])
    round_ = Round(candidate_of(log), ALLOWANCE, worker, NOW_MS)
    round_.clean()
    (child,) = _children()
    child.kill()
    with pytest.raises(WorkerFailed, match="ended with status -9"):
        round_.prepare()
    run(round_)
    assert read_offsets(log) == [1]
    worker.close()


def test_a_worker_that_was_closed_starts_no_process() -> None:
    worker = Worker()
    worker.close()
    with pytest.raises(WorkerFailed, match="was closed"):
        worker.prepare("nowhere", [], 1)
    assert not worker.is_running


def test_an_orphan_ends_at_once() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.storage.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.communicate()[0] == b""  # closes its stdin, as the end of the broker does
    assert process.returncode == 0


def test_the_worker_loads_nothing_of_the_broker() -> None:
    program = "import sys, penstock.storage.worker; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = set(output.stdout.decode().split())
    packages = {name.split(".")[1] for name in loaded if name.startswith("penstock.")}
    assert packages == {"model", "records", "storage"}
    assert not loaded & {"asyncio", "confluent_kafka", "numba", "numpy", "pyarrow", "uvloop"}
