"""The runs that a command names, and work on them one after the other."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from typing import TypeVar

from harness.analysis.saved_runs import SavedRun
from harness.config.options import run_name
from harness.errors import BadInput, HarnessError
from harness.store.manifest import load
from harness.store.run import runs
from harness.ui.streams import tell

ENDS_ALL = frozenset({4, 130, 143})
"""Exit codes of a session after which no other starts: a full disk, a signal."""

T = TypeVar("T")


def find(args: Namespace) -> list[SavedRun]:
    """Return the runs that `--name`, `--model` and `--platform` name, all if they name none.

    A run with an unusable manifest is reported and skipped, and makes the command's exit code at least that of a bad
    input (`args.least_code`, which the command line takes up).
    """
    platforms = {name.lower() for name in args.platform or ()}
    found = []
    for files in runs(args.results_dir):
        if (args.name and files.folder.name != args.name) or (platforms and files.subset not in platforms):
            continue
        if not has_name(files.folder, args):
            continue
        try:
            manifest = load(files.manifest)
        except HarnessError as error:
            _skip(error, args)
            continue
        if manifest is None:
            continue
        model = manifest.identity["model"]
        if not args.model or args.model in (model, f"{manifest.provenance.get('provider')}:{model}"):
            found.append(SavedRun(files, manifest, getattr(args, "trust", False), getattr(args, "benchmark", None)))
    return found


def has_name(folder: Path, args: Namespace) -> bool:
    """Return whether the name of a folder is text, which reports and manifests can hold. If not, report it as `find`
    reports an unusable manifest."""
    try:
        folder.name.encode()
    except UnicodeEncodeError:
        _skip(BadInput(f"{folder}: the name of this folder is not text in UTF-8: give it another"), args)
        return False
    return True


def _skip(error: HarnessError, args: Namespace) -> None:
    tell(str(error))
    args.least_code = max(error.exit_code, getattr(args, "least_code", 0))


def folder_named(args: Namespace) -> str | None:
    """Return the folder that a command is about, as a `glob` pattern for it alone; None for all."""
    name = args.name or (run_name(None, args.model) if args.model else None)
    return None if name is None else escape(name)


def nothing_found(args: Namespace) -> BadInput:
    named = [f"--name {args.name}"] if args.name else []
    named += [f"--model {args.model}"] if args.model else []
    named += [f"--platform {platform}" for platform in args.platform or ()]
    return BadInput(f"no run under {args.results_dir}{' for ' + ' '.join(named) if named else ''}")


def each(items: Sequence[T], work: Callable[[T], int], name: Callable[[T], str]) -> int:
    """Process one after the other and return the worst exit code.

    An error of one run is reported, and the others go on; what ends a session ends all.
    """
    worst = 0
    for item in items:
        try:
            code = work(item)
        except HarnessError as error:
            tell(f"{name(item)}: {error}")
            worst = max(worst, error.exit_code)
            continue
        worst = max(worst, code)
        if code in ENDS_ALL:
            break
    return worst
