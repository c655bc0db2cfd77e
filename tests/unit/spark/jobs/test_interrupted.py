"""A job that is asked to end does so soon, and at once when it is asked again.

Its result says whether it was done.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.job import Job, JobOptions, Plan, Summary, run_job
from penstock.spark.jobs.dlq import job as dlq
from penstock.spark.jobs.dlq import sending
from penstock.spark.jobs.dlq.options import DlqOptions
from penstock.spark.jobs.lake import job as lake
from penstock.spark.jobs.lake.compact import Compacted
from penstock.spark.jobs.lake.options import LakeOptions
from penstock.spark.jobs.mirror import rounds
from penstock.spark.jobs.mirror.options import MirrorOptions
from penstock.spark.jobs.mirror.rounds import Totals
from penstock.spark.jobs.replay import job as replay
from penstock.spark.jobs.replay.options import ReplayOptions
from penstock.spark.jobs.transform import job as transform
from penstock.spark.jobs.transform.options import TransformOptions
from penstock.spark.outgoing import Target
from penstock.spark.progress import Progress
from penstock.spark.survey import Ranges

PLACE = TopicPartition("t", 0)
RANGES = Ranges("cluster", {PLACE: 0}, {PLACE: 100})
NOTHING = Summary({}, ())


class Lost(Exception):
    """As py4j raises it when the JVM has ended."""


Lost.__module__ = "py4j.protocol"


class Chain:
    """A session, a reader, a writer: whatever is called on it gives itself, but for `start`; of a JVM it knows nothing."""

    def __init__(self, *queries: Any) -> None:
        self.started_in_s = 1.0
        self._queries = iter(queries)

    def __getattr__(self, name: str) -> Any:
        if name in ("readStream", "read", "writeStream", "conf", "sparkContext"):
            return self
        if name.startswith("_"):
            raise Lost("the JVM is gone")
        return lambda *_, **__: next(self._queries) if name == "start" else self


class Context:
    """A session whose jobs run until they are cancelled."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.started_in_s = 1.0
        self._cancelled = threading.Event()

    def statusTracker(self) -> Any:
        return SimpleNamespace(getActiveStageIds=list)

    def cancelAllJobs(self) -> None:
        self._cancelled.set()

    def work(self, *_: Any, **__: Any) -> Any:
        terminate()
        assert self._cancelled.wait(20), "a job that nobody cancels"
        raise Lost("Job 0 cancelled")


class Query:
    """Is asked to end while it runs."""

    def __init__(self, *ends: Callable[[], None], batch: int = 0) -> None:
        self._ends = iter(ends)
        self._batch = batch
        self.recentProgress: list[dict[str, Any]] = []
        self.stops = 0

    def awaitTermination(self, seconds: float) -> bool:
        assert seconds > 0
        batch = self._batch + len(self.recentProgress)
        self.recentProgress.append({"batchId": batch, "numInputRows": 10})
        for end in self._ends:
            end()
            return False
        return True

    def stop(self) -> None:
        self.stops += 1


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt() -> None:
    raise KeyboardInterrupt


def lose() -> None:
    """As systemd does it: Spark gets the signal, too."""
    terminate()
    raise Lost("Answer from Java side is empty")


@pytest.fixture(autouse=True)
def _as_the_command_does(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("penstock.spark.job.check_pyspark", lambda: None)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


def run(monkeypatch: pytest.MonkeyPatch, session: Any, work: Callable[[Any], Summary]) -> Summary:
    """Through the job's real signal handler."""

    @contextmanager
    def open_session(_: Any) -> Iterator[Any]:
        yield session

    monkeypatch.setattr("penstock.spark.job.open_session", open_session)
    job = Job(
        name="test",
        options=JobOptions,
        plan=lambda _: Plan({}, ()),
        run=lambda *given: work(given[2]),
        examples=(),
    )
    return run_job(job, JobOptions(), progress=Progress(StringIO()))


# Every job ---------------------------------------------------------------------------------------


def test_a_second_signal_is_taken_at_once_also_when_the_first_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached: list[str] = []

    def work(progress: Progress) -> Summary:
        query = Query(terminate)
        assert progress.follow(query).was_interrupted
        reached.append("the slow part")
        terminate()
        reached.append("too far")
        return NOTHING

    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, Chain(), work)
    assert reached == ["the slow part"]


def test_a_spark_that_ended_with_the_job_is_no_failure_wherever_the_job_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(_: Progress) -> Summary:
        lose()
        return NOTHING

    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, Chain(), work)


def test_a_failure_that_meets_the_signal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(_: Progress) -> Summary:
        terminate()
        raise JobError("another run writes to the table; stop one")

    with pytest.raises(JobError, match="stop one"):
        run(monkeypatch, Chain(), work)


# Transform ---------------------------------------------------------------------------------------


class Batches:
    """Which have a transaction that is open until it is waited for."""

    def __init__(self, *_: Any) -> None:
        self.written = self.size_bytes = self.committed = self.skipped = 0
        self.waited = False
        self.take = None

    def prepare(self, _: Any) -> str:
        return "{}"

    def look(self) -> None:
        """Nothing was left."""

    def wait(self) -> None:
        self.waited = True


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Of transform, for which nothing is asked of a broker."""
    found = Batches()
    for name in ("check_confs", "check", "hold_ids", "_ids"):
        monkeypatch.setattr(transform, name, lambda *_: {})
    monkeypatch.setattr(transform, "_ranges", lambda _: RANGES)
    monkeypatch.setattr(transform, "find_target", lambda _: Target("u", 1))
    monkeypatch.setattr("penstock.spark.checkpoint.claim", lambda *_: None)
    monkeypatch.setattr(transform, "Batches", lambda *_: found)
    return found


def transforming(place: Path, *, follow: bool = False) -> TransformOptions:
    return TransformOptions(
        topics=("t",), to="u", sql="SELECT 1", checkpoint=str(place), follow=follow
    )


@pytest.mark.parametrize("how", [terminate, interrupt, lose])
def test_a_transform_that_was_not_done_says_so_after_its_last_transaction(
    monkeypatch: pytest.MonkeyPatch, batches: Batches, tmp_path: Path, how: Callable[[], None]
) -> None:
    session = Chain(Query(how))
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, session, lambda p: transform.run(session, transforming(tmp_path), p))
    assert batches.waited


@pytest.mark.parametrize("how", [terminate, interrupt, lose])
def test_a_transform_that_follows_is_ended_like_this_and_sums_up(
    monkeypatch: pytest.MonkeyPatch, batches: Batches, tmp_path: Path, how: Callable[[], None]
) -> None:
    session, options = Chain(Query(how)), transforming(tmp_path, follow=True)
    summary = run(monkeypatch, session, lambda p: transform.run(session, options, p))
    assert summary.facts["records_read"] == 10
    assert batches.waited


@pytest.mark.usefixtures("batches")
def test_a_transform_whose_query_was_started_again_counts_all_that_was_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def slow() -> None:
        raise RuntimeError("Python worker failed to connect back.")

    session = Chain(Query(slow), Query(batch=1))
    summary = run(monkeypatch, session, lambda p: transform.run(session, transforming(tmp_path), p))
    assert summary.facts["records_read"] == 20


# Lake --------------------------------------------------------------------------------------------


class Compaction:
    def __init__(self, *_: Any) -> None:
        self.total = Compacted(0, 0)
        self.runs = 0

    def recover(self) -> None:
        """Nothing was left."""

    def run(self) -> None:
        self.runs += 1

    def after_batch(self, _: int) -> None:
        """Not due."""


@pytest.fixture
def compaction(monkeypatch: pytest.MonkeyPatch) -> Compaction:
    """Of lake, for which nothing is asked of a broker."""
    found = Compaction()
    monkeypatch.setattr(lake, "_ranges", lambda _: RANGES)
    monkeypatch.setattr(lake, "_ids", lambda _: {"t": "id"})
    monkeypatch.setattr(lake, "_Compaction", lambda *_: found)
    return found


@pytest.mark.parametrize("how", [terminate, interrupt, lose])
def test_a_lake_that_follows_compacts_nothing_when_it_is_to_end_and_sums_up_without_spark(
    monkeypatch: pytest.MonkeyPatch,
    compaction: Compaction,
    tmp_path: Path,
    how: Callable[[], None],
) -> None:
    session, table = Chain(Query(how)), str(tmp_path / "table")
    options = LakeOptions(topics=("t",), table=table, follow=True, compact=True)
    summary = run(monkeypatch, session, lambda p: lake.run(session, options, p))
    assert compaction.runs == 0
    assert summary.facts["table"] == table


def test_a_lake_that_is_done_compacts(
    monkeypatch: pytest.MonkeyPatch, compaction: Compaction, tmp_path: Path
) -> None:
    session = Chain(Query())
    options = LakeOptions(topics=("t",), table=str(tmp_path / "table"), compact=True)
    run(monkeypatch, session, lambda p: lake.run(session, options, p))
    assert compaction.runs == 1


# Mirror, replay, dlq -----------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_mirror_ends_also_between_two_rounds(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    options = MirrorOptions(what=("t",), target="localhost:1", follow=True, every=10**12)
    monkeypatch.setattr(rounds, "_FIRST_PAUSE_S", 1e9)
    totals = Totals()

    def one_round() -> Any:
        threading.Timer(0.1, terminate).start()
        if fails:
            raise ConnectionError("no broker answers")
        lag = SimpleNamespace(line=lambda: "in step")
        return SimpleNamespace(done=[], translated=None, lag=lag)

    def work(progress: Progress) -> Summary:
        rounds.follow(one_round, options, progress, totals)
        return NOTHING

    if fails:
        with pytest.raises(KeyboardInterrupt):  # nothing was mirrored
            run(monkeypatch, Chain(), work)
    else:
        run(monkeypatch, Chain(), work)
        assert totals.rounds == 1


def test_a_replay_into_a_topic_ends_in_the_middle_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Context()
    transactions = SimpleNamespace(begin=dict, write=session.work)
    for name in ("check_confs", "_records", "with_coordinates"):
        monkeypatch.setattr(replay, name, lambda *_, **__: None)
    monkeypatch.setattr(replay, "_ranges", lambda _: RANGES)
    monkeypatch.setattr(replay, "find_ids", lambda *_: {"t": "id"})
    monkeypatch.setattr(replay, "find_target", lambda _: Target("u", 1))
    monkeypatch.setattr(replay, "Transactions", lambda *_, **__: transactions)
    options = ReplayOptions(topics=("t",), id="one", to="u")
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, session, lambda p: replay.run(session, options, p))


def test_a_replay_into_a_table_ends_in_the_middle_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = Context()
    monkeypatch.setattr(replay, "_ranges", lambda _: RANGES)
    monkeypatch.setattr(replay, "find_ids", lambda *_: {"t": "id"})
    monkeypatch.setattr("penstock.spark.jobs.replay.table.Table.take", session.work)
    options = ReplayOptions(topics=("t",), id="one", table=str(tmp_path / "table"))
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, session, lambda p: replay.run(session, options, p))


def test_letters_that_are_looked_at_before_they_go_back_can_be_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyspark")
    session = Context()
    letters = SimpleNamespace(count=lambda: 1)
    letters.where = lambda *_: letters
    monkeypatch.setattr("penstock.spark.jobs.dlq.letters.once", lambda _: letters)
    monkeypatch.setattr("penstock.spark.jobs.dlq.repair.repaired", lambda *_: letters)
    monkeypatch.setattr("penstock.spark.jobs.dlq.repair.check_once", session.work)
    monkeypatch.setattr("pyspark.sql.functions.lit", lambda _: _Column())
    monkeypatch.setattr("pyspark.sql.functions.col", lambda _: _Column())
    options = DlqOptions(topic="t.dlq", send=True)

    def work(progress: Progress) -> Summary:
        dlq._send(session, options, letters, None, progress)
        return NOTHING

    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, session, work)


class _Column:
    """Of a DataFrame that there is not."""

    def __invert__(self) -> "_Column":
        return self

    def __and__(self, _: Any) -> "_Column":
        return self


def test_letters_go_back_in_whole_transactions_and_none_is_begun_when_the_job_is_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    @contextmanager
    def transaction() -> Iterator[None]:
        done.append("begun")
        terminate()
        yield
        done.append("committed")

    producer: Any = SimpleNamespace(
        transaction=transaction, send=lambda *_: None, flush=lambda: None
    )
    letters = [sending.Outgoing("t", 0, n, "t", None, b"v", []) for n in range(2_000)]

    def work(progress: Progress) -> Summary:
        sending._send(producer, iter(letters), "ledger", progress.end_if_asked)
        return NOTHING

    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, Chain(), work)
    assert done == ["begun", "committed"]
