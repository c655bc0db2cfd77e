"""How a broker starts and ends: clean ends leave no work, and what is in the way is said in one line."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.command import command, environment, penstock_command
from tests.support.faulty_disk import FaultyDisk
from tests.support.history import Ledger, producer, read_all, send
from tests.support.raw_client import RawClient
from tests.support.server import PATIENCE_S, Server, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PAST_ONE_WISH_S = 0.6  # signals closer together than half a second count as one


def refusal(data: Path, *words: object, status: int = 1, **variables: str) -> str:
    """The one line of a broker that does not start."""
    defaults = {"--listen": "127.0.0.1:0", "--http": "off"}
    flags = [
        word for flag, value in defaults.items() if flag not in words for word in (flag, value)
    ]
    done = penstock_command("serve", "--data", data, *flags, *words, **variables)
    assert done.status == status, done
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    return lines[0]


# Ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_end_is_exit_code_0_and_the_next_start_has_nothing_to_recover(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Server(tmp_path) as server:
        topic = server.create_topic("t", segment_bytes=100_000)
        values = [b"%06d" % n + bytes(1000) for n in range(1000)]
        send(server.bootstrap, topic, values)
        assert server.stop(number) == 0
        assert server.events("stopped")
        assert (server.data_dir / "clean").exists()

        server.start()
        assert not server.events("recovered"), "no scan"
        assert server.metric("penstock_recovery_logs_total") == 0
        assert not (server.data_dir / "clean").exists(), "it is good for one start"
        assert [message.value for message in read_all(server.bootstrap, topic)] == values


def test_a_broker_that_is_stopped_amid_producing_has_answered_or_not_taken_each_message(
    tmp_path: Path,
) -> None:
    with Server(tmp_path) as server:
        topic = server.create_topic("t")
        ledger = Ledger()
        sender = producer(server.bootstrap, enable_idempotence=True, batch_size=2000)
        for round_number in range(2):
            while len(ledger.acked) < 2000 * (round_number + 1):
                ledger.send(sender, topic, b"%06d" % len(ledger.sent))
                ledger.pace(sender, most=10_000)  # room for 200 more in the client's queue
            assert server.stop() == 0
            for _ in range(200):
                ledger.send(sender, topic, b"%06d" % len(ledger.sent))
            server.start()
            assert not server.events("recovered")
        assert sender.flush(PATIENCE_S) == 0
        ledger.check_exact(read_all(server.bootstrap, topic))


def test_a_second_signal_ends_a_slow_stop_at_once_and_the_next_start_recovers(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(tmp_path)
    with Server(tmp_path, variables=disk.variables) as server:
        topic = server.create_topic("t")
        send(server.bootstrap, topic, [b"kept"])
        disk.hold("sync", "/t/")
        server.ask_to_stop()
        until(lambda: server.events("stopping"), "it begins to stop")
        time.sleep(PAST_ONE_WISH_S)
        assert server.process.poll() is None, "it waits for the disk"
        server.ask_to_stop()
        assert server.wait() == 1

        disk.heal()
        server.start()
        assert server.events("recovered")
        assert [message.value for message in read_all(server.bootstrap, topic)] == [b"kept"]


def test_wrappers_that_signal_twice_in_a_moment_get_a_clean_end(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        send(server.bootstrap, server.create_topic("t"), [b"x"])
        server.ask_to_stop(signal.SIGSTOP)  # so that a moment it is, whoever is busy
        server.ask_to_stop(signal.SIGTERM)
        server.ask_to_stop(signal.SIGINT)
        server.ask_to_stop(signal.SIGCONT)
        assert server.wait() == 0
        assert (server.data_dir / "clean").exists()


def test_a_stop_amid_syncs_is_clean_and_says_nothing_else(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        topic = server.create_topic("t", flush_messages=1)
        ledger = Ledger()
        sender = producer(server.bootstrap, batch_size=500)
        while len(ledger.acked) < 500:
            ledger.send(sender, topic, b"%06d" % len(ledger.sent))
            ledger.pace(sender, most=2000)
        assert server.stop() == 0
        assert "ERROR" not in server.log
        assert "Traceback" not in server.log
        server.start()
        assert not server.events("recovered")
        assert sender.flush(PATIENCE_S) == 0
        ledger.check_kept(read_all(server.bootstrap, topic))


def test_a_stop_ends_clients_that_wait_and_is_not_held_up_by_them(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        host, port = server.bootstrap.split(":")
        topic = server.create_topic("t")
        send(server.bootstrap, topic, [b"x"])
        with socket.create_connection((host, int(port)), PATIENCE_S) as idle:
            idle.sendall(b"\x00\x00\x10\x00half a request")
            assert server.stop() == 0
            assert idle.recv(1) == b""


def test_a_client_that_asks_too_early_waits_and_is_never_told_of_a_cluster_without_brokers(
    tmp_path: Path,
) -> None:
    """librdkafka forgets every broker that an answer leaves out, and with the last one it is lost."""
    with Server(tmp_path) as server:
        server.create_topic("t")
        for _ in range(3):
            server.kill()
            process = server.launch()
            until(lambda: can_connect(server.bootstrap), "it listens")
            with RawClient(server.bootstrap) as client:
                answer = client.ask(MetadataRequest(topics=[]), MetadataResponse, 9)
            assert [broker.node_id for broker in answer.brokers] == [1]
            assert answer.controller_id == 1
            server.await_ready(process)


def can_connect(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


# What is in the way ------------------------------------------------------------------------------


def test_a_second_broker_on_the_same_data_is_refused_and_the_first_does_not_notice(
    tmp_path: Path,
) -> None:
    with Server(tmp_path) as server:
        topic = server.create_topic("t")
        line = refusal(server.data_dir)
        assert line == (
            f"penstock: {server.data_dir} is in use by another broker (process {server.pid}); "
            "give this one its own directory"
        )
        send(server.bootstrap, topic, [b"still here"])
        server.kill()
        server.start()
        assert len(read_all(server.bootstrap, topic)) == 1


@pytest.mark.parametrize("flag", ["--listen", "--http"])
def test_an_address_in_use_is_refused_in_one_line_and_leaves_the_data_clean(
    tmp_path: Path, flag: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refusal(tmp_path / "data", flag, address)
    assert address in line
    assert "in use" in line
    assert flag in line
    with Server(tmp_path) as server:
        assert not server.events("recovered"), "nothing was begun"


def test_a_directory_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o555)
    powerless: list[str] = []
    if os.geteuid() == 0:  # root may write anywhere, unless it gives that up
        powerless = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        if shutil.which(powerless[0]) is None:
            pytest.skip("root may write anywhere, and setpriv is not here to change that")
    done = subprocess.run(
        [*powerless, *command("serve", "--data", data, "--listen", "127.0.0.1:0", "--http", "off")],
        env=environment(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1, done
    assert done.stderr.decode() == f"penstock: {data}: cannot be used: Permission denied\n"


def test_data_that_is_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    assert "data: cannot be used: not a directory" in refusal(tmp_path / "data")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-o", "log.retention.msec=1"], "log.retention.ms"),
        (["-o", "log.retention.ms=soon"], "log.retention.ms"),
        (["-o", "log.segment.bytes"], "log.segment.bytes"),
        (["--listen", "nonsense"], "nonsense"),
        (["--metadata", "etcd:host"], "etcd:host"),
    ],
    ids=["unknown", "wrong-value", "no-value", "wrong-address", "unknown-store"],
)
def test_wrong_settings_are_wrong_usage_and_touch_no_data(
    tmp_path: Path, words: list[str], told: str
) -> None:
    assert told in refusal(tmp_path / "data", *words, status=2)
    assert not (tmp_path / "data" / "metadata.sqlite").exists()


def test_an_unknown_variable_is_wrong_usage(tmp_path: Path) -> None:
    line = refusal(tmp_path / "data", status=2, PENSTOCK_LOG_RETENTION_MSEC="1")
    assert "PENSTOCK_LOG_RETENTION_MSEC" in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('"log.retention.ms" = ', "penstock.toml"),
        ('"log.retentoin.ms" = 5', "log.retention.ms"),
        ('"max.connections" = []', "max.connections"),
        ("\x00\xff", "penstock.toml"),
    ],
    ids=["no-toml", "unknown", "wrong-type", "binary"],
)
def test_a_broken_settings_file_is_wrong_usage_that_names_the_file(
    tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_bytes(text.encode("latin-1"))
    line = refusal(tmp_path / "data", "--config", file, status=2)
    assert told in line
    assert str(file) in line


def test_a_settings_file_that_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    line = refusal(tmp_path / "data", "--config", tmp_path / "none.toml")
    assert "none.toml" in line


def test_a_directory_of_another_broker_or_another_cluster_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with Server(other) as server:
        assert server.stop() == 0
    with Server(tmp_path) as server:
        assert server.stop() == 0
    line = refusal(tmp_path / "data", "--metadata", f"sqlite:{other / 'data' / 'metadata.sqlite'}")
    assert "one of them is not this broker's" in line
    line = refusal(tmp_path / "data", "--broker-id", 7)
    assert "belongs to node.id 1, not 7" in line
    line = refusal(tmp_path / "data", "--metadata", f"sqlite:{tmp_path / 'other.sqlite'}")
    assert "the metadata store is empty, and the data directory belongs to cluster" in line
    with Server(tmp_path) as server:
        assert not server.events("recovered"), "it is as it was"
