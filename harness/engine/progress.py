"""How far a runner is: counts kept by the engine, rates and warnings of the last half minute,
findings, and the frozen snapshot that displays get."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter

from harness.client.caller import Caller
from harness.cost import together
from harness.defaults import TIMEOUT_SECONDS
from harness.engine.run import Run
from harness.model import JSON, AtRisk, Load, Money, Snapshot, Warned

logger = logging.getLogger(__name__)

STRAGGLERS_NAMED = 3
FIRST_ANSWER_SECONDS = 30.0
"""Without any answer from the start to this, a warning says what was seen and what to try."""
REPLIES_TO_PROJECT = 20
"""Replies of ended users before the number of replies of the others is projected from them."""
RATE_SECONDS, RATE_STEPS = 30.0, 20
"""Rates cover the last half minute, or more where fewer steps than this were done in it."""
WARNINGS = 3
"""Findings kept. Of faults, which are many, the last one is kept, and all are counted by kind."""

Counts = tuple[int, int, int]
"""What is done at a moment: steps, and tokens of prompts and of completions."""


class RecentRates:
    """How fast counts have grown recently."""

    def __init__(self, now: float, counts: Counts) -> None:
        self._history = deque([(now, counts)])

    def per_second(self, now: float, counts: Counts) -> tuple[float, float, float]:
        """Return steps, prompt tokens and completion tokens a second; 0 before any time has
        passed."""
        history = self._history
        history.append((now, counts))
        while len(history) > 2:
            second, (steps, _, _) = history[1]
            # A few steps say little of a rate, so the window grows where they are rare.
            if now - second <= RATE_SECONDS or counts[0] - steps <= RATE_STEPS:
                break
            history.popleft()
        start, (steps, prompt_tokens, completion_tokens) = history[0]
        seconds = now - start
        if seconds <= 0:
            return 0.0, 0.0, 0.0
        return (
            (counts[0] - steps) / seconds,
            (counts[1] - prompt_tokens) / seconds,
            (counts[2] - completion_tokens) / seconds,
        )


class Warnings:
    """The last few different warnings, each with its last time and how often it came while it was
    kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[str, tuple[float, int]] = {}

    def add(self, now: float, text: str) -> None:
        _, times = self._kept.pop(text, (now, 0))
        self._kept[text] = now, times + 1
        if len(self._kept) > self._size:
            # The oldest text goes: the dictionary is in the order of the last time that each came.
            del self._kept[next(iter(self._kept))]

    def recent(self, now: float) -> tuple[Warned, ...]:
        """Return the warnings, the newest first."""
        warnings = reversed(self._kept.items())
        return tuple(Warned(text, now - last, times) for text, (last, times) in warnings)


class EndpointFindings:
    """What a runner finds out about its endpoint: shown on the display, and logged in each of its
    runs.

    `clock` is in seconds, monotonic.
    """

    def __init__(self, runs: Sequence[Run], clock: Callable[[], float]) -> None:
        self.runs = runs
        self.shown = Warnings(WARNINGS)
        self.clock = clock

    def show(self, text: str) -> None:
        """Show a finding until newer ones replace it."""
        self.shown.add(self.clock(), text)

    def learned(self, name: str, phrase: str, role: str = "") -> None:
        """Save a quirk of the endpoint of a role, by default of the model under test, in the
        manifests; `phrase` of the endpoint revealed it."""
        for run in self.runs:
            run.learned([name], role)
            run.save()
        self.note("learned", f"{name}: {phrase}")

    def note(self, what: str, detail: str) -> None:
        """Show a finding, and log it."""
        self.show(detail)
        self.log(what, detail=detail)

    def log(self, what: str, **details: str | float) -> None:
        for run in self.runs:
            run.store.event(what, **details)


class Progress:
    """Counts and clocks of one runner. `requested` is the requested concurrency, None for auto."""

    def __init__(
        self,
        name: str,
        findings: EndpointFindings,
        caller: Caller,
        requested: int | None,
        where: Callable[[str], str] = lambda user: "",
    ) -> None:
        self.name = name
        self.replayed = 0
        self.lag = 0.0
        self._where = where
        self._noted: set[int] = set()
        self.faults: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._last_fault = Warnings(1)
        self._ended_replies = self._ended_steps = 0
        self._findings = findings
        self._runs = findings.runs
        self._caller = caller
        self.requested = requested
        self._steps_before = self._steps_done()
        self._cost_before = self._cost()
        self._clock = findings.clock
        self._timeout = findings.runs[0].manifest.tuning.get("timeout", TIMEOUT_SECONDS)
        self._started = self._clock()
        self._warned = False
        self._rates = RecentRates(self._started, self._counts())
        # Where only the first users are played, for an estimate.
        self.reply_times: list[float] | None = None
        if any(run.first is not None for run in self._runs):
            self.reply_times = []
        self._work = 0.0
        self._longest_chain = 0.0
        self._slots = 0.0
        self._slots_since = self._started

    def replied(self) -> None:
        """Note the time of a reply to one of the users that are played first."""
        if self.reply_times is not None:
            self.reply_times.append(self._clock() - self._started)

    def try_failed(self, kind: str, detail: str) -> None:
        self.faults[kind] += 1
        self._last_fault.add(self._clock(), f"{kind}: {detail}")

    def user_failed(self, key: str, kind: str, message: str) -> None:
        self.failures[kind] += 1
        self._last_fault.add(self._clock(), f"{key}: {message}")

    def add_work(self, seconds: float, longest: float, replies: int, steps: int) -> None:
        """Count finished users: the sum of their requests' seconds in flight, the `longest` of one,
        their replies, and the steps expected of them.

        Replies and steps differ where replies are asked for again, and where a play asks as often
        as it likes.
        """
        self._ended_replies += replies
        self._ended_steps += steps
        self._work += seconds
        self._longest_chain = max(self._longest_chain, longest)

    def tick(self, lag: float) -> None:
        """Update the clocks; `lag` is how many seconds late the event loop was."""
        now = self._clock()
        self.lag = lag
        self._slots += self._caller.limiter.slots.limit * (now - self._slots_since)
        self._slots_since = now
        self._note_stragglers()
        silence = now - self._started
        if not self._warned and silence >= FIRST_ANSWER_SECONDS:
            self._warn_without_answer(silence)

    def _warn_without_answer(self, seconds: float) -> None:
        """Warn once where requests were sent, and none was answered for so long since the start."""
        traffic = self._caller.traffic
        # `--wait` has a line of its own, and ends the run if no server answers.
        if traffic.successes or self._caller.wait_left or not traffic.requests:
            return
        self._warned = True
        warning = self._no_answer(seconds)
        self._findings.note("no_answer", warning)
        logger.warning("%s: %s", self.name, warning)

    def _note_stragglers(self) -> None:
        """Log each straggler once, and show once what can be done about them."""
        for number, user, seconds in self._caller.stragglers():
            if not self._noted:
                self._findings.show(
                    f"a request that hangs ends after --timeout {self._timeout:g}; --hedge 3 sends"
                    " a second try, and --stream on shows stalls and ends them"
                )
            if number not in self._noted:
                self._noted.add(number)
                self._findings.log(
                    "straggler", user_id=user, seconds=round(seconds, 1), endpoint=self._where(user)
                )

    def _hanging(self, stragglers: Sequence[tuple[int, str, float]]) -> list[Warned]:
        """Return one warning that names the stragglers, the oldest first."""
        if not stragglers:
            return []
        users, servers = [], []
        for _, user, seconds in stragglers:
            users.append(f"{user} {seconds:.0f} s")
            servers.append(self._where(user))
        oldest = ", ".join(users[:STRAGGLERS_NAMED])
        where = ", ".join(dict.fromkeys(filter(None, servers)))
        usual = self._caller.latency.tail or 0.0
        text = f"no reply for: {oldest}, {len(stragglers)} in all"
        return [Warned(f"{text} ({where}; 99 % take {usual:.1f} s at most)", 0.0)]

    def _no_answer(self, seconds: float) -> str:
        """Return what was seen of an endpoint that has not answered for so long since the start,
        and what to try."""
        seen = ", ".join([f"{kind} {number}" for kind, number in self.faults.most_common()])
        advice = "if it is still loading, stop and resume with --wait 600"
        if not seen:
            seen = f"{self._caller.limiter.in_flight} requests in flight, no reply"
            advice = "--stream on shows if it writes"
        url = self._runs[0].manifest.provenance["endpoint"]
        return f"no answer in {seconds:.0f} s ({seen}): try `curl {url}/models`; {advice}"

    def schedule(self, others: Sequence[Progress]) -> JSON:
        """Return how close the runs on these slots came to the shortest time that their requests
        allow (docs/design.md, section 4); `others` are those of the other runs.

        The bound is the larger of all requests' time divided by the slots, and the longest user's
        chain. Only successful tries count in it, so pauses and failed tries show as a loss.
        """
        self.tick(self.lag)
        seconds = self._clock() - self._started
        slots = self._slots / max(1e-9, self._slots_since - self._started)
        work, bound = self._work, self._longest_chain
        # Work of other runs was done on the same slots, so only all of it together has a bound.
        for other in others:
            work += other._work
            bound = max(bound, other._longest_chain)
        if slots:
            bound = max(bound, work / slots)
        return {
            "seconds": round(seconds, 3),
            "slots": round(slots, 1),
            "lower_bound_seconds": round(bound, 3),
            "ratio": round(seconds / bound, 3) if bound else None,
            "runs": 1 + len(others),
        }

    def snapshot(
        self,
        steps: int,
        longest: int,
        stopping: str | None,
        over: bool,
        load: Load = (),
        unusable: tuple[tuple[str, int], ...] = (),
    ) -> Snapshot:
        """Return the state of now. `steps` remain of all users, `longest` of the user with the
        longest chain; `stopping` is why the runner ends early, if it does; `over` means that it has
        ended; `load` is as in a snapshot; `unusable` are new answers by kind."""
        caller = self._caller
        traffic, limiter, allowance = caller.traffic, caller.limiter, caller.allowance
        now = self._clock()
        outage = caller.health.outage(now)
        held_by = limiter.held_by
        if held_by is None and allowance.waiting:
            held_by = allowance.held_by
        rate, prompt_rate, completion_rate = self._rates.per_second(now, self._counts())
        subsets = tuple(run.progress() for run in self._runs)
        users_left = sum(subset.users - subset.done - subset.failed for subset in subsets)
        stragglers = caller.stragglers()
        eta, at_most, chain_bound = self._to_go(
            users_left, steps, longest, rate, stragglers, bool(load)
        )
        warnings = [
            *self._findings.shown.recent(now),
            *self._last_fault.recent(now),
            *self._hanging(stragglers),
        ]
        warnings.sort(key=attrgetter("age"))
        return Snapshot(
            name=self.name,
            model=self._runs[0].sampling.model,
            seconds=now - self._started,
            subsets=subsets,
            requested=self.requested,
            limit=limiter.limit,
            in_flight=limiter.in_flight,
            held_by=held_by,
            outage=outage,
            lag=self.lag,
            slowest_write=max(run.store.slowest_write() for run in self._runs),
            waiting=limiter.waiting + allowance.waiting,
            backing_off=traffic.backing_off,
            requests=traffic.requests,
            replayed=self.replayed,
            retries=traffic.retries,
            notices=tuple(traffic.notices.most_common()),
            prompt_tokens=traffic.prompt_tokens,
            completion_tokens=traffic.completion_tokens,
            rate=rate,
            eta=eta,
            at_most=at_most,
            stopping=stopping,
            chain_bound=chain_bound,
            token_rates=(prompt_rate, completion_rate),
            latency=caller.latency.quantiles,
            faults=tuple(self.faults.most_common()),
            failures=tuple(self.failures.most_common()),
            projected_tokens=self._projected_tokens(steps),
            cost=self._cost(),
            projected_cost=self._projected_cost(steps),
            allowance=allowance.load,
            warnings=tuple(warnings),
            at_risk=self._at_risk(),
            silence=now - caller.health.last_answer,
            over=over,
            awaited=caller.wait_left if outage else 0.0,
            pause=caller.pause_left,
            others_in_flight=limiter.slots.in_flight - limiter.in_flight,
            load=load,
            unusable=unusable,
        )

    def _to_go(
        self,
        users_left: int,
        steps: int,
        longest: int,
        rate: float,
        stragglers: Sequence[tuple[int, str, float]],
        together: bool,
    ) -> tuple[float | None, bool, bool]:
        """Return the seconds to go, whether they are only an upper bound (a request hangs), and
        whether the longest chain determines them: always, where all users advance together."""
        caller, slots = self._caller, self._caller.limiter.slots
        step_seconds = caller.latency.mean
        if step_seconds is not None:
            step_seconds *= self._replies_per_step or 1.0
        slots_of_others = slots.in_flight - caller.limiter.in_flight
        eta, chain_bound = time_to_go(
            steps=steps,
            longest=longest,
            rate=rate,
            step_seconds=step_seconds,
            all_in_play=slots.rates is None and users_left + slots_of_others <= slots.limit,
            pause=caller.pause_left,
            outage=caller.health.down,
        )
        oldest = caller.oldest
        if eta is not None and oldest is not None and not stragglers:
            seconds_left = caller.latency.left(oldest)
            if seconds_left > eta:
                eta, chain_bound = seconds_left, False
        if together and step_seconds is not None:
            # A step of one user is a step of all.
            eta, chain_bound = longest * step_seconds, True
        if eta is not None and stragglers:
            # Nobody can predict the end of a request that hangs, but its time-out is one.
            _, _, age = stragglers[0]
            bound = self._timeout - age + longest * (step_seconds or 0.0)
            if bound > eta:
                return bound, True, False
        return eta, False, chain_bound

    def _counts(self) -> Counts:
        traffic = self._caller.traffic
        return self._steps_done(), traffic.prompt_tokens, traffic.completion_tokens

    def _steps_done(self) -> int:
        return sum(run.steps_done for run in self._runs)

    @property
    def _replies_per_step(self) -> float | None:
        """Replies that users took per step expected of them; None until enough have ended."""
        # No user has ended in this session with fewer: a single odd user would decide the estimate.
        if self._ended_replies < REPLIES_TO_PROJECT:
            return None
        return self._ended_replies / self._ended_steps

    def _growth(self, steps: int) -> float | None:
        """Return by what this session's replies grow until its end, if all its users take as many a
        step as those who have ended; `steps` remain."""
        if self.reply_times is not None:
            return None  # others follow the first users of an estimate
        per_step = self._replies_per_step
        replies = self._caller.traffic.successes
        if per_step is None or not replies:
            return None
        all_steps = self._steps_done() - self._steps_before + steps
        return max(1.0, per_step * all_steps / replies)

    def _projected_tokens(self, steps: int) -> tuple[int, int] | None:
        """Return this session's tokens at its end, if a reply takes as many as so far; `steps`
        remain."""
        traffic = self._caller.traffic
        factor = self._growth(steps)
        if factor is None or not traffic.prompt_tokens:
            return None
        return round(traffic.prompt_tokens * factor), round(traffic.completion_tokens * factor)

    def _cost(self) -> tuple[Money, ...]:
        return together(cost.money for run in self._runs if (cost := run.cost))

    def _projected_cost(self, steps: int) -> tuple[Money, ...]:
        """Return the cost at the end, if a reply costs as much as those of this session so far;
        `steps` remain."""
        factor = self._growth(steps)
        if factor is None:
            return ()
        # A float would bring digits that no price has.
        growth = Decimal(f"{factor - 1:.6f}")
        earlier = {cost.currency: cost.amount for cost in self._cost_before}
        return tuple(
            Money(
                cost.amount + (cost.amount - earlier.get(cost.currency, 0)) * growth,
                cost.currency,
                True,
            )
            for cost in self._cost()
        )

    def _at_risk(self) -> AtRisk:
        unsynced = [run.store.unsynced() for run in self._runs]
        users, seconds = zip(*unsynced, strict=True)
        return AtRisk(sum(users), max(seconds))


def time_to_go(
    *,
    steps: int,
    longest: int,
    rate: float,
    step_seconds: float | None,
    all_in_play: bool,
    pause: float,
    outage: bool,
) -> tuple[float | None, bool]:
    """Return the seconds to go, and whether the longest chain determines them: its steps come one
    after another.

    `steps` remain in all and `longest` in one chain; `rate` is in steps a second, `step_seconds` is
    the time in flight of a step of a chain. `all_in_play` means that no user waits for a slot or a
    rate: then only the longest chain counts, since the rate is still that of more users. Nothing
    goes on for `pause` seconds. None in an outage, whose end nobody knows, or before the first
    steps.

    It assumes that rate and latency stay as they were in the last half minute, that a step takes as
    many replies as those so far, and that no further try fails.
    """
    if not steps:
        return 0.0, False
    if outage:
        return None, False
    chain = longest * (step_seconds or 0.0)
    if all_in_play and chain:
        return pause + chain, True
    if not rate:
        return None, False
    work = steps / rate
    return pause + max(chain, work), chain > work
