"""`penstock pipeline mirror` with the tasks' work done by the driver: all of the protocol and no JVM, to be killed often."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from penstock.cli.main import main
from penstock.records.batch import split_batches
from penstock.spark.cluster import Cluster
from penstock.spark.fetching import RangeReader
from penstock.spark.jobs import mirror, mirror_translate_copy
from penstock.spark.jobs.mirror_copy import Done, Row, Span, Writer
from penstock.spark.jobs.mirror_reproduce import Wires, Wrote, parse_report, write_task
from penstock.spark.offsets import OffsetRange
from penstock.spark.options import parse_batch
from penstock.spark.progress import Progress


def copy(
    session: Any,  # noqa: ARG001  # there is none
    bootstrap: str,
    target: str,
    spans: Sequence[Span],
    *,
    allow_loss: bool,  # noqa: ARG001  # nothing is lost here
) -> list[Done]:
    done: list[Done] = []
    for span in spans:
        if span.offsets:
            done += Writer(target, {span.source: span})(_rows(bootstrap, span))
    return done


def _rows(bootstrap: str, span: Span) -> Iterator[Row]:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": span.source.topic}
    how = parse_batch(options).fetching
    cluster = Cluster(how)
    location = cluster.locate(span.source)
    cluster.close()
    assert location is not None
    with RangeReader(OffsetRange(span.source, span.start, span.end), location, how) as fetches:
        for fetched in fetches:
            for header, batch in split_batches(fetched.records):
                if span.start <= header.last_offset < span.end:
                    yield *span.source, header.last_offset, header.record_count, bytes(batch)


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
