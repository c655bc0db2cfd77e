"""`penstock dev`: a cluster on this machine, one process a broker; they start together and end one after another."""

import asyncio
import ctypes
import shlex
import signal
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock.cli.arguments import UsageError, count, examples, non_negative
from penstock.client.errors import ClientError
from penstock.client.pool import Pool

_HOST: Final = "127.0.0.1"
_LAST_PORT: Final = 65_535
_MANY: Final = 100
_LINE_LIMIT_BYTES: Final = 1 << 20
_ONE_WISH_S: Final = 0.5  # wrappers such as make and timeout send the same signal twice in a moment
_LOOK_AGAIN_S: Final = 0.05
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1


def configure(parser: ArgumentParser) -> None:
    parser.epilog = examples(
        "penstock dev --brokers 3",
        "penstock dev --brokers 3 --data /tmp/cluster --base-port 19092 --http-base-port off",
        "penstock dev --brokers 3 --racks a,b,c --restart -o min.insync.replicas=2",
    )
    add = parser.add_argument
    add("--brokers", metavar="N", type=count, default=3, help="how many (default: 3)")
    add(
        "--data",
        metavar="DIR",
        type=Path,
        default=Path("penstock-dev"),
        help="a directory a broker, and what they know together (default: ./penstock-dev)",
    )
    add(
        *("--base-port", "--port"),
        metavar="PORT",
        dest="port",
        type=non_negative,
        default=9092,
        help="of broker 1, the others follow; 0 is any free ones (default: 9092)",
    )
    add(
        *("--http-base-port", "--http"),
        metavar="PORT",
        dest="http",
        type=_port_or_off,
        default=9644,
        help="metrics and health checks of broker 1, the others follow; or off (default: 9644)",
    )
    add("--racks", metavar="NAMES", help="a,b,c: brokers are put into them in turn")
    add("--restart", action="store_true", help="start a broker that died again")
    add("--config", metavar="FILE", type=Path, help="settings of every broker, in TOML")
    add(
        "-o",
        dest="options",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of every broker, by Kafka's name; repeatable",
    )
    add("--log-format", choices=("text", "json"), default="text", help="of logs on stderr")
    parser.set_defaults(run=run)


def _port_or_off(text: str) -> int | None:
    try:
        return None if text == "off" else non_negative(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"expected a port or off, not {text!r}") from None


def run(arguments: Namespace) -> int:
    plan = _plan(arguments)
    plan.data.mkdir(parents=True, exist_ok=True)
    return asyncio.run(LocalCluster(plan).run())


class Plan(NamedTuple):
    """What the brokers have in common, and how they differ."""

    brokers: int
    data: Path
    port: int
    http: int | None
    racks: Sequence[str]
    shared: Sequence[str]  # words of every broker's command
    restart: bool

    @property
    def store(self) -> Path:
        return self.data / "metadata.sqlite"

    def command(self, number: int) -> list[str]:
        """How one broker is started: also by hand."""
        http = "off" if self.http is None else f"{_HOST}:{_following(self.http, number)}"
        rack = ["--rack", self.racks[(number - 1) % len(self.racks)]] if self.racks else []
        return [
            *("penstock", "serve", "--broker-id", str(number)),
            *("--data", str(self.data / f"broker-{number}")),
            *("--listen", f"{_HOST}:{_following(self.port, number)}", "--http", http),
            *("--metadata", f"sqlite:{self.store}", *rack, *self.shared),
        ]


def _plan(arguments: Namespace) -> Plan:
    if arguments.brokers > _MANY:
        raise UsageError(f"{arguments.brokers} brokers are too many for one machine: {_MANY}")
    for flag, first in (("--base-port", arguments.port), ("--http-base-port", arguments.http)):
        if first is not None and _following(first, arguments.brokers) > _LAST_PORT:
            raise UsageError(f"{flag} {first}: the last port of {arguments.brokers} is too large")
    shared = [word for option in arguments.options for word in ("-o", option)]
    if arguments.config is not None:
        shared += ["--config", str(arguments.config)]
    if arguments.log_format != "text":
        shared += ["--log-format", arguments.log_format]
    return Plan(
        brokers=arguments.brokers,
        data=arguments.data.absolute(),
        port=arguments.port,
        http=arguments.http,
        racks=[rack.strip() for rack in arguments.racks.split(",")] if arguments.racks else [],
        shared=shared,
        restart=arguments.restart,
    )


def _following(first: int, number: int) -> int:
    return first + number - 1 if first else 0


class Child:
    """One broker's process: what it says is passed on, and its end is told."""

    def __init__(self, number: int, words: Sequence[str]) -> None:
        self.number = number
        self.words = words
        self.status: int | None = None  # of its last end
        self.address = ""  # where clients reach it, once it is ready
        self.is_stopping = False
        self.ready = asyncio.Event()
        self._process: Process | None = None

    async def live(self) -> None:
        """From its start to its end."""
        self.status = None
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *self.words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=_LINE_LIMIT_BYTES,
            start_new_session=True,  # Ctrl-C is for us: we stop them one after another
            preexec_fn=_end_with_parent,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(_each_line(process.stdout, self._hear))
            pumps.create_task(_each_line(process.stderr, self._pass_on))
        self.status = await process.wait()
        self.ready.clear()

    async def stop(self) -> None:
        """As an operator would; returns when it has ended."""
        self.is_stopping = True
        if self._process is not None and self.status is None:
            self._signal(signal.SIGTERM)
            await self._process.wait()

    def kill(self) -> None:
        self.is_stopping = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def _hear(self, line: str) -> None:
        if not line.startswith("penstock ready "):
            self._pass_on(line)
            return
        print(line, flush=True)
        facts = dict(word.partition("=")[::2] for word in line.split())
        self.address = facts["listen"].split(",")[0]
        self.ready.set()

    def _pass_on(self, line: str) -> None:
        sys.stderr.write(f"broker-{self.number} | {line}\n")
        sys.stderr.flush()


async def _each_line(stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
    while line := await stream.readline():
        take(line.decode(errors="replace").rstrip("\n"))


def _end_with_parent() -> None:
    """In the child, before it becomes a broker: when we are killed, it shall not stay behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class LocalCluster:
    """Runs once: until it is asked to stop, nobody is left, or a broker cannot even be started."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._children = [
            Child(number, plan.command(number)) for number in range(1, plan.brokers + 1)
        ]
        self._over = asyncio.Event()
        self._failed = False

    async def run(self) -> int:
        self._end_on_signals()
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(self._look_after(child))
            announcement = group.create_task(self._announce())
            await self._over.wait()
            announcement.cancel()
            for child in reversed(self._children):
                await child.stop()
        return 1 if self._failed else 0

    async def _look_after(self, child: Child) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await child.live()
            was_ready = child.address != ""
            if child.is_stopping:
                self._failed |= child.status not in (0, -signal.SIGTERM)
                return
            self._report(child, was_ready)
            if not self._plan.restart or not was_ready:
                break
            if await self._is_over_within(pause_s):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if not was_ready or all(other.status is not None for other in self._children):
            self._failed = True
            self._over.set()

    async def _is_over_within(self, pause_s: float) -> bool:
        try:
            await asyncio.wait_for(self._over.wait(), pause_s)
        except TimeoutError:
            return False
        return True

    def _report(self, child: Child, was_ready: bool) -> None:
        ending = f"exit code {child.status}"
        if child.status is not None and child.status < 0:
            ending = f"killed by {signal.Signals(-child.status).name}"
        what = "ended" if was_ready else "did not start"
        remedy = ""
        if self._plan.restart and was_ready:
            remedy = "; it is started again"
        elif was_ready:
            remedy = f"; start it again with: {shlex.join(child.words)}"
        sys.stderr.write(f"penstock: broker {child.number} {what} ({ending}){remedy}\n")
        sys.stderr.flush()

    async def _announce(self) -> None:
        for child in self._children:
            await child.ready.wait()
        for child in self._children:
            await self._until_complete(child)
        addresses = ",".join(child.address for child in self._children)
        print(f"cluster ready brokers={len(self._children)} metadata=sqlite:{self._plan.store}")
        print(f"export PENSTOCK_BOOTSTRAP={addresses}", flush=True)

    async def _until_complete(self, child: Child) -> None:
        """Until it tells clients of all brokers."""
        while True:
            try:
                async with Pool(child.address, client_id="penstock-dev") as pool:
                    if len((await pool.metadata([])).brokers) >= len(self._children):
                        return
            except ClientError:
                pass  # it may be on its way down, or up again
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _end_on_signals(self) -> None:
        """The first signal asks every broker for a clean end, a later one kills those that are left."""
        loop = asyncio.get_running_loop()
        asked_at_s = float("inf")

        def asked() -> None:
            nonlocal asked_at_s
            if loop.time() - asked_at_s > _ONE_WISH_S:
                for child in self._children:
                    child.kill()
            asked_at_s = min(asked_at_s, loop.time())
            self._over.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked)
