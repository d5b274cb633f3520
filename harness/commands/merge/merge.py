"""Merge the parts of a run (`run --part`) to the run that one process would have written
(docs/scale.md, Merge).

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
from harness.cost import Rate
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
from harness.store.log import encode_line, objects
from harness.store.manifest import (
    COMPLETE,
    OF_SESSION,
    RUNNING,
    STOPPED,
    Manifest,
    Priced,
    Provenance,
    Selection,
    Times,
    Tuning,
    differences,
    load,
    other_currency,
    part_of,
    value_text,
)
from harness.store.run import RunFiles, RunStore
from harness.store.submissions import pending
from harness.store.tasks import TaskIndex

MERGE_FOLDER = ".merging"
"""In the results folder: the runs that are being merged, and a lock."""


@dataclass(frozen=True, slots=True)
class LockedPart:
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
def locked(folders: Sequence[Path], subsets: Sequence[str]) -> Iterator[list[list[LockedPart]]]:
    """Lock runs; yield the parts of each subset in order. Raise `BadInput` if they do not make one
    run, `InUse`."""
    # All are looked for before the first is locked.
    for subset in subsets:
        for folder in folders:
            if not RunFiles(folder, subset).manifest.exists():
                raise BadInput(
                    f"{folder} has no run of {subset}, and other parts have: play it there too"
                )
    with ExitStack() as stack:
        parts_by_subset = list[list[LockedPart]]()
        for subset in subsets:
            run_parts = [_locked(RunFiles(folder, subset), stack) for folder in folders]
            parts_by_subset.append(_fitting(run_parts))
        yield parts_by_subset


def _locked(files: RunFiles, stack: ExitStack) -> LockedPart:
    stack.callback(RunLock(files.lock, time.time).release)
    manifest = load(files.manifest)
    if manifest is None:
        raise BadInput(f"{files.manifest} no longer exists")
    if manifest.state != COMPLETE and pending(files):
        raise BadInput(
            f"{files.folder}: requests of it may be at the provider: resume this part first"
        )
    return LockedPart(files, manifest)


def _fitting(run_parts: Sequence[LockedPart]) -> list[LockedPart]:
    """Return the parts in order. Raise `BadInput` for one of another run, a doubled or a missing
    one."""
    first = run_parts[0]
    for run_part in run_parts:
        if "part" not in run_part.manifest.selection:
            raise BadInput(
                f"{run_part.label}: this is a whole run; `merge` joins the parts of one, which `run"
                " --part I/N` plays"
            )
        changed = differences(_common(first.manifest), _common(run_part.manifest))
        for name, (expected, value) in changed.items():
            raise BadInput(
                f"{run_part.label}: not of one run with {first.label}: {name} is"
                f" {value_text(value)}, not {value_text(expected)}"
            )
    ordered = sorted(run_parts, key=lambda run_part: run_part.number)
    for previous, run_part in pairwise(ordered):
        if previous.number == run_part.number:
            raise BadInput(
                f"{run_part.label}: part {run_part.number} is given twice, by"
                f" {previous.files.folder} too"
            )
    count = part_of(first.manifest.selection)[1]
    missing = sorted({*range(1, count + 1)} - {run_part.number for run_part in ordered})
    if missing:
        numbers = ", ".join(map(str, missing))
        raise BadInput(
            f"{first.files.subset}: missing of {count} parts: {numbers}: name all of them"
        )
    return ordered


def _common(manifest: Manifest) -> JSON:
    """Return what all parts of a run have in common."""
    # Parts may be played on several machines, each with its own copy of the tasks.
    tasks = {**manifest.tasks, "path": None}
    selection = {**manifest.selection, "part": None, "parts": part_of(manifest.selection)[1]}
    return {"identity": manifest.identity, "tasks": tasks, "selection": selection}


def notes(run_parts: Sequence[LockedPart]) -> Iterator[str]:
    """Yield in what the parts were played differently; the run has what the first part has."""
    provenance = run_parts[0].manifest.provenance
    for run_part in run_parts[1:]:
        for name, (first, value) in differences(provenance, run_part.manifest.provenance).items():
            if name not in NOT_REPORTED:
                yield (
                    f"{run_part.label}: note: {name} is {value_text(value)}, and"
                    f" {value_text(first)} in the first part"
                )


@contextmanager
def placed(results: Path, name: str, disk: Disk = DISK) -> Iterator[Path]:
    """Yield an empty folder that becomes the run `name` when the block ends without error. Raise
    `BadInput` if the name is taken, `InUse` while another process merges here."""
    final = results / name
    aside = results / MERGE_FOLDER
    if os.path.lexists(final):
        raise BadInput(
            f"{final} exists: give the run another name with --out, or move this folder away"
        )
    make_folder(aside, disk)
    with ExitStack() as stack:
        stack.callback(RunLock(aside / "lock", time.time, disk=disk).release)
        folder = aside / name
        _clear(folder, disk)
        make_folder(folder, disk)
        try:
            yield folder
            # The last step: whoever looks finds the whole run or none.
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
    run_parts: Sequence[LockedPart],
    benchmark: Benchmark,
    index: TaskIndex,
    folder: Path,
    disk: Disk = DISK,
) -> tuple[Manifest, Report]:
    """Write the run of a subset's parts into a folder of its name. Raise `BadInput` for records
    that do not fit."""
    if index.sha256 != run_parts[0].manifest.tasks["sha256"]:
        raise BadInput(
            f"{index.path} is not the tasks file that {run_parts[0].label} was made with"
        )
    copies = _copies(run_parts)
    files = RunFiles(folder, run_parts[0].files.subset)
    with closing(RunStore(files, time.time, stamp(), disk)) as store:
        store.keep_files(copies)
        manifest = _manifest(run_parts)
        price_places = _take_prices(run_parts, manifest)
        _write_lines(run_parts, price_places, index, files, disk)
        store.roles = manifest.role_models
        done = store.open_logs(index)
        for run_part, places in zip(run_parts, price_places, strict=True):
            for submission in pending(run_part.files):  # given up, and perhaps billed
                line = {"requests": submission.requests, "sent": submission.sent}
                line |= submission.rate.data
                store.event("unanswered", **_at_price(line, places))
        expected = index.selected(manifest.selection) | done
        run = Run(benchmark, files.subset, index, store, manifest, expected)
        is_stopped = any(run_part.manifest.state in (RUNNING, STOPPED) for run_part in run_parts)
        report, extra_files = finish(run, folder.name, is_stopped)
        write_report(files, report, extra_files, disk)
        run.save()
    return manifest, report


def _take_prices(run_parts: Sequence[LockedPart], merged: Manifest) -> list[list[int]]:
    """Give the merged run the prices of all parts, each at its endpoint; return for each part the
    places of its prices there. Raise `BadInput` for prices in two currencies."""
    merged_prices: dict[Priced, int] = {}
    places = []
    for run_part in run_parts:
        priced = run_part.manifest.priced
        places.append([merged_prices.setdefault(price, len(merged_prices)) for price in priced])
    for price, _, role, _ in merged_prices:
        second = price and other_currency(price, merged_prices, role)
        if price and second:
            currencies = " and ".join(sorted((price.currency, second)))
            raise BadInput(
                f"{run_parts[0].label}: its parts are priced in {currencies}: give all parts prices"
                " in one currency with `reeval --new-prices`"
            )
    merged.set_prices([*merged_prices])
    return places


def _at_price(line: JSON, places: Sequence[int]) -> JSON:
    """Return a line with the place that its price has in the merged run; the first is left out."""
    place = places[min(Rate.of_line(line).price, len(places) - 1)]
    line = {name: value for name, value in line.items() if name != "price"}
    if place:
        line["price"] = place
    return line


def _write_lines(
    run_parts: Sequence[LockedPart],
    price_places: Sequence[Sequence[int]],
    index: TaskIndex,
    files: RunFiles,
    disk: Disk,
) -> None:
    """Write the parts' lines, each part's after those of the one before it."""
    with replacing(files.results, disk=disk) as file:
        owners = _write_records(run_parts, index, file)
    for name in ("responses", "failures", "events"):
        with replacing(getattr(files, name), disk=disk) as file:
            for run_part, places in zip(run_parts, price_places, strict=True):
                # Users without a record are of the part that has selected them.
                selected = index.selected(run_part.manifest.selection)
                has_user = np.where(owners == 0, selected, owners == run_part.number)
                is_moved = places != [*range(len(places))]
                for line, data in objects(getattr(run_part.files, name)):
                    position = index.position_of(data)
                    if position is not None and not has_user[position]:
                        continue
                    if is_moved and "sent" in data:
                        file.write(encode_line(_at_price(data, places)))
                    else:
                        file.write(line.text + b"\n")


def _write_records(
    run_parts: Sequence[LockedPart], index: TaskIndex, file: BinaryIO
) -> NDArray[np.int64]:
    """Write the records of current tasks; return the number of the part that has each task's, 0 for
    none."""
    owners = np.zeros(len(index), np.int64)
    for run_part in run_parts:
        checksum = sha256()
        path = run_part.files.results
        for line, data in objects(path):
            checksum.update(line.text + b"\n")
            position = index.current(data)
            if position is None:
                continue  # superseded: the task had another content then
            if owners[position]:
                raise BadInput(
                    f"{path}: user {value_text(data.get('user_id'))} overlaps: part"
                    f" {owners[position]} has a record, too"
                )
            owners[position] = run_part.number
            file.write(line.text + b"\n")
        if run_part.manifest.results_sha256 not in (None, checksum.hexdigest()):
            raise BadInput(f"{path} has changed since its run was complete: `verify` finds where")
    return owners


def _copies(run_parts: Sequence[LockedPart]) -> dict[str, bytes]:
    """Return the kept files of prompt, agent or plug-in. Raise `BadInput` for one that no part has
    unchanged."""
    digests = run_parts[0].manifest.identity["files"]
    return {name: _unchanged_copy(run_parts, name, digest) for name, digest in digests.items()}


def _unchanged_copy(run_parts: Sequence[LockedPart], name: str, digest: str) -> bytes:
    for run_part in run_parts:
        with suppress(OSError):
            data = content(run_part.files.folder / name, DOCUMENT_MOST)
            if sha256(data).hexdigest() == digest:
                return data
    raise BadInput(f"{run_parts[0].files.folder} has no {name} as the run was made with: add it")


def _manifest(run_parts: Sequence[LockedPart]) -> Manifest:
    """Return the manifest of the whole run, as it is before its results are counted."""
    manifests = [run_part.manifest for run_part in run_parts]
    first = manifests[0]
    tuning = first.tuning.copy()
    tuning |= cast(Tuning, dict(sum(map(counts, manifests), Counter())))
    # Parts may have learned different limits: the most careful one holds for the whole run.
    limits = filter(None, [manifest.tuning.get("learned_limit") for manifest in manifests])
    lowest_limit = min(limits, default=None)
    if lowest_limit:
        tuning["learned_limit"] = lowest_limit
    # Parts may have run at the same time, on several machines: this is their work, not a span of
    # time.
    all_times = [manifest.times for manifest in manifests]
    times: Times = {
        "created": min(times["created"] for times in all_times),
        "seconds": round(sum(times.get("seconds", 0.0) for times in all_times), 3),
        "updated": max(times.get("updated", times["created"]) for times in all_times),
        "schedule": None,
    }
    fields = {name: getattr(first, name) for name in OF_SESSION}
    fields["selection"] = whole_selection(first.selection)
    fields["tuning"] = tuning
    fields["provenance"] = _provenance(manifests)
    return Manifest(**fields, state=RUNNING, counts={}, times=times)


def whole_selection(selection: Selection) -> Selection:
    """Return the selection that all parts of it make together."""
    merged = selection.copy()
    merged.pop("part", None)
    merged.pop("by", None)
    return merged


def _provenance(manifests: Sequence[Manifest]) -> Provenance:
    """Return the first part's provenance, with the quirks and allowed differences of all."""
    quirks = set[str]()
    quirks_used = set[str]()
    allowed = dict[str, None]()  # in the order of the parts
    for manifest in manifests:
        provenance = manifest.provenance
        quirks.update(provenance.get("quirks", ()))
        quirks_used.update(provenance.get("quirks_used", ()))
        allowed |= dict.fromkeys(provenance.get("allowed", ()))
    merged = manifests[0].provenance.copy()
    merged["quirks"] = sorted(quirks)
    merged["quirks_used"] = sorted(quirks_used)
    if allowed:
        merged["allowed"] = list(allowed)
    return merged
