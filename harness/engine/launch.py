"""Plays what the runs of plans owe, and brings them to their end. Shared by `run` and `resume`."""

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
from harness.model import Report
from harness.report import pages
from harness.report.pages import Source, Wish
from harness.store.manifest import COMPLETE
from harness.ui.streams import tell
from harness.ui.words import plural

COMPLETE_EXIT, FAILURES_EXIT = 0, 1
WARNINGS_SHOWN = 5
"""Of a benchmark's warnings at the end of a run; run_*.log has all."""


def launch(plans: Sequence[Plan], console: Console, *, html: bool) -> int:
    """Runs plans to an end of some kind, all at once; returns the worst exit code. Pages are made last of all."""
    for words in dict.fromkeys(words for plan in plans for words in _told_before(plan)):
        console.print(words, **PLAIN)
    with ExitStack() as held:
        held.enter_context(few_collections())
        indexes = open_indexes(plans, held)
        opened, code = prepared(plans, indexes, held, console)
        check_disk([run.job for one in opened for run in one.owing])
        owing = [one for one in opened if one.owing]
        started, ended = time.monotonic(), list[Source]()

        def finish(one: Opened, played: Played) -> None:
            one.code = _close_plan(one, played, time.monotonic() - started, console, ended)

        played = play([one.work(partial(finish, one)) for one in owing], console) if owing else []
        for one, how in [*zip(owing, played, strict=True), *((one, Played()) for one in opened if not one.owing)]:
            if one.code is None:
                finish(one, how)
        if html:
            _write_pages(ended, console)
        return max([code, *[one.code or COMPLETE_EXIT for one in opened]])


def _told_before(plan: Plan) -> Iterator[str]:
    """What a user should know of where requests go, before the first one does."""
    if plan.found is None:
        yield f"{plan.sampling.model}: served by the harness itself on loopback; no key, no network"
        return
    provider = plan.found.provider
    if provider and provider.source != str(providers.SHIPPED):
        yield f"provider {provider.name}: as {provider.source} has it, at {plan.endpoint}"
    for one in plan.found.addresses:
        if (told := connection(one, 1).told) != DIRECTLY:
            yield f"{one.shown}: {told}"
    if plan.found.key_from is None:
        yield f"no key is known for {plan.endpoint}: requests go without one"


def _write_pages(ended: Sequence[Source], console: Console) -> None:
    folders = {}
    for source in ended:
        folder = source.files.folder
        if pages.attempt(partial(pages.write_page, source, Wish()), f"{folder.name}, {source.files.subset}"):
            folders[folder] = f"pages: {folder}/eval_report_*.html"
    for words in folders.values():
        console.print(words, **PLAIN)


def _close_plan(opened: Opened, played: Played, seconds: float, console: Console, ended: list[Source]) -> int:
    """Brings each subset of a plan to its end, and those that have a report to `ended`; returns the exit code."""
    plan, owing, code = opened.plan, opened.owing, COMPLETE_EXIT
    for run in opened.runs:
        if run in owing or run.changed or run.manifest.state != COMPLETE:
            try:
                ended += _close(plan, run, played, seconds, console)
            except (BadInput, BenchmarkError) as error:  # of one subset, which keeps no other from its report
                tell(f"{run.job.store.files.results}: {error}")
                code = error.exit_code
        else:
            console.print(f"{run.label}: complete; report: {run.job.store.files.report('txt')}", **PLAIN)
    return max(code, _ended(opened, played.ending, console))


def _close(plan: Plan, run: Run, played: Played, seconds: float, console: Console) -> list[Source]:
    """The final file, the report and the manifest of one subset; what its page is made of, if there is a report."""
    job, manifest = run.job, run.manifest
    if isinstance(played.ending, MachineError):
        return []  # a disk that is full takes no report either; everything saved is intact
    manifest.times |= {"updated": now(), "seconds": round(manifest.times.get("seconds", 0.0) + seconds, 3)}
    if played.schedule is not None:
        manifest.times["schedule"] = played.schedule
    if played.learned_limit is not None:
        manifest.tuning["learned_limit"] = played.learned_limit
    with memory_for(
        f"score {run.label}", "its records are saved, and `resume` or `reeval` makes the report once there is more"
    ):
        report = finish(job, manifest, plan.name, stopped=played.ending is not None)
        write_report(job.store.files, report)
    manifest.save(job.store.files.manifest)
    console.print(_headline(run, report), **PLAIN)
    return [Source(job.store.files, report.data, plan.sample_seed, plan.benchmark, job.index)]


def _keyless(plan: Plan, ending: HarnessError) -> str:
    """What a refusal of the key is really about where none was sent."""
    without = plan.found is not None and plan.found.key_from is None
    refused = type(ending) is Denied and REFUSED in str(ending)
    return "; none was sent: give one with LLM_API_KEY or --api-key-file" if without and refused else ""


def _headline(run: Run, report: Report) -> str:
    coverage = report.data["coverage"]
    incomplete = "" if coverage["complete"] else " (INCOMPLETE)"
    covered = f"{coverage['scored_users']} of {coverage['expected_users']} users{incomplete}"
    return f"{run.label}: {covered}: {report.headline}; report: {run.job.store.files.report('txt')}"


def _ended(opened: Opened, ending: HarnessError | None, console: Console) -> int:
    """Says what is left to do, and how; returns the exit code."""
    plan, jobs = opened.plan, [run.job for run in opened.runs]
    label = "" if opened.alone else f"{plan.name}: "
    owed = sum(len(job.owed) for job in jobs)
    failed = sum(job.failed for job in jobs)
    if ending is not None:
        word = "interrupted" if isinstance(ending, RunStopped) else f"stopped: {ending}{_keyless(plan, ending)}"
        console.print(f"{label}{word}; {plural(owed, 'user')} still owed", **PLAIN)
    elif failed:
        kinds = f"{label}{plural(failed, 'user')} failed: not scored; see {plan.folder}/failures_*.jsonl"
        console.print(kinds, **PLAIN)
    for warning in [warning for job in jobs for warning in job.warnings][:WARNINGS_SHOWN]:
        console.print(f"{label}warning: {warning}", **PLAIN)
    if otherwise := sum(job.otherwise for job in jobs):
        console.print(
            f"{label}{otherwise} users asked something else than before they were interrupted: what was new was "
            "paid for (asked_otherwise in run_*.log)",
            **PLAIN,
        )
    if owed:
        console.print(f"to go on: {_resume_command(plan)}", **PLAIN)
        if not all(run.manifest.provenance.get("origin") for run in opened.runs):
            console.print(f"{label}note: {where_secret_is_missing(os.environ)}", **PLAIN)
    if ending is not None:
        return ending.exit_code
    return FAILURES_EXIT if owed else COMPLETE_EXIT


def _resume_command(plan: Plan) -> str:
    folder = [] if plan.results == defaults.RESULTS_FOLDER else ["--results-dir", str(plan.results)]
    file = ["--providers", plan.providers_file] if plan.providers_file else []
    headers = [word for name in plan.headers for word in ("--extra-header", f"{name}: ...")]
    return shlex.join([_this_python(), "-m", "harness", "resume", "--name", plan.name, *folder, *file, *headers])


def _this_python() -> str:
    """What this Python, which has the packages, is called from here."""
    if shutil.which("python") == sys.executable:
        return "python"
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else sys.executable
