"""`penstock pipeline mirror` with the tasks' work done by the driver: all of the protocol and no JVM, to be killed often."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from penstock.cli.main import main
from penstock.spark.jobs.mirror import copy as mirror_copy
from penstock.spark.jobs.mirror import job as mirror
from penstock.spark.jobs.mirror.copy import Done
from penstock.spark.jobs.mirror.translate import copy as mirror_translate_copy
from penstock.spark.jobs.mirror.translate.reproduce import Wires, Wrote, parse_report, write_task
from penstock.spark.progress import Progress


class Here:
    """The part of a Spark context that copying needs."""

    sparkContext = property(lambda self: self)  # Spark's name

    def __init__(self, items: Sequence[Any] = ()) -> None:
        self._items = items

    def parallelize(self, items: Sequence[Any], _: int) -> "Here":
        return Here(items)

    def map(self, work: Callable[[Any], Any]) -> "Here":
        return Here([work(item) for item in self._items])

    def collect(self) -> Sequence[Any]:
        return self._items


def copy(session: Any, *arguments: Any, **options: Any) -> list[Done]:  # noqa: ARG001  # there is none
    return mirror_copy.copy(Here(), *arguments, **options)


def send_all(session: Any, source: Mapping[str, str], wires: Wires) -> list[Wrote]:  # noqa: ARG001  # there is none
    """Of `--translate`."""
    from pyspark_penstock import DefaultSource

    rows = DefaultSource(dict(source))
    reader = rows.reader(rows.schema())
    found = (write_task(wires, reader.read(partition)) for partition in reader.partitions())
    return [parse_report(wrote.text()) for wrote in found if wrote is not None]


if __name__ == "__main__":
    mirror.copy = copy  # type: ignore[attr-defined]  # it is imported there
    mirror_translate_copy.send_all = send_all
    object.__setattr__(mirror.JOB, "needs_spark", lambda _: False)
    Progress.tasks = lambda *_: nullcontext()  # type: ignore[assignment,method-assign]  # nobody watches
    sys.exit(main())
