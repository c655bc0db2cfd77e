"""`dlq`: list dead letters, repair them, and send each one back to its topic once."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from penstock.spark.errors import JobError
from penstock.spark.functions import check_files, chosen
from penstock.spark.job import Job, Plan, Summary
from penstock.spark.jobs.dlq import letters, sending
from penstock.spark.jobs.dlq import repair as repairs
from penstock.spark.jobs.dlq.options import DlqOptions
from penstock.spark.jobs.files import is_local, open_files
from penstock.spark.progress import Progress
from penstock.spark.survey import find_ranges

_FIRST_MS: Final = -62_135_596_800_000  # the years 1 to 9999: what dates can say
_LAST_MS: Final = 253_402_300_799_999


def plan(options: DlqOptions) -> Plan:
    """Asks the brokers, or looks at a table of this machine; no Spark."""
    facts: dict[str, Any] = {"job": "dlq", "source": options.source, "send": options.send}
    if options.topic is not None:
        ranges = find_ranges(options.bootstrap, [options.topic])
        facts |= {"cluster": ranges.cluster_id, "offsets": ranges.offsets}
        first = f"read {options.topic} from {options.bootstrap}: {ranges.offsets:,} offsets"
    else:
        _check_table(options.source, None)
        first = f"read {options.source}"
    if options.sql is None and options.function is not None and ":" not in options.function:
        raise JobError(f"--function {options.function!r}: expected FILE.py:FUNCTION")
    check_files(options.sql, options.function)
    if options.to is not None:
        sending.check_topics(options.bootstrap, [options.to])
    lines = [first]
    if options.where is not None:
        lines.append(f"only where {options.where}")
    if options.sql or options.function:
        lines.append(f"repair with {options.sql or options.function}")
    lines.append(
        f"send to {options.to or 'the topics they came from'}, remembered in {options.ledger}"
        if options.send
        else "send nothing; --send does"
    )
    return Plan(facts, tuple(lines))


def run(session: Any, options: DlqOptions, progress: Progress) -> Summary:
    started_s = time.monotonic()
    repair = repairs.read_repair(options.sql, options.function)
    found = chosen(letters.with_texts(_read(session, options)), options.where)
    facts: dict[str, Any] = {"job": "dlq", "source": options.source}
    with progress.tasks(session, "counting letters"):
        facts["kinds"] = letters.kinds(found)
    facts["letters"] = sum(kind["letters"] for kind in facts["kinds"])
    if options.send:
        facts |= _send(session, options, found, repair, progress)
    else:
        with progress.tasks(session, "taking samples"):
            facts["samples"] = _samples(found, repair, options.samples)
    facts["seconds"] = round(time.monotonic() - started_s, 1)
    return Summary(facts, tuple(_lines(facts)))


def _read(session: Any, options: DlqOptions) -> Any:
    if options.topic is None:
        _check_table(options.source, session)
        found = letters.read_table(session, options.source)
    else:
        ranges = find_ranges(options.bootstrap, [options.topic], read_committed=True)
        found = letters.read_topic(session, options.bootstrap, ranges)
    if not sending.ledger_exists(options.bootstrap, options.ledger):
        return found
    entries = sending.sent_entries(session, options.bootstrap, options.ledger)
    return sending.with_sent(found, entries)


def _check_table(place: str, session: Any) -> None:
    if session is None and not is_local(place):
        return
    if not open_files(place, session).exists(place) or (
        is_local(place) and not Path(place).is_dir()
    ):
        raise JobError(
            f"{place}: there is no such table; a lake job makes it, as TABLE_dead_letters, when it meets bad records"
        )


def _samples(found: Any, repair: repairs.Repair | None, each: int) -> list[dict[str, Any]]:
    """With what a repair makes of their values."""
    if not each:
        return []
    shown = letters.samples(found, each)
    if repair is None:
        return shown
    places = [{name: one[name] for name in letters.PLACE} for one in shown]
    made = repairs.repaired(letters.once(found), repair)
    if not places:
        return shown
    wanted = found.sparkSession.createDataFrame(
        [tuple(place.values()) for place in places], "topic string, partition int, offset bigint"
    )
    rows = made.join(wanted, list(letters.PLACE), "left_semi").collect()
    values = {tuple(row[name] for name in letters.PLACE): row["value"] for row in rows}
    return [
        {**one, "repaired": _text(values.get(tuple(one[name] for name in letters.PLACE)))}
        for one in shown
    ]


def _send(
    session: Any,
    options: DlqOptions,
    found: Any,
    repair: repairs.Repair | None,
    progress: Progress,
) -> dict[str, Any]:
    from pyspark.sql import functions as F

    homeless = F.lit(False) if options.to is not None else ~F.col("has_origin")
    with progress.tasks(session, "looking which letters go back"):
        passed_over = found.where(homeless & ~F.col("is_part")).count()
        parts = found.where("is_part").count()
        chosen = letters.once(found.where(~homeless & ~F.col("is_part")))
        rows = repairs.repaired(chosen, repair)
        repairs.check_once(rows)
    with progress.tasks(session, "sending letters back"):
        sent = sending.send_back(
            session,
            rows,
            bootstrap=options.bootstrap,
            ledger=options.ledger,
            to=options.to,
            again=options.again,
            between=progress.end_if_asked,
        )
    return {
        "sent": sent.to.total(),
        "to": dict(sorted(sent.to.items())),
        "sent_before": sent.sent_before,
        "without_origin": passed_over,
        "parts": parts,
    }


def _text(value: Any) -> str | None:
    return None if value is None else bytes(value).decode(errors="backslashreplace")


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"{facts['letters']:,} dead letters in {facts['source']}"]
    for kind in facts["kinds"]:
        lines.append(
            f"  {kind['letters']:,} {kind['kind']}: {', '.join(kind['topics'])}, "
            f"{_time(kind['first_ms'])} to {_time(kind['last_ms'])}"
        )
        for one in facts.get("samples", ()):
            if one["kind"] == kind["kind"]:
                lines.append(
                    f"    {one['topic']}-{one['partition']}@{one['offset']}  {one['value']}"
                )
                if one["error"] != one["kind"]:
                    lines.append(f"      {one['error']}")
                if "repaired" in one:
                    lines.append(f"      repaired: {one['repaired']}")
    if "sent" in facts:
        lines += _sent_lines(facts)
    return lines


def _sent_lines(facts: dict[str, Any]) -> list[str]:
    places = ", ".join(f"{count:,} to {topic}" for topic, count in facts["to"].items())
    lines = [f"sent {facts['sent']:,} back{': ' if places else ''}{places}"]
    if facts["sent_before"]:
        lines.append(
            f"left out {facts['sent_before']:,} sent back before; --again sends them again"
        )
    if facts["without_origin"]:
        lines.append(f"passed over {facts['without_origin']:,} without an origin; give --to")
    if facts["parts"]:
        lines.append(
            f"passed over {facts['parts']:,} parts of split letters; penstock dlq redrive sends those"
        )
    return lines


def _time(timestamp_ms: int | None) -> str:
    """What dates cannot say is given as options take it, such as @1763400000000000."""
    if timestamp_ms is None:
        return "?"
    if not _FIRST_MS <= timestamp_ms <= _LAST_MS:
        return f"@{timestamp_ms}"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


JOB: Final = Job(
    name="dlq",
    options=DlqOptions,
    plan=plan,
    run=run,
    examples=(
        "penstock pipeline dlq --table lake/orders_dead_letters",
        "penstock pipeline dlq --topic orders.dlq --where \"kind = 'ValueError'\" --send",
        "penstock pipeline dlq --table lake/orders_dead_letters --sql repair.sql --send",
    ),
)
