"""How far graders agree: Krippendorff's alpha, and a judge next to people.

Source of alpha: Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from harness.benchmarks.files import content
from harness.document import Table
from harness.errors import BadInput

MAX_RATINGS_BYTES = 1 << 28
COLUMNS = ("user_id", "rater", "rating")
Ratings = Mapping[str, Mapping[str, float]]
"""Ratings by the rated unit, such as a user, and by who rated it."""
Level = Literal["nominal", "ordinal", "interval"]
"""What differs between two ratings: whether they are the same, their ranks, or their values."""


def krippendorff_alpha(units: Iterable[Iterable[float]], level: Level = "interval") -> float | None:
    """Return Krippendorff's alpha of the ratings of each unit: 1 for full agreement, 0 for that of
    chance. Units with one rating are left out. None where no rating differs from another, or no
    unit has two."""
    values: list[float] = []
    ends = []
    for unit in units:
        ratings = list(unit)
        if len(ratings) > 1:
            values += ratings
            ends.append(len(values))

    if not values:
        return None

    scaled = np.array(values, float)
    # The distance of two ordinal ratings is the number of ratings between them, which is the
    # difference of their mean ranks.
    if level == "ordinal":
        scaled = rankdata(values)

    observed = 0.0
    for unit_ratings in np.split(scaled, ends[:-1]):
        observed += _squares(unit_ratings, level) / (len(unit_ratings) - 1)

    expected = _squares(scaled, level) / (len(scaled) - 1)
    if expected == 0:
        return None

    return float(1 - observed / expected)


def _squares(values: NDArray[np.float64], level: Level) -> float:
    """Return the sum of the squared differences of all ordered pairs."""
    if level == "nominal":
        _, counts = np.unique(values, return_counts=True)
        return float(len(values) ** 2 - np.sum(counts.astype(float) ** 2))
    centred = values - values.mean()
    return float(2 * len(values) * np.sum(centred**2))


def ratings_in(path: Path) -> dict[str, dict[str, float]]:
    """Return the ratings in a CSV file with the columns user_id, rater and rating, by user and
    rater. Raise `BadInput` with file and line."""
    try:
        # Spreadsheets may write a byte-order mark before the name of the first column.
        text = content(path, MAX_RATINGS_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: expected CSV in UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if not set(COLUMNS) <= set(reader.fieldnames or ()):
        raise BadInput(f"{path}, line 1: expected the columns {', '.join(COLUMNS)}")
    ratings: dict[str, dict[str, float]] = {}
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        user, rater = row["user_id"], row["rater"]
        try:
            rating = float(row["rating"])
        except (TypeError, ValueError):
            raise BadInput(f"{where}, field rating: expected a number") from None
        if not np.isfinite(rating):
            raise BadInput(f"{where}, field rating: expected a finite number")
        if rater in ratings.setdefault(user, {}):
            raise BadInput(f"{where}: {rater} has rated {user} before")
        ratings[user][rater] = rating
    return ratings


@dataclass(frozen=True, slots=True)
class HumanAgreement:
    """A judge next to people, over the `users` that both have rated: alpha among the people alone,
    alpha of the judge and their mean rating, and how far the judge's mean is above theirs. None is
    undefined."""

    users: int
    people_alpha: float | None
    judge_alpha: float | None
    judge_above_people: float | None

    def table(self) -> Table:
        """Return the figures as a table for a report."""
        rows = (
            ("Krippendorff's alpha, people among themselves", _text(self.people_alpha)),
            ("Krippendorff's alpha, judge and the people's mean", _text(self.judge_alpha)),
            ("mean rating of the judge less that of people", _text(self.judge_above_people)),
        )
        return Table(("agreement", f"{self.users} users"), rows)


def _text(figure: float | None) -> str:
    return "undefined" if figure is None else f"{figure:.3f}"


def human_agreement(
    judge: Mapping[str, float], people: Ratings, level: Level = "interval"
) -> HumanAgreement:
    """Return how far a judge's ratings, by user, agree with those of people. The users that one
    side alone has rated are left out."""
    ratings = []
    means = []
    graded = []
    # Sorted, since the order of a sum decides its last digit.
    for user in sorted(judge.keys() & people.keys()):
        if people[user]:
            ratings.append(list(people[user].values()))
            means.append(float(np.mean(ratings[-1])))
            graded.append(judge[user])

    if not ratings:
        return HumanAgreement(0, None, None, None)

    return HumanAgreement(
        len(ratings),
        krippendorff_alpha(ratings, level),
        krippendorff_alpha(zip(graded, means, strict=True), level),
        float(np.mean(graded) - np.mean(means)),
    )
