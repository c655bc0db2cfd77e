"""Check the names that users give to jobs. Pure."""

import re
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}")


def check_name(name: str, flag: str = "--name") -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{flag}: expected letters, digits, '.', '_' and '-', at most 64, not {name!r}"
        )
