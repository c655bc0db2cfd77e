"""What `reassign` and `broker` say and do, against a cluster that is scripted."""

import io
import json
from pathlib import Path

import pytest

from penstock.cli import moving, plans
from penstock.cli.main import main
from penstock.client.errors import ClientError
from penstock.client.mover import Progress, next_moves
from penstock.client.reassignment_plan import Plan
from penstock.client.reassignments import Place
from penstock.model.ids import TopicPartition
from tests.support.fake_cluster import SIZE_BYTES, FakeCluster, at_rest

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


def t(index: int) -> TopicPartition:
    return TopicPartition("t", index)


def ran(*words: object) -> int:
    return main([str(word) for word in words])


# Plans as files ----------------------------------------------------------------------------------


def test_a_plan_is_read_as_it_was_written() -> None:
    plan: Plan = {t(0): (1, 2), t(1): (3, 1)}
    text = json.dumps(plans.document(plan))
    assert json.loads(text)["version"] == 1
    assert plans.parse(text, "f") == plan


def test_kafkas_own_plans_are_read() -> None:
    text = (
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,1],'
        '"log_dirs":["any","any"]}]}'
    )
    assert plans.parse(text, "f") == {t(0): (2, 1)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "it is no JSON"),
        ("[]", "no list of partitions"),
        ('{"version":2,"partitions":[]}', "only 1 is known"),
        ('{"partitions":[{"topic":"t","partition":0}]}', "partition 1 of its list"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[1,1]}]}', "twice"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[]}]}', "ids of its replicas"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_way_to_one(text: str, reason: str) -> None:
    with pytest.raises(ClientError) as told:
        plans.parse(text, "f.json")
    assert reason in str(told.value)
    assert "f.json" in str(told.value)
    assert "penstock reassign plan" in str(told.value)


# Steps -------------------------------------------------------------------------------------------


def test_a_broker_takes_part_in_so_many_moves_at_once() -> None:
    places = at_rest(*[[1]] * 4, [2], [2])
    plan: Plan = dict.fromkeys(places, (3,))
    begun = next_moves(plan, places, {}, 2)
    assert begun == {t(0): (3,), t(1): (3,)}, "broker 3 has enough then"
    moving_places = {at: Place(1, (3, 1), (1,), adding=(3,), removing=(1,)) for at in begun}
    places.update(moving_places)
    assert next_moves(plan, places, moving_places, 2) == {}
    assert set(next_moves({t(4): (4,)}, places, moving_places, 2)) == {t(4)}


def test_what_copies_nothing_is_begun_at_once() -> None:
    places = at_rest(*[[1, 2]] * 9)
    assert len(next_moves(dict.fromkeys(places, (2, 1)), places, {}, 1)) == 9


# plan --------------------------------------------------------------------------------------------


def test_a_plan_goes_to_stdout_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(at_rest([1], [1], [1], [1]), [1, 2])
    with cluster.served() as where:
        assert ran("reassign", "plan", "--bootstrap", where) == 0
    out, err = capsys.readouterr()
    assert len(plans.parse(out, "stdout")) == 2
    assert "2 replicas are copied: 4.0 KiB" in err


def test_a_plan_in_a_file_is_shown_as_a_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cluster = FakeCluster(at_rest([1, 2], [2, 1]), [1, 2, 3])
    file = tmp_path / "plan.json"
    with cluster.served() as where:
        assert ran("reassign", "plan", "--without", 2, "--out", file, "--bootstrap", where) == 0
        assert plans.parse(file.read_text(), "f") == {t(0): (1, 3), t(1): (3, 1)}
        out, err = capsys.readouterr()
        assert "t-0        1,2   1,3  2.0 KiB" in out
        assert f"penstock reassign execute {file}" in err


def test_what_cannot_be_planned_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(at_rest([1, 2]), [1, 2], stopped=[3])
    with cluster.served() as where:
        for words, expected in [
            (("--topic", "u"), "topic 'u' does not exist"),
            (("--brokers", "1,3"), "broker 3 does not run"),
            (("--replication-factor", "3"), "topic 't' needs 3 brokers"),
            (("--without", "2"), "--replication-factor 1"),
        ]:
            assert ran("reassign", "plan", *words, "--bootstrap", where) == 1
            assert expected in capsys.readouterr().err
        assert ran("reassign", "plan", "--without", 1, "--brokers", 2, "--bootstrap", where) == 2
        assert ran("reassign", "plan", "--brokers", "a", "--bootstrap", where) == 2


# execute -----------------------------------------------------------------------------------------


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """Two partitions to broker 3; the third is there already."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plans.document({t(0): (1, 3), t(1): (3, 2), t(2): (3, 1)})))
    return file


def test_a_plan_is_carried_out_under_a_throttle_that_is_removed(
    capsys: pytest.CaptureFixture[str], plan_file: Path
) -> None:
    cluster = FakeCluster(at_rest([1, 2], [1, 2], [3, 1]), [1, 2, 3])
    with cluster.served() as where:
        words = ("--throttle", "5MB/s", "--json", "--bootstrap", where)
        assert ran("reassign", "execute", plan_file, *words) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["partitions"], facts["done"], facts["refused"]) == (2, 2, [])
        assert facts["copied_bytes"] == 2 * SIZE_BYTES
        first = cluster.altered[0]
        assert first[4, "1"] == dict.fromkeys(RATES, "5000000")
        assert first[2, "t"] == {
            "leader.replication.throttled.replicas": "0:1,0:2,1:1,1:2",
            "follower.replication.throttled.replicas": "0:3,1:3",
        }
        assert not any(cluster.settings.values()), "nothing of it stays"
        assert ran("reassign", "execute", plan_file, "--bootstrap", where) == 0
        assert "nothing to move" in capsys.readouterr().out


def test_what_an_interrupted_run_left_is_finished_and_its_throttles_removed(
    capsys: pytest.CaptureFixture[str], plan_file: Path
) -> None:
    places = at_rest([1, 3], [1, 2], [3, 1])
    places[t(1)] = Place(1, (3, 2, 1), (1, 2), adding=(3,), removing=(1,))
    left_over = {(2, "t"): {"leader.replication.throttled.replicas": "1:1,1:2"}}
    cluster = FakeCluster(places, [1, 2, 3], settings=left_over)
    with cluster.served() as where:
        assert ran("reassign", "execute", plan_file, "--bootstrap", where) == 0
        assert "moved 1 partition" in capsys.readouterr().out
    assert cluster.begun == [], "it was begun by the earlier run"
    assert not any(cluster.settings.values())


def test_what_is_refused_is_told_and_the_rest_is_moved(
    capsys: pytest.CaptureFixture[str], plan_file: Path
) -> None:
    places = at_rest([1, 2], [1, 2], [3, 1])
    cluster = FakeCluster(places, [1, 2, 3], refuses={t(0): "its leader is shy"})
    with cluster.served() as where:
        assert ran("reassign", "execute", plan_file, "--bootstrap", where) == 1
    out, err = capsys.readouterr()
    assert "moved 1 partition" in out
    assert "t-0 was not moved: its leader is shy" in err
    assert cluster.places[t(1)].replicas == (3, 2)


def test_a_plan_of_another_cluster_is_refused_as_a_whole(
    capsys: pytest.CaptureFixture[str], plan_file: Path
) -> None:
    cluster = FakeCluster(at_rest([1, 2], [1, 2], [1, 2]), [1, 2])
    with cluster.served() as where:
        assert ran("reassign", "execute", plan_file, "--bootstrap", where) == 1
        assert "brokers [3], and only [1, 2] are registered" in capsys.readouterr().err
        cluster.places, cluster.running = at_rest([1, 2]), [1, 2, 3]
        assert ran("reassign", "execute", plan_file, "--bootstrap", where) == 1
        assert "t-1 does not exist" in capsys.readouterr().err
    assert cluster.begun == []


# status, cancel ----------------------------------------------------------------------------------


def moving_cluster() -> FakeCluster:
    places = at_rest([1, 2], [1, 2])
    places[t(0)] = Place(1, (1, 3, 2), (1, 2), adding=(3,), removing=(2,))
    places[t(1)] = Place(1, (4, 1, 2), (1, 2), adding=(4,), removing=(2,))
    settings = {
        (4, "1"): dict.fromkeys(RATES, "1048576"),
        (2, "t"): {"leader.replication.throttled.replicas": "0:1"},
    }
    return FakeCluster(places, [1, 2, 3], stopped=[4], settings=settings, frozen=True)


def test_status_shows_moves_and_throttles(capsys: pytest.CaptureFixture[str]) -> None:
    with moving_cluster().served() as where:
        assert ran("reassign", "status", "--json", "--bootstrap", where) == 0
        facts = json.loads(capsys.readouterr().out)
        assert [(row["from"], row["to"]) for row in facts["moves"]] == [
            ([1, 2], [1, 3]),
            ([1, 2], [4, 1]),
        ]
        assert [row["left_bytes"] for row in facts["moves"]] == [0, SIZE_BYTES]
        assert facts["moves"][1]["waits_for"] == [4]
        assert facts["throttles"]["bytes_per_second"] == {"1": 1048576}
        assert ran("reassign", "status", "--bootstrap", where) == 0
    out = capsys.readouterr().out
    assert "2 moves under way, 2.0 KiB left" in out
    assert "broker 1 is throttled to 1.0 MiB/s" in out


def test_all_moves_are_called_off_with_their_throttles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = moving_cluster()
    with cluster.served() as where:
        assert ran("reassign", "cancel", "--bootstrap", where) == 0
        assert "called off 2 moves, throttles are removed" in capsys.readouterr().out
        assert not any(cluster.settings.values())
        assert cluster.places == at_rest([1, 2], [1, 2])
        assert ran("reassign", "cancel", "--bootstrap", where) == 0
        assert "called off 0 moves" in capsys.readouterr().out


def test_throttles_stay_while_other_moves_need_them(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = moving_cluster()
    with cluster.served() as where:
        assert ran("reassign", "cancel", "t-1", "--json", "--bootstrap", where) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"cancelled": ["t-1"], "refused": [], "throttles_removed": False}
    assert cluster.places[t(0)].is_moving
    assert cluster.settings[4, "1"]


def test_throttles_that_nothing_needs_are_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = moving_cluster()
    cluster.places = at_rest([1, 2])
    with cluster.served() as where:
        assert ran("reassign", "status", "--bootstrap", where) == 0
        assert "penstock reassign cancel" in capsys.readouterr().err
        assert ran("reassign", "cancel", "--bootstrap", where) == 0
    assert not any(cluster.settings.values())


# broker ------------------------------------------------------------------------------------------


def test_brokers_are_listed_with_their_load(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(at_rest([1, 3], [2, 9]), [1, 2], stopped=[3])
    with cluster.served() as where:
        assert ran("broker", "list", "--json", "--bootstrap", where) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [(row["id"], row["state"], row["replicas"]) for row in rows] == [
            (1, "running", 1),
            (2, "running", 1),
            (3, "not running", 1),
            (9, "unregistered", 1),
        ]
        assert ran("broker", "list", "--bootstrap", where) == 0
    assert "running, controller" in capsys.readouterr().out


def test_a_broker_is_emptied_and_then_struck_off(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(at_rest([1, 3], [3, 2]), [1, 2, 3])
    with cluster.served() as where:
        assert ran("broker", "decommission", 3, "--dry-run", "--bootstrap", where) == 0
        assert "2 replicas are copied" in capsys.readouterr().out
        assert cluster.begun == []
        assert ran("broker", "decommission", 3, "--bootstrap", where) == 0
        out, err = capsys.readouterr()
        assert "broker 3 has no replicas" in out
        assert "stop it, then strike it off" in err
        assert [place.replicas for place in cluster.places.values()] == [(1, 2), (1, 2)]
        assert ran("broker", "decommission", 3, "--unregister", "--bootstrap", where) == 1
        assert "stop it" in capsys.readouterr().err
        cluster.running.remove(3)
        cluster.stopped.append(3)
        words = ("--unregister", "--json", "--bootstrap", where)
        assert ran("broker", "decommission", 3, *words) == 0
    assert json.loads(capsys.readouterr().out)["unregistered"] is True
    assert cluster.struck_off == [3]


def test_a_broker_that_is_to_leave_gets_nothing_new_until_it_is_told_to_stay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = FakeCluster(at_rest([1, 3], [3, 2], [1, 2], [1, 2]), [1, 2, 3])
    with cluster.served() as where:
        assert ran("broker", "decommission", 3, "--bootstrap", where) == 0
        assert ran("broker", "list", "--bootstrap", where) == 0
        assert "running, cordoned" in capsys.readouterr().out
        assert ran("cluster", "balance", "--replicas", "--dry-run", "--bootstrap", where) == 0
        assert "none is copied" in capsys.readouterr().out
        assert ran("reassign", "plan", "--brokers", "1,3", "--bootstrap", where) == 1
        assert "broker decommission 3 --cancel" in capsys.readouterr().err
        assert ran("broker", "decommission", 3, "--cancel", "--bootstrap", where) == 0
        assert "broker 3 stays; 0 moves called off" in capsys.readouterr().out
        assert ran("broker", "list", "--json", "--bootstrap", where) == 0
        assert not any(row["cordoned"] for row in json.loads(capsys.readouterr().out))
        assert ran("cluster", "balance", "--replicas", "--dry-run", "--bootstrap", where) == 0
        assert "none is copied" not in capsys.readouterr().out


def test_moves_away_are_called_off_with_the_farewell(capsys: pytest.CaptureFixture[str]) -> None:
    moving = Place(1, (1, 3, 2), (1, 3), adding=(2,), removing=(3,))
    cluster = FakeCluster({t(0): moving}, [1, 2, 3], frozen=True)
    with cluster.served() as where:
        words = ("--cancel", "--json", "--bootstrap", where)
        assert ran("broker", "decommission", 3, *words) == 0
    assert json.loads(capsys.readouterr().out)["called_off"] == 1
    assert cluster.places[t(0)].replicas == (1, 3)


def test_a_broker_that_is_needed_stays(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(at_rest([1, 3, 2]), [1, 2, 3])
    with cluster.served() as where:
        assert ran("broker", "decommission", 3, "--bootstrap", where) == 1
        told = capsys.readouterr().err
        assert "topic 't' needs 3 brokers" in told
        assert "only 2 (1, 2)" in told
        assert "penstock broker decommission 3 --shrink" in told
        assert not any(cluster.settings.values()), "nothing was begun"
        assert ran("broker", "decommission", 3, "--shrink", "--bootstrap", where) == 0
        assert cluster.places[t(0)].replicas == (1, 2)
        assert ran("broker", "decommission", 7, "--bootstrap", where) == 1
    assert "there is no broker 7" in capsys.readouterr().err


# What is shown meanwhile -------------------------------------------------------------------------

HALFWAY = Progress(40, 10, 5, 2**20, 4 * 2**20, 2**19, ())


def test_progress_is_one_sentence() -> None:
    expected = "10 of 40 partitions done, 5 moving, 1.0 MiB of 4.0 MiB, 512.0 KiB/s, about 6s left"
    assert moving.sentence(HALFWAY) == expected
    slow = HALFWAY._replace(bytes_per_s=300.0)
    assert moving.sentence(slow).endswith("about 2h54m left")
    assert moving.sentence(Progress(2, 0, 0, 0, 0, 0.0, ())) == "0 of 2 partitions done"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_line_is_rewritten() -> None:
    stream = Terminal()
    line = moving.ProgressLine(stream)
    line.tell(HALFWAY)
    line.tell(HALFWAY._replace(done=11))
    line.end()
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().count("\r") == 3


def test_elsewhere_lines_are_few() -> None:
    stream = io.StringIO()
    line = moving.ProgressLine(stream)
    for done in range(10):
        line.tell(HALFWAY._replace(done=done))
    line.end()
    assert stream.getvalue().count("\n") == 1


def test_who_is_waited_for_is_named_once() -> None:
    stream = io.StringIO()
    line = moving.ProgressLine(stream)
    line.tell(HALFWAY._replace(stalled_on=(4,)))
    line.tell(HALFWAY._replace(stalled_on=(4,)))
    assert stream.getvalue().count("moves wait for broker 4") == 1


@pytest.mark.parametrize(
    ("text", "expected"), [("50MB/s", 50_000_000), ("1MiB", 2**20), ("700", 700)]
)
def test_rates_are_read(text: str, expected: int) -> None:
    assert moving.rate(text) == expected


def test_a_rate_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "fast", "-5MB"):
        assert ran("reassign", "execute", "f", f"--throttle={text}") == 2
        assert "50MB/s" in capsys.readouterr().err
