"""The runs that a command names, and work on them one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Protocol, TypeVar

from harness.analysis.imported import Imported, imported
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks import registry
from harness.errors import BadInput, ExitCode, HarnessError, in_brief, which_is_known
from harness.options.options import run_name
from harness.store.files import RunFiles
from harness.store.manifest import COMPLETE, load, whole_of
from harness.store.run import runs
from harness.ui.streams import tell


class Selected(Protocol):
    """Options that select runs of a results folder."""

    @property
    def runs(self) -> Sequence[str]: ...
    @property
    def model(self) -> str | None: ...
    @property
    def platform(self) -> Sequence[str] | None: ...
    @property
    def results_dir(self) -> Path: ...


T = TypeVar("T")
R = TypeVar("R")


def find(args: Selected) -> tuple[list[SavedRun], int]:
    """Return the runs that names, `--model` and `--subset` select, all without these, and an exit
    code.

    A run with an unusable manifest is reported and skipped; the code is that of its error, else 0.
    Raise `BadInput` for a name that no folder has.
    """
    for name in args.runs:
        _existing(args.results_dir / name, name, args.results_dir)
    # Not every command that selects runs has these two options.
    trust = getattr(args, "trust", False)
    benchmark = getattr(args, "benchmark", None)
    selected = list[SavedRun]()
    code = 0
    for files in runs(args.results_dir):
        if not _is_selected(files, args.runs, args):
            continue
        try:
            check_name(files.folder)
            manifest = load(files.manifest)
        except HarnessError as error:
            tell(str(error))
            code = max(code, ExitCode.of(error))
            continue
        if manifest is None:
            continue
        model = manifest.identity["model"]
        # `--model` takes a model as `run` does, with its provider in front or without.
        with_provider = f"{manifest.provenance.get('provider')}:{model}"
        if not args.model or args.model in (model, with_provider):
            selected.append(SavedRun(files, manifest, trust, benchmark))
    return selected, code


def without_merged(runs: Sequence[SavedRun]) -> list[SavedRun]:
    """Return runs without the complete parts of a whole run that is among them: it has their
    users."""
    keys = {(run.name, run.files.subset) for run in runs}
    others = []
    for run in runs:
        merged = whole_of(run.name, run.manifest.selection.get("part"))
        if run.manifest.state != COMPLETE or (merged, run.files.subset) not in keys:
            others.append(run)
    return others


def find_imported(args: Selected) -> tuple[list[Imported], int]:
    """Return the results of another program that the options select, and an exit code as `find`
    does."""
    selected = list[Imported]()
    code = 0
    names = args.runs
    if args.model and not names:
        try:
            # Results of another program name no model, so it is the name of their folder.
            names = [run_name(None, args.model)]
        except BadInput:  # a model's name that is no folder's
            return selected, code
    for results in imported(args.results_dir):
        if not _is_selected(results.files, names, args):
            continue
        try:
            check_name(results.files.folder)
            selected.append(results)
        except BadInput as error:
            tell(str(error))
            code = ExitCode.of(error)
    return selected, code


def _is_selected(files: RunFiles, names: Sequence[str], args: Selected) -> bool:
    """Return whether a run has one of these names and a selected subset; none of either selects
    all."""
    if names and files.folder.name not in names:
        return False
    subsets = [subset.lower() for subset in args.platform or ()]
    return not subsets or files.subset in subsets


def folder(name: str, results: Path) -> Path:
    """Return the folder of a run of the results folder, or else the folder of that path. Raise
    `BadInput`."""
    # A name goes first: the working directory may have a folder of the same name by chance.
    if os.path.isdir(name) and not os.path.isdir(results / name):
        return Path(name)
    return _existing(results / name, name, results)


def _existing(path: Path, name: str, results: Path) -> Path:
    """Return the path of a run's folder. Raise `BadInput` with the names of those that exist if it
    does not."""
    if os.path.isdir(path):
        return path
    names = sorted(path.name for path in results.glob("*") if any(path.glob("run_*.json")))
    existing = f": there are {', '.join(names)}" if names else ""
    raise BadInput(f"no run {name} under {results}{existing}")


def check_name(folder: Path) -> None:
    """Raise `BadInput` if the name of a folder is not text, which reports and manifests could not
    hold."""
    try:
        folder.name.encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"{folder}: the name of this folder is not text in UTF-8: give it another"
        ) from None


def check_subsets(wanted: Sequence[str] | None, of_runs: Iterable[str]) -> None:
    """Raise `BadInput` for a subset that neither runs that are found nor benchmarks that ship
    have."""
    known = set(of_runs)
    for name in registry.names():
        known.update(registry.find(name).subsets)
    for subset in wanted or ():
        if subset not in known:
            raise BadInput(
                f"no subset {in_brief(subset)}{which_is_known(subset, sorted(known), '--subset')}"
            )


def nothing_found(args: Selected) -> BadInput:
    """Return the error that no run is selected; it names results of another program that are."""
    for results in find_imported(args)[0]:
        if results.report is None:
            return BadInput(f"{results.label}: {results.remedy}")
    options = [f"--name {name}" for name in args.runs]
    if args.model:
        options.append(f"--model {args.model}")
    options += [f"--subset {platform}" for platform in args.platform or ()]
    selected = f" for {' '.join(options)}" if options else ""
    return BadInput(
        f"no run under {args.results_dir.resolve()}{selected}: name the folder of the runs with"
        " --results-dir"
    )


def each(
    items: Sequence[T], work: Callable[[T], R], name: Callable[[T], str] = attrgetter("label")
) -> tuple[list[R], int]:
    """Process one after the other; return the results, and the worst exit code of those that
    failed.

    An error of one is reported under its name, and the others go on.
    """
    results = []
    code = 0
    for item in items:
        try:
            results.append(work(item))
        except HarnessError as error:
            prefix = f"{name(item)}: "  # some errors begin with it
            tell(prefix + str(error).removeprefix(prefix))
            code = max(code, ExitCode.of(error))
    return results, code
