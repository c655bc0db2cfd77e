"""What is not well is named with its remedy; elections and balance do what they say."""

import json

import pytest

from penstock.cli.main import main
from penstock.client import health
from penstock.client.reassignments import Member, Members, Place
from penstock.model.ids import TopicPartition
from tests.support.fake_cluster import FakeCluster, at_rest


def t(index: int) -> TopicPartition:
    return TopicPartition("t", index)


def ran(*words: object) -> int:
    return main([str(word) for word in words])


def members(running: tuple[int, ...], stopped: tuple[int, ...] = ()) -> Members:
    rows = [Member(broker_id, "h", 1, None, True) for broker_id in running]
    rows += [Member(broker_id, "", -1, None, False) for broker_id in stopped]
    return Members("c", running[0], tuple(rows))


def diagnosis(place: Place, *, stopped: tuple[int, ...] = (), min_isr: int = 2) -> tuple[str, str]:
    running = tuple(broker_id for broker_id in (1, 2, 3) if broker_id not in stopped)
    [found] = health.problems(members(running, stopped), {t(0): place}, {"t": min_isr})
    return found.problem, found.remedy


def test_a_replica_whose_broker_does_not_run() -> None:
    problem, remedy = diagnosis(Place(1, (1, 2, 3), (1, 2)), stopped=(3,))
    assert problem == "under-replicated"
    assert remedy == "start broker 3; if it will not come back: penstock broker decommission 3"


def test_a_replica_that_lags() -> None:
    problem, remedy = diagnosis(Place(1, (1, 2, 3), (1, 2)))
    assert problem == "under-replicated"
    assert remedy.startswith("broker 3 is catching up")


def test_too_few_in_sync_for_producers() -> None:
    problem, remedy = diagnosis(Place(1, (1, 2, 3), (1,)), stopped=(2, 3))
    assert problem == "under min ISR"
    assert "acks=all wait until 2 are in sync: start broker 2, 3" in remedy


def test_more_cannot_be_asked_for_than_there_are_replicas() -> None:
    found = list(health.problems(members((1, 2)), at_rest([1]), {"t": 2}))
    assert found == []


def test_nobody_leads_and_who_has_everything_does_not_run() -> None:
    place = Place(-1, (1, 2, 3), (), eligible=(3,))
    problem, remedy = diagnosis(place, stopped=(3,))
    assert problem == "no leader"
    assert remedy.startswith("start broker 3: it has everything that was acknowledged")
    assert "penstock cluster elect --unclean t-0 --yes" in remedy


def test_nobody_leads_and_nobody_is_known_to_have_everything() -> None:
    _, remedy = diagnosis(Place(-1, (1, 2, 3), ()))
    assert "the one with the most leads in a moment" in remedy
    _, remedy = diagnosis(Place(-1, (1, 2, 3), ()), stopped=(2,))
    assert "start broker 2 too, and the one with the most leads" in remedy
    assert remedy.endswith("if it is gone for good: penstock cluster elect --unclean t-0 --yes")


def test_nobody_leads_and_no_replica_runs() -> None:
    _, remedy = diagnosis(Place(-1, (2, 3), ()), stopped=(2, 3))
    assert remedy == "start one of brokers 2, 3"


def test_nobody_leads_for_the_moment() -> None:
    _, remedy = diagnosis(Place(-1, (1, 2), (1,)))
    assert "in a moment" in remedy


def test_a_replica_that_cannot_be_used() -> None:
    problem, remedy = diagnosis(Place(1, (1, 2), (1, 2), offline=(1,)))
    assert problem == "offline replica"
    assert "broker 1 cannot use what it has on disk" in remedy


def test_new_replicas_of_a_move_are_not_missed() -> None:
    places = {t(0): Place(1, (1, 3, 2), (1, 2), adding=(3,), removing=(2,))}
    facts = health.facts(members((1, 2, 3)), places, {"t": 2})
    assert (facts["healthy"], facts["moves"]) == (True, 1)


def test_health_fails_and_groups_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    places = {t(index): Place(1, (1, 3), (1,)) for index in range(3)} | at_rest([1], topic="u")
    cluster = FakeCluster(places, [1, 2], stopped=[3])
    with cluster.served() as where:
        assert ran("cluster", "health", "--json", "--bootstrap", where) == 1
        facts = json.loads(capsys.readouterr().out)
        assert facts["healthy"] is False
        assert [row["problem"] for row in facts["problems"]] == ["under min ISR"] * 3
        assert facts["missing_brokers"][0]["broker"] == 3
        assert ran("cluster", "health", "--bootstrap", where) == 1
    out = capsys.readouterr().out
    assert "t-0        under min ISR       1  1,3       1" in out
    assert "t-0 and 2 more: producers with acks=all wait" in out
    assert "broker 3: start it (it has 3 replicas)" in out


def test_a_cluster_that_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeCluster(at_rest([1, 2]), [1, 2]).served() as where:
        assert ran("cluster", "health", "--bootstrap", where) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["healthy", "yes"]


# elect -------------------------------------------------------------------------------------------


def test_preferred_leaders_are_elected(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster({t(0): Place(2, (1, 2), (1, 2)), **at_rest([2], topic="u")}, [1, 2])
    with cluster.served() as where:
        assert ran("cluster", "elect", "--json", "--bootstrap", where) == 0
        assert json.loads(capsys.readouterr().out)["elected"] == ["t-0"]
        assert ran("cluster", "elect", "t-0", "--bootstrap", where) == 0
    assert cluster.elections == [(0, None), (0, [t(0)])]


def test_an_unclean_election_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster({t(0): Place(-1, (1, 2), ())}, [1, 2])
    with cluster.served() as where:
        assert ran("cluster", "elect", "--unclean", "--bootstrap", where) == 2
        assert "needs the partitions" in capsys.readouterr().err
        assert ran("cluster", "elect", "--unclean", "t-0", "--bootstrap", where) == 2
        assert "loses the messages that the new leader lacks" in capsys.readouterr().err
        assert cluster.elections == []
        assert ran("cluster", "elect", "--unclean", "t-0", "--yes", "--bootstrap", where) == 0
        assert ran("cluster", "elect", "--yes", "--bootstrap", where) == 2
    assert cluster.elections == [(1, [t(0)])]


# balance -----------------------------------------------------------------------------------------


def test_leaders_come_first_and_replicas_when_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {**at_rest([1], [1], [1], [1]), TopicPartition("u", 0): Place(2, (1, 2), (1, 2))}
    cluster = FakeCluster(places, [1, 2])
    with cluster.served() as where:
        dry = ("cluster", "balance", "--replicas", "--dry-run", "--json", "--bootstrap", where)
        assert ran(*dry) == 0
        facts = json.loads(capsys.readouterr().out)
        assert [row["partition"] for row in facts["leaders"]] == ["u-0"]
        assert facts["copied_replicas"] == 2
        assert (cluster.elections, cluster.begun) == ([], [])
        assert ran("cluster", "balance", "--bootstrap", where) == 0
        assert "penstock cluster balance --replicas" in capsys.readouterr().err
        assert cluster.begun == []
        assert ran("cluster", "balance", "--replicas", "--bootstrap", where) == 0
        assert ran(*dry) == 0
    out = capsys.readouterr().out.splitlines()
    assert json.loads(out[-1])["copied_replicas"] == 0
