"""The etcd store against real etcd: the contract, and what happens when members stop, die, forget or elect."""

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support import etcd as support

if (reason := support.missing()) is not None:
    pytest.skip(reason, allow_module_level=True)

from penstock.metadata.etcd.settings import parse_etcd_url
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.store import DeletePrefix, MetadataStore
from tests.support.etcd import Etcd
from tests.unit.metadata.store_contract import StoreContract

pytestmark = pytest.mark.cluster

PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with support.running(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


def opened(etcd: Etcd, name: str = "test", first_member: int = 0) -> EtcdStore:
    """Patient: the one member is all there is, and machines are busy."""
    settings = parse_etcd_url(etcd.url(name))
    return EtcdStore(
        settings, first_member=first_member, timeout_ms=PATIENCE_MS, patience_ms=PATIENCE_MS
    )


class TestEtcdStore(StoreContract):
    ttl_ms = 4_000  # a lease must outlive the moments in which nothing runs

    @pytest.fixture(autouse=True)
    def _place(self, one: Etcd) -> Iterator[None]:
        self.etcd = one
        self.name = uuid4().hex
        yield
        self.run(self._forget)  # so that no lease ends something during the next test

    def open(self) -> MetadataStore:
        return opened(self.etcd, self.name)

    def let_pass(self, elapsed_ms: int) -> None:
        """Real time: etcd has a clock of its own. Of what a lease is to outlive, a part: machines are busy."""
        time.sleep(elapsed_ms / 1000 * (1.0 if elapsed_ms > self.ttl_ms else 0.6))

    async def _forget(self, store: MetadataStore, _: MetadataStore) -> None:
        await store.commit([], [DeletePrefix("")])
