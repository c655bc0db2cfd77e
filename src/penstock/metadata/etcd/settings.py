"""How an etcd is named: etcd://HOST:PORT,HOST:PORT/NAME?OPTIONS. What cannot be meant is refused with the reason."""

import re
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from penstock.metadata.store import StoreError
from penstock.model.errors import InvalidConfig

SCHEME: Final = "etcd://"
_FORM: Final = (
    "etcd://HOST:PORT,HOST:PORT/NAME?ca=FILE&cert=FILE&key=FILE&user=NAME&password-file=FILE"
)
_DEFAULT_NAME: Final = "default"
_DEFAULT_PORT: Final = 2379
_LAST_PORT: Final = 65_535
_MEMBER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_OPTIONS: Final = ("ca", "cert", "key", "user", "password-file")


class EtcdSettings(NamedTuple):
    members: tuple[str, ...]  # host:port
    prefix: str  # of every key
    ca: Path | None = None  # set: TLS
    cert: Path | None = None
    key: Path | None = None
    user: str | None = None
    password_file: Path | None = None

    @property
    def password(self) -> str:
        """Read at each use, so that it can be changed without a restart."""
        return _content(self.password_file, "password-file").decode().strip()

    @property
    def certificates(self) -> tuple[bytes, bytes | None, bytes | None]:
        """Of the authority, our own, and its key."""
        ca = _content(self.ca, "ca")
        if self.cert is None:
            return ca, None, None
        return ca, _content(self.cert, "cert"), _content(self.key, "key")


def parse_etcd_url(url: str) -> EtcdSettings:
    if not url.startswith(SCHEME):
        raise _wrong(url, "it does not begin with etcd://")
    place, _, query = url.removeprefix(SCHEME).partition("?")
    if "@" in place:  # perhaps a password: it is not repeated
        raise _wrong(f"{SCHEME}…", "users and passwords are options")
    hosts, _, name = place.partition("/")
    name = name.strip("/") or _DEFAULT_NAME
    if not _NAME.fullmatch(name):
        raise _wrong(url, f"the name '{name}' may have letters, digits, '.', '_' and '-' only")
    members = tuple(_member(url, text) for text in hosts.split(","))
    if len(set(members)) < len(members):
        raise _wrong(url, "a member is named twice")
    options = _options(url, query)
    paths = {key.replace("-", "_"): Path(options[key]) for key in options if key != "user"}
    return EtcdSettings(members, f"/penstock/{name}/", user=options.get("user"), **paths)


def _member(url: str, text: str) -> str:
    found = _MEMBER.fullmatch(text)
    if found is None:
        raise _wrong(url, f"'{text}' is not HOST:PORT")
    port = int(found[2] or _DEFAULT_PORT)
    if not 0 < port <= _LAST_PORT:
        raise _wrong(url, f"'{text}' has no such port")
    return f"{found[1]}:{port}"


def _options(url: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        key, _, value = pair.partition("=")
        if key not in _OPTIONS:
            raise _wrong(url, f"there is no option '{key}', only {', '.join(_OPTIONS)}")
        if not value or key in options:
            raise _wrong(url, f"option '{key}' needs one value")
        options[key] = unquote(value)
    for one, other in (("cert", "key"), ("key", "cert"), ("cert", "ca"), ("user", "password-file")):
        if one in options and other not in options:
            raise _wrong(url, f"'{one}' needs '{other}' beside it")
    if "password-file" in options and "user" not in options:
        raise _wrong(url, "'password-file' needs 'user' beside it")
    return options


def _wrong(url: str, reason: str) -> InvalidConfig:
    return InvalidConfig(f"metadata store '{url}' is not understood: {reason}; expected {_FORM}")


def _content(path: Path | None, option: str) -> bytes:
    assert path is not None, "what belongs together was checked"
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"metadata store: {option} '{path}' cannot be read: {error.strerror}"
        ) from error
