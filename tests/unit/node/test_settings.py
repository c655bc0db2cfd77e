from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.configs import BROKER_SETTINGS
from penstock.model.errors import InvalidConfig
from penstock.node.settings import FLAGS, Row, load_settings, render_toml, variable_of


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_with_nothing_given_every_setting_has_its_default() -> None:
    settings = load_settings()
    assert settings.overrides() == {}
    assert {row.source for row in settings.rows()} == {"default"}
    assert str(settings.listeners[0].bind) == "127.0.0.1:9092"
    assert str(settings.http) == "127.0.0.1:9644"


def test_a_later_source_wins_and_is_remembered(tmp_path: Path) -> None:
    file = write(
        tmp_path / "p.toml", '"num.partitions" = 2\n"broker.id" = 2\n"log.retention.ms" = "1d"\n'
    )
    environment = {"PENSTOCK_NUM_PARTITIONS": "3", "PENSTOCK_BROKER_ID": "3"}
    settings = load_settings(
        file=file,
        environment=environment,
        options=["broker.id=4", "num.partitions=4"],
        flags={"--broker-id": "5"},
    )
    assert settings.config.broker_id == 5
    assert settings.given["broker.id"].source == "flag --broker-id"
    assert settings.config.num_partitions == 4
    assert settings.given["num.partitions"].source == "option -o"
    assert settings.config.log_retention_ms == 86_400_000
    assert settings.given["log.retention.ms"] == ("86400000", f"file {file}")
    assert load_settings(environment=environment).given["broker.id"].source == (
        "environment PENSTOCK_BROKER_ID"
    )


@pytest.mark.parametrize(
    "text",
    [
        '"log.retention.ms" = 5\n"auto.create.topics.enable" = false\n"log.cleanup.policy" = ["compact", "delete"]',
        'log.retention.ms = 5\nauto.create.topics.enable = false\nlog.cleanup.policy = "compact,delete"',
        '[log]\nretention.ms = 5\ncleanup.policy = "delete, compact"\n[auto.create.topics]\nenable = false',
    ],
)
def test_a_file_may_quote_its_names_or_use_tables(tmp_path: Path, text: str) -> None:
    config = load_settings(file=write(tmp_path / "p.toml", text)).config
    assert config.log_retention_ms == 5
    assert config.auto_create_topics_enable is False
    assert config.log_cleanup_policy == {"compact", "delete"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"num.partitons" = 1', "p.toml: unknown broker setting.*did you mean 'num.partitions'"),
        ('"num.partitions" = 0', "p.toml: invalid value '0' for num.partitions: the least is 1"),
        ('"num.partitions" = 2020-01-01', "p.toml: 'num.partitions' is neither text"),
        ('"broker.rack" = [1]', "p.toml: 'broker.rack' is neither text"),
        ('"broker.id" = 1\nbroker.id = 2', "p.toml: 'broker.id' is given twice"),
        ("= 1", "p.toml is not TOML"),
        ('"broker.id" = 1\n"broker.id" = 2', "p.toml is not TOML"),
    ],
)
def test_what_a_file_gets_wrong_is_named_with_the_file(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        load_settings(file=write(tmp_path / "p.toml", text))


def test_a_missing_file_is_an_error_of_the_operating_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_settings(file=tmp_path / "nowhere.toml")


def test_every_setting_has_a_variable_of_its_own() -> None:
    variables = [variable_of(name) for name in BROKER_SETTINGS]
    assert len(set(variables)) == len(variables)
    assert variable_of("log.retention.ms") == "PENSTOCK_LOG_RETENTION_MS"
    assert variable_of("penstock.http") == "PENSTOCK_HTTP"


def test_an_unknown_variable_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(InvalidConfig, match="did you mean PENSTOCK_LOG_RETENTION_MS"):
        load_settings(environment={"PENSTOCK_LOG_RETENTION_MSS": "1"})


@pytest.mark.parametrize(
    "variable",
    [
        "HOME",
        "PENSTOCK_BOOTSTRAP",
        "PENSTOCK_SERVICE_HOST",
        "PENSTOCK_SERVICE_PORT_KAFKA",
        "PENSTOCK_PORT",
        "PENSTOCK_PORT_9092_TCP_ADDR",
        "PENSTOCK_HEADLESS_SERVICE_HOST",
    ],
)
def test_variables_that_are_no_settings_are_left_alone(variable: str) -> None:
    assert load_settings(environment={variable: "tcp://10.0.0.1:9092"}).overrides() == {}


def test_options_without_a_value_and_unknown_ones_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="give -o NAME=VALUE"):
        load_settings(options=["log.retention.ms"])
    with pytest.raises(InvalidConfig, match="option -o: unknown broker setting 'nonsense'"):
        load_settings(options=["nonsense=1"])


def test_a_value_may_hold_an_equals_sign() -> None:
    settings = load_settings(options=["listeners=IN=127.0.0.1:9092"])
    assert settings.listeners[0].name == "IN"


def test_every_flag_stands_for_a_setting_that_exists() -> None:
    assert set(FLAGS.values()) <= set(BROKER_SETTINGS)


def test_the_inter_broker_listener_must_be_one_of_the_listeners() -> None:
    with pytest.raises(InvalidConfig, match=r"inter\.broker.listener\.name is B, which does not"):
        load_settings(options=["inter.broker.listener.name=B", "listeners=A=127.0.0.1:1"])


def test_the_printed_config_names_source_and_purpose() -> None:
    printed = render_toml(load_settings(options=["num.partitions=6"]).rows())
    assert '"num.partitions" = 6  # option -o\n' in printed
    assert (
        '"group.initial.rebalance.delay.ms" = 0  # default, on purpose not Kafka\'s 3000\n'
        in printed
    )
    assert '# "broker.rack" is not set\n' in printed


def test_the_printed_config_is_a_file_that_means_the_same(tmp_path: Path) -> None:
    settings = load_settings(
        options=["broker.rack=a", "log.cleanup.policy=compact,delete", "log.retention.ms=7d"]
    )
    printed = write(tmp_path / "printed.toml", render_toml(settings.rows()))
    assert load_settings(file=printed).config == settings.config


@given(st.text(min_size=1).map(str.strip).filter(bool))
def test_any_text_survives_being_printed(
    tmp_path_factory: pytest.TempPathFactory, rack: str
) -> None:
    settings = load_settings(options=[f"broker.rack={rack}"])
    path = tmp_path_factory.mktemp("settings") / "printed.toml"
    path.write_bytes(render_toml(settings.rows()).encode())
    assert load_settings(file=path).config == settings.config


def test_a_secret_is_not_printed() -> None:
    row = Row("listener.password", "sesame", "option -o", None, "Opens the door.", False, True)
    printed = render_toml([row])
    assert "sesame" not in printed
    assert '# "listener.password" is hidden  # option -o' in printed
