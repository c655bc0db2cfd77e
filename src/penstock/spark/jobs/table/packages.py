"""Check that the optional packages of table and value formats are installed."""

from importlib.util import find_spec
from typing import Final

from penstock.spark.errors import JobError

_AVRO_REMEDY: Final = "pip install 'penstock[avro]'"
PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}


def check_installed(format_: str) -> None:
    package = PACKAGES.get(format_)
    if package and find_spec(package) is None:
        raise JobError(
            f"--format {format_} needs {package}; install it with: pip install 'penstock[{format_}]'"
        )


def check_fastavro() -> None:
    try:
        import fastavro  # noqa: F401  # only whether it is there
    except ImportError:
        raise JobError(f"Avro needs fastavro; install it with: {_AVRO_REMEDY}") from None
