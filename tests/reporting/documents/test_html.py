"""Blocks as a page (docs/design.md, section 5): whatever stands in them is text, and no request can
leave it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.document import (
    Block,
    Card,
    Cell,
    Chart,
    Heading,
    Page,
    Paragraph,
    Quote,
    Series,
    Sketch,
    Table,
    Tags,
    Tile,
    Verbatim,
)
from harness.printable import on_one_line
from harness.reporting.html import Browser, page, pieces, rendered, user_card

HOSTILE = (
    "</script></title><img src=x onerror=alert(1)><!-- \u2028\u2029 \u202e右 {{ 7*7 }} & \" ' 😀"
)
BLOCKS: tuple[Block, ...] = (
    Heading(HOSTILE),
    Paragraph(HOSTILE),
    Table((HOSTILE, "b"), ((HOSTILE, HOSTILE),)),
    Verbatim(HOSTILE),
    Quote(HOSTILE, HOSTILE),
    Tags(HOSTILE, ((HOSTILE, "hit"),)),
    Chart("curve", HOSTILE, (1.0, 2.0), HOSTILE, HOSTILE, (Series(HOSTILE, (0.1, None)),)),
    Sketch(HOSTILE, {HOSTILE: ((0.0, 1.0),), HOSTILE[1:]: ()}),
)
SHOWN = on_one_line(HOSTILE)


class Parsed(HTMLParser):
    """What a browser would make of a page: elements, its text, and the content of scripts with
    their attributes."""

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


class Users:
    """The cards of a page: of each its line in the list, its markup, and the text of that."""

    def __init__(self, text: str) -> None:
        found = re.findall(
            r'<script type="text/plain" class="card" data-line="([^"]*)">(.*?)</script>',
            text,
            re.DOTALL,
        )
        self.lines: list[list[str]] = [json.loads(html.unescape(line)) for line, _ in found]
        self.cards = [card for _, card in found]
        self.texts = ["".join(Parsed(card).texts) for card in self.cards]


def page_of_users(
    *cards: Card, blocks: tuple[Block, ...] = (), warning: str = "", title: str = "t"
) -> str:
    browser = Browser(
        "user", ("steps",), map(user_card, cards), lambda number: f"All {number} of them."
    )
    return "".join(pieces(Page(title, warning, (Tile(title, title),), blocks), browser=browser))


def test_nothing_that_stands_in_a_block_or_a_card_becomes_markup():
    """A page of hostile texts has the elements of one of harmless texts, and shows them as text."""
    card, harmless = Card(HOSTILE, (HOSTILE,), BLOCKS), Card("u", ("1",), BLOCKS)
    text = page_of_users(card, blocks=BLOCKS, warning=HOSTILE, title=HOSTILE)
    found = Parsed(text)
    assert "img" not in found.elements
    assert found.elements == Parsed(page_of_users(harmless, blocks=BLOCKS, warning="w")).elements
    assert not any(name.startswith("on") or name == "style" for name, _ in found.attributes)
    [shown], [plain] = (Users(each).cards for each in (text, page_of_users(harmless)))
    assert (
        Parsed(shown).elements == Parsed(plain).elements
        and "<script" not in shown
        and "<!--" not in shown
    )
    assert SHOWN in found.texts and "\u202e" not in "".join(found.texts)
    assert Users(text).lines == [[HOSTILE, HOSTILE]] and Users(text).texts[0].count(SHOWN) >= 8


@given(st.text(st.characters(codec=None), max_size=40))
def test_any_text_at_all_can_be_shown_and_written(text):
    """Halves of surrogate pairs too: they are shown as escapes, and a file can hold the page."""
    made = page_of_users(Card(text, ("1",), (Quote("q", text), Paragraph(text))))
    [shown] = Users(made.encode("utf-8").decode()).texts
    assert shown.count("\n".join(map(on_one_line, text.split("\n")))) >= 2 * bool(text)


def test_cells_show_their_place_and_their_marks():
    cell = Cell("50.1", 50.1, partial=True, interval="[1, 2]", note="as published 3")
    cells = Cell("9", 9.0, place="best"), Cell("8", place="second"), Cell("7", faint=True), cell
    made = rendered(
        [Table(("run", "a", "b", "c", "d"), (("x", *cells),), title="T", notes=("N",), rules=(0,))]
    )
    assert "<b>9</b>" in made and "<u>8</u>" in made and '<span class="faint">7</span>' in made
    assert "50.1* <small>(as published 3)</small> <small>[1, 2]</small>" in made
    assert (
        '<caption dir="auto">T</caption>' in made
        and ">N</p>" in made
        and '<tr class="rule">' in made
    )
    assert 'data-value="9.0"' in made


def test_what_follows_a_folded_heading_is_folded_up_to_the_next():
    made = rendered([Heading("a", folded=True), Paragraph("in"), Heading("b"), Paragraph("out")])
    folded = re.findall(r"<details class=.folded.>(.*?)</details>", made, re.DOTALL)
    assert (
        len(folded) == 1 and "in" in folded[0] and ">a</h2>" in folded[0] and "out" not in folded[0]
    )


def test_policy_names_every_script_and_style_by_its_hash_and_nothing_else():
    """No other script runs, and nothing is fetched: the page has no address either."""
    made = page("t", BLOCKS)
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert found is not None
    policy = found[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; ")
    own = [text for attributes, text in Parsed(made).scripts if "type" not in attributes]
    style = re.search(r"<style>(.*?)</style>", made, re.DOTALL)
    assert len(own) == 1 and style is not None
    for part in (*own, style[1]):
        assert (
            f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"
            in policy
        )
    assert policy.count("sha256-") == 2
    assert not {name for name, _ in Parsed(made).attributes} & {
        "src",
        "srcset",
        "action",
        "formaction",
        "style",
    }


def test_numbers_texts_and_pictures_stand_there_without_any_script():
    """They are in the markup; only single users need the script, which the page says."""
    chart = Chart("histogram", "A", (0.0, 1.0), "x", "y", (Series("s", (3,)),))
    blocks = Heading("头"), Table(("a",), (("12.5",),)), chart
    tiles = (Tile("F1", "7 %", "of 9"),)
    found = Parsed("".join(pieces(Page("题目", "", tiles, blocks))))
    text = " ".join(found.texts)
    assert all(word in text for word in ("题目", "头", "12.5", "F1", "7 %", "of 9"))
    assert "svg" in found.elements and "noscript" not in found.elements
    assert "noscript" in Parsed(page_of_users(Card("u", ("1",), blocks))).elements


def shapes(chart: Chart, kind: str) -> list[str]:
    return re.findall(rf'<\w+ class="({kind}[^"]*)"', rendered([chart]))


def test_value_without_an_interval_is_hollow_and_says_so():
    """A chance level is a tick in its row, and a reference a line through all rows."""
    series = Series("value", (0.5, 0.6), (0.4, None), (0.6, None)), Series("chance", (0.1, 0.1))
    chart = Chart("intervals", "t", ("a", "b"), "%", "", series, reference=0.2)
    assert shapes(chart, "dot") == ["dot s0"] and shapes(chart, "hollow") == ["hollow s0"]
    assert rendered([chart]).count("no interval") == 1
    assert shapes(chart, "tick") == ["tick s1"] * 2 and shapes(chart, "reference") == ["reference"]


def test_curve_stops_where_nothing_is_known():
    """Its band too, and in a curve of more points than are drawn."""
    values = (*[0.5] * 3000, None, *[0.5] * 3000)
    chart = Chart(
        "curve", "t", tuple(range(6001)), "x", "y", (Series("s", values, values, values),)
    )
    assert len(shapes(chart, "line")) == 2 == len(shapes(chart, "band"))
    assert len(rendered([chart])) < 50_000


def test_cards_are_made_one_after_the_other_as_the_page_is_written():
    """A page of many users is never in memory as a whole, and says how many there were."""
    made: list[int] = []

    def cards() -> Any:
        for number in range(3):
            made.append(number)
            yield user_card(Card(str(number), ("1",), (Paragraph("x"),)))

    browser = Browser("user", ("steps",), cards(), lambda number: f"All {number} of them.")
    parts = pieces(Page("t", "", (), ()), browser=browser)
    seen = [len(made) for part in parts if "<p " in part and ">x<" in part]
    assert seen == [1, 2, 3]
    assert "<p>All 2 of them.</p>" in page_of_users(*[Card(key, ("1",), ()) for key in "ab"])
