"""How often all of k tries succeed: pass^k, over the repeats of each user (`run --repeats`).

pass^k is the chance that k tries, drawn without replacement from a user's n, all succeed: with c
successes C(c, k) / C(n, k), which is unbiased. Source: Yao et al. 2024, tau-bench, section 3.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.benchmark import Means, Metric
from harness.document import Block, Heading, Table
from harness.model import JSON

Tries = Counter[tuple[int, int]]
"""Users by their successes and tries."""


def pass_hat_k(successes: int, tries: int, k: int) -> float:
    """Return the chance that k of a user's tries all succeed. Raise `ValueError` for fewer than k
    tries."""
    if not 0 < k <= tries:
        raise ValueError(f"pass^{k} needs at least {k} tries, got {tries}")
    # Not (c / n)^k, which draws a try more than once and is too high on average.
    return math.comb(successes, k) / math.comb(tries, k)


class PassHatK(Means):
    """Means of the metrics, and pass^k of one of them, whose values are 1 and 0, for each k.

    Users with fewer than k repeats are left out of pass^k.
    """

    def __init__(self, metric: str, ks: Sequence[int] = (2, 4, 8)) -> None:
        self._metric = metric
        self._ks = tuple(ks)
        self.secondary = tuple(  # type: ignore[misc]
            Metric(f"pass^{k}", definition=f"chance that {k} repeats of a user all succeed")
            for k in ks
        )

    def tallied(self, records: Sequence[JSON]) -> tuple[Any, Any]:
        rows, _ = super().tallied(records)
        tries: dict[str, list[int]] = {}
        for record in records:
            value = record["metrics"][self._metric]
            if value is not None:
                user_tries = tries.setdefault(str(record["user_id"]), [0, 0])
                user_tries[0] += value == 1
                user_tries[1] += 1

        return rows, Counter((successes, count) for successes, count in tries.values())

    def sections(self, scored: Any) -> Iterable[Block]:
        rows = []
        for metric in self.secondary:
            value = scored.report.secondary[metric.name].value
            share = "undefined" if value is None else f"{100 * value:.2f} %"
            rows.append((metric.name, share))

        yield Heading("All of k repeats succeed")
        yield Table((self._metric, "mean over users"), tuple(rows))

    def further_figures(self, tally: Tries) -> Mapping[str, float | None]:
        return {f"pass^{k}": _mean_pass_hat_k(tally, k) for k in self._ks}


def _mean_pass_hat_k(tally: Tries, k: int) -> float | None:
    """Return the mean over the users with at least k tries, None without any."""
    total = 0.0
    users = 0
    for (successes, tries), count in tally.items():
        if tries >= k:
            total += count * pass_hat_k(successes, tries, k)
            users += count

    if not users:
        return None

    return total / users
