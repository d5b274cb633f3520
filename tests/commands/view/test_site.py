"""Pages of the viewer: every view, what is private, and folders from somebody else."""

from __future__ import annotations

import html
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.commands.view.reading import Chosen, Folder
from harness.commands.view.server import link
from harness.commands.view.site import PAGE_BYTES, SHOWN_BYTES, USERS, NotThere, Site, divided
from harness.document import Paragraph, Quote
from harness.printable import on_one_line
from harness.store.log import encode_line, objects
from tests.commands.view.conftest import look
from tests.support import first_quick

RUNS = (("recency", "weibo"), ("commuter", "beijing"), ("four-stars", "yelp"))
SIDE = "/user?name=recency&subset=weibo&user={}&with=random"
LARGEST = 200_000
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e&\"'</pre>"


def users(results: Path, name: str, subset: str) -> list[str]:
    return [
        str(data["user_id"])
        for _, data in objects(results / name / f"inference_results_{subset}.jsonl")
    ]


def addresses(page: str) -> list[str]:
    """Return the addresses of a page's links."""
    return [html.unescape(found) for found in re.findall(r'<a [^>]*href="([^"]+)"', page)]


class Tags(HTMLParser):
    """Collects the elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def checked(page: str) -> str:
    """Return a page that runs nothing but the viewer's own script, and is small."""
    parsed = Tags(page)
    tags = parsed.found
    assert [of.get("src") for tag, of in tags if tag == "script"] == ["view.js", "page.js"]
    assert not [name for _, of in tags for name in of if name.startswith("on") or name == "style"]
    assert not {tag for tag, _ in tags} & {"iframe", "object", "embed", "base", "style"}
    assert (
        len(page.encode()) < LARGEST and "\x1b" not in parsed.text and "\u202e" not in parsed.text
    )
    return page


def test_every_page_is_reached_by_links_from_the_overview(site, results):
    """All runs of both benchmarks and the plug-in, with each of their users."""
    left, pages = ["/"], dict[str, str]()
    while left:
        if (address := left.pop()) not in pages:
            pages[address] = checked(look(site, address))
            left += [one for one in addresses(pages[address]) if "sort=" not in one]
    for name, subset in RUNS:
        assert link("run", name=name, subset=subset) in pages
        for user in users(results, name, subset)[:USERS]:
            assert link("user", name=name, subset=subset, user=user) in pages


def test_report_of_a_run_is_the_one_of_its_page(site, results):
    """Every cell and sentence of the text report is there, as text."""
    page = html.unescape(look(site, "/run?name=recency&subset=weibo"))
    report = (results / "recency" / "eval_report_weibo.txt").read_text(encoding="utf-8")
    words = {word for word in re.findall(r"[\w.^+-]+", report) if not set(word) <= {"-"}}
    assert not {word for word in words if word not in page}
    assert "<svg" in page


def listed(site: Site, address: str = "/") -> list[str]:
    """Return the names of the runs of the overview, in their order."""
    return re.findall(r'<a href="run\?name=([\w.%-]+)', look(site, address))


def test_runs_have_a_table_for_each_benchmark_and_subset_sorted_by_score(site):
    assert listed(site) == ["commuter", "four-stars", "recency", "random"]
    titles = re.findall(r"<caption[^>]*>([^<]+)", look(site, "/"))
    assert titles == ["dailymobility on beijing", "stars on yelp", "streamprofile on weibo"]
    assert listed(site, "/?sort=run&order=up") == ["commuter", "four-stars", "random", "recency"]
    assert listed(site, "/?sort=run&order=down") == ["commuter", "four-stars", "recency", "random"]
    assert listed(site, "/?benchmark=streamprofile&subset=weibo&sort=score&order=up") == [
        "random",
        "recency",
    ]
    assert listed(site, "/?subset=none") == [] and listed(
        site, "/?sort=nothing&page=999"
    ) == listed(site)


def test_partial_and_synthetic_runs_are_marked_and_complete_ones_first(site, results):
    """Whatever their scores: a run of three users is no leader."""
    shutil.copytree(results / "recency", results / "few")
    path = results / "few/eval_report_weibo.json"
    report = orjson.loads(path.read_bytes())
    coverage = {**report["coverage"], "expected_users": 3, "scored_users": 3}
    spoiled(path, {"run": {**report["run"], "limit": 3}, "coverage": coverage, "notes": []})
    assert listed(site, "/?subset=weibo") == ["recency", "random", "few"]
    page = html.unescape(look(site, "/?subset=weibo"))
    assert (
        page.count("* <small>") == 1
        and "not all users of the tasks file are scored: few 3 of 40." in page
    )
    assert "recency, random: synthetic tasks, which say nothing about real users." in page


def test_parts_are_listed_under_their_whole_run(site, results):
    for number in (1, 2):
        part = results / f"random.part{number}of2"
        shutil.copytree(results / "random", part)
        run = orjson.loads((part / "eval_report_weibo.json").read_bytes())["run"]
        spoiled(part / "eval_report_weibo.json", {"run": {**run, "part": f"{number}/2"}})
    shutil.copytree(results / "random", results / "whole")
    assert listed(site, "/?subset=weibo")[-4:] == [
        "random",
        "random.part1of2",
        "random.part2of2",
        "whole",
    ]
    assert look(site, "/").count("(part of random)") == 2


@pytest.mark.parametrize("order", ["up", "down"])
def test_runs_without_a_value_come_last_in_its_column(site, results, order):
    (results / "random" / "eval_report_weibo.json").unlink()
    assert listed(site, f"/?sort=speed&order={order}&subset=weibo") == ["recency", "random"]


def test_users_are_searched_sorted_and_selected_by_their_values(site, results):
    def keys(query: str) -> list[str]:
        page = look(site, f"/users?name=recency&subset=weibo&{query}")
        return [
            html.unescape(key) for key in re.findall(r'<a href="user\?[^"]*">([^<]+)</a>', page)
        ]

    every = users(results, "recency", "weibo")
    assert (
        keys("") == every
        and keys("page=99") == every
        and keys("page=-1&sort=x&value=y&least=z") == every
    )
    assert keys("q=0000007") == ["synth-weibo-0000007"] and keys("q=nobody") == []
    by_steps = keys("sort=0&order=down")
    steps = {
        str(data["user_id"]): len(data["steps"])
        for _, data in objects(results / "recency/inference_results_weibo.jsonl")
    }
    assert by_steps == sorted(every, key=lambda key: -steps[key])
    assert set(keys("value=0&least=10&most=20")) == {key for key in every if 10 <= steps[key] <= 20}
    assert (
        keys("outcome=valid") == every
        and keys("outcome=refusal") == []
        and keys("only=repaired") == []
    )
    assert keys("only=failed") == []


@pytest.mark.slow
def test_page_says_how_many_users_are_ranked_while_others_are_not_read(site, monkeypatch):
    """The first ones only, in plain words; after further looks all are ranked, and nothing is
    said."""
    monkeypatch.setattr("harness.commands.view.site.READ_SECONDS", 0.0)
    monkeypatch.setattr("harness.commands.view.index.thread_time", lambda: next(clock))
    clock = iter(range(10**9))
    site.folder.run("recency", "weibo").users.advance()  # type: ignore[union-attr]
    address = "/users?name=recency&subset=weibo&sort=1&order=down"
    pages = [look(site, address) for _ in range(60)]
    ranked = [
        re.search(r"Only the first (\d+) of 40 users are ranked so far", page) for page in pages
    ]
    assert ranked[0] and 0 < int(ranked[0][1]) < 40 and "data-live" in pages[0]
    assert (
        ranked[-1] is None
        and 'aria-sort="descending"' in pages[-1]
        and "data-live" not in pages[-1]
    )


def test_outcomes_to_select_by_are_those_that_users_have(site, results):
    path = results / "recency/eval_report_weibo.json"
    diagnostics = orjson.loads(path.read_bytes())["diagnostics"]
    spoiled(path, {"diagnostics": {**diagnostics, "invalid": {"refusal": 2, HOSTILE: 1}}})
    page = checked(look(site, "/users?name=recency&subset=weibo"))
    [choices] = re.findall(r'<select name="outcome">(.*?)</select>', page)
    shown = [html.unescape(text) for text in re.findall(r"<option[^>]*>([^<]*)", choices)]
    assert shown == ["all", "valid", "refusal", on_one_line(HOSTILE)]


def test_curves_stop_where_nothing_ran(site, results):
    """A log of two sessions with a night between them; a short one is in seconds, a long one in
    hours."""
    progress = {"what": "progress", "rate": 2.0, "limit": 4.0, "in_flight": 3.0}
    moments = [0.0, 10.0, 20.0, 30_000.0, 30_010.0]
    log = results / "recency/run_weibo.log"
    log.write_bytes(b"".join(encode_line({"time": moment, **progress}) for moment in moments))
    page = checked(look(site, "/run?name=recency&subset=weibo"))
    [speed] = re.findall(r"Speed</figcaption>(<svg.*?</svg>)", page, re.DOTALL)
    assert speed.count("<polyline") == 2 and ">hours<" in speed
    log.write_bytes(b"".join(encode_line({"time": moment, **progress}) for moment in moments[:3]))
    assert ">seconds<" in look(site, "/run?name=recency&subset=weibo")


def test_failed_users_are_listed_with_why(site, results):
    failure = {
        "user_id": "lost",
        "boundary": "endpoint",
        "kind": "http_503",
        "detail": HOSTILE,
        "tries": 9,
    }
    (results / "recency" / "failures_weibo.jsonl").write_bytes(encode_line(failure))
    page = checked(look(site, "/users?name=recency&subset=weibo&only=failed"))
    assert "http_503" in page and ">lost</a>" in page
    assert "&lt;script&gt;" in checked(look(site, "/user?name=recency&subset=weibo&user=lost"))


def test_two_runs_are_shown_side_by_side_with_their_differences(site, results):
    """The same step is in the same row; rows that differ are marked, and equal ones are not."""
    [user, *_] = users(results, "recency", "weibo")
    page = checked(look(site, SIDE.format(user)))
    marked = re.findall(
        r'<div class="sides( differs)?"><div class="side"><h2[^>]*>(Step \d+)</h2>', page
    )
    assert marked and not any(differs for differs, _ in marked)
    assert page.count('class="sides differs"') >= 1
    same = checked(look(site, SIDE.format(user).replace("with=random", "with=recency")))
    assert "differs" not in same
    with pytest.raises(NotThere):
        look(site, SIDE.format(user).replace("with=random", "with=commuter"))


def private_words(results: Path) -> list[str]:
    """Return the names of users, which only prompts and posts have."""
    return [
        str(data["username"])
        for _, data in objects(results / "recency/inference_results_weibo.jsonl")
    ]


def test_private_texts_are_shown_only_on_request(results):
    """Neither prompts nor posts, nor names; with posts each request is there with its reply."""
    keys, names = users(results, "recency", "weibo"), private_words(results)
    for posts in (False, True):
        site = Site(Folder(Chosen(results, posts)), link)
        pages = [
            look(site, link("user", name="recency", subset="weibo", user=key)) for key in keys[:5]
        ]
        assert all(
            ("Request 1 of" in page) is posts and bool(re.search(r">Posts( \(|<)", page)) is posts
            for page in pages
        )
        named = [html.escape(name) in page for name, page in zip(names, pages, strict=False)]
        assert all(named) if posts else not any(named)


def test_no_code_of_a_run_is_executed_and_nothing_is_written(results, tmp_path):
    """Neither the folder's benchmark nor the original, also where posts are requested; also on
    comparison."""
    [user, *_] = users(results, "four-stars", "yelp")
    page = look(
        Site(Folder(Chosen(results, True)), link),
        link("user", name="four-stars", subset="yelp", user=user),
    )
    assert "Request 1" not in page and "harness show" in page
    for path in results.glob("four-stars/*.py"):
        path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    shutil.copytree(results / "four-stars", results / "other-stars")
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*")}
    site = Site(Folder(Chosen(results, True)), link)
    assert "Reply" in look(site, link("user", name="four-stars", subset="yelp", user=user))
    assert "harness compare" in look(site, "/compare?run=four-stars&run=other-stars")
    look(site, "/users?name=four-stars&subset=yelp&sort=0&outcome=valid")
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*")} == before
    assert not (tmp_path / "ran").exists()


def test_names_lead_nowhere_but_to_runs_of_the_folder(site, results):
    secret = results.parent / "secret"
    shutil.copytree(results / "recency", secret)
    for name in ("../secret", str(secret), "recency/../../secret", "", "nobody", "\x00"):
        for view in ("run", "users", "user"):
            with pytest.raises(NotThere):
                look(site, link(view, name=name, subset="weibo", user="synth-weibo-0000001"))
    with pytest.raises(NotThere):
        look(site, "/no-such-view")


def spoiled(path: Path, change: dict[str, Any]) -> None:
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **change}))


def test_hostile_folder_runs_nothing_and_stops_no_page(site, results):
    """Markup in names, models, reports, records and replies; records of another shape; pipes;
    broken files."""
    evil = results / f"{HOSTILE.replace('/', '_')}"
    shutil.copytree(results / "recency", evil)
    path = evil / "run_weibo.json"
    manifest = orjson.loads(path.read_bytes())
    manifest["identity"]["model"] = HOSTILE
    path.write_bytes(orjson.dumps(manifest))
    spoiled(
        evil / "eval_report_weibo.json",
        {"model": HOSTILE, "title": HOSTILE, "notes": [HOSTILE] * 3},
    )
    records = [data for _, data in objects(evil / "inference_results_weibo.jsonl")]
    records[0]["user_id"] = HOSTILE
    records[0]["steps"][0] |= {
        "prediction": [HOSTILE],
        "reasoning": HOSTILE,
        "persona_summary": HOSTILE,
    }
    odd: list[dict[str, Any]] = [
        {"user_id": "odd"},
        {"user_id": "odder", "steps": [HOSTILE], "username": 7},
        {"x": HOSTILE},
    ]
    (evil / "inference_results_weibo.jsonl").write_bytes(
        b"".join(map(encode_line, [*records, *odd]))
    )
    reply = {
        "user_id": HOSTILE,
        "request": "x",
        "nth": 0,
        "completion": {"text": HOSTILE, "reasoning": HOSTILE},
    }
    (evil / "responses_weibo.jsonl").write_bytes(encode_line(reply))
    for name, content in {"broken": b"{", "list": b"[]", "deep": b"[" * 100_000}.items():
        (results / name).mkdir()
        (results / name / "run_weibo.json").write_bytes(content)
        (results / name / "eval_report_weibo.json").write_bytes(content)
    (results / "pipes").mkdir()
    for name in (
        "run_weibo.json",
        "eval_report_weibo.json",
        "inference_results_weibo.jsonl",
        "run_weibo.log",
    ):
        os.mkfifo(results / "pipes" / name)
    os.mkdir(os.fsencode(results) + b"/\xff")  # noqa: PTH102, a Path has no bytes
    shutil.copy(
        results / "recency" / "run_weibo.json", os.fsencode(results) + b"/\xff/run_weibo.json"
    )
    checked(look(site, "/"))
    for run in site.folder.runs():
        about = {"name": run.name, "subset": run.subset}
        checked(look(site, link("run", **about)))
        checked(look(site, link("users", **about, sort="0", outcome="valid")))
    for key in (HOSTILE, "odd", "odder"):
        page = checked(look(site, link("user", name=evil.name, subset="weibo", user=key)))
        assert "<script>alert" not in page


def test_long_pages_are_divided_and_nothing_is_left_out():
    blocks = [
        (Quote("text", "<" * 20_000),),
        *[(Paragraph(str(number)),) for number in range(9000)],
    ]
    parts = divided(blocks)
    assert [block for part in parts for block in part] == blocks and len(parts) > 1
    assert PAGE_BYTES < LARGEST


@pytest.mark.slow
@pytest.mark.parametrize(
    "sections",
    [
        pytest.param(
            [{"block": "Tags", "label": "t", "tags": [["a", "hit"]] * 500_000}],
            id="one block",
            marks=pytest.mark.slow,
        ),
        pytest.param([{"block": "Paragraph", "text": "x" * 500}] * 12_000, id="many blocks"),
    ],
)
def test_of_a_report_that_no_run_makes_the_first_is_shown(site, results, sections):
    """Of a report of megabytes at most some are rendered, and its last part says that there is
    more."""
    spoiled(results / "recency/eval_report_weibo.json", {"sections": sections})
    first = checked(look(site, "/run?name=recency&subset=weibo"))
    last = checked(look(site, "/run?name=recency&subset=weibo&part=999"))
    assert "Coverage: complete" in first and "More is not shown here" in last
    assert int((re.search(r"part \d+ of (\d+)", last) or ["", "1"])[1]) <= SHOWN_BYTES / PAGE_BYTES


@pytest.mark.parametrize(
    "change", first_quick([{"headline": ["Recall"] * 100_000}, {"metric_units": "many"}])
)
def test_report_of_more_figures_than_a_benchmark_has_is_none(site, results, change):
    """Its run is shown, with the reason."""
    path = results / "recency/eval_report_weibo.json"
    if change.get("metric_units"):
        units = orjson.loads(path.read_bytes())["metric_units"]
        change = {
            "metric_units": units
            | {f"metric {number}": units["Recall"] for number in range(50_000)}
        }
    spoiled(path, change)
    assert "not a report that this version reads" in checked(
        look(site, "/run?name=recency&subset=weibo")
    )
    assert "random" in checked(look(site, "/"))


def test_replies_are_looked_for_at_the_beginning_of_a_huge_file(site, results, monkeypatch):
    """A sparse file of 50 GB is not read to its end; the page says so."""
    monkeypatch.setattr("harness.commands.view.reading.REPLIES_READ", 1 << 20)
    os.truncate(results / "recency/responses_weibo.jsonl", 50 * 10**9)
    page = checked(
        look(
            site,
            link(
                "user", name="recency", subset="weibo", user=users(results, "recency", "weibo")[0]
            ),
        )
    )
    assert "only its beginning is looked at" in page


def test_comparison_is_that_of_compare_and_asks_for_two_runs(site):
    page = checked(look(site, "/compare?run=recency&run=random"))
    assert (
        "recency is better than random in Recall" in page
        and "recency (A) and random (B)" in page
        and "<svg" in page
    )
    assert "is better than" not in checked(look(site, "/compare?run=recency"))
    with pytest.raises(NotThere):
        look(site, "/compare?run=recency&run=nobody")
