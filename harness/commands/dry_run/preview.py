"""Show what plans would send, without sending it: users, steps, requests, bytes, and some prompts
as they would be.

A sample of users is played with a baseline in the model's place, since a prompt may depend on
earlier replies. So counts and sizes beyond users and steps are approximate; a benchmark without a
baseline shows first requests only.
"""

from __future__ import annotations

import asyncio
import math
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

SAMPLED_USERS = 50
"""Of a subset, played with a baseline."""
SHOWN_USERS = 3
"""Of those that are sampled; their first prompts are shown."""


@dataclass(frozen=True)
class Preview:
    """What one subset of a plan would send.

    `requests`, `size` in bytes of their bodies, and `replied` in bytes of a baseline's replies are
    projected from sampled users by their steps; `is_complete` means that a baseline answered all of
    these. `longest` are the steps of the longest user. `first` has (key, steps, first body).
    """

    users: int
    steps: int
    longest: int
    requests: int
    size: int
    replied: int
    is_complete: bool
    first: tuple[tuple[str, int, bytes], ...]


def execute(args: RunOptions) -> int:
    """Show what `run` would send with these completed options, where nothing names an endpoint,
    too."""
    if not (args.api_key or args.api_key_file or args.endpoint):
        args = replace(args, api_key="none")  # nothing is sent
    screen = console_of(no_color=args.no_color)
    hooks = hooks_of(args)
    try:
        plans = plans_of(args, sends=False)
    except BadInput:
        # The plans need an address, and any will do: it is neither used nor shown.
        args = replace(args, fallback=Fallback((defaults.OPENAI_URL,), None, source=""))
        return show(plans_of(args, sends=False), screen, hooks, addressed=False)
    return show(plans, screen, hooks, addressed=True)


def show(
    plans: Sequence[Plan], console: Console, hooks: Sequence[Hooks] = (), *, addressed: bool
) -> int:
    """Print what plans would send, and return an exit code. Raise `BadInput` for what `run` would
    refuse.

    Where they are not `addressed`, nothing names an endpoint yet, and no price is known.
    """
    if addressed:
        for hook in hooks:
            hook.check(plans)
    with ExitStack() as stack:
        indexes = open_indexes(plans, stack)
        for plan in plans:
            previews = dict[str, Preview]()
            for subset, index in indexes[plan.name].items():
                previews[subset] = preview(plan, subset, index)
            for line in _plan_lines(plan, list(previews.values()), addressed, hooks):
                console.print(line, **PLAIN)
            for subset, shown in previews.items():
                _print(subset, shown, console)
    console.print("nothing was sent, and nothing written", **PLAIN)
    return 0


def preview(plan: Plan, subset: str, index: TaskIndex) -> Preview:
    """Return what a subset of a plan would send, from its first user to its last."""
    selected = index.selected(plan.selection)
    positions = np.flatnonzero(selected)
    steps_of_users = index.steps[positions]
    steps = int(steps_of_users.sum())
    # Users of all lengths, since requests and sizes are projected by steps.
    sample = positions[_spread(steps_of_users, SAMPLED_USERS)]
    steps_of_sample = index.steps[sample]
    with asyncio.Runner() as loop:
        rehearsals = [_rehearsed(plan, subset, index, int(sampled), loop) for sampled in sample]
    is_complete = True
    bodies = list[bytes]()
    bytes_replied = 0
    for rehearsal in rehearsals:
        is_complete = is_complete and rehearsal.is_complete
        bodies += rehearsal.bodies
        bytes_replied += rehearsal.replied
    # At least one request a step, where no baseline answers.
    requests = steps
    if is_complete:
        requests = round(steps * len(bodies) / int(steps_of_sample.sum()))
    first = list[tuple[str, int, bytes]]()
    for number in _spread(steps_of_sample, SHOWN_USERS):
        rehearsal = rehearsals[number]
        if rehearsal.bodies:
            first.append((rehearsal.key, rehearsal.steps, rehearsal.bodies[0]))
    bodies_sampled = max(1, len(bodies))
    return Preview(
        users=index.users(selected),
        steps=steps,
        longest=int(steps_of_users.max(initial=0)),
        requests=requests,
        size=round(requests * sum(map(len, bodies)) / bodies_sampled),
        replied=round(requests * bytes_replied / bodies_sampled),
        is_complete=is_complete,
        first=tuple(first),
    )


def _spread(steps: NDArray[np.int32], limit: int) -> NDArray[np.int64]:
    """Return the places of at most so many chains, evenly over all lengths, the shortest and the
    longest included."""
    order: NDArray[np.int64] = np.argsort(steps, kind="stable")
    ranks = np.linspace(0, len(order) - 1, limit).round().astype(np.int64)
    return order[np.unique(ranks)]


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
    sampling = plan.sampling
    endpoint = plan.endpoint
    if plan.resolved is not None and not addressed:
        endpoint = "an endpoint that nothing names yet"
    yield f"{plan.name}: {sampling.model}, at {endpoint}"
    parameters = dict[str, object]()
    for name in ("temperature", "top_p", "seed", "max_tokens"):
        value = getattr(sampling, name)
        if value is not None:
            parameters[name] = value
    parameters |= sampling.extra_body
    shown = ", ".join([f"{name} {value}" for name, value in parameters.items()])
    yield f"  parameters: {shown or 'none'}"

    prompt_tokens = math.ceil(sum(subset.size for subset in subsets) / BYTES_PER_TOKEN)
    reply_tokens = math.ceil(sum(subset.replied for subset in subsets) / BYTES_PER_TOKEN)
    at_most = ""
    if sampling.most_completion:
        requests = sum(subset.requests for subset in subsets)
        at_most = f", at most {count(sampling.most_completion * requests)}"
    yield (
        f"  tokens: about {count(prompt_tokens)} in, and {count(reply_tokens)} out if replies are"
        f" as long as the baseline's{at_most} ({BYTES_PER_TOKEN} bytes a token)"
    )
    # The address is then one that only fills a gap, and its price says nothing.
    price = plan.price if addressed else None
    if price is not None:
        price = _rate(plan, hooks).among([price]) or price
        amount = rounded(price.amount(prompt_tokens, reply_tokens))
        yield f"  cost: about {amount} {price.currency}, {price.described}"
    elif plan.resolved is not None:
        yield "  cost: not known, without a price for this model at this address"
    for role, role_plan in plan.roles.items():
        model = role_plan.sampling.model
        yield f"  role {role}: {model}, whose requests are not counted here"
    longest = max(subset.longest for subset in subsets)
    for hook in hooks:
        for line in hook.forecast(plan, longest):
            yield f"  {line}"


def _rate(plan: Plan, hooks: Sequence[Hooks]) -> Rate:
    rate = Rate()
    for hook in hooks:
        rate = hook.adjust_price(plan, rate)
    return rate


def _print(subset: str, preview: Preview, console: Console) -> None:
    approximately = "at least "
    if preview.is_complete:
        approximately = "about "
    console.print(
        f"{subset}: {plural(preview.users, 'user')}, {plural(preview.steps, 'step')};"
        f" {approximately}{plural(preview.requests, 'request')} if every reply can be used, about"
        f" {preview.size / 1e6:.1f} MB of prompts",
        **PLAIN,
    )
    for key, steps, body in preview.first:
        console.print()
        console.print(f"{subset}, user {key}, {plural(steps, 'step')}, first request:", **PLAIN)
        for message in orjson.loads(body)["messages"]:
            for line in (f"[{message['role']}]", *text_of(message).split("\n")):
                console.print(line, **PLAIN)
    console.print()
