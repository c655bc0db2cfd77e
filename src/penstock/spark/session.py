"""Starts Spark for a job: the right Java and Python, UTC, a quiet log; whatever fails is one line with its remedy.

What the JVM and its workers print goes to a file, so that a terminal shows the job and nothing else.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from penstock.spark.errors import JobError, cause, explain
from penstock.spark.java import find_java, make_home

LOCAL: Final = "local[*]"
OLDEST_PYSPARK: Final = (4, 3)
REMEDY: Final = "pip install 'penstock[spark]'"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_LOCAL_MASTER: Final = re.compile(r"local(?:\[(?P<threads>\*|\d+)(?:,\d+)?\])?")
_MASTER: Final = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?|(spark|k8s|mesos)://.+|yarn|local-cluster\[.+\]"
)
_CHATTY: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")  # whole stacks, as JSON
_LOGGED: Final = re.compile(r"\d\d:\d\d:\d\d ERROR [^:]+: ")  # as log4j2.properties lays it out
_IDLE_TALK: Final = ("\tat ", "WARNING: ", "Picked up ", "Setting default log", "To adjust logging")
_ENDING_S: Final = 5.0
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has started the JVM


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Where to run, and what to set beyond `confs`."""

    name: str = "penstock"
    master: str = LOCAL
    confs: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def open_session(settings: SessionSettings) -> Iterator[Any]:
    """A SparkSession with a JVM of its own; both end with the block."""
    check_pyspark()
    be_quiet()
    with tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True) as home:
        launcher = _Launcher(settings, Path(home))
        try:
            session = launcher.start()
        except BaseException:  # also Ctrl-C: a JVM would outlive us, and write where we clean up
            launcher.end_jvm()
            raise
        try:
            yield session
        except Exception as error:
            keep_words(error)
            launcher.check_alive(error)
            raise
        finally:
            launcher.stop(session)


def check_pyspark() -> None:
    """pyspark is an extra, and older ones lack parts of the data source API."""
    try:
        import pyspark
    except ImportError:
        raise JobError(f"pyspark is not installed; install it with: {REMEDY}") from None
    found = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if found < OLDEST_PYSPARK:
        oldest = ".".join(map(str, OLDEST_PYSPARK))
        raise JobError(
            f"pyspark is {pyspark.__version__}, and {oldest} or newer is needed; "
            f"install it with: {REMEDY}"
        )


def be_quiet() -> None:
    """Errors are raised; pyspark would also print them."""
    from pyspark.logger import PySparkLogger

    for name in _CHATTY:
        PySparkLogger.getLogger(name).disabled = True


def is_master(text: str) -> bool:
    """`local[*]`, `spark://host:7077`, `k8s://…`, `yarn`."""
    return bool(_MASTER.fullmatch(text))


def local_threads(master: str, cores: int) -> int | None:
    """How many tasks run at once in a local session; None for a cluster."""
    found = _LOCAL_MASTER.fullmatch(master)
    if not found:
        return None
    threads = found["threads"] or "1"
    return cores if threads == "*" else int(threads)


def confs(settings: SessionSettings, home: Path, cores: int) -> dict[str, str]:
    """Everything that is set; the caller's word is the last."""
    chosen = {
        "spark.app.name": settings.name,
        "spark.master": settings.master,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.worker.reuse": "true",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} -Dderby.system.home={home}"
        ),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }
    if find_spec("pandas") is None:  # or else every udf warns that it is not there
        chosen["spark.sql.execution.pythonUDF.arrow.enabled"] = "false"
    threads = local_threads(settings.master, cores)
    if threads is not None:
        chosen |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(home / "local"),
            "spark.sql.shuffle.partitions": str(threads),
            "spark.default.parallelism": str(threads),
        }
    return {**chosen, **settings.confs}


class _Launcher:
    """One JVM: started, then asked for a session, and ended again."""

    def __init__(self, settings: SessionSettings, home: Path) -> None:
        self._confs = confs(settings, home, os.cpu_count() or 1)
        if _SUBMITTED in os.environ:  # where and how to run has been said to spark-submit
            self._confs = {
                name: value
                for name, value in self._confs.items()
                if name.startswith("spark.sql.") or name in settings.confs
            }
        self._home = home
        self._log_path = home / "spark.log"
        self._gateway: Any = None

    def start(self) -> Any:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        started_s = time.monotonic()
        conf = SparkConf(loadDefaults=False).setAll(list(self._confs.items()))
        variables = self._variables()
        with _environment(variables), _signals_put_off():
            self._gateway = self._launch(conf)
        try:
            with _environment(variables):  # now it looks for the Python that runs users' functions
                context = SparkContext(conf=conf, gateway=self._gateway)
            context.setLogLevel("ERROR")
            session = SparkSession(context)
        except Exception as error:
            self.check_alive(error)
            reason = explain(error)
            self.end_jvm()
            raise JobError(f"Spark did not start: {reason}") from error
        session.started_in_s = time.monotonic() - started_s
        return session

    def check_alive(self, error: Exception) -> None:
        """A JVM that ended is the cause of whatever failed afterwards."""
        process = self._gateway and self._gateway.proc
        if process is None:
            return
        try:
            process.wait(_ENDING_S if _is_lost(error) else 0)
        except subprocess.TimeoutExpired:
            return
        raise JobError(f"Spark ended: {self._last_words()}") from error

    def stop(self, session: Any) -> None:
        """Also after the JVM has died, when nothing can be asked of it."""
        try:
            with warnings.catch_warnings(action="ignore"):
                session.stop()
        except Exception:  # noqa: BLE001  # py4j raises what it likes
            pass
        self.end_jvm()

    def end_jvm(self) -> None:
        from pyspark import SparkContext

        gateway, self._gateway = self._gateway, None
        if gateway is None or gateway.proc is None:
            return
        # so that the next one starts a JVM of its own, also after this one died
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        try:
            gateway.shutdown()
        except Exception:  # noqa: BLE001  # it may be gone already
            pass
        gateway.proc.stdin.close()
        gateway.proc.wait()

    def _variables(self) -> dict[str, str]:
        python = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        if _SUBMITTED in os.environ:
            return python
        if shutil.which("bash") is None:
            raise JobError("Spark's scripts need bash, and there is none on PATH; install bash")
        java_home = make_home(find_java(), self._home / "java")
        return {**python, "JAVA_HOME": str(java_home)}

    def _launch(self, conf: Any) -> Any:
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway

        with open(self._log_path, "ab") as log:
            # a signal for the whole group is ours alone: we end the JVM, when nothing is half said to it
            how = {"stdout": log, "stderr": log, "start_new_session": True}
            try:
                return launch_gateway(conf, how)
            except PySparkException:
                raise JobError(f"Spark did not start: {self._last_words()}") from None

    def _last_words(self) -> str:
        """Why the JVM ended: the last error that it logged, else the first thing that it said."""
        lines = self._log_path.read_text(errors="replace").splitlines()
        told = [line.strip() for line in lines if _is_telling(line)]
        logged = [line for line in told if _LOGGED.match(line)]
        said = _LOGGED.sub("", logged[-1]) if logged else (told or ["it does not say why"])[0]
        return cause(said)


def _is_lost(error: Exception) -> bool:
    """py4j speaks to the JVM through a socket."""
    return isinstance(error, OSError) or type(error).__module__.startswith("py4j.")


def keep_words(error: BaseException) -> None:
    """What Spark raises asks the JVM for its text; a traceback is printed when that is gone."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        left += [each.__cause__, each.__context__]
        if type(each).__module__.partition(".")[0] in ("pyspark", "py4j"):
            _keep(each)


def _keep(error: Any) -> None:
    kind = type(error)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the JVM is gone already
        text = "Spark ended"
    same = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    error.__class__ = type(kind.__name__, (kind,), {**same, "__str__": lambda _: text})
    if hasattr(error, "java_exception"):
        error.java_exception = None  # nothing can be asked of it


def _is_telling(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(_IDLE_TALK)


@contextmanager
def _signals_put_off() -> Iterator[None]:
    """Ctrl-C is taken when the block has ended: a JVM that is half started cannot be ended. A second one is taken at once."""
    is_main = threading.current_thread() is threading.main_thread()  # no other gets signals
    before = {int(number): signal.getsignal(number) for number in _STOPPING if is_main}
    came: list[int] = []

    def take(number: int, frame: Any) -> None:
        handler = before[number]
        assert callable(handler), "only those are put off"
        handler(number, frame)

    def note(number: int, frame: Any) -> None:
        if came:
            take(number, frame)
        came.append(number)

    put_off = [number for number, handler in before.items() if callable(handler)]
    try:
        for number in put_off:
            signal.signal(number, note)
        yield
    finally:
        for number in put_off:
            signal.signal(number, before[number])
    if came:
        take(came[0], None)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Spark reads these when it starts the JVM; afterwards the process is as it was."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
