"""Detect that a topic was deleted and created again.

Offsets of the old topic mean nothing in the new one. A job stores the ids of its topics beside its
offsets, in the first run that finds none there. Later runs compare the ids.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.client import admin
from penstock.client.pool import Pool
from penstock.spark.errors import JobError
from penstock.spark.jobs.files import Files
from penstock.spark.survey import ask

FILE_NAME: Final = "penstock-topics.json"
Ids = Mapping[str, str]  # by name; no entry for a topic of brokers that give none


def find_ids(bootstrap: str, topics: Sequence[str]) -> dict[str, str]:
    """As the brokers have them now; ClientError for a topic that does not exist."""

    async def question(pool: Pool) -> dict[str, str]:
        found = await admin.describe_topics(pool, topics)
        return {
            topic.name or "": str(uuid.UUID(bytes=topic.topic_id))
            for topic in found
            if topic.topic_id and any(topic.topic_id)
        }

    return ask(bootstrap, question)


def hold_ids(files: Files, directory: str, ids: Ids, remedy: str) -> None:
    """Keeps them, unless an earlier run did; JobError if a topic is not the one that it was."""
    files.create(f"{directory}/{FILE_NAME}", json.dumps(ids, indent=1, sort_keys=True) + "\n")
    check_ids(files, directory, ids, remedy)


def check_ids(files: Files, directory: str, ids: Ids, remedy: str) -> None:
    """As `hold_ids`, but changes nothing. For --dry-run."""
    for topic, was in changed_ids(files, directory, ids).items():
        raise JobError(
            f"topic {topic!r} was deleted and created again since this job read it (its id was {was} and is "
            f"{ids[topic]}), so offsets of the old one say nothing about it; {remedy}"
        )


def changed_ids(files: Files, directory: str, ids: Ids) -> dict[str, str]:
    """What was kept of topics that are others now; nothing for a new job, or one of a Penstock that kept none."""
    path = f"{directory}/{FILE_NAME}"
    kept = json.loads(files.read(path)) if files.exists(path) else {}
    return {topic: was for topic, was in kept.items() if ids.get(topic, was) != was}
