"""A standalone Spark cluster out of pyspark's wheel: a master and workers, each a process on loopback that is ended by its own id."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pyspark

from penstock.spark.java import find_java, make_home
from tests.support.command import environment
from tests.support.ports import kept_ports
from tests.support.server import PATIENCE_S, until

HOME = Path(pyspark.__file__).parent
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # they live for seconds only
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Standalone:
    """Running, with all its workers known to the master."""

    def __init__(self, master: str, workers: "list[subprocess.Popen[bytes]]") -> None:
        self.master = master
        self.workers = workers

    def executors(self) -> list[psutil.Process]:
        """Those that run now, whichever worker started them."""
        return [
            child
            for worker in self.workers
            for child in psutil.Process(worker.pid).children(recursive=True)
            if _is_executor(child)
        ]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any(_EXECUTOR in word for word in process.cmdline())
    except psutil.Error:  # ended meanwhile
        return False


@contextmanager
def standalone_cluster(home: Path, workers: int = 2) -> Iterator[Standalone]:
    """A core for each worker. What they write and log is in `home`."""
    port, page, *ports = kept_ports(2 + 2 * workers)
    master = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(home, "master", "master.Master", port, page))
        for number in range(workers):
            own, own_page = ports[2 * number : 2 * number + 2]
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(home / f"work-{number}"))
            name = f"worker-{number}"
            started.append(
                _start(home, name, "worker.Worker", own, own_page, *limits, master),
            )
        until(lambda: _alive(page) == workers, f"{workers} workers are known", 3 * PATIENCE_S)
        yield Standalone(master, started[1:])
    finally:
        for process in reversed(started):
            _end(process)


def _start(
    home: Path, name: str, what: str, port: int, page: int, *more: str
) -> "subprocess.Popen[bytes]":
    """spark-class becomes the JVM: the process that is started is the one to end."""
    variables = environment(
        SPARK_HOME=str(HOME),
        JAVA_HOME=str(make_home(find_java(), home / "java")),
        JAVA_TOOL_OPTIONS=QUICK_JVM,
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_LOCAL_DIRS=str(home / "local"),
        SPARK_DAEMON_MEMORY="256m",
    )
    place = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
    with open(home / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *place, *more],
            env=variables,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _alive(page: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            said: Any = json.load(answer)
    except (OSError, HTTPException, ValueError):
        return 0  # it does not listen yet, or has only its page for people yet
    return int(said["aliveworkers"])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """A worker ends its executors first; who is left afterwards is ended with it."""
    children = psutil.Process(process.pid).children(recursive=True) if _lives(process) else []
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        try:
            child.kill()  # psutil knows by its time of birth that it is the same process
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(children, timeout=PATIENCE_S)


def _lives(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is None and os.path.exists(f"/proc/{process.pid}")
