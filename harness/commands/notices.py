"""The sentences of `run` and `resume`: before the first request, on events of the engine, and how
to go on."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from msgspec import to_builtins
from rich.console import Console
from rich.table import Table

from harness import defaults
from harness.client.address import public_url
from harness.client.connect import DIRECTLY, connection
from harness.client.replies import KEY_REFUSED, Denied, UnknownModel
from harness.cost import HOW_TO_PRICE, Price
from harness.engine import events
from harness.engine.accounts import with_roles
from harness.engine.events import SessionEvent
from harness.engine.hooks import Hooks
from harness.engine.run import Run
from harness.engine.session import PlanSession
from harness.errors import HarnessError, RunStopped
from harness.model import JSON
from harness.options import providers
from harness.options.address import ResolvedEndpoint
from harness.options.plan import Plan
from harness.reporting.report import covered, headline, in_brief, running
from harness.reporting.report_files import loaded
from harness.store.manifest import COMPLETE
from harness.ui.console import PLAIN
from harness.ui.streams import tell
from harness.ui.words import plural

OUTCOMES = (
    events.ReportMade,
    events.Unchanged,
    events.LeftOpen,
    events.Dropped,
    events.Ended,
)
"""What runs have come to, one of them for each."""
MAX_VALUE_CHARACTERS = 200
"""Longest value shown in a note, in characters: a manifest may be from another user."""
MAX_USERS = 5
"""Most refused users that are named at the end of a run; failures_*.jsonl has all."""
MAX_WARNINGS = 5
"""Most warnings of a benchmark shown at the end of a run; run_*.log has all."""


@dataclass(frozen=True)
class Printer:
    """Prints the events of plans; `alone` means of one plan, whose name and way to go on need no
    words of their own. The figures of several are in the table of `ends`.

    With `quiet` only what runs have come to is printed.
    """

    console: Console
    hooks: Sequence[Hooks]
    alone: bool
    quiet: bool = False

    def __call__(self, event: SessionEvent) -> None:
        if isinstance(event, events.Failed):
            tell(f"{event.what}: {event.error}")
        if self.quiet and not isinstance(event, OUTCOMES):
            return
        for line in self._lines(event):
            self.console.print(line, **PLAIN)

    def _lines(self, event: SessionEvent) -> Iterator[str]:
        match event:
            case events.Replaced(label):
                yield f"{label}: an earlier configuration has no results; this one replaces it"
            case events.Changed(label, name, old, new):
                yield f"{label}: note: {name} was {_short(old)}, is now {_short(new)}"
            case events.Opened():
                yield from (f"{event.label}: {line}" for line in _opened_lines(event))
            case events.Unchanged(label, path):
                yield f"{label}: complete; report: {path}"
            case events.ReportMade(label, run):
                figures = ""
                if self.alone or self.quiet:
                    figures = f": {headline(run.report)}"
                users = covered(run.report)
                yield f"{label}: {users}{figures}; report: {run.files.report('txt')}"
            case events.LeftOpen():
                yield _left_open(event)
            case events.Dropped(plan, reason):
                yield (
                    f"{self._label(plan)}{_ending(plan, reason)}; nothing was received, so no run"
                    " is kept: instead of `resume`, start it again with `run`"
                )
            case events.Ended():
                yield from self._ended(event)

    def _label(self, plan: Plan) -> str:
        if self.alone:
            return ""
        return f"{plan.name}: "

    def _ended(self, event: events.Ended) -> Iterator[str]:
        """Yield what remains of a plan, and the command for it."""
        plan = event.plan
        ending = event.ending
        label = self._label(plan)
        unit = "user" if plan.repeats == 1 else "repeat"
        refused = list(dict.fromkeys(event.refused))
        if ending is not None:
            yield f"{label}{_ending(plan, ending)}; {plural(event.remaining, unit)} remaining"
            if event.batches:
                batches = plural(event.batches, "batch", "batches")
                yield f"{label}{batches} at the provider: `resume` picks up their replies"
        elif event.failed:
            yield (
                f"{label}{plural(event.failed, unit)} failed: not scored; see"
                f" {plan.folder}/failures_*.jsonl"
            )
            if refused:
                yield f"{label}{_refused(refused)}"
        if not self.quiet:
            for warning in event.warnings[:MAX_WARNINGS]:
                yield f"{label}warning: {warning}"
        if event.diverged:
            yield (
                f"{label}{event.diverged} users sent different requests after resuming; the new"
                " ones were billed (asked_otherwise in run_*.log)"
            )
        # Where only users are left that the endpoint refuses, `resume` would send them for nothing:
        # they are named instead.
        can_go_on = event.remaining > len(event.refused) or isinstance(ending, RunStopped)
        if self.alone and can_go_on:
            for command in resume_commands([plan], self.hooks):
                yield f"resume with: {command}"


def _refused(users: Sequence[str]) -> str:
    shown = ", ".join(users[:MAX_USERS])
    if len(users) > MAX_USERS:
        shown += ", ..."
    return (
        f"the endpoint refuses what {plural(len(users), 'user')} of these send ({shown}): only"
        " `resume` requests them again, and they may be refused again"
    )


def _opened_lines(event: events.Opened) -> Iterator[str]:
    if event.torn:
        yield (
            f"{event.torn} torn lines were moved to *.torn; their users or replies will be"
            " requested again"
        )
    if event.outside:
        records = plural(event.outside, "record")
        yield f"{records} of users whose task has changed or gone are not counted"
    if event.beyond_share:
        yield (
            f"{event.beyond_share} users of this run are outside the requested share; they stay in"
            " the run"
        )
    if event.prices:
        yield _new_price(*event.prices)
    if event.resumed:
        yield "resuming: {} of {} users are done".format(*event.resumed)


def _new_price(old: Price, new: Price | None) -> str:
    if new is None:
        return (
            "note: no price is known at this address: replies from now on have none (where the run"
            f" was before it is {old.described})"
        )
    return (
        f"note: the price is now {new.described}, and was {old.described}: each reply costs what"
        " was in force when it was requested (`reeval --new-prices` takes the new price for all)"
    )


def _left_open(event: events.LeftOpen) -> str:
    user = event.benchmark.about.user
    state = "not scored yet: `resume` makes the report"
    if event.done < event.users:
        state = "INCOMPLETE"
    line = f"{event.label}: {event.done} of {event.users} {user}s are done ({state})"
    if event.scored:
        figures = running(event.benchmark, event.figures)
        line += f"; {figures} (of the {plural(event.scored, user)} scored so far)"
    return line


def _short(value: object) -> str:
    text = str(value)
    left_out = len(text) - MAX_VALUE_CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[:MAX_VALUE_CHARACTERS]} … ({left_out} more characters)"


def outcome(run: Run, session: PlanSession) -> JSON:
    """Return what a run has come to, for programs: its state, its users, and the figures of its
    report."""
    path = run.store.files.report("json")
    data: JSON = {
        "name": session.plan.name,
        "subset": run.subset,
        "model": session.plan.sampling.model,
        "state": run.manifest.state,
        "users": run.users,
        "done": run.users_done,
        "failed": run.failed,
        "report": None,
        "metrics": {},
        "cost": None,
    }
    if path.exists():
        report = loaded(path)
        data["report"] = str(path)
        data["metrics"] = to_builtins(report.ranked_metrics)
        data["cost"] = to_builtins(report.cost or None)
    return data


def ends(sessions: Sequence[PlanSession], *, for_log: bool) -> Table:
    """Return a table of how the runs of several plans ended: on a screen with the name of each plan
    once, and for a log, in which lines are searched for, on each line."""
    runs = [(session, run) for session in sessions for run in session.runs]
    figures = [_figures(session, run) for session, run in runs]
    heads = dict.fromkeys(chain.from_iterable(figures))
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold", no_wrap=for_log)
    for name in ("subset", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("done", "failed", *heads):
        table.add_column(name, justify="right", no_wrap=True)
    for (session, run), cells in zip(runs, figures, strict=True):
        is_named = for_log or run is session.runs[0]
        table.add_row(
            session.plan.name if is_named else "",
            run.subset,
            run.manifest.state,
            f"{run.users_done}/{run.users}",
            str(run.failed or ""),
            *[cells.get(head, "") for head in heads],
        )
    return table


def _figures(session: PlanSession, run: Run) -> dict[str, str]:
    """Return the figures of a run that is scored, by this command or before."""
    # A run that was complete before this command has its figures in its file alone.
    for reported in session.reported:
        if reported.files.subset == run.subset:
            return in_brief(reported.report)
    if run.manifest.state != COMPLETE:
        return {}
    return in_brief(loaded(run.store.files.report("json")))


def notices(plan: Plan) -> Iterator[str]:
    """Yield what a user should know about where requests go, before the first one is sent, and of
    useless repeats.

    Raise `BadInput` if there are more parts than requests at once.
    """
    for role, role_model in plan.roles.items():
        place = "answered by the harness itself"
        if role_model.resolved:
            place = f"on {role_model.endpoint}"
        yield f"{role}: {role_model.sampling.model}, {place}"
    limit = plan.limits.most  # read for plans without parts, too: it may be refused
    users_part = plan.selection.get("part")
    if users_part:
        yield (
            f"{plan.name}: part {users_part} has {limit} of the {plan.tuning.most} requests at"
            " once, and its share of rates"
        )
    if plan.resolved is None:
        yield f"{plan.sampling.model}: answered by the harness itself; no key, no network"
        note = plan.benchmark.configuration.note
        if note:
            yield note
        return
    yield from _endpoint_notices(plan.resolved)
    if plan.repeats > 1 and plan.sampling.temperature == 0:
        yield (
            f"{plan.name}: at temperature 0 the {plan.repeats} repeats of a user may be all alike"
            " (--temperature)"
        )


def _endpoint_notices(endpoint: ResolvedEndpoint) -> Iterator[str]:
    provider = endpoint.provider
    # The user's file may give a known name another address, to which the key goes.
    if provider and provider.source != str(providers.SHIPPED):
        yield f"provider {provider.name}: from {provider.source}, at {endpoint.shown}"
    for address in endpoint.addresses:
        proxy = connection(address, 1).route
        # It is from the environment, which the user of a shared machine may not have set.
        if proxy != DIRECTLY:
            yield f"{address.shown}: {proxy}"
    if endpoint.key_from is None:
        yield f"no key found for {endpoint.shown}: requests are sent without one{_key_not_sent()}"


def _key_not_sent() -> str:
    """Return which variable holds a key for another address, and what to do; empty without one."""
    if "OPENAI_API_KEY" not in os.environ:
        return ""
    address = os.environ.get("OPENAI_BASE_URL")
    owner = public_url(address) if address else "OpenAI"
    return (
        f" (OPENAI_API_KEY is for {owner}, so it is not sent: put this endpoint's key into"
        " LLM_API_KEY)"
    )


def without_price(plans: Sequence[Plan]) -> str:
    """Return that no price is known of models whose endpoint may bill; empty if none is so."""
    models = dict[str, None]()
    for plan in with_roles(plans):
        # An endpoint that takes no key, as a server of one's own, bills nothing.
        if plan.resolved and plan.resolved.key_from and plan.price is None:
            models[plan.sampling.model] = None
    if not models:
        return ""
    return f"no price is known for {', '.join(models)}; give {HOW_TO_PRICE}"


def _ending(plan: Plan, ending: HarnessError) -> str:
    """Say why a plan ended early."""
    if isinstance(ending, RunStopped):
        return "interrupted"
    return f"stopped: {ending}{_hint(plan, ending)}"


def _hint(plan: Plan, ending: HarnessError) -> str:
    """Explain a refused key where none was sent, and a model's name that is a list; empty
    otherwise."""
    if isinstance(ending, UnknownModel):
        return ": give --model once for each" if "," in plan.sampling.model else ""
    is_refused = type(ending) is Denied and KEY_REFUSED in str(ending)
    if is_refused and plan.resolved is not None and plan.resolved.key_from is None:
        return "; none was sent: give one with LLM_API_KEY or --api-key-file"
    return ""


def resume_commands(plans: Sequence[Plan], hooks: Sequence[Hooks]) -> Iterator[str]:
    """Yield the commands that go on with plans: one for those that need the same flags.

    Where an option named address, key or header, the command names its runs; else one for several
    plans takes all unfinished runs of the results folder.
    """
    groups = defaultdict[tuple[str, ...], list[Plan]](list)
    for plan in plans:
        flags = [*plan.endpoint_choice.flags]
        for hook in hooks:
            flags += hook.options_to_resume(plan)
        groups[tuple(flags)].append(plan)
    for shared_flags, group in groups.items():
        choice = group[0].endpoint_choice
        has_endpoint = choice.headers or (choice.resolved and choice.resolved.flags)
        takes_all = len(plans) > 1 and len(groups) == 1 and not has_endpoint
        names = [] if takes_all else [plan.name for plan in group]
        yield shlex.join([*resume_words(group[0].results, names), *shared_flags])


def resume_words(results: Path, names: Sequence[str]) -> list[str]:
    """Return the words of the command that resumes runs, without flags for their endpoint."""
    command = [*_this_program(), "resume"]
    for name in names:
        command += ["--name", name]
    if results != defaults.RESULTS_FOLDER:
        command += ["--results-dir", str(results)]
    return command


def _this_program() -> list[str]:
    """Return the words that start this program from here. Python's own `-m` would import from the
    current folder."""
    python = Path(sys.executable)
    # The one next to this Python is of the same installation; the first on PATH may be of another.
    script = python.with_name("harness")
    if script.is_file():
        return [_from_here(script)]
    return [_from_here(python), "-P", "-m", "harness"]


def _from_here(program: Path) -> str:
    """Return the name of a program if the shell finds it by that, else its path."""
    if shutil.which(program.name) == str(program):
        return program.name
    folder = Path.cwd()
    return str(program.relative_to(folder) if program.is_relative_to(folder) else program)
