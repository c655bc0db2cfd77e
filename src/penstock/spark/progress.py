"""How far a job is, on stderr: one line rewritten in place on a terminal, else a line every ten seconds."""

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self, TextIO

_REWRITE_S: Final = 0.2
_LINE_S: Final = 10.0
_LOOK_S: Final = 0.5
FIRST_BATCH: Final = "the first batch is under way"
_CLEAR: Final = "\r\x1b[K"
_OURS: Final = re.compile(r"^penstock\.[\w.]+: ", re.MULTILINE)  # the last line of a traceback
_ENDED: Final = re.compile(  # in Spark's words: a job was cancelled, or a process of Spark's has gone
    r"SPARK_JOB_CANCELLED|\b(Job|Stage)( \d+)? cancelled\b|SparkContext (was|has been) shut ?down|"
    r"stopped SparkContext|Python worker exited unexpectedly|Python worker .*connect back|Py4JNetworkError"
)


class Progress:
    """Used by one thread at a time, and its own watcher. What it shows is gone when the block ends; what it says stays."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._clock = clock
        self._next_s = 0.0 if self._is_terminal else clock() + _LINE_S
        self._shown = False
        self._was_asked = False  # to end
        self._is_ending = False  # asked to end, and has not raised yet
        self._doing: str | None = None  # until something else is shown
        self._lock = threading.Lock()  # of the stream, and of what is being done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()

    def show(self, text: str) -> None:
        """The present state; most calls show nothing. Raises KeyboardInterrupt if `end_soon` was called."""
        self.end_if_asked()
        with self._lock:
            self._doing = None
            self._write(text)

    def _write(self, text: str) -> None:
        """With the lock held."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (_REWRITE_S if self._is_terminal else _LINE_S)
        self._stream.write(f"{_CLEAR}{text}" if self._is_terminal else f"{text}\n")
        self._stream.flush()
        self._shown = self._is_terminal

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Shows it while the block runs, which may take long to show anything itself."""

        def look() -> None:
            with self._lock:
                if self._doing is not None:
                    self._write(self._doing)

        self.show(what)
        self._doing = what
        try:
            with _looking(look):
                yield
        finally:
            self._doing = None

    def end_soon(self) -> bool:
        """The job is to end as with Ctrl-C where nothing is half said to Spark; False if that was asked before.

        Called by a signal's handler, which may be in the middle of anything.
        """
        if self._was_asked:
            return False
        self._was_asked = self._is_ending = True
        return True

    def end_if_asked(self) -> None:
        """Raises KeyboardInterrupt, once, if `end_soon` was called. To be called where the job may end."""
        if self._is_ending and _is_main():
            self._is_ending = False
            raise KeyboardInterrupt

    def pause(self, seconds: float) -> None:
        """Sleeps; raises as `show` does, and soon: a sleep goes on after a signal was handled."""
        left_s = seconds
        self.end_if_asked()
        while left_s > 0:
            time.sleep(min(left_s, _LOOK_S))
            left_s -= _LOOK_S
            self.end_if_asked()

    def say(self, text: str) -> None:
        """A line that stays. Raises as `show` does."""
        self._clear()
        self._stream.write(text + "\n")
        self._stream.flush()
        self.end_if_asked()

    def follow(self, query: Any, meter: "Meter | None" = None) -> "Meter":
        """Shows a StreamingQuery until it ends, or until Ctrl-C ends it; raises what else ended it.

        `meter`: it has seen the same query before, which was started again.
        """
        seen = Meter() if meter is None else meter
        try:
            with self.or_asked():
                while not query.awaitTermination(_LOOK_S):
                    seen.see(query.recentProgress)
                    self.show(seen.line())
            seen.see(query.recentProgress)
        except KeyboardInterrupt:
            seen.was_interrupted = True
            with suppress(Exception):  # whoever asked us to end may have ended Spark, too
                query.stop()
                seen.see(query.recentProgress)
        except Exception:
            with suppress(Exception):  # Spark may be gone
                seen.see(query.recentProgress)
            raise
        return seen

    @contextmanager
    def or_asked(self) -> Iterator[None]:
        """After `end_soon`, that Spark has ended is that end: a service manager asks its processes at the same time.

        Any other failure is raised: it would be there without being asked, too.
        """
        try:
            yield
        except Exception as error:
            if self._was_asked and _is_main() and is_end(error):
                self._is_ending = False
                raise KeyboardInterrupt from error
            raise

    @contextmanager
    def tasks(self, session: Any, doing: str) -> Iterator[None]:
        """Shows how many tasks of a batch query are done, while the block runs it; cancels them after `end_soon`."""

        def look() -> None:
            self.show(f"{doing}{_tasks(tracker)}")
            if self._is_ending:
                with suppress(Exception):  # Spark may be gone, which the block will see
                    session.sparkContext.cancelAllJobs()

        self.show(doing)
        with self.or_asked():
            tracker = session.sparkContext.statusTracker()
            with _looking(look):
                yield

    def _clear(self) -> None:
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = False


def _is_main() -> bool:
    """No other thread is interrupted."""
    return threading.current_thread() is threading.main_thread()


def is_end(error: BaseException) -> bool:
    """It tells that Spark has ended, or that a job was cancelled, and not that something failed."""
    if isinstance(error, (ConnectionError, EOFError)):  # py4j's; brokers' are ClientErrors
        return True
    if not _is_sparks(error):
        told = error.__cause__  # a job may say it in words of its own
        return told is not None and _is_sparks(told) and is_end(told)
    try:
        text = f"{error}\n{getattr(error, '_stackTrace', '')}"
    except Exception:  # noqa: BLE001  # the JVM that knew it is gone
        return True
    if _OURS.search(text):
        return False
    is_java = not type(error).__module__.startswith("py4j") or hasattr(error, "java_exception")
    return not is_java or bool(_ENDED.search(text)) or _is_spark_stopped()


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("py4j", "pyspark")


def _is_spark_stopped() -> bool:
    """It is ending, or cannot be asked; then it fails in many ways."""
    pyspark: Any = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.SparkContext._active_spark_context
    try:
        return context is not None and bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001  # py4j's, when the JVM goes away
        return True


@contextmanager
def _looking(look: Callable[[], None]) -> Iterator[None]:
    """Again and again while the block runs, by another thread."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_LOOK_S):
            look()

    watcher = threading.Thread(target=run, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


class Meter:
    """Sums what a streaming query reports; it reports some batches again, and idle ones with no rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.rows_per_s = 0.0
        self.lag: int | None = None
        self.was_interrupted = False
        self.is_first = True  # no batch has ended yet
        self._last_batch = -1

    def see(self, reports: Sequence[Mapping[str, Any]]) -> None:
        for report in reports:
            if report["batchId"] > self._last_batch and report["numInputRows"]:
                self._last_batch = report["batchId"]
                self.rows += report["numInputRows"]
                self.rows_per_s = report.get("processedRowsPerSecond") or 0.0
        if reports:
            self.is_first = False
            self.lag = lag(reports[-1])

    def line(self) -> str:
        if self.is_first:
            return FIRST_BATCH
        behind = "" if self.lag is None else f", lag {self.lag:,}"
        return f"{self.rows:,} rows, {self.rows_per_s:,.0f} rows/s{behind}"


def lag(report: Mapping[str, Any]) -> int | None:
    """Offsets that the brokers have and the query has not read; None if its sources do not tell."""
    behind = None
    for source in report.get("sources", ()):
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if latest is not None:
            read = end or {}
            missing = sum(max(0, last - read.get(place, 0)) for place, last in latest.items())
            behind = missing + (behind or 0)
    return behind


def _offsets(value: Any) -> dict[tuple[str, str], int] | None:
    """{topic: {partition: offset}} flattened; None for anything else."""
    if isinstance(value, str):
        value = _parse(value)
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        return None
    return {
        (topic, partition): offset
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
        if isinstance(offset, int)
    }


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _tasks(tracker: Any) -> str:
    """`, 3 of 8 tasks`; nothing while no stage runs, or when Spark is ending."""
    done = total = 0
    try:
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
    except Exception:  # noqa: BLE001  # py4j's, when the JVM goes away
        return ""
    return f", {done} of {total} tasks" if total else ""
