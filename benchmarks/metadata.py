"""What cluster metadata costs on the embedded store: `python -m benchmarks.metadata [--topics N] [--partitions N]`.

Start with a directory on a real disk (`--directory`): every commit waits for it.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

from penstock.broker.controller.cluster import Cluster
from penstock.broker.membership.session import Identity
from penstock.metadata.image import Endpoint
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.sqlite.store import SqliteStore
from penstock.metadata.store import Put
from penstock.model.errors import BrokerError
from penstock.node.clock import SystemClock
from penstock.node.tasks import Tasks

REQUEST_TOPICS = 500
SINGLE = 200


async def timed(what: str, work: Callable[[], Awaitable[object]], times: int = 1) -> None:
    start = perf_counter()
    for _ in range(times):
        await work()
    elapsed_ms = (perf_counter() - start) * 1000
    print(f"{what:55} {elapsed_ms / times:10.2f} ms")


async def create(cluster: Cluster, names: list[str], partitions: int) -> None:
    for outcome in await cluster.create_topics([TopicSpec(name, partitions) for name in names]):
        if isinstance(outcome, BrokerError):
            raise outcome


async def one_start(path: Path, topics: int, partitions: int) -> None:
    tasks = Tasks()
    store = SqliteStore(path, SystemClock())
    identity = Identity(broker_id=1, directory_id="bench", session_timeout_ms=20_000)
    cluster = Cluster(store, identity, tasks.spawn)
    await timed("load the image", cluster.load)
    known = len(cluster.image.topics)
    await timed("join: session, office, elections", lambda: cluster.join({"P": Endpoint("h", 1)}))
    if not known:
        lease = await store.grant(20_000)
        await timed("commit one key", lambda: store.commit([], [Put("x", b"x")]), SINGLE)
        await timed("keep a session alive", lambda: store.keep_alive(lease), SINGLE)
        await store.revoke(lease)
        names = iter([f"single-{number}" for number in range(SINGLE)])
        await timed("create one topic", lambda: create(cluster, [next(names)], 1), SINGLE)

        async def many() -> None:
            for first in range(0, topics, REQUEST_TOPICS):
                count = min(REQUEST_TOPICS, topics - first)
                await create(cluster, [f"t-{first + n}" for n in range(count)], partitions)

        await timed(f"create {topics} topics x {partitions}, {REQUEST_TOPICS} a request", many)
    await timed("stop", cluster.stop)
    await tasks.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for title in ("empty store", "the same, started again"):
            print(title)
            path = Path(directory) / "metadata.db"
            asyncio.run(one_start(path, options.topics, options.partitions))


if __name__ == "__main__":
    main()
