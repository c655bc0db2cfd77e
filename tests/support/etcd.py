"""An etcd of a test's own: one process or three, to be killed, paused, stopped and started again one by one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from tests.support.cluster import HERE, Place
from tests.support.ports import kept_ports
from tests.support.server import until

_HOST: Final = "127.0.0.1"
_HERE: Final = Path(sys.prefix) / "bin" / "etcd"  # where scripts/install-etcd puts it


def program() -> str | None:
    """PENSTOCK_ETCD names another one than what is installed."""
    return os.environ.get("PENSTOCK_ETCD") or (
        str(_HERE) if _HERE.exists() else shutil.which("etcd")
    )


def missing() -> str | None:
    """Why there can be none here."""
    if program() is None:
        return "etcd is not installed: scripts/install-etcd"
    if find_spec("grpc") is None:
        return "grpc is not installed: pip install 'penstock[etcd]'"
    return None


class Tls(NamedTuple):
    """Files: of the authority, and one pair that serves members and clients."""

    ca: Path
    cert: Path
    key: Path


class EtcdMember:
    """Its data and its ports outlive its process."""

    def __init__(
        self,
        home: Path,
        name: str,
        ports: tuple[int, int, int],
        tls: Tls | None,
        place: Place = HERE,
    ) -> None:
        self.home = home
        self.name = name
        self.address = f"{place.host}:{ports[0]}"
        self.peer_url = f"http://{place.host}:{ports[1]}"
        self._status_url = f"http://{place.host}:{ports[2]}"
        self._run_in = place.run_in
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, f"etcd {self.name} does not run"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def launch(self, cluster: str, flags: Sequence[str]) -> None:
        assert self._process is None, "one process at a time"
        url = f"{'https' if self._tls else 'http'}://{self.address}"
        words = {
            "name": self.name,
            "data-dir": self.home / "data",
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": cluster,
            "listen-metrics-urls": self._status_url,
            "heartbeat-interval": 50,
            "election-timeout": 500,
            "log-level": "warn",
            "unsafe-no-fsync": "true",  # processes are killed here, machines are not
        }
        if self._tls is not None:
            ca, cert, key = self._tls
            words |= {"cert-file": cert, "key-file": key, "trusted-ca-file": ca}
            words["client-cert-auth"] = "true"
        with open(self.home / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._run_in,
                    str(program()),
                    *(f"--{name}={value}" for name, value in words.items()),
                    *flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.home)},
            )

    def is_healthy(self) -> bool:
        """Whether it answers with the consent of a quorum."""
        assert self.process.poll() is None, f"etcd {self.name} has ended:\n{self.log}"
        try:
            with urllib.request.urlopen(f"{self._status_url}/health", timeout=5) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL, also while it is paused."""
        self.process.kill()
        self.process.wait()
        self._process = None

    def stop(self) -> None:
        """SIGTERM: it hands over."""
        self.process.terminate()
        self.process.wait()
        self._process = None

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    @property
    def log(self) -> str:
        path = self.home / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def post(self, path: str, token: str = "", **question: object) -> dict[str, Any]:
        """What only administrators do, through etcd's gateway."""
        request = urllib.request.Request(
            f"http://{self.address}/v3/{path}",
            json.dumps(question).encode(),
            {"Authorization": token} if token else {},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self._status_url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


class Etcd:
    """Members n0, n1, …; used as a context it is healthy inside, and gone after."""

    def __init__(
        self,
        home: Path,
        members: int = 1,
        *,
        tls: Tls | None = None,
        flags: Sequence[str] = (),
        places: Sequence[Place] = (),
    ) -> None:
        """`places`: the host of each member, when they are not all here."""
        self._flags = flags
        self._tls = tls
        ports = iter(kept_ports(3 * members))
        self.members: list[EtcdMember] = []
        for number in range(members):
            place = home / f"n{number}"
            place.mkdir(parents=True, exist_ok=True)
            triple = next(ports), next(ports), next(ports)
            host = places[number] if places else HERE
            self.members.append(EtcdMember(place, f"n{number}", triple, tls, host))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self.members:
            if member.is_running:
                member.kill()
            if error is not None:
                error.add_note(f"the end of the log of etcd {member.name}:\n{member.log}")

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(member.address for member in self.members)

    def url(self, name: str = "test", **options: object) -> str:
        """What `--metadata` takes."""
        if self._tls is not None:
            options = {"ca": self._tls.ca, "cert": self._tls.cert, "key": self._tls.key} | options
        query = "&".join(f"{key.replace('_', '-')}={value}" for key, value in options.items())
        return f"etcd://{','.join(self.addresses)}/{name}" + (f"?{query}" if query else "")

    def start(self, *members: EtcdMember) -> None:
        """Those given, or all that do not run; returns when they are healthy."""
        cluster = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        begun = members or [member for member in self.members if not member.is_running]
        for member in begun:
            member.launch(cluster, self._flags)
        for member in begun:
            until(member.is_healthy, f"etcd {member.name} is healthy")

    def leader(self) -> EtcdMember:
        """The member that leads now, of those that run."""
        found: list[EtcdMember] = []

        def is_found() -> bool:
            running = [member for member in self.members if member.is_running]
            try:
                found[:] = [it for it in running if it.metric("etcd_server_is_leader") == 1]
            except OSError:  # one is too busy to say so
                return False
            return len(found) == 1

        until(is_found, "etcd has one leader")
        return found[0]


@contextmanager
def running(home: Path, members: int = 1, flags: Sequence[str] = ()) -> Iterator[Etcd]:
    with Etcd(home, members, flags=flags) as etcd:
        yield etcd


def make_certificates(home: Path) -> Tls:
    """An authority and a certificate of its own for 127.0.0.1. Needs openssl."""
    home.mkdir(parents=True, exist_ok=True)
    names = home / "names"
    names.write_text(
        f"subjectAltName=IP:{_HOST}\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n"
    )
    new = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    sign = "openssl x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30"
    for line in (
        f"{new} -x509 -days 30 -subj /CN=authority -keyout ca.key -out ca.pem",
        f"{new} -subj /CN=penstock -keyout own.key -out own.csr",
        f"{sign} -extfile names -out own.pem",
    ):
        subprocess.run(line.split(), cwd=home, check=True, capture_output=True)
    return Tls(home / "ca.pem", home / "own.pem", home / "own.key")
