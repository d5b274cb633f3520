"""The five platforms, read from platforms.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Platform:
    """`context` is what a model must know to read a user's posts."""

    name: str
    context: str


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PLATFORMS = {subset: Platform(**words) for subset, words in _DATA.items()}
