"""No frame, however spoiled, crashes a broker, makes it hang, or makes it grow. `SEED=… pytest …` repeats a run."""

from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.support.fuzzer import SETTINGS, DecoderFuzzer, Fuzzer
from tests.support.seed import chosen_seed
from tests.support.stalls import BOUND_MS
from tests.support.work_fuzzer import WorkFuzzer, worst_of_each

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLICES = 5
SLICE_FRAMES = 10_000
DECODED_FRAMES = 100_000
WORK_SHARE = 0.15  # of the requests with long arrays; `make bench B=fuzz` sends all
BUSY_FACTOR = 4  # CPU time on a machine that others use, against an idle core
GROWTH_MAX_MB = 160.0  # what buffers that are kept for the next large frame may take, and some


@pytest.fixture
def seed() -> int:
    return chosen_seed()


def test_spoiled_frames_do_a_broker_no_harm(seed: int, tmp_path: Path) -> None:
    with Broker(SETTINGS, subprocess=True, data_dir=tmp_path / "data") as broker:
        fuzzer = Fuzzer(broker, tmp_path / "broker.log", seed)
        for number in range(SLICES):
            fuzzer.run_slice(number, SLICE_FRAMES)
        fuzzer.look_after_crash()
    health = fuzzer.health
    assert not health.troubles, f"SEED={seed}: {dict(health.troubles)}"
    assert health.answered_bytes > 0, "some frames were in order, and were answered"
    assert max(health.rss_mb) - health.rss_mb[0] < GROWTH_MAX_MB, health.rss_mb


def test_spoiled_frames_decode_or_are_malformed_and_nothing_else(seed: int) -> None:
    fuzzer = DecoderFuzzer(seed)
    fuzzer.run(DECODED_FRAMES)
    assert fuzzer.decoded > DECODED_FRAMES // 100
    assert fuzzer.refused > DECODED_FRAMES // 100


def test_no_request_holds_the_loop_for_long(seed: int) -> None:
    """CPU time of single callbacks is measured, which a busy machine lengthens by less than the factor."""
    with WorkFuzzer.started(seed) as fuzzer:
        worst = worst_of_each(fuzzer.run(WORK_SHARE))
    too_long = [cost for cost in worst if cost.stall_ms > BUSY_FACTOR * BOUND_MS]
    assert not too_long, f"SEED={seed}: {too_long}"
    assert not [cost for cost in worst if cost.outcome == "hangs"], f"SEED={seed}"
