"""Show what plans would send, without sending it: users, steps, requests, bytes, and some prompts
as they would be.

A sample of users is played with a baseline in the model's place, since a prompt may depend on
earlier replies. So counts and sizes beyond users and steps are approximate; a benchmark without a
baseline shows first requests only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import orjson
from numpy.typing import NDArray
from rich.console import Console

from harness import defaults
from harness.client.quirks import text_of
from harness.commands.dry_run.rehearsal import Rehearsal, rehearsed
from harness.commands.run import plans as plans_of
from harness.cost import BYTES_PER_TOKEN, Rate, rounded
from harness.engine.hooks import Hooks
from harness.engine.opening import open_indexes
from harness.errors import BadInput
from harness.options.extension import hooks_of
from harness.options.options import Fallback, RunOptions
from harness.options.plan import Plan
from harness.store.tasks import TaskIndex
from harness.ui.console import PLAIN
from harness.ui.console import console as console_of
from harness.ui.words import count, plural

SAMPLED, SHOWN = 50, 3
"""Users of a subset that are played with a baseline, and of these whose first prompt is shown."""


@dataclass(frozen=True)
class Preview:
    """What one subset of a plan would send. `requests`, `size` in bytes of their bodies, and
    `replied` in bytes of a baseline's replies are projected from sampled users by their steps;
    `whole` means that a baseline answered all of these. `longest` are the steps of the longest
    user. `first` has (key, steps, first body)."""

    users: int
    steps: int
    longest: int
    requests: int
    size: int
    replied: int
    whole: bool
    first: tuple[tuple[str, int, bytes], ...]


def execute(args: RunOptions) -> int:
    """Show what `run` would send with these completed options, where nothing names an endpoint,
    too."""
    if not (args.api_key or args.api_key_file or args.endpoint):
        args = replace(args, api_key="none")  # nothing is sent
    screen, hooks = console_of(no_color=args.no_color), hooks_of(args)
    try:
        plans, addressed = plans_of(args, sends=False), True
    except BadInput:
        args = replace(args, fallback=Fallback((defaults.OPENAI_URL,), None, source=""))
        plans, addressed = plans_of(args, sends=False), False
    return show(plans, screen, hooks, addressed=addressed)


def show(
    plans: Sequence[Plan], console: Console, hooks: Sequence[Hooks] = (), *, addressed: bool
) -> int:
    """Print what plans would send, and return an exit code. Raise `BadInput` for what `run` would
    refuse.

    Where they are not `addressed`, nothing names an endpoint yet, and no price is known.
    """
    for one in hooks if addressed else ():
        one.check(plans)
    with ExitStack() as held:
        indexes = open_indexes(plans, held)
        for plan in plans:
            found = {
                subset: preview(plan, subset, index) for subset, index in indexes[plan.name].items()
            }
            for line in _plan_lines(plan, list(found.values()), addressed, hooks):
                console.print(line, **PLAIN)
            for subset, of in found.items():
                _print(subset, of, console)
    console.print("nothing was sent, and nothing written", **PLAIN)
    return 0


def preview(plan: Plan, subset: str, index: TaskIndex) -> Preview:
    """Return what a subset of a plan would send, from its first user to its last."""
    chosen = np.flatnonzero(index.selected(plan.selection))
    steps = int(index.steps[chosen].sum())
    sample = chosen[_spread(index.steps[chosen], SAMPLED)]
    with asyncio.Runner() as loop:
        played = [_rehearsed(plan, subset, index, int(position), loop) for position in sample]
    bodies, whole = [body for of in played for body in of.bodies], all(of.whole for of in played)
    requests = round(steps * len(bodies) / int(index.steps[sample].sum())) if whole else steps
    first = [played[at] for at in _spread(index.steps[sample], SHOWN)]
    return Preview(
        users=index.users(index.selected(plan.selection)),
        steps=steps,
        longest=int(index.steps[chosen].max(initial=0)),
        requests=requests,
        size=round(requests * sum(map(len, bodies)) / max(1, len(bodies))),
        replied=round(requests * sum(of.replied for of in played) / max(1, len(bodies))),
        whole=whole,
        first=tuple((of.key, of.steps, of.bodies[0]) for of in first if of.bodies),
    )


def _spread(steps: NDArray[np.int32], most: int) -> NDArray[np.int64]:
    """Return the places of at most so many chains, evenly over all lengths, the shortest and the
    longest included."""
    order = np.argsort(steps, kind="stable")
    chosen: NDArray[np.int64] = order[
        np.unique(np.linspace(0, len(order) - 1, most).round().astype(np.int64))
    ]
    return chosen


def _rehearsed(
    plan: Plan, subset: str, index: TaskIndex, position: int, loop: asyncio.Runner
) -> Rehearsal:
    task = index.task(plan.benchmark, position, subset)
    return rehearsed(plan.benchmark, plan.sampling, task, index.repeat(position), loop)


def _plan_lines(
    plan: Plan, subsets: Sequence[Preview], addressed: bool, hooks: Sequence[Hooks]
) -> Iterator[str]:
    """Yield where a plan would send its requests, with which parameters, and about what they would
    take."""
    sampling, price = plan.sampling, plan.price if addressed else None
    where = (
        plan.endpoint if addressed or plan.found is None else "an endpoint that nothing names yet"
    )
    yield f"{plan.name}: {sampling.model}, at {where}"
    named = {
        name: getattr(sampling, name) for name in ("temperature", "top_p", "seed", "max_tokens")
    }
    given = {
        **{name: value for name, value in named.items() if value is not None},
        **sampling.extra_body,
    }
    yield f"  parameters: {', '.join(f'{name} {value}' for name, value in given.items()) or 'none'}"
    into, out = (
        -(-sum(sizes) // BYTES_PER_TOKEN)
        for sizes in zip(*[(of.size, of.replied) for of in subsets], strict=True)
    )
    most = sampling.most_completion
    at_most = f", at most {count(most * sum(of.requests for of in subsets))}" if most else ""
    yield (
        f"  tokens: about {count(into)} in, and {count(out)} out if replies are as long as the"
        f" baseline's{at_most} ({BYTES_PER_TOKEN} bytes a token)"
    )
    if price is not None:
        price = _rate(plan, hooks).among([price]) or price
        yield f"  cost: about {rounded(price.of(into, out))} {price.currency}, {price.described}"
    elif plan.found is not None:
        yield "  cost: not known, without a price for this model at this address"
    for role, asked in plan.roles.items():
        yield f"  role {role}: {asked.sampling.model}, whose requests are not counted here"
    for one in hooks:
        for words in one.forecast(plan, max(of.longest for of in subsets)):
            yield f"  {words}"


def _rate(plan: Plan, hooks: Sequence[Hooks]) -> Rate:
    rate = Rate()
    for one in hooks:
        rate = one.adjust_price(plan, rate)
    return rate


def _print(subset: str, of: Preview, console: Console) -> None:
    about = "about " if of.whole else "at least "
    console.print(
        f"{subset}: {plural(of.users, 'user')}, {plural(of.steps, 'step')};"
        f" {about}{plural(of.requests, 'request')} if every reply can be used, about"
        f" {of.size / 1e6:.1f} MB of prompts",
        **PLAIN,
    )
    for key, steps, body in of.first:
        console.print()
        console.print(f"{subset}, user {key}, {plural(steps, 'step')}, first request:", **PLAIN)
        for message in orjson.loads(body)["messages"]:
            for line in (f"[{message['role']}]", *text_of(message).split("\n")):
                console.print(line, **PLAIN)
    console.print()
