"""Small state files: one line with format, version and checksum, then JSON. `decode` detects any damage."""

import json
from typing import Any, Final

from penstock.records.crc32c import crc32c

VERSION: Final = 1


class Damaged(Exception):
    """The file is not what was written. Nothing is lost with it: its content can be found out otherwise."""


def encode(name: str, content: dict[str, Any]) -> bytes:
    body = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    return b"%s %d %08x\n%s\n" % (name.encode(), VERSION, crc32c(body), body)


def decode(name: str, data: bytes) -> dict[str, Any]:
    head, _, body = data.partition(b"\n")
    if body[-1:] != b"\n":
        raise Damaged(f"{name}: cut off after {len(data)} bytes")
    body = body[:-1]
    fields = head.split(b" ")
    if len(fields) != 3 or fields[0] != name.encode():
        raise Damaged(f"{name}: the first line is {head[:80]!r}")
    if fields[1] != b"%d" % VERSION:
        raise Damaged(f"{name}: version {fields[1][:20]!r}; this broker reads {VERSION}")
    if fields[2] != b"%08x" % crc32c(body):
        raise Damaged(f"{name}: checksum mismatch")
    content = json.loads(body)
    if not isinstance(content, dict):
        raise Damaged(f"{name}: not an object")
    return content
