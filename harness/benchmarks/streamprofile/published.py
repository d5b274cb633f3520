"""The scores that were published with the benchmark: data to be shown beside runs, never ranked with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

NOTE = (
    "Published: as printed in {source}. What stands under Avg. for F1^NS is its Overall, which is not the mean of the "
    "platforms. Only runs with the authors' prompt compare with it; best and second best are marked among the runs "
    "alone."
)


@dataclass(frozen=True, slots=True)
class Published:
    """`figures` is metric -> model -> column (a platform, or `Avg.`) -> percent, models in the order of the table."""

    source: str
    figures: Mapping[str, Mapping[str, Mapping[str, float]]]

    @property
    def note(self) -> str:
        return NOTE.format(source=self.source)


def published() -> Published:
    """Reads the data file that ships with the package."""
    text = resources.files(__package__).joinpath("published.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    columns, models = data["columns"], data["models"]
    metrics = [name for name in models[0] if name != "name"]
    return Published(
        data["source"],
        {
            metric: {model["name"]: dict(zip(columns, model[metric], strict=True)) for model in models}
            for metric in metrics
        },
    )
