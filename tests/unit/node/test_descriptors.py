import logging
import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.node.descriptors import divide, raise_limit


@pytest.fixture
def limit_as_it_was() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one(limit_as_it_was: tuple[int, int]) -> None:
    _, hard = limit_as_it_was
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    raised = raise_limit()
    assert raised == min(hard, 1 << 20) if hard >= 0 else 1 << 20
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, hard)
    assert raise_limit() == raised


@pytest.mark.parametrize(
    ("limit", "files", "connections", "answers"),
    [
        (256, 80, 160, 32),
        (1024, 448, 896, 42),
        (20_000, 8192, 17_500, 833),
        (1 << 20, 8192, 917_504, 43_690),
    ],
)
def test_descriptors_are_divided(limit: int, files: int, connections: int, answers: int) -> None:
    assert divide(limit, 8192) == (limit, files, connections, answers)


@given(st.integers(1, 1 << 20), st.integers(16, 1 << 20))
def test_neither_files_nor_connections_take_all(limit: int, wanted: int) -> None:
    shares = divide(limit, wanted)
    assert 1 <= shares.segment_files <= max(wanted, 1)
    assert shares.connections >= 1
    if limit >= 256:
        assert limit - shares.connections >= 96
        assert shares.connections - shares.segment_files >= limit // 4


def test_what_is_cut_short_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        divide(20_000, 8192)
        assert not caplog.records
        divide(1024, 8192)
    assert "limit=1024 segment-files=448 wanted=8192 connections=896" in caplog.text
