"""The scores that were published with the benchmark (published.toml)."""

from __future__ import annotations

import tomllib
from importlib import resources

from harness.model import Published

NOTE = (
    "Published: as printed in {source}, whose F1^NS is that of its code: users with both parts 0 are left out. Avg. of "
    "F1^NS is the printed Overall, which is not the mean of the platforms. Only runs with the authors' prompt compare "
    "with it; best and second best are marked among the runs alone."
)


def published() -> Published:
    """Read the data file that ships with the package; its values are in percent."""
    text = resources.files(__package__).joinpath("published.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    columns, models = data["columns"], data["models"]
    figures = {
        metric: {
            model["name"]: {column: value / 100 for column, value in zip(columns, model[metric], strict=True)}
            for model in models
        }
        for metric in models[0]
        if metric != "name"
    }
    return Published(data["source"], NOTE.format(source=data["source"]), figures)
