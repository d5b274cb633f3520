"""Play the remaining users of plans' runs, and finish the runs. Shared by `run` and `resume`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from harness import defaults
from harness.benchmarks.overview import headline
from harness.benchmarks.reports import Report
from harness.config import providers
from harness.config.origin import where_secret_is_missing
from harness.config.plan import Plan
from harness.endpoint.connect import DIRECTLY, connection
from harness.endpoint.replies import REFUSED, Denied
from harness.engine.files import now, write_report
from harness.engine.finish import finish
from harness.engine.opening import PLAIN, Opened, Run, check_disk, open_indexes, prepared
from harness.engine.session import Played, few_collections, play
from harness.errors import BadInput, BenchmarkError, HarnessError, MachineError, RunStopped, memory_for
from harness.report import pages
from harness.report.pages import Source, Wish
from harness.store.manifest import COMPLETE
from harness.ui.streams import tell
from harness.ui.words import plural

COMPLETE_EXIT, FAILURES_EXIT = 0, 1
WARNINGS_SHOWN = 5
"""Most warnings of a benchmark shown at the end of a run; run_*.log has all."""


def launch(plans: Sequence[Plan], console: Console, *, html: bool) -> int:
    """Run all plans at once and finish them; return the worst exit code. Pages are made last."""
    for words in dict.fromkeys(words for plan in plans for words in _notices(plan)):
        console.print(words, **PLAIN)
    with ExitStack() as held:
        held.enter_context(few_collections())
        indexes = open_indexes(plans, held)
        opened, code = prepared(plans, indexes, held, console)
        check_disk([run.job for one in opened for run in one.unfinished])
        unfinished = [one for one in opened if one.unfinished]
        started, ended = time.monotonic(), list[Source]()

        def finish(one: Opened, played: Played) -> None:
            one.code = _close_plan(one, played, time.monotonic() - started, console, ended)

        played = play([one.work(partial(finish, one)) for one in unfinished], console) if unfinished else []
        for one, how in [
            *zip(unfinished, played, strict=True),
            *((one, Played()) for one in opened if not one.unfinished),
        ]:
            if one.code is None:
                finish(one, how)
        if html:
            _write_pages(ended, console)
        return max([code, *[one.code or COMPLETE_EXIT for one in opened]])


def _notices(plan: Plan) -> Iterator[str]:
    """Yield what a user should know about where requests go, before the first one is sent."""
    if plan.found is None:
        yield f"{plan.sampling.model}: served by the harness itself on loopback; no key, no network"
        return
    provider = plan.found.provider
    if provider and provider.source != str(providers.SHIPPED):
        yield f"provider {provider.name}: from {provider.source}, at {plan.endpoint}"
    for one in plan.found.addresses:
        if (way := connection(one, 1).told) != DIRECTLY:
            yield f"{one.shown}: {way}"
    if plan.found.key_from is None:
        yield f"no key found for {plan.endpoint}: requests are sent without one"


def _write_pages(ended: Sequence[Source], console: Console) -> None:
    folders = {}
    for source in ended:
        folder = source.files.folder
        if pages.attempt(partial(pages.write_page, source, Wish()), f"{folder.name}, {source.files.subset}"):
            folders[folder] = f"pages: {folder}/eval_report_*.html"
    for words in folders.values():
        console.print(words, **PLAIN)


def _close_plan(opened: Opened, played: Played, seconds: float, console: Console, ended: list[Source]) -> int:
    """Finish each subset of a plan, and add those with a report to `ended`; return the exit code."""
    plan, unfinished, code = opened.plan, opened.unfinished, COMPLETE_EXIT
    for run in opened.runs:
        if run in unfinished or run.changed or run.manifest.state != COMPLETE:
            try:
                ended += _close(plan, run, played, seconds, console)
            except (BadInput, BenchmarkError) as error:  # of this subset only; the others still get their reports
                tell(f"{run.job.store.files.results}: {error}")
                code = error.exit_code
        else:
            console.print(f"{run.label}: complete; report: {run.job.store.files.report('txt')}", **PLAIN)
    return max(code, _ended(opened, played.ending, console))


def _close(plan: Plan, run: Run, played: Played, seconds: float, console: Console) -> list[Source]:
    """Write the results, report and manifest of one subset; return the source of its page, if there is a report."""
    job, manifest = run.job, run.manifest
    if isinstance(played.ending, MachineError):
        return []  # a full disk has no room for a report either; saved data is intact
    manifest.times |= {"updated": now(), "seconds": round(manifest.times.get("seconds", 0.0) + seconds, 3)}
    if played.schedule is not None:
        manifest.times["schedule"] = played.schedule
    if played.learned_limit is not None:
        manifest.tuning["learned_limit"] = played.learned_limit
    with memory_for(
        f"score {run.label}", "its records are saved; once there is more memory, `resume` or `reeval` makes the report"
    ):
        report, more = finish(job, manifest, plan.name, stopped=played.ending is not None)
        write_report(job.store.files, report, more)
    manifest.save(job.store.files.manifest)
    console.print(_headline(run, report), **PLAIN)
    return [Source(job.store.files, report, plan.sample_seed, plan.benchmark, job.index)]


def _keyless(plan: Plan, ending: HarnessError) -> str:
    """Explain a refused key where none was sent; empty otherwise."""
    without = plan.found is not None and plan.found.key_from is None
    refused = type(ending) is Denied and REFUSED in str(ending)
    return "; none was sent: give one with LLM_API_KEY or --api-key-file" if without and refused else ""


def _headline(run: Run, report: Report) -> str:
    of = report.coverage
    covered = f"{of.scored_users} of {of.expected_users} users{'' if of.complete else ' (INCOMPLETE)'}"
    return f"{run.label}: {covered}: {headline(report)}; report: {run.job.store.files.report('txt')}"


def _ended(opened: Opened, ending: HarnessError | None, console: Console) -> int:
    """Print what remains and the command for it; return the exit code."""
    plan, jobs = opened.plan, [run.job for run in opened.runs]
    label = "" if opened.alone else f"{plan.name}: "
    remaining = sum(len(job.remaining) for job in jobs)
    failed = sum(job.failed for job in jobs)
    if ending is not None:
        word = "interrupted" if isinstance(ending, RunStopped) else f"stopped: {ending}{_keyless(plan, ending)}"
        console.print(f"{label}{word}; {plural(remaining, 'user')} remaining", **PLAIN)
    elif failed:
        kinds = f"{label}{plural(failed, 'user')} failed: not scored; see {plan.folder}/failures_*.jsonl"
        console.print(kinds, **PLAIN)
    for warning in [warning for job in jobs for warning in job.warnings][:WARNINGS_SHOWN]:
        console.print(f"{label}warning: {warning}", **PLAIN)
    if otherwise := sum(job.otherwise for job in jobs):
        console.print(
            f"{label}{otherwise} users sent different requests after resuming; the new ones were billed "
            "(asked_otherwise in run_*.log)",
            **PLAIN,
        )
    if remaining:
        console.print(f"resume with: {_resume_command(plan)}", **PLAIN)
        if not all(run.manifest.provenance.get("origin") for run in opened.runs):
            console.print(f"{label}note: {where_secret_is_missing(os.environ)}", **PLAIN)
    if ending is not None:
        return ending.exit_code
    return FAILURES_EXIT if remaining else COMPLETE_EXIT


def _resume_command(plan: Plan) -> str:
    folder = [] if plan.results == defaults.RESULTS_FOLDER else ["--results-dir", str(plan.results)]
    file = ["--providers", plan.providers_file] if plan.providers_file else []
    headers = [word for name in plan.headers for word in ("--extra-header", f"{name}: ...")]
    return shlex.join([_this_python(), "-m", "harness", "resume", "--name", plan.name, *folder, *file, *headers])


def _this_python() -> str:
    """Return the name or path of this Python, which has the packages, from here."""
    if shutil.which("python") == sys.executable:
        return "python"
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else sys.executable
