"""Merge the parts of a run (`run --part`) to the run that one process would have written
(docs/features/parts.md).

Guarantee: parts are only read, under their locks. The run is written in a folder aside, which gets
its name last: after any death there is the whole run or none, and the next merge removes what was
left. Not covered: a folder of the run's name that another program makes in that moment.

Results of a complete run, its report and its manifest are the bytes of one run, but for times and
the schedule. The order of responses, failures and events, and of an incomplete run's results,
depends on time in one run, too: here the parts' lines follow one another.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from harness.benchmark import Benchmark
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.cost import Price, Rate
from harness.engine.files import stamp, write_report
from harness.engine.finish import finish
from harness.engine.opening import NOT_REPORTED
from harness.engine.run import Run
from harness.errors import BadInput, MachineError
from harness.model import JSON
from harness.options.extension import counts
from harness.scoring.reports import Report
from harness.store.atomic import check_folder, make_folder, replacing, sync_folder
from harness.store.disk import DISK, Disk
from harness.store.lock import RunLock
from harness.store.log import objects, seal
from harness.store.manifest import (
    COMPLETE,
    OF_SESSION,
    RUNNING,
    STOPPED,
    Manifest,
    Provenance,
    Selection,
    Times,
    Tuning,
    differences,
    load,
    part_of,
    value_text,
)
from harness.store.run import RunFiles, RunStore
from harness.store.submissions import pending
from harness.store.tasks import TaskIndex

FOLDER = ".merging"
"""In the results folder: the runs that are being merged, and a lock."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a run on one subset, whose lock is held. `number` is its place among the parts,
    from 1."""

    files: RunFiles
    manifest: Manifest

    @property
    def number(self) -> int:
        return part_of(self.manifest.selection)[0]

    @property
    def label(self) -> str:
        return f"{self.files.folder}, {self.files.subset}"


@contextmanager
def locked(folders: Sequence[Path], subsets: Sequence[str]) -> Iterator[list[list[Part]]]:
    """Lock runs; yield the parts of each subset in order. Raise `BadInput` if they do not make one
    run, `InUse`."""
    runs = [[RunFiles(folder, subset) for folder in folders] for subset in subsets]
    for files in (files for one in runs for files in one):
        if not files.manifest.exists():
            raise BadInput(
                f"{files.folder} has no run of {files.subset}, and other parts have: play it"
                " there too"
            )
    with ExitStack() as held:
        yield [_fitting([_locked(files, held) for files in one]) for one in runs]


def _locked(files: RunFiles, held: ExitStack) -> Part:
    held.callback(RunLock(files.lock, time.time).release)
    manifest = load(files.manifest)
    if manifest is None:
        raise BadInput(f"{files.manifest} no longer exists")
    if manifest.state != COMPLETE and pending(files):
        raise BadInput(
            f"{files.folder}: requests of it may be at the provider: resume this part first"
        )
    return Part(files, manifest)


def _fitting(parts: Sequence[Part]) -> list[Part]:
    """Return the parts in order. Raise `BadInput` for one of another run, a doubled or a missing
    one."""
    first = parts[0]
    for part in parts:
        if "part" not in part.manifest.selection:
            raise BadInput(
                f"{part.label}: this is a whole run; `merge` joins the parts of one, which `run"
                " --part I/N` plays"
            )
        if found := differences(_common(first.manifest), _common(part.manifest)):
            name, (a, b) = next(iter(found.items()))
            raise BadInput(
                f"{part.label}: not of one run with {first.label}: {name} is {value_text(b)}, not"
                f" {value_text(a)}"
            )
    ordered = sorted(parts, key=lambda part: part.number)
    for one, other in pairwise(ordered):
        if one.number == other.number:
            raise BadInput(
                f"{other.label}: part {other.number} is given twice, by {one.files.folder} too"
            )
    count = part_of(first.manifest.selection)[1]
    if missing := [
        str(number)
        for number in range(1, count + 1)
        if number not in {part.number for part in parts}
    ]:
        raise BadInput(
            f"{first.files.subset}: missing of {count} parts: {', '.join(missing)}: name all of"
            " them"
        )
    return ordered


def _common(manifest: Manifest) -> JSON:
    """Return what all parts of a run have in common."""
    tasks = {name: value for name, value in manifest.tasks.items() if name != "path"}
    selection = {**manifest.selection, "part": None, "parts": part_of(manifest.selection)[1]}
    return {"identity": manifest.identity, "tasks": tasks, "selection": selection}


def notes(parts: Sequence[Part]) -> Iterator[str]:
    """Yield in what the parts were played differently; the run has what the first part has."""
    first = parts[0].manifest.provenance
    for part in parts[1:]:
        for name, (a, b) in differences(first, part.manifest.provenance).items():
            if name not in NOT_REPORTED:
                yield (
                    f"{part.label}: note: {name} is {value_text(b)}, and {value_text(a)} in the"
                    " first part"
                )


@contextmanager
def placed(results: Path, name: str, disk: Disk = DISK) -> Iterator[Path]:
    """Yield an empty folder that becomes the run `name` when the block ends without error. Raise
    `BadInput` if the name is taken, `InUse` while another process merges here."""
    final, aside = results / name, results / FOLDER
    if os.path.lexists(final):
        raise BadInput(
            f"{final} exists: give the run another name with --out, or move this folder away"
        )
    make_folder(aside, disk)
    with ExitStack() as held:
        held.callback(RunLock(aside / "lock", time.time, disk=disk).release)
        folder = aside / name
        _clear(folder, disk)
        make_folder(folder, disk)
        try:
            yield folder
            _rename(folder, final, disk)
        finally:
            with suppress(MachineError):  # the next merge tries again
                _clear(folder, disk)


def _rename(folder: Path, final: Path, disk: Disk) -> None:
    try:
        disk.replace(folder, final)
    except OSError as error:
        raise MachineError(f"cannot make {final}: {error.strerror}") from error
    sync_folder(final.parent, disk)


def _clear(folder: Path, disk: Disk) -> None:
    """Remove the files that a dead merge has left."""
    check_folder(folder)
    try:
        for path in folder.iterdir() if folder.exists() else ():
            disk.unlink(path)
    except OSError as error:
        raise MachineError(f"cannot clear {folder}: {error.strerror}") from error


def merge(
    parts: Sequence[Part], benchmark: Benchmark, index: TaskIndex, folder: Path, disk: Disk = DISK
) -> tuple[Manifest, Report]:
    """Write the run of a subset's parts into a folder of its name. Raise `BadInput` for records
    that do not fit."""
    if index.sha256 != parts[0].manifest.tasks["sha256"]:
        raise BadInput(f"{index.path} is not the tasks file that {parts[0].label} was made with")
    kept, files = _kept(parts), RunFiles(folder, parts[0].files.subset)
    with closing(RunStore(files, time.time, stamp(), disk)) as store:
        store.keep_files(kept)
        manifest = _manifest(parts)
        places = _take_prices(parts, manifest)
        _copy(parts, places, index, files, disk)
        done = store.open_logs(index)
        for part, of_part in zip(parts, places, strict=True):
            for one in pending(part.files):  # given up, and perhaps billed
                line = _at_price(
                    {"requests": one.requests, "sent": one.sent, **one.rate.data}, of_part
                )
                store.event("unanswered", **line)
        run = Run(
            benchmark,
            files.subset,
            index,
            store,
            manifest,
            index.selected(manifest.selection) | done,
        )
        report, more = finish(
            run, folder.name, any(part.manifest.state in (RUNNING, STOPPED) for part in parts)
        )
        write_report(files, report, more, disk)
        run.save()
    return manifest, report


def _take_prices(parts: Sequence[Part], merged: Manifest) -> list[list[int]]:
    """Give the merged run the prices of all parts, each at its endpoint; return for each part the
    places of its prices there. Raise `BadInput` for prices in two currencies."""
    known: dict[tuple[Price | None, str], int] = {}
    places = []
    for part in parts:
        priced = zip(part.manifest.prices, part.manifest.price_endpoints, strict=True)
        places.append([known.setdefault(price, len(known)) for price in priced])
    if len(currencies := {price.currency for price, _ in known if price}) > 1:
        raise BadInput(
            f"{parts[0].label}: its parts are priced in {' and '.join(sorted(currencies))}: give"
            " all parts prices in one currency with `reeval --new-prices`"
        )
    merged.set_prices([price for price, _ in known], [endpoint for _, endpoint in known])
    return places


def _at_price(line: JSON, places: Sequence[int]) -> JSON:
    """Return a line with the place that its price has in the merged run."""
    place = places[min(Rate.of(line).price, len(places) - 1)]
    others = {name: value for name, value in line.items() if name != "price"}
    return {**others, "price": place} if place else others


def _copy(
    parts: Sequence[Part],
    places: Sequence[Sequence[int]],
    index: TaskIndex,
    files: RunFiles,
    disk: Disk,
) -> None:
    """Write the parts' lines, each part's after those of the one before it."""
    with replacing(files.results, disk=disk) as file:
        owners = _records(parts, index, file)
    for name in ("responses", "failures", "events"):
        with replacing(getattr(files, name), disk=disk) as file:
            for part, of_part in zip(parts, places, strict=True):
                has_user = np.where(
                    owners == 0, index.selected(part.manifest.selection), owners == part.number
                )
                moves = of_part != list(range(len(of_part)))
                for line, data in objects(getattr(part.files, name)):
                    position = index.of(data)
                    if position is not None and not has_user[position]:
                        continue
                    file.write(
                        seal(_at_price(data, of_part))
                        if moves and "sent" in data
                        else line.text + b"\n"
                    )


def _records(parts: Sequence[Part], index: TaskIndex, file: BinaryIO) -> NDArray[np.int64]:
    """Write the records of current tasks; return the number of the part that has each task's, 0 for
    none."""
    owners = np.zeros(len(index), np.int64)
    for part in parts:
        whole, path = sha256(), part.files.results
        for line, data in objects(path):
            whole.update(line.text + b"\n")
            if (position := index.current(data)) is None:
                continue  # superseded: the task had another content then
            if other := int(owners[position]):
                raise BadInput(
                    f"{path}: user {value_text(data.get('user_id'))} overlaps: part {other} has a"
                    " record, too"
                )
            owners[position] = part.number
            file.write(line.text + b"\n")
        if part.manifest.results_sha256 not in (None, whole.hexdigest()):
            raise BadInput(f"{path} has changed since its run was complete: `verify` finds where")
    return owners


def _kept(parts: Sequence[Part]) -> dict[str, bytes]:
    """Return the kept files of prompt, agent or plug-in. Raise `BadInput` for one that no part has
    unchanged."""
    return {
        name: _kept_file(parts, name, digest)
        for name, digest in parts[0].manifest.identity["files"].items()
    }


def _kept_file(parts: Sequence[Part], name: str, digest: str) -> bytes:
    for part in parts:
        with suppress(OSError):
            if (
                sha256(found := content(part.files.folder / name, DOCUMENT_MOST)).hexdigest()
                == digest
            ):
                return found
    raise BadInput(f"{parts[0].files.folder} has no {name} as the run was made with: add it")


def _manifest(parts: Sequence[Part]) -> Manifest:
    """Return the manifest of the whole run, as it is before its results are counted."""
    first, manifests = parts[0].manifest, [part.manifest for part in parts]
    tuning = first.tuning.copy()
    tuning |= cast(Tuning, dict(sum(map(counts, manifests), Counter())))
    if learned := [limit for of in manifests if (limit := of.tuning.get("learned_limit"))]:
        tuning["learned_limit"] = min(learned)
    times: Times = {
        "created": min(of.times["created"] for of in manifests),
        "seconds": round(sum(of.times.get("seconds", 0.0) for of in manifests), 3),
        "updated": max(of.times.get("updated", of.times["created"]) for of in manifests),
        "schedule": None,
    }
    of_first_part = {name: getattr(first, name) for name in OF_SESSION}
    whole_run = {
        "selection": whole(first.selection),
        "tuning": tuning,
        "provenance": _provenance(manifests),
    }
    return Manifest(**(of_first_part | whole_run), state=RUNNING, counts={}, times=times)


def whole(selection: Selection) -> Selection:
    """Return the selection that the parts of it make."""
    made = selection.copy()
    made.pop("part", None)
    made.pop("by", None)
    return made


def _provenance(manifests: Sequence[Manifest]) -> Provenance:
    """Return the first part's provenance, with the quirks and allowed differences of all."""
    made = manifests[0].provenance.copy()
    made["quirks"] = sorted({name for of in manifests for name in of.provenance.get("quirks", ())})
    made["quirks_used"] = sorted(
        {name for of in manifests for name in of.provenance.get("quirks_used", ())}
    )
    if allowed := list(
        dict.fromkeys(words for of in manifests for words in of.provenance.get("allowed", ()))
    ):
        made["allowed"] = allowed
    return made
