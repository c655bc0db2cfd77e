"""Our keys within etcd's: all under one prefix, which nobody above this module sees."""

from typing import Any

from penstock.metadata.store import Entry, LeaseId, Revision


class Keys:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._skip = len(self._prefix)

    def path(self, name: str) -> bytes:
        return self._prefix + name.encode()

    def name(self, path: bytes) -> str:
        return path[self._skip :].decode()

    def span(self, prefix: str) -> tuple[bytes, bytes]:
        """First key, and the one after the last, of all that begin with `prefix`."""
        path = self.path(prefix)
        return path, path[:-1] + bytes([path[-1] + 1])  # no byte of UTF-8 is the last one

    def entry(self, kv: Any) -> Entry:
        lease = LeaseId(kv.lease) if kv.lease else None
        return Entry(kv.value, Revision(kv.create_revision), Revision(kv.mod_revision), lease)
