"""Once its manifest exists, a batch or a compaction is completed by the next run. No Spark."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.jobs.files import LocalFiles, Stored
from penstock.spark.jobs.lake import compact
from penstock.spark.jobs.lake.compact import Compaction, Compactor, Group, choose
from penstock.spark.jobs.table import batches
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table.batches import Batches, Storage
from penstock.spark.jobs.table.decode import RawDecoder
from penstock.spark.jobs.table.layout import Layout, compacted_name
from penstock.spark.jobs.table.manifest import DataFile, Manifest, Table

MIB = 1 << 20


class Killed(BaseException):
    """As good as SIGKILL: nothing of ours catches it."""


class _Killer:
    def __init__(self, step: str) -> None:
        self._step = step

    def __call__(self, step: str) -> None:
        if step == self._step:
            raise Killed


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    layout = Layout(str(tmp_path / "t"), str(tmp_path / "t_dead_letters"), "j")
    return Storage(layout, LocalFiles(), LocalFiles())


def _nothing(*_: Any) -> Any:
    return None


def _batches(storage: Storage) -> Batches:
    return Batches(None, storage, RawDecoder(), ("topic",), _nothing, _nothing)


def _staged(storage: Storage, number: int = 0) -> Manifest:
    """A batch with two files of rows and one of dead letters, up to its manifest."""
    attempt = f"{number:010}-ab"
    files = (
        *manifests.named(
            Table.ROWS, [("topic=a/x", 1, 1), ("topic=a/y", 1, 1)], job="j", number=number
        ),
        *manifests.named(Table.DEAD_LETTERS, [("topic=a/z", 1, 1)], job="j", number=number),
    )
    for file in files:
        path = Path(storage.attempt(file.table, attempt)) / file.staged
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{file.staged} of {number}")
    manifest = Manifest(
        number=number,
        job="j",
        query="q",
        batch=number,
        attempt=attempt,
        planned_end=None,
        files=files,
        spans={},
        covered={},
    )
    place = f"{storage.layout.manifests}/{manifests.name(number)}"
    assert storage.files.create(place, manifests.to_json(manifest))
    return manifest


def _final(storage: Storage, files: tuple[DataFile, ...]) -> list[str]:
    return [Path(storage.final(file)).read_text() for file in files]


@pytest.mark.parametrize(
    "step", ["lake:first-renamed", "lake:renamed", "lake:table", "lake:cleaned"]
)
def test_the_next_run_finishes_a_batch(
    storage: Storage, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = _staged(storage)
    stale = Path(storage.attempt(Table.ROWS, "0000000000-stale"))
    stale.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(batches, "reached", _Killer(step))
        with pytest.raises(Killed):
            _batches(storage).publish(manifest)
    for _ in range(2):
        _batches(storage).recover()
    assert _final(storage, manifest.files) == ["topic=a/x of 0", "topic=a/y of 0", "topic=a/z of 0"]
    assert storage.files.names(storage.layout.staging) == []
    assert storage.files.names(storage.layout.dead_staging) == []


def test_what_has_no_manifest_is_not_published(storage: Storage) -> None:
    manifest = _staged(storage)
    other = Path(storage.attempt(Table.ROWS, "0000000000-other")) / "topic=a"
    other.mkdir(parents=True)
    (other / "x").write_text("of another attempt")
    Path(f"{storage.layout.manifests}/{manifests.name(1)}").write_text(
        manifests.to_json(manifest).replace("-ab", "-cd")
    )
    _batches(storage).recover()
    assert len(storage.files.walk(storage.layout.table)) == 2


def test_a_batch_that_was_compacted_meanwhile_stays_so(storage: Storage) -> None:
    manifest = _staged(storage)
    _batches(storage).publish(manifest)
    Path(storage.final(manifest.files[0])).unlink()
    _batches(storage).publish(manifest)
    assert not Path(storage.final(manifest.files[0])).exists()


# Compaction ----------------------------------------------------------------------------------------


def test_small_files_side_by_side_are_chosen() -> None:
    files = [
        Stored("topic=a/j-00000001-0000.parquet", MIB),
        Stored("topic=a/j-00000001-0001.parquet", 40 * MIB),
        Stored("topic=a/j-c00000000-0000.parquet", MIB),
        Stored("topic=a/k-00000001-0000.parquet", MIB),
        Stored("topic=b/j-00000001-0002.parquet", MIB),
        *(Stored(f"topic=c/j-00000002-{n:04}.parquet", 30 * MIB) for n in range(5)),
    ]
    small = ("topic=a/j-00000001-0000.parquet", "topic=a/j-c00000000-0000.parquet")
    assert choose(files, job="j", small_bytes=32 * MIB) == [
        Group("topic=a/", small, 1),
        Group("topic=c/", tuple(f"topic=c/j-00000002-{n:04}.parquet" for n in range(5)), 2),
    ]


@pytest.mark.parametrize("other", ["j-b", "j-c", "j-00000000", "j-c00000000", "jj", "j.1", "x-j"])
def test_a_compaction_takes_no_file_of_another_job(other: str) -> None:
    own, others = (_named_as_ever(job) for job in ("j", other))
    assert choose([*own, *others], job="j", small_bytes=MIB) == [
        Group("topic=a/", tuple(file.path for file in own), 1)
    ]
    assert choose(own, job=other, small_bytes=MIB) == []


def _named_as_ever(job: str) -> list[Stored]:
    """As batches and compactions name their files; numbers may get longer."""
    made = [
        file.final
        for number in (0, 10**8)
        for file in manifests.named(Table.ROWS, [("topic=a/x", 1, 1)], job=job, number=number)
    ]
    return [Stored(path, 1) for path in (*made, f"topic=a/{compacted_name(job, 3, 12)}")]


def test_what_is_no_file_of_the_job_is_not_compacted() -> None:
    names = (
        "j-1.parquet.crc",
        "part-0-0.snappy.parquet",
        "j-x-0.parquet",
        "j-0.parquet",
        "j-c-0-0",
    )
    assert choose([Stored(name, 1) for name in names], job="j", small_bytes=MIB) == []


def test_what_compaction_made_is_not_compacted_for_ever() -> None:
    files = [Stored(compacted_name("j", 0, n), 130 * MIB) for n in range(3)]
    assert choose(files, job="j", small_bytes=200 * MIB, target_bytes=128 * MIB) == []


@pytest.mark.parametrize("step", compact.STEPS[2:])
def test_the_next_run_finishes_a_compaction(
    storage: Storage, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compaction = Compaction(
        0,
        "compact-0000000000-ab",
        ("topic=a/j-1.parquet", "topic=a/j-2.parquet"),
        (("0/new", "topic=a/j-c.parquet"), ("1/new", "topic=b/j-c.parquet")),
    )
    for path in (
        *(f"{storage.layout.table}/{path}" for path in compaction.inputs),
        *(
            f"{storage.layout.staging}/{compaction.attempt}/{staged}"
            for staged, _ in compaction.outputs
        ),
    ):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("x")
    storage.files.create(f"{storage.layout.compactions}/{manifests.name(0)}", compaction.to_json())
    compactor = Compactor(None, storage, Table.ROWS)
    with monkeypatch.context() as patched:
        patched.setattr(compact, "reached", _Killer(step))
        with pytest.raises(Killed):
            compactor.recover()
    _batches(storage).recover()
    for _ in range(2):
        compactor.recover()
    found = [file.path for file in storage.files.walk(storage.layout.table)]
    assert found == ["topic=a/j-c.parquet", "topic=b/j-c.parquet"]
    assert storage.files.names(storage.layout.staging) == []
