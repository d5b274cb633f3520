"""A run of one subset: opened from a plan or from its folder, played, and finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness import defaults
from harness.benchmark import Benchmark, Task, kept_files
from harness.client.request_body import Sampling
from harness.cost import DEFERRED, Bill, Cost, Price
from harness.engine.files import now
from harness.engine.running_scores import RunningScores
from harness.model import JSON, SubsetProgress
from harness.options.extension import counts
from harness.options.plan import sampling_again
from harness.reply_facts import together
from harness.scoring.scorer import Scorer
from harness.store.manifest import RUNNING, Counts, EndpointProvenance, Manifest, State
from harness.store.run import RunStore
from harness.store.submissions import pending
from harness.store.tasks import TaskIndex

Mask = NDArray[np.bool_]
WITH_TASK = 2_000
"""Users whose tasks a report needs, so that its time does not grow with them."""


def drawn(benchmark: Benchmark, index: TaskIndex) -> NDArray[np.bool_]:
    """Return the users whose tasks the report needs: a fair draw of the tasks file, nobody of most
    benchmarks."""
    return index.select(1.0, 0, WITH_TASK if benchmark.scoring.with_task else 0)


@dataclass(eq=False)
class Run:
    """One run of one subset: its tasks, its open files, and how far it is.

    `expected` and `done` are masks over the tasks, or over all users' repeats; those expected and
    not done remain. A user is done once all its expected repeats are. `label` is the run's name in
    messages. `changed` means that tasks or ground truth differ from those that the files were
    finished with.

    The rest counts what happens in this process: users given up on (`failed`), among them the keys
    of those whose very requests the endpoint refuses (`refused`), users who sent
    different requests after an interruption (`diverged`), the benchmark's `warnings`, and the steps
    done, of done users and in saved responses too. `first` are the positions of users to play
    alone, None for all. `is_new`: this process has made its manifest. `facts` are those of tasks
    that the report needs, by key.
    """

    benchmark: Benchmark
    subset: str
    index: TaskIndex
    store: RunStore
    manifest: Manifest
    expected: NDArray[np.bool_]
    label: str = ""
    changed: bool = False
    failed: int = 0
    refused: list[str] = field(default_factory=list)
    diverged: int = 0
    warnings: list[str] = field(default_factory=list)
    steps_done: int = 0
    first: NDArray[np.int64] | None = None
    is_new: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def drawn(self) -> NDArray[np.bool_]:
        return drawn(self.benchmark, self.index)

    @property
    def done(self) -> NDArray[np.bool_]:
        return self.store.done

    @property
    def remaining(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.expected & ~self.done)

    @property
    def users(self) -> int:
        return self.index.users(self.expected)

    @property
    def users_done(self) -> int:
        return self.users - self.index.users(self.expected & ~self.done)

    @cached_property
    def steps(self) -> int:
        """The steps of all expected users."""
        return int(self.index.steps[self.expected].sum())

    @cached_property
    def sampling(self) -> Sampling:
        return sampling_again(self.manifest)

    @cached_property
    def _samplings(self) -> list[Sampling]:
        """The parameters of each repeat."""
        return [self.sampling.of_repeat(number) for number in range(1, self.index.repeats + 1)]

    @cached_property
    def failed_tries(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Return how often requests failed in earlier processes, as `RunStore.failed_tries` has
        it."""
        return self.store.failed_tries(self.index)

    @cached_property
    def role_failures(self) -> frozenset[int]:
        """Return the positions of users who failed in an earlier session for a role's unusable
        reply."""
        return self.store.failed_by_role(self.index)

    @property
    def cost(self) -> Cost | None:
        """Return what all saved replies cost, of every session; None for a baseline, which costs
        nothing."""
        return counted_cost(self.manifest, self.store.tally.bill)

    def costs_of(self, role: str) -> dict[str, Cost]:
        """Return what the saved replies of a role cost, of every session, by the model that had
        it."""
        places: dict[str, set[int]] = {}
        for place, priced in enumerate(self.manifest.priced):
            if priced.role == role:
                places.setdefault(priced.model, set()).add(place)
        most = self.sampling.roles[role].most_completion
        prices, bill = self.manifest.prices, self.store.tally.bill
        return {
            model: bill.at_places(of_model).cost(prices, most) for model, of_model in places.items()
        }

    @cached_property
    def billed_roles(self) -> frozenset[str]:
        """Return the roles whose requests may cost something; the empty one is the model under
        test."""
        manifest = self.manifest
        roles = ("", *manifest.provenance.get("roles", ()))
        return frozenset(role for role in roles if manifest.endpoint_of(role) != defaults.EMBEDDED)

    @property
    def prices_now(self) -> list[Price | None]:
        """Return the present prices of the model under test and of roles, by the places of the
        manifest's prices."""
        rates = self.store.rates
        return [
            self.price_of(priced.role) if priced.role in rates else priced.price
            for priced in self.manifest.priced
        ]

    def price_of(self, role: str) -> Price | None:
        """Return the price of the requests of now to the model of a role, None if it is not
        known."""
        return self.store.rates[role].among(self.manifest.prices)

    def price_again(self, prices: Sequence[Price | None]) -> None:
        """Give saved replies these prices, by the places of the manifest's; None leaves one as it
        is."""
        manifest = self.manifest
        priced = manifest.priced
        # Lines of an earlier version's run do not say that they were deferred.
        is_deferred = manifest.tuning.get(DEFERRED) and not self.store.tally.bill.has_deferred
        for place, price in enumerate(prices):
            if price:
                in_force = price.when_deferred if is_deferred else price
                priced[place] = priced[place]._replace(price=in_force)
        manifest.set_prices(priced)

    def sampling_at(self, position: int) -> Sampling:
        """Return the parameters of the requests of a user's repeat."""
        return self._samplings[self.index.repeat(position) - 1]

    @cached_property
    def scores(self) -> RunningScores:
        """The running scores of users with a record, those of earlier sessions included."""
        return RunningScores(
            Scorer(self.benchmark, self.subset), self.index.repeats, self.store.records()
        )

    def task(self, position: int) -> Task:
        """Return a task, read and parsed from its file."""
        return self.index.task(self.benchmark, position, self.subset)

    def start(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the positions of the remaining users (of the `first` of them alone), and the steps
        that each has left; count the other steps as done.

        A user with saved responses has that many steps fewer left, but at least one.
        """
        _ = self.scores  # takes up the records so far, before another is saved
        positions = self.remaining
        left = self.steps_left()
        self.steps_done = self.steps - int(left.sum())
        if self.first is None:
            return positions, left
        chosen = np.isin(positions, self.first)
        return positions[chosen], left[chosen]

    def steps_left(self) -> NDArray[np.int32]:
        """Return the steps that each remaining user has left."""
        left = self.index.steps.copy()
        for position, count in self.store.saved_counts().items():
            left[position] -= count
        # Saved replies may be more than the expected steps, and do not end a user.
        remaining: NDArray[np.int32] = np.maximum(1, left[self.remaining])
        return remaining

    # The manifest of an open run, which is changed here alone, in the order of a session

    def save(self) -> None:
        """Save the manifest."""
        self.store.save(self.manifest)

    def begin(self) -> None:
        """Save that users are played from now on: without a report, with the files that the run
        keeps."""
        self.manifest.state = RUNNING
        self.manifest.results_sha256 = None
        self.manifest.counts = {"users": self.users}  # an earlier end may have counted fewer users
        self.store.set_aside_report()
        self.store.keep_files(kept_files(self.benchmark))
        self.save()

    def _endpoint(self, role: str) -> EndpointProvenance:
        """Return what is recorded of the endpoint of a role; of an empty one, of that of the model
        under test."""
        provenance = self.manifest.provenance
        return provenance["roles"][role] if role else provenance

    def quirks(self, role: str = "") -> list[str]:
        """Return the known quirks of the endpoint of a role, by default of the model under test."""
        return self._endpoint(role)["quirks"]

    def learned(self, quirks: Iterable[str], role: str = "") -> None:
        """Note quirks of the endpoint of a role, by default of the model under test."""
        self._endpoint(role)["quirks"] = sorted({*self.quirks(role), *quirks})
        if not role:
            provenance = self.manifest.provenance
            provenance["quirks_used"] = sorted({*provenance["quirks_used"], *quirks})

    def change_limits(self, limits: Mapping[str, Any]) -> None:
        """Save limits that were changed while the run is played, so that `resume` has them."""
        self.manifest.tuning |= limits  # type: ignore[typeddict-item]
        self.save()

    def count(self, numbers: Mapping[str, int]) -> None:
        """Add to what extensions count over all sessions, by member of `tuning`."""
        cast(JSON, self.manifest.tuning).update(counts(self.manifest) + Counter(numbers))

    def played(self, schedule: JSON | None, limit: int | None = None) -> None:
        """Note how users were played, and add their seconds; None where nobody was. `limit` is what
        `auto` found."""
        times = self.manifest.times
        times["updated"] = now()
        if schedule:
            times["schedule"] = schedule
            times["seconds"] = round(times.get("seconds", 0.0) + schedule["seconds"], 3)
        if limit:
            self.manifest.tuning["learned_limit"] = limit

    def end(self, state: State, results_sha256: str | None = None) -> None:
        """Note how the session ended. The manifest is not saved: this comes after the report."""
        self.manifest.state = state
        self.manifest.results_sha256 = results_sha256
        self.settle()
        self.manifest.counts["torn_lines"] = self.store.torn

    def settle(self) -> None:
        """Put into the manifest what the run's files hold. Reports and `verify` read it there
        alone."""
        manifest, store = self.manifest, self.store
        failed = store.failed(self.index)
        manifest.counts |= user_counts(self.index, self.expected, self.done, failed)
        if store.tally.reused:
            manifest.provenance["reused"] = dict(store.tally.reused)
        bill = store.tally.bill.copy(pending(store.files))
        manifest.cost = msgspec.to_builtins(counted_cost(manifest, bill))
        manifest.replies = msgspec.to_builtins(store.tally.replies.facts) or manifest.replies

    def progress(self) -> SubsetProgress:
        """Return how far the run is; with repeats each counts as a user."""
        repeats = self.index.repeats
        units: dict[str, str] = {}
        for metric in self.benchmark.metrics:
            if metric.unit is not None:
                units[metric.name] = metric.unit
        return SubsetProgress(
            subset=self.subset if repeats == 1 else f"{self.subset} x {repeats}",
            users=int(self.expected.sum()),
            done=int((self.expected & self.done).sum()),
            failed=self.failed,
            steps=self.steps,
            steps_done=self.steps_done,
            scores=self.scores.figures,
            units=units,
            scored_users=self.scores.users,
        )


def user_counts(index: TaskIndex, expected: Mask, done: Mask, failed: Mask) -> Counts:
    """Return how many users a manifest counts, of masks over the tasks: a user with a record is not
    failed."""
    users = index.users(expected)
    remaining = expected & ~done
    return {
        "users": users,
        "done": users - index.users(remaining),
        "failed": index.users(failed & remaining),
    }


def models_warning(runs: Sequence[Run]) -> str | None:
    """Return what is odd about who answered runs of one model, None for nothing."""
    facts = together(run.store.tally.replies.facts for run in runs)
    return facts.warning(runs[0].sampling.model) if runs else None


def counted_cost(manifest: Manifest, bill: Bill) -> Cost | None:
    """Return what a run's saved replies cost, None for a baseline.

    Without any, as in a folder that came without its responses, it is what the manifest has.
    """
    billed: set[int] = set()
    for place, priced in enumerate(manifest.priced):
        if priced.endpoint != defaults.EMBEDDED:
            billed.add(place)
    if not billed:
        return None
    prices = manifest.prices
    if bill.total.requests or manifest.cost is None:
        if manifest.role_models:
            bill = bill.at_places(billed)
        return bill.cost(prices, sampling_again(manifest).most_completion)
    counted = msgspec.convert(manifest.cost, Cost)
    return counted.at(prices[0]) if len(prices) == 1 else counted
