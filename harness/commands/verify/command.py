"""`verify`: check runs' folders and report what is wrong in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.commands.parser import called
from harness.commands.verify import proving
from harness.errors import BadInput, ExitCode, InUse
from harness.model import JSON
from harness.option import option
from harness.options import options
from harness.store.manifest import RUNNING
from harness.ui import streams
from harness.ui.console import console
from harness.ui.words import plural

MAX_SHOWN_FINDINGS = 5
"""Most findings printed for a run; the JSON has all."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.AsJson, options.Earlier, options.Which):
    without_tasks: bool = option(
        False, "check only that every line is as it was written, for a folder without its tasks"
    )


def execute(args: Options) -> int:
    if args.without_tasks and args.tasks_dir:
        raise BadInput(
            "--without-tasks leaves out the tasks that --tasks-dir names: give one of the two"
        )
    proofs, code = _proofs(args)
    if args.json:
        streams.show_json(proofs)
    else:
        _show(proofs)
    return max(code, int(any(proof["findings"] for proof in proofs)))


def _proofs(args: Options) -> tuple[list[JSON], int]:
    """Return what is proven of the selected runs, and an exit code."""
    runs, skipped = selection.find(args)
    imported, unnamed = selection.find_imported(args)
    if not runs and not imported:
        raise selection.nothing_found(args)
    run_proofs, failed = selection.each(runs, lambda run: _prove_free(run, args))
    imported_proofs, unread = selection.each(imported, proving.imported)
    proofs = [proof for proof in (*run_proofs, *imported_proofs) if proof]
    # Where every run was in use, nothing was checked: that is no success.
    unchecked = InUse.exit_code if run_proofs and not proofs else 0
    return proofs, max(skipped, unnamed, failed, unread, unchecked)


def verify(  # noqa: PLR0913
    *runs: str,
    model: str | None = None,
    subset: str | Sequence[str] | None = None,
    results_dir: str | Path | None = None,
    tasks_dir: str | Path | None = None,
    without_tasks: bool | None = None,
    benchmark: str | None = None,
    trust: bool | None = None,
    settings_file: str | Path | None = None,
) -> list[dict[str, object]]:
    """Check that the folders of runs are complete and unchanged, as `harness verify` does; without
    names, of all.

    Return what `harness verify --json` prints: an object for each subset, whose `findings` are
    empty if it is sound. Raise `BadInput`, or the error of a run that cannot be checked.
    """
    proofs, code = _proofs(called("verify", {**locals(), "name": runs or None}).args)
    if isinstance(code, ExitCode):
        raise code.error
    return [{**proof} for proof in proofs]


def _prove_free(run: SavedRun, args: Options) -> JSON | None:
    """Check a run; pass over one in use with a line, and return None."""
    try:
        return proving.prove(run, args.results_dir, args.tasks_dir, args.without_tasks)
    except InUse as error:
        streams.tell(f"{run.label}: not checked: {error}")
        return None


def _show(proofs: list[JSON]) -> None:
    screen = console()
    for proof in proofs:
        for line in _lines(proof):
            screen.print(line, soft_wrap=True)


def _lines(proof: JSON) -> list[str]:
    """Return what is printed of a run: a line of state and verdict, findings and notes."""
    findings = proof["findings"]
    users = f"{proof['records']} users"
    verdict = "sound lines"  # without its tasks no more is known
    if proof["users"] is not None:
        users = f"{proof['records']} of {proof['users']} users"
        verdict = "sound"
    if findings:
        verdict = plural(len(findings), "finding")
    state = proof["state"]
    if state == RUNNING:
        state = "died"  # nobody plays it while it is locked
    lines = [f"{proof['name']}, {proof['subset']}: {users}, {state}: {verdict}"]
    lines += [f"  {finding}" for finding in findings[:MAX_SHOWN_FINDINGS]]
    hidden = len(findings) - MAX_SHOWN_FINDINGS
    if hidden > 0:
        lines.append(f"  and {hidden} more")
    lines += [f"  note: {note}" for note in proof["notes"]]
    return lines
