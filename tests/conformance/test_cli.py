"""Every command against a broker that runs as users run it: exit codes, results, JSON."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.support.command import Done, penstock_command, start_penstock

pytestmark = pytest.mark.cluster

Command = Callable[..., Done]


@pytest.fixture
def run(broker: Broker) -> Command:
    """A command that knows the broker through the environment."""

    def call(*words: object, stdin: str | bytes = b"") -> Done:
        return penstock_command(*words, stdin=stdin, PENSTOCK_BOOTSTRAP=broker.bootstrap)

    return call


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic()


def succeed(done: Done) -> Done:
    assert done.status == 0, done
    return done


def refused(done: Done) -> str:
    """The one line of an error."""
    assert done.status == 1, done
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    return done.err


# topic -------------------------------------------------------------------------------------------


def test_a_topic_is_created_listed_described_and_deleted(run: Command) -> None:
    made = succeed(run("topic", "create", "lifecycle", "-p", 3, "-c", "retention.ms=7d"))
    assert made.out == "created topic lifecycle: 3 partitions, replication factor 1\n"
    listed = succeed(run("topic", "list", "--json")).json()
    assert {
        "name": "lifecycle",
        "partitions": 3,
        "replication_factor": 1,
        "internal": False,
    } in listed
    assert "lifecycle" in succeed(run("topic", "list")).out
    described = succeed(run("topic", "describe", "lifecycle", "--json")).json()
    assert described["settings"] == {"retention.ms": "604800000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert all(row["leader"] == 1 and row["isr"] == [1] for row in described["partitions"])
    assert succeed(run("topic", "delete", "lifecycle")).out == "deleted topic lifecycle\n"
    assert "lifecycle" not in succeed(run("topic", "list")).out


def test_create_refuses_what_exists_unless_told_otherwise(run: Command, topic: str) -> None:
    assert refused(run("topic", "create", topic)) == f"penstock: topic '{topic}' exists already\n"
    done = succeed(run("topic", "create", topic, "--if-not-exists", "--json"))
    assert done.json() == {"name": topic, "created": False}


def test_a_missing_topic_is_named_with_the_way_to_make_it(run: Command) -> None:
    expected = (
        "penstock: topic 'nowhere' does not exist; create it with: penstock topic create nowhere\n"
    )
    for words in (("describe", "nowhere"), ("alter", "nowhere", "-p", 3)):
        assert refused(run("topic", *words)) == expected
    assert refused(run("topic", "trim", "nowhere", "--before", "-2h")) == expected
    assert refused(run("consume", "nowhere", "-e")) == expected


def test_what_cannot_be_deleted_is_looked_for_not_made(run: Command) -> None:
    expected = "penstock: topic 'nowhere' does not exist; see: penstock topic list\n"
    assert refused(run("topic", "delete", "nowhere")) == expected
    assert succeed(run("topic", "delete", "nowhere", "--if-exists")).out != ""


def test_a_wrong_setting_is_refused_in_the_brokers_words(run: Command) -> None:
    assert "retention.ms" in refused(run("topic", "create", "t", "-c", "retention.ms=soon"))
    assert "no.such.key" in refused(run("topic", "create", "t", "-c", "no.such.key=1"))


def test_alter_adds_partitions_and_changes_settings(run: Command, topic: str) -> None:
    succeed(
        run("topic", "alter", topic, "-p", 4, "-c", "segment.bytes=64MiB", "-c", "retention.ms=1h")
    )
    succeed(run("topic", "alter", topic, "--reset", "retention.ms"))
    described = succeed(run("topic", "describe", topic, "--json")).json()
    assert len(described["partitions"]) == 4
    assert described["settings"] == {"segment.bytes": "67108864"}
    assert "partitions" in refused(run("topic", "alter", topic, "-p", 2))


def test_describe_shows_offsets_and_size_also_as_text(run: Command, topic: str) -> None:
    succeed(run("produce", topic, stdin="a\nb\nc\n"))
    row = succeed(run("topic", "describe", topic, "--json")).json()["partitions"][0]
    assert (row["start_offset"], row["end_offset"]) == (0, 3)
    assert row["size_bytes"] > 0
    text = succeed(run("topic", "describe", topic)).out
    assert "PARTITION  LEADER" in text


def test_trim_removes_what_is_older(run: Command, topic: str) -> None:
    succeed(run("produce", topic, stdin="a\nb\nc\nd\n"))
    done = succeed(run("topic", "trim", topic, "--before", "3", "--json"))
    assert done.json() == [{"partition": 0, "start_offset": 3, "removed": 3}]
    assert succeed(run("consume", topic, "-e")).out == "d\n"
    succeed(run("topic", "trim", topic, "--before", "-7d"))
    assert succeed(run("consume", topic, "-e")).out == "d\n"
    succeed(run("topic", "trim", topic, "--before", "end"))
    assert succeed(run("consume", topic, "-e")).out == ""
    error = refused(run("topic", "trim", topic, "--before", "100"))
    assert "offset 100 is beyond the last record" in error


def test_trim_by_offset_needs_to_know_the_partition(run: Command, broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)
    done = run("topic", "trim", topic, "--before", "3")
    assert done.status == 2
    assert "add --partition N" in done.err


# produce and consume -----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(run: Command, topic: str, codec: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(1000))
    sent = succeed(run("produce", topic, "-z", codec, stdin=lines))
    assert sent.err == f"sent 1000 messages to {topic}\n"
    got = succeed(run("consume", topic, "-e"))
    assert got.out == lines
    assert got.err == "consumed 1000 messages\n"


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_works(run: Command, topic: str, acks: str) -> None:
    succeed(run("produce", topic, "--acks", acks, stdin="hello\n"))
    assert succeed(run("consume", topic, "-n", 1)).out == "hello\n"


def test_keys_headers_and_tombstones_are_kept(run: Command, topic: str) -> None:
    succeed(run("produce", topic, "-k", "key", "-H", "a=1", "-H", "b=2", stdin="value\n"))
    succeed(run("produce", topic, "--key-separator", ":", "--null-value", stdin="x:1\ny:\nz\n"))
    messages = succeed(run("consume", topic, "-e", "--json")).json_lines()
    assert [(it["key"], it["value"]) for it in messages] == [
        ("key", "value"),
        ("x", "1"),
        ("y", None),
        (None, "z"),
    ]
    assert messages[0]["headers"] == [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]
    assert [it["offset"] for it in messages] == [0, 1, 2, 3]


def test_bytes_that_are_no_text_pass_unchanged(run: Command, topic: str) -> None:
    succeed(run("produce", topic, stdin=b"\xff\xfe\x00\n"))
    [message] = succeed(run("consume", topic, "-e", "--json")).json_lines()
    assert message["value_base64"] == "//4A"


def test_files_are_read_in_order(run: Command, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3")
    succeed(run("produce", topic, tmp_path / "a", tmp_path / "b"))
    assert succeed(run("consume", topic, "-e")).out == "1\n2\n3\n"
    assert "no such file" in refused(run("produce", topic, tmp_path / "c"))


def test_a_message_can_be_printed_in_any_form(run: Command, topic: str) -> None:
    succeed(run("produce", topic, "-k", "k", "-H", "h=v", stdin="hello\n"))
    done = succeed(run("consume", topic, "-e", "-f", r"%t %p %o %k %K %s %S %h\t%%\n"))
    assert done.out == f"{topic} 0 0 k 1 hello 5 h=v\t%\n"


def test_consuming_starts_where_it_is_told(run: Command, topic: str) -> None:
    succeed(run("produce", topic, stdin="a\nb\nc\n"))
    assert succeed(run("consume", topic, "-e", "--from", 1)).out == "b\nc\n"
    assert succeed(run("consume", topic, "-e", "--from", "end")).out == ""
    assert succeed(run("consume", topic, "-e", "--from", "-1h")).out == "a\nb\nc\n"
    assert succeed(run("consume", topic, "-e", "--from", "2100-01-01T00:00:00Z")).out == ""
    assert succeed(run("consume", topic, "-e", "--from", 99)).out == ""
    assert succeed(run("consume", topic, "-n", 2)).out == "a\nb\n"


def test_partitions_are_chosen_and_read_one_by_one(run: Command, broker: Broker) -> None:
    topic = broker.create_topic(partitions=3)
    for partition in range(3):
        succeed(run("produce", topic, "--partition", partition, stdin=f"p{partition}\n"))
    assert succeed(run("consume", topic, "-e", "--partition", 1)).out == "p1\n"
    assert sorted(succeed(run("consume", topic, "-e")).out.split()) == ["p0", "p1", "p2"]
    assert "has no partition 3; it has 0 to 2" in refused(run("produce", topic, "--partition", 3))
    assert "has no partition 9" in refused(run("consume", topic, "--partition", 9))


def test_a_message_that_is_too_large_is_refused(run: Command, topic: str) -> None:
    succeed(run("topic", "alter", topic, "-c", "max.message.bytes=1KiB"))
    error = refused(run("produce", topic, stdin="x" * 5000 + "\n"))
    assert "was refused: Message size too large; 0 were accepted" in error


@pytest.mark.parametrize("word", ["no.such.setting=1", "linger.ms=soon", "error_cb=me"])
def test_a_setting_that_librdkafka_refuses_is_wrong_usage(
    run: Command, topic: str, word: str
) -> None:
    for command in ("produce", "consume"):
        done = run(command, topic, "-X", word, stdin="x\n")
        assert (done.status, done.out, done.err.count("\n")) == (2, "", 1), done
        assert done.err.startswith("penstock: librdkafka: "), done


def test_ctrl_c_prints_the_count_and_is_no_failure(
    broker: Broker, topic: str, run: Command
) -> None:
    succeed(run("produce", topic, stdin="hello\n"))
    with start_penstock("consume", topic, "--bootstrap", broker.bootstrap) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "hello\n"
        consumer.send_signal(signal.SIGINT)
        _, err = consumer.communicate()
    assert consumer.returncode == 0
    assert err == "consumed 1 message\n"


def test_a_reader_that_leaves_early_is_no_error(broker: Broker, topic: str, run: Command) -> None:
    succeed(run("produce", topic, stdin="line\n" * 100_000))
    with start_penstock("consume", topic, "--bootstrap", broker.bootstrap) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == "line\n"
        consumer.stdout.close()
        assert consumer.stderr.read() == ""
    assert consumer.returncode == 0


# cluster and log ---------------------------------------------------------------------------------


def test_the_cluster_describes_itself(run: Command, broker: Broker, topic: str) -> None:
    facts = succeed(run("cluster", "describe", "--json")).json()
    host, _, port = broker.bootstrap.rpartition(":")
    assert facts["controller"] == 1
    assert facts["cluster_id"]
    [only] = facts["brokers"]
    assert (only["id"], only["host"], only["port"]) == (1, host, int(port))
    assert only["leaders"] == facts["partitions"] > 0
    assert f"{only['port']}" in succeed(run("cluster", "describe")).out
    assert topic


def test_a_single_broker_is_healthy_and_leads_everything(run: Command, topic: str) -> None:
    health = succeed(run("cluster", "health", "--json")).json()
    assert health == {
        "healthy": True,
        "brokers": 1,
        "controller": 1,
        "missing_brokers": [],
        "moves": 0,
        "problems": [],
    }
    [row] = succeed(run("cluster", "leaders", "--json")).json()
    assert row["broker"] == 1
    assert row["share_percent"] == 100.0
    assert topic


def test_a_segment_on_disk_can_be_dumped(run: Command, broker: Broker, topic: str) -> None:
    succeed(run("produce", topic, "-k", "k", "-z", "zstd", stdin="hello " * 100 + "\n"))
    directory = broker.data_dir / topic / "partition-0"
    batches = succeed(run("log", "dump", directory / f"{0:020d}.log", "--records", "--json"))
    [batch] = batches.json_lines()
    assert batch["codec"] == "zstd"
    assert batch["records"][0]["value"] == "hello " * 100
    succeed(run("log", "dump", directory))


# serve -------------------------------------------------------------------------------------------


def start_serve(data: Path, *words: object) -> "subprocess.Popen[str]":
    return start_penstock(
        "serve", "--data", data, "--listen", "127.0.0.1:0", "--http", "off", *words
    )


def ready(server: "subprocess.Popen[str]") -> dict[str, str]:
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("penstock ready "), line
    return dict(word.split("=", 1) for word in line.split()[2:])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_when_it_is_ready_and_ends_cleanly(tmp_path: Path, number: int) -> None:
    with start_serve(tmp_path / "data") as server:
        facts = ready(server)
        assert facts["broker"] == "1"
        assert int(facts["pid"]) == server.pid
        assert facts["http"] == "off"
        succeed(penstock_command("topic", "list", "--bootstrap", facts["listen"]))
        server.send_signal(number)
        server.communicate()
    assert server.returncode == 0


def test_the_ready_line_names_every_listener(tmp_path: Path) -> None:
    with start_serve(tmp_path / "data", "--listen", "INTERNAL=localhost:0") as server:
        first, second = ready(server)["listen"].split(",")
        assert first != second
        for address in (first, second):
            succeed(penstock_command("topic", "list", "--bootstrap", address))
        server.terminate()
        server.communicate()


def test_a_second_start_finds_the_data_of_the_first(tmp_path: Path) -> None:
    for round_number in range(2):
        with start_serve(tmp_path / "data") as server:
            address = ready(server)["listen"]
            succeed(penstock_command("produce", "t", "--bootstrap", address, stdin="x\n"))
            got = succeed(penstock_command("consume", "t", "-e", "--bootstrap", address))
            assert got.out == "x\n" * (round_number + 1)
            server.terminate()
            server.communicate()


def test_one_data_directory_belongs_to_one_process(tmp_path: Path) -> None:
    with start_serve(tmp_path / "data") as server:
        ready(server)
        error = refused(
            penstock_command("serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0")
        )
        assert str(tmp_path / "data") in error
        server.terminate()
        server.communicate()


def test_a_port_in_use_is_named(tmp_path: Path, broker: Broker) -> None:
    error = refused(
        penstock_command("serve", "--data", tmp_path / "data", "--listen", broker.bootstrap)
    )
    assert broker.bootstrap in error
    assert "in use" in error


def test_a_host_that_has_no_address_is_named(tmp_path: Path) -> None:
    error = refused(
        penstock_command("serve", "--data", tmp_path / "data", "--listen", "no.such.host.invalid:0")
    )
    assert error == (
        "penstock: cannot listen on no.such.host.invalid:0: it has no address; "
        "choose another address with --listen\n"
    )


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    error = refused(
        penstock_command("serve", "--data", tmp_path / "file" / "data", "--listen", "127.0.0.1:0")
    )
    assert str(tmp_path / "file") in error


@pytest.mark.parametrize(
    "words",
    [
        ("-o", "no.such.setting=1"),
        ("-o", "num.partitions=many"),
        ("--broker-id", "x"),
        ("--config", "no/such/file.toml"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_one_line(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = penstock_command("serve", "--data", tmp_path / "data", *words)
    assert done.status in (1, 2)
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err


def test_print_config_shows_every_setting_and_its_source(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('"num.partitions" = 3\n"log.retention.ms" = 1000\n')
    words = ("serve", "--config", file, "-o", "log.retention.ms=7d", "--print-config")
    rows = {row["name"]: row for row in succeed(penstock_command(*words, "--json")).json()}
    assert rows["num.partitions"]["value"] == "3"
    assert rows["num.partitions"]["source"] == f"file {file}"
    assert rows["log.retention.ms"]["value"] == "604800000"
    assert rows["log.retention.ms"]["source"] == "option -o"
    assert '"num.partitions" = 3' in succeed(penstock_command(*words)).out
