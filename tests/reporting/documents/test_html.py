"""Blocks as a page (docs/design.md, section 5): whatever stands in them is text, and no request can leave it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.document import Block, Card, Chart, Heading, Paragraph, Quote, Series, Sketch, Table, Tags, Tile, Verbatim
from harness.reporting.html import Browser, Document, Shown, page

HOSTILE = "</script></title><img src=x onerror=alert(1)><!-- \u2028\u2029 \u202e右 {{ 7*7 }} & \" ' 😀"
BLOCKS: tuple[Block, ...] = (
    Heading(HOSTILE),
    Paragraph(HOSTILE),
    Table((HOSTILE, "b"), ((HOSTILE, HOSTILE),)),
    Verbatim(HOSTILE),
    Quote(HOSTILE, HOSTILE),
    Tags(HOSTILE, ((HOSTILE, "hit"),)),
    Chart("curve", HOSTILE, (1.0, 2.0), HOSTILE, HOSTILE, (Series(HOSTILE, (0.1, None)),)),
    Sketch(HOSTILE, {HOSTILE: ((0.0, 1.0),)}),
)


class Parsed(HTMLParser):
    """What a browser would make of a page: elements, its text, and the content of scripts with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self._within: tuple[dict[str, str | None], str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        self._within = (dict(attrs), "") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._within is None:
            self.texts.append(data)
        else:
            self._within = (self._within[0], self._within[1] + data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script" and self._within is not None:
            self.scripts.append(self._within)
            self._within = None

    def data(self, **wanted: str) -> list[Any]:
        """The JSON of the scripts with these attributes (`class_` for `class`)."""
        named = {name.rstrip("_"): value for name, value in wanted.items()}
        return [json.loads(text) for attrs, text in self.scripts if named.items() <= attrs.items()]


def browser(*cards: Card) -> Browser:
    return Browser("user", ("steps",), map(Shown.of, cards), lambda number: f"All {number} of them.")


def test_nothing_that_stands_in_a_block_or_a_card_becomes_markup() -> None:
    """A page of hostile texts has the elements of one of harmless texts, and the texts unchanged."""
    card = Card(HOSTILE, (HOSTILE,), BLOCKS)
    found = Parsed(page(HOSTILE, BLOCKS, warning=HOSTILE, tiles=(Tile(HOSTILE, HOSTILE),), browser=browser(card)))
    assert "img" not in found.elements
    assert not any(name.startswith("on") for name, _ in found.attributes)
    assert HOSTILE in found.texts
    assert found.data(id="listed") == [[[HOSTILE, HOSTILE]]]
    kinds = [kind for kind, _ in found.data(class_="card")[0]]
    assert kinds == ["Heading", "Paragraph", "Table", "Verbatim", "Quote", "Tags", "Chart", "Sketch"]
    assert found.data(class_="card")[0][0][1] == {"text": HOSTILE, "folded": False}


def test_line_separators_and_brackets_are_escaped_within_data() -> None:
    """No character stands in a script's data that could end it or a line of it."""
    made = page("t", (), browser=browser(Card("u", ("1",), BLOCKS)))
    data = made[made.index('type="application/json"') :].split("<script>")[0]
    assert not set("\u2028\u2029") & set(data)
    assert "<img" not in data


@given(st.text(st.characters(codec=None), max_size=40))
def test_any_text_at_all_can_be_shown_and_written(text: str) -> None:
    """Halves of surrogate pairs too: they are escaped in data, and a file can hold the page."""
    made = page("t", (), browser=browser(Card("u", ("1",), (Quote("q", text),))))
    found = Parsed(made.encode("utf-8", "replace").decode()).data(class_="card")
    assert found[0][0][1]["text"] == text


def test_policy_names_every_script_and_style_by_its_hash_and_nothing_else() -> None:
    """No other script runs, and nothing is fetched: the page has no address either."""
    made = page("t", BLOCKS)
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert found is not None
    policy = found[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; ")
    own = [text for attrs, text in Parsed(made).scripts if attrs.get("type") != "application/json"]
    style = re.search(r"<style>(.*?)</style>", made, re.DOTALL)
    assert len(own) == 3 and style is not None
    for part in (*own, style[1]):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'" in policy
    assert policy.count("sha256-") == 4
    assert not {name for name, _ in Parsed(made).attributes} & {"src", "srcset", "action", "formaction", "style"}


def test_numbers_and_texts_stand_there_without_any_script() -> None:
    """Headings, paragraphs, tables and tiles are in the markup; what needs scripts says so."""
    found = Parsed(page("题目", (Heading("头"), Table(("a",), (("12.5",),))), tiles=(Tile("F1", "7 %", "of 9"),)))
    text = " ".join(found.texts)
    assert all(word in text for word in ("题目", "头", "12.5", "F1", "7 %", "of 9", "scripts"))
    assert "noscript" in found.elements


def test_pictures_are_numbered_as_their_data_is() -> None:
    """The n-th place of a picture is drawn from the n-th entry of the data, whatever stands between."""
    chart = Chart("histogram", "A", (0.0, 1.0), "x", "y", (Series("s", (3,)),))
    found = Parsed(page("t", (chart, Paragraph("p"), Sketch("B", {}), Heading("h"), chart)))
    assert [value for name, value in found.attributes if name == "data-picture"] == ["0", "1", "2"]
    assert [block["title"] for _, block in found.data(id="pictures")[0]] == ["A", "B", "A"]


def test_cards_are_made_one_after_the_other_as_the_page_is_written() -> None:
    """A page of many users is never in memory as a whole."""
    made: list[int] = []

    def cards() -> Any:
        for number in range(3):
            made.append(number)
            yield Shown.of(Card(str(number), ("1",), (Paragraph("x"),)))

    parts = Document("t", ()).pieces(Browser("user", ("steps",), cards(), str))
    seen = [len(made) for part in parts if 'class="card"' in part]
    assert made == [0, 1, 2]
    assert seen[0] == 1


def test_what_is_told_of_the_users_is_told_when_they_have_been_counted() -> None:
    """Cards are made as the page is written, and nobody knows before how many there will be."""
    cards = (Shown.of(Card(str(number), ("1",), ())) for number in range(3))
    made = page("t", (), browser=Browser("user", ("steps",), cards, lambda number: f"All {number} of them."))
    assert "<p>All 3 of them.</p>" in made


def test_links_lead_from_the_first_cells_of_tables_that_have_one() -> None:
    """Other cells, and other rows, are plain text."""
    made = page("t", (Table(("run",), (("a",), ("b",))),), links={("a", "run"): "a%20b/x.html"})
    assert '<a href="a%20b/x.html">a</a>' in made
    assert made.count("<a href=") == 1


@pytest.mark.parametrize("size", [10, 100_000])
def test_size_of_a_card_is_what_it_adds_to_a_page(size: int) -> None:
    """So a page can be kept below a limit."""
    card = Card("用户" * 10, ("1", "2"), (Quote("q", "人" * size),))
    bare, whole = page("t", (), browser=browser()), page("t", (), browser=browser(card))
    added = len(whole.encode()) - len(bare.encode())
    assert added <= Shown.of(card).size <= added + 200
    assert len(Document("t", ())) == len(page("t", ()).encode())
