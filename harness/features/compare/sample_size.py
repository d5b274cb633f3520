"""How many users show a difference: a normal approximation, with its own interval (docs/statistics.md, Planning).

Sources: Cohen 1988, chapter 2 (power); Bonett 2006 (interval of a variance on the log scale, the fourth moment about
a robust centre).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.benchmark import Metric
from harness.model import JSON
from harness.scoring.bootstrap import LEVEL, Array
from harness.scoring.intervals import FEWEST, FEWEST_UNTIED, POWER, moments
from harness.scoring.libraries import special

UNTIED = 20
"""Users that differ, below whom a spread is too uncertain to plan with."""


class Needed(NamedTuple):
    """Users over all strata, spread as the present ones, and the 95 % interval of that number."""

    users: int
    low: int
    high: int


def needed(
    strata: Sequence[Array], difference: float | None, power: float = POWER, family: int = 1, factor: float = 1.0
) -> Needed | None:
    """Return how many users show a mean difference over strata, two-sided at 5 % divided by the tests of the family.

    `strata` are the parts of the users of each (NaN left out); `factor` multiplies their variance. None without an
    estimate: no difference is given, too few users differ, or so few of the number needed would that no test could
    show it.
    """
    values = [part[~np.isnan(part)] for part in strata]
    users, untied = sum(map(len, values)), sum(moments(part).untied for part in values)
    if difference is None or not values or untied < UNTIED or min(map(len, values)) < 4:
        return None
    squared, spread = _error(values)
    level = (1 - LEVEL) / family
    reach = float(special().ndtri(power) - special().ndtri(level / 2))
    width = spread * float(special().stdtrit(users - len(values), (1 + LEVEL) / 2))
    estimate = users * factor * squared * (reach / difference) ** 2
    found = Needed(*(max(2, math.ceil(estimate * math.exp(step))) for step in (0, -width, width)))
    differing = found.users * untied // users
    is_shown = found.users >= FEWEST and differing >= FEWEST_UNTIED and 2.0 ** (1 - differing) <= level
    return found if is_shown else None


def entry(found: Needed | None) -> JSON:
    """Return the number as `compare --json` has it."""
    return {"users_needed": found and found.users, "users_needed_ci95": found and (found.low, found.high)}


def _error(strata: Sequence[Array]) -> tuple[float, float]:
    """Return the squared standard error of the mean over strata, and the standard error of its logarithm."""
    squared = uncertain = 0.0
    for part in strata:
        number, variance = len(part), float(part.var(ddof=1))
        fourth = float(((part - np.median(part)) ** 4).mean())
        kurtosis = fourth / float(part.var()) ** 2 if variance else 0.0
        squared += variance / number
        uncertain += (variance / number) ** 2 * max(0.0, kurtosis - (number - 3) / number) / (number - 1)
    return squared / len(strata) ** 2, math.sqrt(uncertain) / squared


def notable(metric: Metric) -> float | None:
    """Return the smallest difference of interest: one percentage point, or 1 % of the range of another unit.

    Return None if that range has no bounds.
    """
    low, high = metric.bounds or (None, None)
    if metric.unit is None:
        return 0.01
    return None if low is None or high is None else 0.01 * (high - low)
