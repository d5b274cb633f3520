"""Blocks as one self-contained page, for any benchmark.

What is text or a table is in the markup, escaped; pictures and the browser of users are drawn by the page's own script
from JSON, by `textContent` alone, so that nothing a model or user wrote can become markup. A policy in the page lets
only its own scripts and styles run, by their hashes, and no request leave (docs/design.md, section 5).
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from harness.model import Block, Card, Chart, Heading, Sketch, Tile

SCRIPTS, STYLE = ("d3.min.js", "plot.umd.min.js", "page.js"), "page.css"
UNSAFE = ((b"<", b"\\u003c"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))
"""Characters that could end a script element, or a line of a script, in its data; and their escaped forms."""


@dataclass(frozen=True, slots=True)
class Browser:
    """The browser of users: their cards, made one after the other as the page is written.

    `user` is the word for one, `columns` the heads of the cards' figures. `note` returns which users there are,
    from the number of cards, once they are made.
    """

    user: str
    columns: tuple[str, ...]
    cards: Iterable[Card]
    note: Callable[[int], str]


def page(
    title: str,
    blocks: Sequence[Block],
    *,
    warning: str = "",
    tiles: Sequence[Tile] = (),
    links: Mapping[tuple[str, str], str] | None = None,
    browser: Browser | None = None,
) -> str:
    """Return the page. `warning` comes before any number; `links` are addresses of cells by the
    text of their row's first cell and the name of their column."""
    return "".join(pieces(title, blocks, warning=warning, tiles=tiles, links=links, browser=browser))


def pieces(
    title: str,
    blocks: Sequence[Block],
    *,
    warning: str = "",
    tiles: Sequence[Tile] = (),
    links: Mapping[tuple[str, str], str] | None = None,
    browser: Browser | None = None,
) -> Iterator[str]:
    """Yield the page in pieces, none larger than a user's card or the page without cards."""
    assets, listed = _assets(), list[Any]()
    pictures = [block for block in blocks if isinstance(block, Chart | Sketch)]

    def cards() -> Iterator[Markup]:
        for card in browser.cards if browser else ():
            listed.append((card.key, *card.figures))
            yield _json(_kinds(card.blocks))

    yield from _template().generate(
        title=title,
        blocks=_kinds(blocks),
        headings=[block.text for block in blocks if isinstance(block, Heading)],
        warning=warning,
        tiles=tiles,
        links=links or {},
        browser=browser,
        pictures=_json(_kinds(pictures)),
        cards=cards(),
        note=lambda: browser.note(len(listed)) if browser else "",
        listed=lambda: _json(listed),
        **assets,
    )


def card_size(card: Card) -> int:
    """Return about how many bytes a card takes in a page: its data, its line in the list, and their markup."""
    written = _json(_kinds(card.blocks)) + _json((card.key, *card.figures))
    return len(written.encode("utf-8", "replace")) + 100


def _kinds(blocks: Sequence[Block]) -> list[tuple[str, Block]]:
    """Return blocks as template and script read them: each with the name of its kind."""
    return [(type(block).__name__, block) for block in blocks]


def _json(value: Any) -> Markup:
    """Return JSON that is safe in a script element; unpaired surrogates, which no file can hold, are escaped."""
    try:
        made = orjson.dumps(value, default=_fields)
    except TypeError:
        made = json.dumps(
            value, default=lambda block: {name: getattr(block, name) for name in block.__slots__}
        ).encode()
    for plain, escaped in UNSAFE:
        made = made.replace(plain, escaped)
    return Markup(made.decode())


def _fields(block: Any) -> dict[str, Any]:
    return {name: getattr(block, name) for name in block.__struct_fields__}


@cache
def _assets() -> Mapping[str, Any]:
    """Return scripts and style with the policy that names them."""

    def hashed(text: str) -> str:
        return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    folder = files(__package__) / "assets"
    scripts = [(folder / name).read_text(encoding="utf-8") for name in SCRIPTS]
    style = (folder / STYLE).read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {' '.join(map(hashed, scripts))}; style-src {hashed(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return {"scripts": [Markup(script) for script in scripts], "style": Markup(style), "policy": policy}


@cache
def _template() -> Template:
    source = (files(__package__) / "page.html.j2").read_text(encoding="utf-8")
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(source)
