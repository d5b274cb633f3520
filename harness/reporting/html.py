"""Blocks as HTML, and as one self-contained page, for any benchmark.

Templates escape every text, so nothing that a model or user wrote can become markup; characters
that control a terminal or the reading direction are shown as escapes. A page needs its script only
to browse users and to sort tables. A policy in the page lets only its own script and style run, by
their hashes, and no request leave (docs/design.md, section 5).
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.cells import chop_cells

from harness.document import Block, Card, Cell, Heading, Page
from harness.printable import in_lines, on_one_line
from harness.reporting.charts import is_tick, number, plan

LONG_CELL = 24
"""Characters of a cell above which it is wrapped."""
LONG_QUOTE = 200
"""Characters of a quoted text above which their number is shown."""
NAME_CELLS = 24
"""Terminal columns of a row's name in a picture: a Chinese character takes two."""
Links = Mapping[tuple[str, str], str]
"""Addresses of cells, by the text of their row's first cell, empty for the head, and their
column."""


class UserCard(NamedTuple):
    """A user on a page: the line in the list, and the blocks as HTML."""

    line: tuple[str, ...]
    blocks: Markup


class Browser(NamedTuple):
    """The list of users of a page. Cards are made one after the other, as the page is written.

    `user` is the word for one, `columns` are the heads of the cards' figures. `note` returns which
    users there are, from the number of cards, once they are made.
    """

    user: str
    columns: tuple[str, ...]
    cards: Iterable[UserCard]
    note: Callable[[int], str]


def page(
    title: str,
    blocks: Sequence[Block],
    links: Links | None = None,
) -> str:
    """Return a page without users."""
    return "".join(pieces(Page(title, "", (), tuple(blocks)), links))


def pieces(
    page: Page,
    links: Links | None = None,
    browser: Browser | None = None,
) -> Iterator[str]:
    """Yield a page in pieces, so that a page of very many users is never in memory as a whole."""
    style, script, policy = _assets()
    template = templates().get_template("page.html.j2")

    return template.generate(
        page=page,
        links=links or {},
        browser=browser,
        headings=[block.text for block in page.blocks if isinstance(block, Heading)],
        style=style,
        script=script,
        policy=policy,
    )


def rendered(
    blocks: Sequence[Block],
    links: Links | None = None,
    **options: object,
) -> Markup:
    """Return blocks as HTML. Options: `level` of headings, `pick`, the form that rows are chosen
    for, and `sort`, the column and the order in which rows are."""
    macros = templates().get_template("blocks.html.j2").module
    return macros.rendered(blocks, links or {}, **options)  # type: ignore[attr-defined, no-any-return]


def user_card(card: Card) -> UserCard:
    return UserCard((card.key, *card.figures), rendered(card.blocks, level=3))


@cache
def templates(*packages: str) -> Environment:
    """Return the templates of this package, and those of others that use them."""
    loaders = [PackageLoader(package, "assets") for package in (__package__, *packages)]
    environment = Environment(
        loader=ChoiceLoader(loaders),
        # The templates ship with the package, so nobody changes their files while this process
        # runs.
        auto_reload=False,
        autoescape=True,
        # A missing variable in a template is a mistake, and must not become an empty place on a
        # page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "line": on_one_line,
        "lines": in_lines,
        "kind": lambda block: type(block).__name__,
        "plain": _text,
        "size": _size,
        "plan": plan,
        "number": number,
        "short": lambda name: chop_cells(name, NAME_CELLS)[0] if name else "",
    }
    environment.tests |= {"long": _is_long, "tick": is_tick}

    return environment


def _text(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def _is_long(cell: str | Cell) -> bool:
    return len(_text(cell)) > LONG_CELL


def _size(text: str) -> str:
    """Return a note on a quoted text's length, which is shown while the text is folded."""
    if not text:
        return " (nothing)"
    if len(text) > LONG_QUOTE:
        return f" ({len(text):,} characters)"

    return ""


@cache
def _assets() -> tuple[Markup, Markup, str]:
    """Return style and script, and the policy that names them."""
    folder = files(__package__) / "assets"
    style = (folder / "page.css").read_bytes()
    script = (folder / "page.js").read_bytes()
    # `base-uri` and `form-action` are named since `default-src` does not cover them.
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )

    return Markup(style.decode()), Markup(script.decode()), policy


def _hash(content: bytes) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(content).digest()).decode()}'"
