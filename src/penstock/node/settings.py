"""A broker's settings: file < environment < `-o` < flags. Each value remembers where it came from; none is ignored."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.model.configs import (
    BROKER_SETTINGS,
    EFFECTIVE_SETTINGS,
    BrokerConfig,
    Setting,
    broker_setting,
    resolve_broker_config,
)
from penstock.model.errors import InvalidConfig
from penstock.node.listeners import Address, Listener, parse_http, parse_listeners

PREFIX: Final = "PENSTOCK_"
FLAGS: Final = {
    "--data": "log.dirs",
    "--listen": "listeners",
    "--advertise": "advertised.listeners",
    "--broker-id": "broker.id",
    "--rack": "broker.rack",
    "--http": "penstock.http",
    "--metadata": "penstock.metadata",
}
FILE_LIMIT_BYTES: Final = 1024 * 1024

# variables of ours that are not settings, and those that Kubernetes makes for a service named penstock
_NOT_SETTINGS: Final = frozenset({"PENSTOCK_BOOTSTRAP", "PENSTOCK_TRACEBACK"})
_SERVICE_VARIABLE: Final = re.compile(
    rf"{PREFIX}(?:\w+_)?(?:SERVICE_(?:HOST|PORT\w*)|PORT(?:_\d+_(?:TCP|UDP)\w*)?)"
)


class Given(NamedTuple):
    """A value that somebody set, in Kafka's notation, and where."""

    text: str
    source: str


class Row(NamedTuple):
    """One setting as `--print-config` shows it; a value of None is not set."""

    name: str
    value: str | None
    source: str
    kafka_default: str | None
    help: str
    is_number: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    config: BrokerConfig
    given: Mapping[str, Given]  # only what was set
    listeners: tuple[Listener, ...]
    http: Address | None

    def overrides(self) -> dict[str, str]:
        """What was set, by name: the broker's own values, over which topics may set theirs."""
        return {name: given.text for name, given in self.given.items()}

    def rows(self) -> list[Row]:
        """Every setting that has an effect, set or not, and what else was set."""
        others = [broker_setting(name) for name in self.given if name not in EFFECTIVE_SETTINGS]
        return [self._row(setting) for setting in (*EFFECTIVE_SETTINGS.values(), *others)]

    def _row(self, setting: Setting) -> Row:
        given = self.given.get(setting.name)
        value = getattr(self.config, setting.attribute, setting.default)
        return Row(
            setting.name,
            given.text if given is not None else setting.render(value),
            given.source if given is not None else "default",
            setting.kafka_default if given is None else None,
            setting.doc,
            isinstance(value, int | float),
            setting.is_sensitive,
        )


def load_settings(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    options: Iterable[str] = (),
    flags: Mapping[str, str] | None = None,
) -> Settings:
    """All settings together; raises InvalidConfig with the place, the name and the remedy.

    `options` are the `key=value` of `-o`; `flags` are values by flag, one of FLAGS each, commas between several.
    """
    given: dict[str, Given] = {}
    for source, name, text in (
        *(_from_file(file) if file is not None else ()),
        *_from_environment(environment or {}),
        *map(_from_option, options),
        *((f"flag {flag}", FLAGS[flag], text) for flag, text in (flags or {}).items()),
    ):
        given[name] = Given(_checked(source, name, text), source)
    config = resolve_broker_config({name: value.text for name, value in given.items()})
    listeners = parse_listeners(config.listeners, config.advertised_listeners)
    _check_inter_broker(config.inter_broker_listener_name, listeners)
    return Settings(
        config=config, given=given, listeners=listeners, http=parse_http(config.penstock_http)
    )


def variable_of(name: str) -> str:
    """`log.retention.ms` is PENSTOCK_LOG_RETENTION_MS, `penstock.http` is PENSTOCK_HTTP."""
    return PREFIX + name.removeprefix("penstock.").upper().replace(".", "_")


def render_toml(rows: Iterable[Row]) -> str:
    """Every setting with its help, its value and its source: a settings file that means the same."""
    return "\n".join(_toml_entry(row) for row in rows)


def _toml_entry(row: Row) -> str:
    note = row.source
    if row.kafka_default is not None:
        always = "always " if row.kafka_default == row.value else ""
        note += f", on purpose not {always}Kafka's {row.kafka_default}"
    if row.value is None:
        line = f'# "{row.name}" is not set'
    elif row.is_sensitive:
        line = f'# "{row.name}" is hidden  # {note}'
    else:
        value = row.value if row.is_number else _toml_string(row.value)
        line = f'"{row.name}" = {value}  # {note}'
    return f"# {row.help}\n{line}\n"


def _toml_string(text: str) -> str:
    escaped = (
        f"\\u{ord(character):04X}" if character in '"\\\x7f' or character < " " else character
        for character in text
    )
    return f'"{"".join(escaped)}"'


def _checked(source: str, name: str, text: str) -> str:
    try:
        return broker_setting(name).canonical(text)
    except InvalidConfig as error:
        raise InvalidConfig(f"{source}: {error}") from None


def _from_option(option: str) -> tuple[str, str, str]:
    name, equals, text = option.partition("=")
    if not equals:
        raise InvalidConfig(f"-o {option}: give -o NAME=VALUE, such as -o log.retention.ms=7d")
    return "option -o", name.strip(), text


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    names = {variable_of(name): name for name in BROKER_SETTINGS}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in _NOT_SETTINGS:
            continue
        if variable in names:
            yield f"environment {variable}", names[variable], environment[variable]
        elif not _SERVICE_VARIABLE.fullmatch(variable):
            raise InvalidConfig(_unknown_variable(variable, names))


def _unknown_variable(variable: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches  # rarely needed, and slow to load

    nearest = get_close_matches(variable, names, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"environment variable {variable} names no setting{hint}"


def _from_file(path: Path) -> Iterator[tuple[str, str, str]]:
    import tomllib  # only where there is a file

    if path.stat().st_size > FILE_LIMIT_BYTES:
        raise InvalidConfig(f"{path} is over {FILE_LIMIT_BYTES} bytes; that is no settings file")
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not TOML: {error}") from None
    seen: set[str] = set()
    for name, value in _flatten(tables):
        if name in seen:
            raise InvalidConfig(f"{path}: {name!r} is given twice")
        seen.add(name)
        yield f"file {path}", name, _toml_text(path, name, value)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Quoted names as they are; `log.retention.ms = 1` and `[log]` make tables in TOML, and mean the same."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _toml_text(path: Path, name: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float() | str():
            return str(value)
        case list() if all(isinstance(item, str) for item in value):
            return ",".join(value)
    raise InvalidConfig(f"{path}: {name!r} is neither text, number, true, false nor a list of text")


def _check_inter_broker(name: str | None, listeners: Iterable[Listener]) -> None:
    names = [listener.name for listener in listeners]
    if name is not None and name.upper() not in names:
        raise InvalidConfig(
            f"inter.broker.listener.name is {name}, which does not exist; there are {', '.join(names)}"
        )
