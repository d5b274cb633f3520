"""Pages in a real browser: they draw, they say no error, they ask for nothing, and text stays
text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.document import (
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
)
from harness.reporting.html import Browser, page, pieces, user_card
from tests.reporting.documents.test_html import BLOCKS, HOSTILE, SHOWN, page_of_users
from tests.support import SHIPPED
from tests.support.chromium import PROGRAM, Tab, browser, tab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here"),
]

T = TypeVar("T")

PICTURES = "document.querySelectorAll('figure').length"
DRAWN = "document.querySelectorAll('figure svg').length"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
PICK = "document.querySelectorAll('#browser tbody button')[{}].click()"
KEPT = (
    ("h2", "breakAfter", "avoid"),
    ("p:has(+ .scroll)", "breakAfter", "avoid"),
    ("p:has(+ figure)", "breakAfter", "avoid"),
    ("figcaption", "breakAfter", "avoid"),
    ("table", "breakInside", "avoid"),
)
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


class Looked:
    """A browser of which each test has a tab of its own."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, work: Callable[[Tab], Awaitable[T]]) -> T:
        """Return what `work` makes of a tab; in it nothing was asked for but the page, and nothing
        went wrong."""

        async def within() -> T:
            async with tab(self.address) as opened:
                found = await work(opened)
                assert opened.said == []
                assert all(
                    address.startswith("file:") and address.endswith(".html")
                    for address in opened.asked
                )
                assert opened.asked
                return found

        return asyncio.run(within())


@pytest.fixture(scope="module")
def looked() -> Iterator[Looked]:
    with browser() as address:
        yield Looked(address)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a complete run of each benchmark on the synthetic tasks, and the page
    over both."""
    results = tmp_path_factory.mktemp("results")
    where = [*SHIPPED, "--results-dir", str(results)]
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", *where]) == 0
    assert (
        main(["run", "dailymobility", "--model", "baseline/commuter", "--name", "commuter", *where])
        == 0
    )
    assert main(["report", "--results-dir", str(results)]) == 0
    return results


PAGES = ("recency/eval_report_weibo.html", "commuter/eval_report_beijing.html", "index.html")


@pytest.mark.parametrize("name", PAGES)
def test_page_draws_every_picture_at_any_width_in_light_and_dark(looked, made, name):
    """On a phone nothing sticks out at the side; dark is dark."""

    async def work(opened: Tab) -> list[str]:
        grounds = []
        for width, dark in ((1280, False), (360, True), (800, True)):
            await opened.open(made / name, width=width, dark=dark)
            pictures = await opened.tell(PICTURES)
            assert pictures >= 4
            assert await opened.tell(DRAWN) == pictures
            assert await opened.tell(TOO_WIDE) <= 0
            grounds.append(await opened.tell(BACKGROUND))
        return grounds

    light, *dark = looked(work)
    assert light == "rgb(255, 255, 255)"
    assert light not in dark


@pytest.mark.parametrize("name", PAGES)
def test_no_table_is_cut_at_1200_pixels(looked, made, name):
    """And each cell draws its own rule: the first column, which stays in place, would cover half of
    a shared one."""

    async def work(opened: Tab) -> None:
        await opened.open(made / name, width=1200)
        widths = await opened.tell(
            "[...document.querySelectorAll('.scroll')].map((one) => [one.clientWidth,"
            " one.scrollWidth])"
        )
        assert len(widths) >= 2 and all(needed <= there for there, needed in widths)
        assert (
            await opened.tell("getComputedStyle(document.querySelector('table')).borderCollapse")
            == "separate"
        )

    looked(work)


@pytest.mark.parametrize("name", PAGES[:2])
def test_picking_a_user_shows_what_was_predicted(looked, made, name):
    """The list can be searched and sorted; a pick shows that user's blocks."""

    async def work(opened: Tab) -> None:
        await opened.open(made / name)
        rows = "document.querySelectorAll('#browser tbody tr').length"
        everybody = await opened.tell(rows)
        await opened.tell(PICK.format(3))
        await opened.settled()
        key = await opened.tell("document.querySelectorAll('#browser tbody button')[3].textContent")
        assert await opened.tell("document.querySelector('article .who').textContent") == key
        assert await opened.tell("document.querySelectorAll('article details').length") > 0
        assert await opened.tell(
            "document.querySelectorAll('article figure').length"
        ) == await opened.tell("document.querySelectorAll('article figure svg').length")
        await opened.tell(
            "(() => { const find = document.querySelector('#browser input'); find.value ="
            f" {key!r}; find.dispatchEvent(new Event('input')); }})()"
        )
        assert 1 <= await opened.tell(rows) < everybody

    looked(work)


def test_list_of_users_sorts_by_a_figure_from_the_largest(looked, made):
    """And a figure that is none comes last or first, but keeps no other from its place."""

    async def work(opened: Tab) -> list[str]:
        await opened.open(made / PAGES[0])
        await opened.tell(
            "(() => { const order = document.querySelector('#browser select'); order.value = '1'; "
            "order.dispatchEvent(new Event('input')); })()"
        )
        cells = (
            "[...document.querySelectorAll('#browser tbody tr')].map((row) =>"
            " row.cells[1].textContent)"
        )
        return list(await opened.tell(cells))

    steps = [int(text) for text in looked(work)]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) > 3


def hostile_page(folder: Path) -> Path:
    """Everything that text could do, as blocks and as cards of users; a persona of 100 KB, half a
    surrogate pair."""
    long, half = "人" * 33_000, "\ud800x"
    texts = (HOSTILE, long, half, "שלום עולם", "👩‍👩‍👧 é", "javascript:alert(1)")
    blocks = (*BLOCKS, *(Quote("persona", text, open=True) for text in texts))
    cards = [
        Card(HOSTILE, (HOSTILE,), blocks),
        *(Card(f"u{number}", ("1",), blocks) for number in range(3)),
    ]
    made = page_of_users(*cards, blocks=BLOCKS, warning=HOSTILE, title=HOSTILE)
    path = folder / "hostile.html"
    path.write_bytes(made.encode())
    return path


def test_whatever_a_model_wrote_stays_text(looked, tmp_path):
    """No element comes of it, nothing runs, nothing is asked for, and it reads as it was written.

    Characters that change the reading direction, and halves of pairs, are shown as escapes.
    """
    path = hostile_page(tmp_path)

    async def work(opened: Tab) -> None:
        for width in (1280, 360):
            await opened.open(path, width=width)
            await opened.tell(PICK.format(0))
            await opened.settled()
            assert (
                await opened.tell("document.querySelectorAll('img, iframe, [onerror]').length") == 0
            )
            assert await opened.tell("document.querySelector('h1').textContent") == SHOWN
            assert (
                await opened.tell("document.querySelector('article h3 bdi').textContent") == HOSTILE
            )
            quotes = "[...document.querySelectorAll('article pre')].map((one) => one.textContent)"
            shown = await opened.tell(quotes)
            assert {SHOWN, "人" * 33_000, "שלום עולם", "\\ud800x", "👩‍👩‍👧 é"} <= set(shown)
            assert await opened.tell(TOO_WIDE) <= 0

    looked(work)


def test_odd_numbers_break_no_picture(looked, tmp_path):
    """Nothing defined, a single point, bounds without values, no places, long names: a picture
    comes of each."""
    none = Series("nothing", (None, None), (None, None), (None, None))
    one = Series("一" * 60, (0.5, None), (None, None), (0.7, None))
    charts: list[Any] = [
        Chart("curve", "curve", (1.0, 2.0), "step", "%", (none, one)),
        Chart("curve", "one point", (1.0,), "step", "%", (Series("s", (0.0,), (0.0,), (0.0,)),)),
        Chart("intervals", "intervals", ("长" * 80, "b"), "%", "", (none, one)),
        Chart(
            "histogram",
            "histogram",
            (0.0, 1.0, 2.0),
            "x",
            "users",
            (Series("s", (0, 0)),),
            percent=False,
        ),
        Chart(
            "ribbon",
            "ribbon",
            (0.0, 0.5),
            "hour",
            "",
            (Series("s", (1.0, 0.0)), Series("t", (0.0, 1.0))),
        ),
        Sketch("no place", {"home": ()}),
        Sketch("one place", {"home": ((4e6, 5e6),)}, (((4e6, 5e6),),)),
    ]
    path = tmp_path / "odd.html"
    path.write_text(page("odd", charts), encoding="utf-8")

    async def work(opened: Tab) -> None:
        for width in (1280, 360):
            await opened.open(path, width=width)
            assert (
                await opened.tell(DRAWN) == len(charts) - 2
            )  # of no place and of nobody there is nothing to draw
            assert await opened.tell(TOO_WIDE) <= 0
            assert "NaN" not in await opened.tell("document.querySelector('main').innerHTML")

    looked(work)


def test_page_prints_without_the_browser_of_users(looked, made):
    """To a PDF, with its pictures; a heading stays with what follows it, a table that fits a page
    is on one."""

    async def work(opened: Tab) -> bytes:
        await opened.open(made / PAGES[0], dark=True)
        await opened.do("Emulation.setEmulatedMedia", media="print")
        assert (
            await opened.tell("getComputedStyle(document.getElementById('browser')).display")
            == "none"
        )
        assert await opened.tell(BACKGROUND) == "rgb(255, 255, 255)"
        for which, style, wanted in KEPT:
            found = (
                f"[...new Set([...document.querySelectorAll('{which}')].map((one) =>"
                f" getComputedStyle(one).{style}))]"
            )
            assert await opened.tell(found) == [wanted]
        return await opened.printed()

    printed = looked(work)
    assert printed.startswith(b"%PDF") and len(printed) > 50_000


def test_without_scripts_every_number_stands_there(looked, made):
    """Pictures and the browser of users are missing then, which a line says."""

    async def work(opened: Tab) -> str:
        await opened.do("Emulation.setScriptExecutionDisabled", value=True)
        await opened.open(made / PAGES[0], ready=False)
        tree = await opened.do("DOMSnapshot.captureSnapshot", computedStyles=[])
        return "\n".join(tree["strings"])

    text = looked(work)
    data = orjson.loads((made / "recency/eval_report_weibo.json").read_bytes())
    assert f"{100 * data['metrics']['Recall']['value']:.2f}" in text
    assert "need scripts, which are off" in text


def test_page_of_a_thousand_users_opens_and_lists_them_piece_by_piece(looked, tmp_path):
    """`report --users all`: a hundred rows at first, more where they are asked for."""
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "zhihu_inference_tasks.jsonl").write_bytes(b"".join(generate("zhihu", 1000, 1, 1.0)))
    results = ["--results-dir", str(tmp_path / "out")]
    where = ["--tasks-dir", str(tasks), "--platform", "zhihu"]
    assert (
        main(
            [
                "run",
                "--model",
                "baseline/recency",
                "--concurrency",
                "64",
                "--no-html",
                *where,
                *results,
            ]
        )
        == 0
    )
    assert main(["report", "--name", "recency", "--users", "all", *results]) == 0

    async def work(opened: Tab) -> tuple[int, int]:
        rows = "document.querySelectorAll('#browser tbody tr').length"
        await opened.open(tmp_path / "out/recency/users_zhihu.html")
        first = await opened.tell(rows)
        await opened.tell("document.querySelector('.more button').click()")
        return first, await opened.tell(rows)

    assert looked(work) == (100, 200)


def test_breach_of_the_policy_is_noticed(looked, tmp_path):
    """What the other tests rely on: a page that asked for something, or ran something else, would
    fail them."""
    made = page(
        "t", (Heading("h"), Paragraph("p"), Table(("a",), (("b",),)), Tags("t", (("a", "hit"),)))
    )
    path = tmp_path / "breach.html"
    path.write_text(
        made.replace("</main>", "<img src='http://127.0.0.1:9/x.png'></main>"), encoding="utf-8"
    )

    async def work() -> Tab:
        async with tab(looked.address) as opened:
            await opened.open(path)
            return opened

    opened = asyncio.run(work())
    assert any("Content Security Policy" in said for said in opened.said)


def test_a_click_on_a_head_sorts_the_table(looked, tmp_path):
    """Numbers from the largest, what has none last; another click turns the order, and a text is
    from A to Z."""
    cells = (("b", "9.5*\n[1, 2]"), ("a", "n/a"), ("c", "INCOMPLETE: 10 of 40"), ("d", "-1"))
    (tmp_path / "page.html").write_text(
        page("Page", [Table(("run", "value"), cells)]), encoding="utf-8"
    )
    click = "document.querySelectorAll('main > .scroll th button')[{}].click()"
    first = "[...document.querySelectorAll('tbody th')].map((cell) => cell.textContent).join('')"
    sorted_by = "[...document.querySelectorAll('thead th')].map((cell) => cell.ariaSort)"

    async def work(opened: Tab) -> list[tuple[str, Any]]:
        await opened.open(tmp_path / "page.html")
        found = [(await opened.tell(first), await opened.tell(sorted_by))]
        for at in (1, 1, 0):
            await opened.tell(click.format(at))
            found.append((await opened.tell(first), await opened.tell(sorted_by)))
        return found

    assert looked(work) == [
        ("bacd", [None, None]),
        ("cbda", [None, "descending"]),
        ("dbca", [None, "ascending"]),
        ("abcd", ["ascending", None]),
    ]


def test_values_of_cells_sort_whatever_their_text_is(looked, tmp_path):
    """Of typed cells the number counts: two minutes come after three hundred seconds."""
    cells = (("a", Cell("2 min", 120.0)), ("b", Cell("300 s", 300.0)), ("c", Cell("1 h", 3600.0)))
    (tmp_path / "page.html").write_text(
        page("Page", [Table(("run", "time"), cells)]), encoding="utf-8"
    )

    async def work(opened: Tab) -> str:
        await opened.open(tmp_path / "page.html")
        await opened.tell("document.querySelectorAll('thead button')[1].click()")
        return str(
            await opened.tell(
                "[...document.querySelectorAll('tbody th')].map((each) =>"
                " each.textContent).join('')"
            )
        )

    assert looked(work) == "cba"


def test_folded_sections_are_printed_and_closed_again(looked, tmp_path):
    blocks = [
        Heading("first"),
        Heading("more", folded=True),
        Paragraph("hidden words"),
        Heading("last"),
    ]
    (tmp_path / "page.html").write_text(page("Page", blocks), encoding="utf-8")
    is_open = "document.querySelector('.folded').open"

    async def work(opened: Tab) -> list[bool]:
        await opened.open(tmp_path / "page.html")
        seen = [await opened.tell(is_open)]
        for event in ("beforeprint", "afterprint"):
            await opened.tell(f"window.dispatchEvent(new Event('{event}'))")
            seen.append(await opened.tell(is_open))
        return seen

    assert looked(work) == [False, True, False]


def test_page_of_three_thousand_users_opens(looked, tmp_path):
    """Each card has what a step of a user has; one in the middle is found and picked."""
    path = tmp_path / "many.html"
    cards = (user_card(Card(f"user-{number}", ("1",), BLOCKS * 3)) for number in range(3_000))
    browser = Browser("user", ("steps",), cards, lambda number: f"All {number} of them.")
    with path.open("w", encoding="utf-8") as file:
        file.writelines(pieces(Page("many", "", (), ()), browser=browser))

    async def work(opened: Tab) -> str:
        await opened.open(path)
        await opened.tell(
            "(() => { const find = document.querySelector('#browser input'); find.value ="
            " 'user-1500'; find.dispatchEvent(new Event('input')); })()"
        )
        await opened.tell(PICK.format(0))
        assert await opened.tell("document.querySelectorAll('article svg').length") == 6
        return str(await opened.tell("document.querySelector('article .who').textContent"))

    assert looked(work) == "user-1500"
