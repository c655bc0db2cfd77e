"""How the runs of a broker begin and end, told by small durable files: `running`, `clean`, `meta.properties`."""

import os
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from penstock.model.errors import StorageFault
from penstock.model.ids import TopicId, format_topic_id
from penstock.storage import checksummed_json
from penstock.storage.files import Disk, read_small, refuse, write_atomically
from penstock.storage.recovery import Ending

META: Final = "meta.properties"
RUNNING: Final = "running"
CLEAN: Final = "clean"
STORE_REVISION: Final = "store-revision"

_SEVERITY: Final = (Ending.CLEAN, Ending.PROCESS_CRASH, Ending.POWER_LOSS)


class LastRun(NamedTuple):
    """How the last run ended, and what it was."""

    ending: Ending
    broker_epoch: int | None
    unseen_ending: Ending  # for logs that the last run did not open: how the run ended that did
    seen: frozenset[str] | None  # those that it did open; None: it need not be known
    untold: Ending  # the worst end of all runs since the last one with a session: nobody has heard of it
    has_sizes: bool = False  # it has written down how large each log is


def log_name(topic_id: TopicId, partition: int) -> str:
    return f"{format_topic_id(topic_id)}/{partition}"


def read_last_run(directory: str, boot_id: str, *, is_new: bool = False) -> LastRun:
    """A run that did not write `clean` has crashed; so has the machine, unless it is still the same boot."""
    running, clean = _read(directory, RUNNING), _read(directory, CLEAN)
    if running is None:
        ending = Ending.CLEAN if is_new else Ending.POWER_LOSS
        return LastRun(ending, None, ending, None, ending)
    broker_epoch, before = running["broker_epoch"], Ending(running["before"])
    untold = Ending(running.get("untold", Ending.CLEAN.value))
    if clean is not None and clean["run"] == running["run"]:
        seen = None if clean["seen"] is None else frozenset(clean["seen"])
        has_sizes = clean.get("sizes") is True  # not if an older version ran here last
        return LastRun(Ending.CLEAN, broker_epoch, before, seen, untold, has_sizes)
    ending = Ending.PROCESS_CRASH if running["boot_id"] == boot_id else Ending.POWER_LOSS
    return LastRun(
        ending, broker_epoch, _worse(ending, before), frozenset(), _worse(ending, untold)
    )


def _worse(one: Ending, other: Ending) -> Ending:
    return max(one, other, key=_SEVERITY.index)


def write_running(
    directory: str,
    run: str,
    boot_id: str,
    broker_epoch: int | None,
    before: Ending,
    untold: Ending,
    disk: Disk | None,
) -> None:
    """From now on only `clean` with the same `run` says that all went well. Without `disk` nothing is synced."""
    content = {
        "run": run,
        "boot_id": boot_id,
        "broker_epoch": broker_epoch,
        "before": before.value,
        "untold": untold.value,
    }
    write_atomically(f"{directory}/{RUNNING}", checksummed_json.encode(RUNNING, content), disk=disk)
    try:
        os.unlink(f"{directory}/{CLEAN}")
        if disk is not None:
            disk.fsync_directory(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        refuse(error, f"{directory}/{CLEAN}: cannot be removed")


def write_clean(directory: str, run: str, seen: Iterable[str] | None, disk: Disk) -> None:
    """The last thing that a run writes, after the sizes of its logs. `seen`: the logs that are known to be
    whole; None: all."""
    content = {"run": run, "seen": None if seen is None else sorted(seen), "sizes": True}
    write_atomically(f"{directory}/{CLEAN}", checksummed_json.encode(CLEAN, content), disk=disk)


def _read(directory: str, name: str) -> dict[str, Any] | None:
    data = read_small(f"{directory}/{name}")
    try:
        return None if data is None else checksummed_json.decode(name, data)
    except checksummed_json.Damaged:
        return None


def read_store_revision(directory: str) -> int:
    """0 if it is lost: then an old backup of the store would not be noticed, and nothing else is."""
    content = _read(directory, STORE_REVISION)
    return int(content["revision"]) if content is not None else 0


def write_store_revision(directory: str, revision: int, disk: Disk) -> None:
    data = checksummed_json.encode(STORE_REVISION, {"revision": revision})
    write_atomically(f"{directory}/{STORE_REVISION}", data, disk=disk)


def read_meta(directory: str) -> dict[str, str] | None:
    """Kafka's file of that name: lines of name=value. None if it was never written."""
    path = f"{directory}/{META}"
    try:
        with open(path, encoding="ascii") as file:
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageFault(f"{path}: cannot be read: {error}") from error
    meta = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    if meta.get("version") != "1" or not meta.get("directory.id"):
        raise StorageFault(f"{path}: damaged, or of another version than 1; restore it")
    return meta


def write_meta(directory: str, meta: dict[str, str], disk: Disk) -> None:
    text = "".join(f"{name}={value}\n" for name, value in sorted(meta.items()))
    write_atomically(f"{directory}/{META}", text.encode(), disk=disk)
