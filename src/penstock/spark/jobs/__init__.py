"""The jobs of `penstock pipeline`: each is a package whose module `job` defines `JOB`."""

import importlib
from typing import Any, Final

from penstock.spark.job import Job

JOBS: Final = {
    "lake": "topics to a table of Parquet files, every record exactly once",
    "audit": "proves that nothing was lost, doubled, changed or reordered, or says where",
    "mirror": "topics of one cluster in another, offset by offset, to move there when the first is lost",
    "transform": "a topic through SQL or a Python function into another, exactly once",
    "replay": "a range of topics once more, by offsets or time, to a topic or a table, each record once",
    "dlq": "dead letters looked at, repaired, and sent back where they came from, each once",
    "traffic": "rates, sizes, hot keys, hot partitions and growth of topics, for a capacity planner",
}


def load(name: str) -> Job[Any]:
    job: Job[Any] = importlib.import_module(f"penstock.spark.jobs.{name}.job").JOB
    return job
