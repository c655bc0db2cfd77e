"""Which file system a path is on. SQLite's locks and shared memory are only sound on local ones."""

from pathlib import Path
from typing import Final

_NETWORK: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs",
        "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
        "prl_fs", "smb3", "smbfs", "vboxsf",
    }
)  # fmt: skip


def network_file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """The kind of network file system that holds `path`; None if it is local or cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    kind = _file_system(path.resolve(), lines)
    return kind if kind in _NETWORK else None


def _file_system(path: Path, lines: list[str]) -> str | None:
    """The last of the longest mount points above `path`: a later mount covers an earlier one."""
    kind, depth = None, -1
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(_unescape(fields[1]))
        if (point == path or point in path.parents) and len(point.parts) >= depth:
            kind, depth = fields[2], len(point.parts)
    return kind


def _unescape(text: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text
