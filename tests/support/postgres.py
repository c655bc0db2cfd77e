"""A PostgreSQL of a test's own, from Debian's package: it needs root, because the server itself refuses to be root."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

_HOME = Path("/usr/lib/postgresql")


def missing() -> str | None:
    """Why there can be none here."""
    if os.geteuid() != 0:
        return "PostgreSQL of Debian's package is started as its own user: that needs root"
    if not list(_HOME.glob("*/bin/initdb")):
        return "PostgreSQL is not installed: apt-get install postgresql"
    if find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'penstock[dev]'"
    return None


@contextmanager
def running() -> Iterator[str]:
    """What psycopg.connect takes."""
    programs = max(_HOME.glob("*/bin/initdb")).parent
    home = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    shutil.chown(home, "postgres")
    data = home / "data"
    as_postgres = ["runuser", "-u", "postgres", "--"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": home}
    try:
        subprocess.run(
            [*as_postgres, programs / "initdb", "-D", data, "-A", "trust", "--no-sync"], **quiet
        )  # type: ignore[call-overload]  # the same keywords each time
        control = [*as_postgres, programs / "pg_ctl", "-D", data, "-w"]
        options = f"-c listen_addresses= -c unix_socket_directories={home} -F"
        subprocess.run([*control, "-o", options, "-l", home / "log", "start"], **quiet)  # type: ignore[call-overload]
        try:
            yield f"host={home} user=postgres dbname=postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **quiet)  # type: ignore[call-overload]
    finally:
        shutil.rmtree(home, ignore_errors=True)
