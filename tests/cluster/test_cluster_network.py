"""The network of tests: cut where it was told to be cut, whole elsewhere, and whole again after healing."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.network import Network
from tests.support.server import PATIENCE_S, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

PORT = 7777
SILENCE_S = 0.5
ECHO = """
import socket
server = socket.create_server(("0.0.0.0", 7777))
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(1))
    connection.close()
"""


@pytest.fixture
def network() -> Iterator[Network]:
    """Each host answers on a port."""
    with Network(3) as made:
        servers = [
            subprocess.Popen([*made.place(host).run_in, sys.executable, "-c", ECHO])
            for host in made.hosts
        ]
        try:
            for host in made.hosts:
                until(partial(answers, made, 0, host), f"host {host} answers")
            yield made
        finally:
            for server in servers:
                server.kill()
                server.wait()


def answers(network: Network, source: int, target: int, patience_s: float = PATIENCE_S) -> bool:
    """Whether a host's port can be reached from another, and the answer comes back."""
    with network.inside(source), socket.socket() as probe:
        probe.settimeout(patience_s)
        try:
            probe.connect((network.address(target), PORT))
            probe.sendall(b"x")
            return probe.recv(1) == b"x"
        except OSError:
            return False


WHOLE = {(source, target) for source in (0, 1, 2, 3) for target in (1, 2, 3) if source != target}


def check_reached(network: Network, expected: set[tuple[int, int]]) -> None:
    """Exactly these: who shall answer gets the time to do so, the others must be silent for a while."""
    found = {
        pair
        for pair in WHOLE
        if answers(network, *pair, PATIENCE_S if pair in expected else SILENCE_S)
    }
    assert found == expected


def test_a_host_that_is_isolated_reaches_nobody_and_the_rest_is_whole(network: Network) -> None:
    check_reached(network, WHOLE)
    network.isolate(2)
    check_reached(network, {pair for pair in WHOLE if 2 not in pair})
    network.heal()
    check_reached(network, WHOLE)


def test_a_partial_partition_is_between_two_hosts_only(network: Network) -> None:
    network.cut(1, 3)
    check_reached(network, WHOLE - {(1, 3), (3, 1)})
    network.heal()
    network.isolate(1, but_from=[0])
    check_reached(network, WHOLE - {(1, 2), (2, 1), (1, 3), (3, 1)})


def test_a_one_way_cut_drops_what_is_sent_that_way(network: Network) -> None:
    with network.inside(1), socket.socket(type=socket.SOCK_DGRAM) as receiver:
        receiver.bind((network.address(1), PORT))
        receiver.settimeout(SILENCE_S)
        with network.inside(2), socket.socket(type=socket.SOCK_DGRAM) as sender:
            network.cut_one_way(1, 2)
            sender.sendto(b"against it", (network.address(1), PORT))
            receiver.settimeout(PATIENCE_S)
            assert receiver.recv(100) == b"against it"
            receiver.settimeout(SILENCE_S)
            network.heal()
            network.cut_one_way(2, 1)
            sender.sendto(b"with it", (network.address(1), PORT))
            with pytest.raises(TimeoutError):
                receiver.recv(100)


def test_what_is_lost_by_chance_is_some_and_not_all(network: Network) -> None:
    with network.inside(1), socket.socket(type=socket.SOCK_DGRAM) as receiver:
        receiver.bind((network.address(1), PORT))
        receiver.settimeout(SILENCE_S)
        network.lose(1, 50)
        with network.inside(2), socket.socket(type=socket.SOCK_DGRAM) as sender:
            for number in range(200):
                sender.sendto(b"%d" % number, (network.address(1), PORT))
        assert 40 <= count_arrivals(receiver) <= 160


def count_arrivals(receiver: socket.socket) -> int:
    got = 0
    try:
        while receiver.recv(100):
            got += 1
    except TimeoutError:
        pass
    return got


def test_the_machines_own_network_is_untouched(network: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        network.isolate(1)
        with socket.create_connection(here.getsockname(), SILENCE_S):
            pass
        with network.inside(1), pytest.raises(OSError, match="refused"):
            socket.create_connection(here.getsockname(), SILENCE_S)
