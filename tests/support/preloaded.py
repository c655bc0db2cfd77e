"""Libraries of ours that a broker under test is started with: built from the C beside this, once in a run."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


@functools.cache
def build(name: str) -> Path:
    """`name` is that of the C file, without its suffix. Skips the test where nothing can be built."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip(f"no C compiler to build {name} with")
    source = Path(__file__).with_name(f"{name}.c")
    library = Path(tempfile.mkdtemp(prefix="penstock-preloaded-")) / f"{name}.so"
    built = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"],
        capture_output=True,
        check=False,
    )
    if built.returncode != 0:
        pytest.skip(f"{name} does not build here: {built.stderr.decode()[-300:]}")
    return library
