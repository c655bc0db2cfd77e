"""`penstock serve`: one broker in this process, from the ready line to a clean end on SIGTERM or SIGINT."""

import asyncio
import gc
import json
import os
import signal
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

import uvloop

from penstock.cli.arguments import UsageError, examples
from penstock.model.errors import InvalidConfig, StorageFault
from penstock.node.settings import FLAGS, Settings, load_settings, render_toml

_ONE_WISH_S: Final = 0.5
_YOUNG_OBJECTS: Final = (
    10_000  # requests under way are no garbage: to look for it among them cost a busy leader 6 %
)
_REPEATABLE: Final = ("--listen", "--advertise")


def configure(parser: ArgumentParser) -> None:
    parser.epilog = examples(
        "penstock serve",
        "penstock serve --data /var/lib/penstock --listen 0.0.0.0:9092 --advertise broker-1.example.org:9092",
        "penstock serve -o log.retention.ms=7d -o auto.create.topics.enable=false",
        "penstock serve --config penstock.toml --print-config",
    )
    add = parser.add_argument
    add("--data", metavar="DIR", help="where messages are kept (default: ./penstock-data)")
    add(
        "--listen",
        metavar="[NAME=][PROTOCOL://]HOST:PORT",
        action="append",
        help="where clients connect; port 0 is any free one; repeatable (default: 127.0.0.1:9092)",
    )
    add(
        "--advertise",
        metavar="[NAME=]HOST:PORT",
        action="append",
        help="the address that clients are told; repeatable",
    )
    add("--broker-id", metavar="N", help="a number of its own in the cluster (default: 1)")
    add("--rack", metavar="NAME", help="what this broker shares a fate with: a rack, a zone")
    add(
        "--http",
        metavar="HOST:PORT",
        help="metrics and health checks, or off (default: 127.0.0.1:9644)",
    )
    add(
        "--metadata",
        metavar="STORE",
        help="sqlite:PATH (default: in the data directory) or etcd://HOST:PORT,…/NAME",
    )
    add("--config", metavar="FILE", type=Path, help="settings in TOML")
    add(
        "-o",
        dest="options",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting by Kafka's name, such as log.retention.ms=7d; repeatable",
    )
    add(
        "--print-config",
        action="store_true",
        help="show every setting, its value and source; then exit",
    )
    add("--json", action="store_true", help="with --print-config: as JSON")
    add("--log-format", choices=("text", "json"), default="text", help="of logs on stderr")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    settings = _settings(arguments)
    if arguments.print_config:
        _print_config(settings, as_json=arguments.json)
        return 0
    if arguments.json:
        raise UsageError("--json belongs to --print-config; for logs in JSON: --log-format json")
    from penstock.node.logs import set_up_logging

    set_up_logging(arguments.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


def _settings(arguments: Namespace) -> Settings:
    flags = {}
    for flag in FLAGS:
        value = getattr(arguments, flag.removeprefix("--").replace("-", "_"))
        if value is not None:
            flags[flag] = ",".join(value) if flag in _REPEATABLE else value
    try:
        return load_settings(
            file=arguments.config,
            environment=os.environ,
            options=arguments.options,
            flags=flags,
        )
    except InvalidConfig as error:
        raise UsageError(str(error)) from None


def _print_config(settings: Settings, *, as_json: bool) -> None:
    if not as_json:
        print(render_toml(settings.rows()))
        return
    hidden = [row._replace(value=None) if row.is_sensitive else row for row in settings.rows()]
    print(json.dumps([row._asdict() for row in hidden], ensure_ascii=False))


async def _serve(settings: Settings) -> int:
    from penstock.metadata.store import StoreError
    from penstock.node.node import Node

    stop = asyncio.Event()
    _end_on_signals(stop)
    node = Node(settings)
    try:
        await node.start()
    except InvalidConfig as error:
        raise UsageError(str(error)) from None
    except StoreError as error:
        raise StorageFault(str(error)) from None
    gc.collect()
    gc.freeze()  # what lives from here on lives long: full collections need not look at it
    gc.set_threshold(_YOUNG_OBJECTS)
    print(node.ready_line, flush=True)
    await stop.wait()
    await node.stop()
    return 0


def _end_on_signals(stop: asyncio.Event) -> None:
    """The first signal asks for a clean end, a later one ends at once: recovery will have some work.

    Wrappers such as timeout, make and uv send the same signal twice in a moment: that counts as one.
    """
    loop = asyncio.get_running_loop()
    asked_at_s = float("inf")

    def asked() -> None:
        nonlocal asked_at_s
        if loop.time() - asked_at_s > _ONE_WISH_S:
            os._exit(1)
        asked_at_s = min(asked_at_s, loop.time())
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
