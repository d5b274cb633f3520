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
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import orjson
from markupsafe import Markup
from msgspec.structs import asdict

from harness.document import (
    Block,
    Card,
    Chart,
    Heading,
    Paragraph,
    Quote,
    Sketch,
    Table,
    Tags,
    Tile,
    Verbatim,
    cell_text,
)

SCRIPTS, STYLE = ("d3.min.js", "plot.umd.min.js", "page.js"), "page.css"
UNSAFE = ((b"<", b"\\u003c"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))
"""Characters that could end a script element, or a line of a script, in its data; and their escaped forms."""
LONG = 24
"""Characters of a cell from which on its column is wide."""
Links = Mapping[tuple[str, str], str]
"""Addresses of cells by the text of their row's first cell and the name of their column."""


class Shown(NamedTuple):
    """A user's card as a page has it: the line in the list, and the blocks as JSON. `size` is about how many bytes
    these take in the page, with their markup."""

    line: tuple[str, ...]
    blocks: Markup
    size: int

    @classmethod
    def of(cls, card: Card) -> Shown:
        line, blocks = (card.key, *card.figures), _json(_kinds(card.blocks))
        return cls(line, Markup(blocks.decode()), len(blocks) + len(_json(line)) + 100)


class Browser(NamedTuple):
    """The browser of users: their cards, made one after the other as the page is written.

    `user` is the word for one, `columns` the heads of the cards' figures. `note` returns which users there are,
    from the number of cards, once they are made.
    """

    user: str
    columns: tuple[str, ...]
    cards: Iterable[Shown]
    note: Callable[[int], str]


class Document:
    """A page without its browser. Text is escaped where it is put into markup, which only constants here are.

    `warning` comes before any number.
    """

    def __init__(
        self,
        title: str,
        blocks: Sequence[Block],
        *,
        warning: str = "",
        tiles: Sequence[Tile] = (),
        links: Links | None = None,
    ) -> None:
        assets = _assets()
        top = HEAD.format(title=title, policy=assets.policy, style=assets.style)
        self._top = top + WARNING.format(warning) if warning else top
        if tiles:
            self._top += TILES.format(NOTHING.join(map(_tile, tiles)))
        self._top += NO_SCRIPT
        self._headings = [block.text for block in blocks if isinstance(block, Heading)]
        self._blocks = NOTHING.join(_blocks(blocks, links or {}))
        pictures = [block for block in blocks if isinstance(block, Chart | Sketch)]
        self._pictures = Markup(_json(_kinds(pictures)).decode())

    def __len__(self) -> int:
        """Return the bytes of the page without a browser."""
        return sum(len(piece.encode("utf-8", "replace")) for piece in self.pieces())

    def pieces(self, browser: Browser | None = None) -> Iterator[str]:
        """Yield the page in pieces, none larger than a user's card or the page without cards."""
        yield self._top + self._contents(browser) + self._blocks
        listed = list[tuple[str, ...]]()
        for card in browser.cards if browser else ():
            listed.append(card.line)
            yield CARD.format(card.blocks)
        if browser:
            heads = browser.user, *browser.columns
            yield BROWSER.format(
                user=browser.user,
                note=browser.note(len(listed)),
                options=NOTHING.join(OPTION.format(number, head) for number, head in enumerate(heads)),
                heads=NOTHING.join(map(COLUMN.format, heads)),
            )
        yield DATA.format(pictures=self._pictures, listed=Markup(_json(listed).decode()))
        yield from map(SCRIPT.format, _assets().scripts)
        yield END

    def _contents(self, browser: Browser | None) -> Markup:
        if len(self._headings) <= 2:
            return NOTHING
        items = [CONTENT.format(f"part-{number}", text) for number, text in enumerate(self._headings, 1)]
        if browser:
            items.append(CONTENT.format("browser", f"Look at single {browser.user}s"))
        return CONTENTS.format(NOTHING.join(items))


def page(
    title: str,
    blocks: Sequence[Block],
    *,
    warning: str = "",
    tiles: Sequence[Tile] = (),
    links: Links | None = None,
    browser: Browser | None = None,
) -> str:
    """Return a page as text."""
    return "".join(Document(title, blocks, warning=warning, tiles=tiles, links=links).pieces(browser))


NOTHING = Markup()
HEAD = Markup("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1 dir="auto">{title}</h1>
""")
WARNING = Markup('<p class="warning" role="alert">{}</p>\n')
TILES = Markup('<dl class="tiles">\n{}</dl>\n')
TILE = Markup("<div><dt>{}</dt><dd><strong>{}</strong>{}</dd></div>\n")
WITHIN = Markup(" <small>{}</small>")
NO_SCRIPT = Markup(
    '<noscript><p class="note">Pictures and the browser need scripts, which are off. Every number of the report is '
    "shown without them.</p></noscript>\n"
)
CONTENTS = Markup('<details class="contents"><summary>Contents</summary>\n<ul>\n{}</ul>\n</details>\n')
CONTENT = Markup('<li><a href="#{}">{}</a></li>\n')
HEADING = Markup('<h2 id="part-{}" dir="auto">{}</h2>\n')
PARAGRAPH = Markup('<p dir="auto">{}</p>\n')
TABLE = Markup("""\
<div class="scroll" tabindex="0" role="region" aria-label="table">
<table>
<thead><tr>{}</tr></thead>
<tbody>
{}</tbody>
</table>
</div>
""")
COLUMN, LONG_COLUMN = Markup('<th scope="col">{}</th>'), Markup('<th scope="col" class="long">{}</th>')
ROW, FIRST_CELL = Markup("<tr>{}</tr>\n"), Markup('<th scope="row" dir="auto">{}</th>')
CELL, LONG_CELL = Markup('<td dir="auto">{}</td>'), Markup('<td dir="auto" class="long">{}</td>')
LINK = Markup('<a href="{}">{}</a>')
VERBATIM = Markup("<pre>{}</pre>\n")
QUOTE = Markup('<details class="quote"{}><summary>{}</summary><pre dir="auto">{}</pre></details>\n')
OPEN = Markup(" open")
TAGS = Markup('<p class="tags"><b>{}:</b> {}</p>\n')
TAG = Markup('<span class="tag {}">{} <i>{}</i></span> ')
PICTURE = Markup('<figure data-picture="{}"><figcaption dir="auto">{}</figcaption></figure>\n')
CARD = Markup('<script type="application/json" class="card">{}</script>\n')
BROWSER = Markup("""\
<section id="browser" hidden>
<h2>Look at single {user}s</h2>
<p>{note}</p>
<div class="panes">
<div class="list">
<p class="find"><input type="search" placeholder="Find a {user}" aria-label="Find a {user}">
<select aria-label="Order">{options}</select></p>
<div class="rows"><table><thead><tr>{heads}</tr></thead><tbody></tbody></table></div>
<p class="more"></p>
</div>
<article aria-live="polite"><p class="note">Pick a {user} from the list.</p></article>
</div>
</section>
""")
OPTION = Markup('<option value="{}">by {}</option>')
DATA = Markup("""\
</main>
<script type="application/json" id="pictures">{pictures}</script>
<script type="application/json" id="listed">{listed}</script>
""")
SCRIPT = Markup("<script>{}</script>\n")
END = "</body>\n</html>"


def _tile(tile: Tile) -> Markup:
    return TILE.format(tile.name, tile.value, WITHIN.format(tile.within) if tile.within else "")


def _blocks(blocks: Sequence[Block], links: Links) -> Iterator[Markup]:
    headings = pictures = 0
    for block in blocks:
        match block:
            case Heading(text):
                headings += 1
                yield HEADING.format(headings, text)
            case Paragraph(text):
                yield PARAGRAPH.format(text)
            case Table():
                yield _table(block, links)
            case Verbatim(text):
                yield VERBATIM.format(text)
            case Quote(label, text):
                yield QUOTE.format(OPEN if block.open else "", label, text)
            case Tags(label, tags):
                made = (TAG.format(kind.replace(",", "").replace(" ", "-"), tag, kind) for tag, kind in tags)
                yield TAGS.format(label, NOTHING.join(made))
            case _:
                yield PICTURE.format(pictures, block.title)
                pictures += 1


def _table(block: Table, links: Links) -> Markup:
    heads = [
        (LONG_COLUMN if any(len(cell_text(row[number])) > LONG for row in block.rows) else COLUMN).format(head)
        for number, head in enumerate(block.columns)
    ]
    rows = [ROW.format(NOTHING.join(_cells(list(map(cell_text, row)), block.columns, links))) for row in block.rows]
    title = PARAGRAPH.format(block.title) if block.title else NOTHING
    return title + TABLE.format(NOTHING.join(heads), NOTHING.join(rows))


def _cells(row: Sequence[str], columns: Sequence[str], links: Links) -> Iterator[Markup]:
    for number, cell in enumerate(row):
        to = links and links.get((row[0], columns[number]))
        form = LONG_CELL if number and len(cell) > LONG else CELL if number else FIRST_CELL
        yield form.format(LINK.format(to, cell) if to else cell)


def _kinds(blocks: Sequence[Block]) -> list[tuple[str, Any]]:
    """Return blocks as the script reads them: each with the name of its kind."""
    return [(type(block).__name__, asdict(block)) for block in blocks]


def _json(value: object) -> bytes:
    """Return JSON that is safe in a script element; unpaired surrogates, which no file can hold, are escaped."""
    try:
        made = orjson.dumps(value, default=asdict)
    except TypeError:
        made = json.dumps(value, default=asdict).encode()
    for plain, escaped in UNSAFE:
        made = made.replace(plain, escaped)
    return made


class _Assets(NamedTuple):
    """Scripts and style with the policy that names them."""

    scripts: tuple[Markup, ...]
    style: Markup
    policy: str


@cache
def _assets() -> _Assets:
    folder = files(__package__) / "assets"
    style, *scripts = [(folder / name).read_bytes() for name in (STYLE, *SCRIPTS)]
    by_style, *by_script = [f"'sha256-{b64encode(hashlib.sha256(one).digest()).decode()}'" for one in (style, *scripts)]
    policy = (
        f"default-src 'none'; script-src {' '.join(by_script)}; style-src {by_style}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _Assets(tuple(Markup(script.decode()) for script in scripts), Markup(style.decode()), policy)
