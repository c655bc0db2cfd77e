"""RabbitMQ from Debian's packages, Erlang with it: one node, a stream as queue."""

import os
from pathlib import Path
from typing import Final

from benchmarks.peers.base import System
from benchmarks.peers.process import Server
from benchmarks.peers.registry import Missing, debian_tree, version_of

_ERLANG: Final = (
    *("base", "asn1", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools"),
    *("public-key", "runtime-tools", "snmp", "ssl", "syntax-tools", "tftp", "tools", "xmerl"),
)
_PACKAGES: Final = (*(f"erlang-{name}" for name in _ERLANG), "rabbitmq-server")
_SAY_RELEASE: Final = "io:put_chars(erlang:system_info(otp_release)), io:nl(), halt()."
_ROOT: Final = "ROOTDIR=/usr/lib/erlang"  # in Debian's start script of Erlang


class RabbitMq(System):
    name = "rabbitmq"
    settings = "a queue of type stream: a log in files, confirmed without a sync, as Kafka's are"
    ports_each = 3

    def get(self) -> None:
        tree = debian_tree("rabbitmq", _PACKAGES)
        erlang = tree / "usr/lib/erlang"
        self._patch(erlang)
        homes = sorted((tree / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        if not homes:
            raise Missing("Debian's package has no rabbitmq_server directory")
        self._erlang, self._rabbit = erlang, homes[-1]
        release = version_of([str(erlang / "bin/erl"), "-noshell", "-eval", _SAY_RELEASE])
        self.version = f"{homes[-1].name.rpartition('-')[2]} on Erlang {release}"

    def _patch(self, erlang: Path) -> None:
        """The package believes that it lies in /usr."""
        script = erlang / "bin" / "erl"
        text = script.read_text()
        if _ROOT in text:
            script.write_text(text.replace(_ROOT, f"ROOTDIR='{erlang}'"))

    def prepare(self, home: Path) -> None:
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.ports[0]}\nlog.console = true\nlog.file = false\n"
            "vm_memory_high_watermark.relative = 0.6\n"
        )
        (home / "plugins").write_text("[].\n")

    def launch(self, home: Path, number: int, cores: frozenset[int]) -> Server:
        """With a port mapper of its own, that ends with it."""
        assert number == 1, "one server"
        _, mapper, distribution = self.ports
        environment = {
            **os.environ,
            "PATH": os.pathsep.join((str(self._erlang / "bin"), os.environ["PATH"])),
            "HOME": str(home),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self.ports[0]}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "data-1"),
            "RABBITMQ_LOG_BASE": str(home / "logs"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }
        epmd = next(self._erlang.glob("erts-*/bin/epmd"))
        script = '"$0" -port "$1" & exec "$2"'
        server = str(self._rabbit / "sbin" / "rabbitmq-server")
        command = ["sh", "-c", script, str(epmd), str(mapper), server]
        return Server(command, home / "log-1", cores, environment)
