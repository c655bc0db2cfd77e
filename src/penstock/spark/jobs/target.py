"""Look up the topic that a job writes to."""

from typing import Any

from penstock.client import admin
from penstock.client.pool import Pool
from penstock.records.compression import Codec
from penstock.spark.outgoing import Target
from penstock.spark.survey import ask


def find_target(options: Any) -> Target:
    """Return the target topic of a job's options. Raise ClientError if it does not exist.

    `options` has `to` and `compression`.
    """

    async def question(pool: Pool) -> int:
        (found,) = await admin.describe_topics(pool, [options.to])
        return len(found.partitions)

    return Target(options.to, ask(options.bootstrap, question), Codec[options.compression.upper()])
