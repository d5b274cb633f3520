"""`run --part` and `merge`: disjoint parts of a run's users, and the one run that they make."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.analysis.saved_runs import SavedRun
from harness.benchmarks import registry
from harness.cli import main
from harness.commands.merge import merge
from harness.defaults import RunTuning
from harness.engine.files import index_file
from harness.errors import BadInput, HarnessError
from harness.model import Where
from harness.store.disk import Disk
from harness.store.lock import RunLock
from harness.store.manifest import Selection, load
from harness.store.tasks import TaskIndex, open_index
from tests.commands.test_commands import RESULTS, lines_of, report, run, write_tasks
from tests.support import DATA, first_quick
from tests.support.disks import Death, FaultyDisk, QuickDisk
from tests.support.plugins import FLOOR, STARS
from tests.support.scripted import UNTIL_STOPPED, baseline, busy, by_turns, serving

USERS, PARTS = 14, 4
WALK = DATA / "agents" / "random_walk.py"


def command(results: Path, *words: str) -> int:
    return main([*words, "--results-dir", str(results)])


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for platform in ("weibo", "zhihu"):
        write_tasks(folder, USERS, platform)
    return folder


@pytest.fixture(scope="module")
def played(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with the run `recency` in four parts."""
    results = tmp_path_factory.mktemp("played")
    for number in range(1, PARTS + 1):
        assert run(tasks, results, "--part", f"{number}/{PARTS}", "--no-html") == 0
    return results


@pytest.fixture
def results(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "results"))


@pytest.fixture(scope="module")
def whole(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run in one process."""
    results = tmp_path_factory.mktemp("whole")
    assert run(tasks, results, "--no-html") == 0
    return results / "recency"


def test_status_shows_no_merged_part_beside_the_whole(results, capsys):
    """Its users would be counted twice; by its name it is shown."""

    def names(*words: str) -> set[str]:
        capsys.readouterr()
        assert command(results, "status", "--json", *words) == 0
        return {row["name"] for row in orjson.loads(capsys.readouterr().out)}

    parts = {f"recency.part{number}of{PARTS}" for number in range(1, PARTS + 1)}
    assert names() == parts
    assert command(results, "merge", "recency", "--no-html") == 0
    assert names() == {"recency"}
    assert names("recency.part1of4", "recency") == {"recency.part1of4", "recency"}


def test_tables_and_exports_have_each_merged_user_once(results, tmp_path):
    """Without names, as in `status`: the whole run, and none of its parts."""
    assert command(results, "merge", "recency", "--no-html") == 0
    assert command(results, "export", "--rows", "users", "--out", str(tmp_path / "rows.csv")) == 0
    with (tmp_path / "rows.csv").open(encoding="utf-8-sig", newline="") as file:
        exported = [row["user_id"] for row in csv.DictReader(file)]
    assert len(exported) == len({*exported}) > 0
    assert command(results, "stats", "--format", "csv", "--into", str(tmp_path / "stats.csv")) == 0
    with (tmp_path / "stats.csv").open(encoding="utf-8-sig", newline="") as file:
        assert {row["run"] for row in csv.DictReader(file)} - {"chance"} == {"recency"}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def timeless(folder: Path) -> dict[str, Any]:
    """What is in a run's folder, without the moments and seconds that it took; logs without their
    order."""
    found: dict[str, Any] = {}
    for name, content in contents(folder).items():
        if name.startswith(("inference_results", "generated", "prompt", "agent", "benchmark")):
            found[name] = content
        elif name.startswith("run_") and name.endswith(".json"):
            made = orjson.loads(content)
            found[name] = {**made, "times": list(made["times"])}
        elif name.startswith("eval_report") and name.endswith(".json"):
            made = orjson.loads(content)
            found[name] = {**made, "schedule": None, "run": {**made["run"], "created": None}}
        elif name.startswith(("responses", "failures")):
            left_out = {"crc", "seconds", "time", "endpoint"}
            rows = [
                {key: row[key] for key in row.keys() - left_out}
                for row in map(orjson.loads, content.splitlines())
            ]
            found[name] = sorted(orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in rows)
    return found


def test_parts_are_disjoint_nested_balanced_and_complete(tasks, tmp_path):
    """Whatever the share and the repeats, each selected user is in one part, and parts differ by
    one user at most; a part of fewer users is in the same part of more."""
    made = SavedRunIndex(tasks, tmp_path)
    for repeats in (1, 3):
        with closing(made.index(repeats)) as index:
            before = [index.select(1.0, 7, 1, (number, 3)) for number in (1, 2, 3)]
            for limit in (2, 5, USERS, 3 * USERS):
                parts = [index.select(1.0, 7, limit, (number, 3)) for number in (1, 2, 3)]
                counts = [index.users(mask) for mask in parts]
                assert (sum(parts) == index.select(1.0, 7, limit)).all()
                assert max(counts) - min(counts) <= 1 and sum(counts) == min(limit, USERS)
                assert all(mask.sum() == repeats * index.users(mask) for mask in parts)
                assert all((mask >= less).all() for mask, less in zip(parts, before, strict=True))
                before = parts


def in_slice(path: Path, number: int, parts: int) -> list[str]:
    """Return the users in a slice of a file: every n-th from the i-th on."""
    return [
        orjson.loads(line)["user_id"]
        for line in path.read_bytes().splitlines()[number - 1 :: parts]
    ]


FILES = {
    "lines": ("tasks.jsonl", b"\n".join(b'{"user_id": "%d"}' % user for user in range(9))),
    "odd lines": (
        "tasks.jsonl",
        b"\xef\xbb\xbf" + b"\n \n".join(b'  {"user_id": "%d"} ' % user for user in range(9)),
    ),
    "array": (
        "tasks.json",
        b"[%b]" % b",\n".join(b'{"user_id": "%d"}' % user for user in range(9)),
    ),
}


@pytest.mark.parametrize("kind", first_quick(FILES))
def test_slices_validate_each_line_once_and_are_those_of_the_whole_file(kind, tmp_path):
    """Of any number: each user is in one. Every slice knows the hash and users of the file, and the
    line of a task."""
    name, content = FILES[kind]
    path = tmp_path / name
    path.write_bytes(content)
    seen: list[Where] = []

    def measured(line: bytes, where: Where) -> tuple[str, int]:
        seen.append(where)
        return orjson.loads(line)["user_id"], 1

    with closing(open_index(path, "kind", measured, tmp_path)) as whole:
        places = [whole.where(position) for position in range(9)]
        for parts in range(1, 12):
            users = []
            for number in range(1, parts + 1):
                selection: Selection = {
                    "ratio": 1.0,
                    "sample_seed": 0,
                    "part": f"{number}/{parts}",
                    "by": "lines",
                }
                mask = whole.selected(selection)
                if not mask.any():
                    with pytest.raises(BadInput, match=rf"part {number}/{parts}: make fewer"):
                        open_index(path, "kind", measured, tmp_path, part=(number, parts))
                    continue
                for _ in ("made", "from the cache"):
                    seen.clear()
                    with closing(
                        open_index(path, "kind", measured, tmp_path, part=(number, parts))
                    ) as of:
                        assert (
                            (of.sha256, of.users_in_file)
                            == (whole.sha256, 9)
                            == (whole.sha256, whole.users())
                        )
                        assert of.selected(selection).all() and of.users() == mask.sum()
                        here = [of.where(position) for position in range(len(of))]
                        assert here == [
                            place for place, inside in zip(places, mask, strict=True) if inside
                        ]
                assert seen == []
                users += here
            assert sorted(users, key=places.index) == places


@pytest.mark.slow
def test_line_of_another_slice_is_found_by_its_own_part_and_by_merge(tmp_path, capsys):
    """One that is no task, a user who is twice in a slice, and one who is in two."""
    *lines, last = write_tasks(tmp_path / "tasks", USERS)
    first, second, *_ = lines
    path = tmp_path / "tasks/weibo_inference_tasks.jsonl"
    for odd, code in ((b'{"user_id": 1}\n', 2), (first, 0)):
        path.write_bytes(b"".join([*lines, odd, last, second]))
        assert run(path.parent, tmp_path / "out", "--part", "1/2", "--restart") == 0
        assert run(path.parent, tmp_path / "out", "--part", "2/2", "--restart") == 2
        path.write_bytes(b"".join([*lines, odd]))
        assert run(path.parent, tmp_path / "out", "--part", "1/2", "--restart") == 0
        assert run(path.parent, tmp_path / "out", "--part", "2/2", "--restart") == code
    capsys.readouterr()
    assert command(tmp_path / "out", "merge", "recency") == 2
    assert (
        f"line {USERS}: field user_id: duplicate user, first in line 1" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_part_keeps_the_rule_that_it_began_with(tasks, tmp_path, whole):
    """Of some users it is every n-th in the order of the seed, also once it has all of them; a
    slice has no limit."""
    for number in (1, 2):
        assert run(tasks, tmp_path, "--part", f"{number}/2", "--limit", "4") == 0
        assert run(tasks, tmp_path, "--part", f"{number}/2") == 0
        manifest = load(tmp_path / f"recency.part{number}of2/run_weibo.json")
        assert (
            manifest
            and manifest.selection["part"] == f"{number}/2"
            and "by" not in manifest.selection
        )
    assert command(tmp_path, "merge", "recency", "--no-html") == 0
    assert (tmp_path / "recency" / RESULTS).read_bytes() == (whole / RESULTS).read_bytes()
    assert run(tasks, tmp_path, "--part", "1/3") == 0
    assert run(tasks, tmp_path, "--part", "1/3", "--limit", "4") == 2


class SavedRunIndex:
    """The index of the tasks, without a run."""

    def __init__(self, tasks: Path, results: Path) -> None:
        self._benchmark = registry.find("streamprofile")(folder=tasks)
        self._path, self._results = tasks / "weibo_inference_tasks.jsonl", results

    def index(self, repeats: int) -> TaskIndex:
        selection: Selection = {"ratio": 1.0, "sample_seed": 0, "repeats": repeats}
        return index_file(self._benchmark, "weibo", self._path, self._results, selection)


@pytest.mark.parametrize("parts", [1, 3, 4, 16])
def test_shares_of_limits_add_up_to_the_whole(parts):
    """Requests at once exactly, rates but for rounding; a part that would have no request is
    refused."""
    for whole in (
        RunTuning(concurrency=37, rpm=600.0, tpm=1e6),
        RunTuning(concurrency=None, start=40, ceiling=1000),
    ):
        shares = [whole.shared(number, parts) for number in range(1, parts + 1)]
        for name in ("concurrency", "start", "ceiling", "rpm", "tpm"):
            if (limit := getattr(whole, name)) is not None and limit >= parts:
                assert sum(getattr(share, name) for share in shares) == pytest.approx(
                    limit, rel=1e-12
                )
        assert {share.timeout for share in shares} == {whole.timeout}
        with pytest.raises(BadInput):
            whole.shared(1, whole.most + 1)


KINDS = {
    "two subsets, repeats": [
        "streamprofile",
        "--platform",
        "zhihu",
        "--platform",
        "weibo",
        "--repeats",
        "2",
    ],
    "share": ["streamprofile", "--platform", "weibo", "--ratio", "0.7"],
    "plan": ["dailymobility", "--demo", "--limit", "4"],
    "agent": ["dailymobility", "--demo", "--limit", "3", "--agent", str(WALK)],
    "plug-in": [str(STARS), "--tasks-dir", str(STARS.parent)],
}


@pytest.mark.parametrize(
    "kind", ["agent", *first_quick([kind for kind in KINDS if kind != "agent"])]
)
def test_merged_parts_are_the_bytes_of_one_run(kind, tasks, tmp_path):
    """Results, kept files, report and manifest but for times; responses and failures but for their
    order. The parts stay as they are, and `verify` finds nothing."""
    words = ["run", *KINDS[kind], "--no-html", "--name", "m"]
    words += ["--tasks-dir", str(tasks)] if words[1] == "streamprofile" else []
    models = {"streamprofile": "baseline/recency", "dailymobility": "baseline/random-day"}
    words += ["--model", "baseline/commuter" if kind == "agent" else models.get(words[1], FLOOR)]
    assert command(tmp_path / "one", *words) == 0
    for number in (2, 3, 1):
        assert command(tmp_path / "parts", *words, "--part", f"{number}/3") == 0
    before = contents(tmp_path / "parts")
    assert command(tmp_path / "parts", "merge", "m", "--no-html") == 0
    assert {name: contents(tmp_path / "parts")[name] for name in before} == before
    assert timeless(tmp_path / "parts" / "m") == timeless(tmp_path / "one" / "m")
    assert command(tmp_path / "parts", "verify") == 0


@pytest.mark.slow
def test_merged_run_names_those_who_answered_its_parts(tasks, tmp_path):
    """Report and manifest count the replies of all parts, as those of one run do, and `verify`
    agrees."""
    with serving(by_turns({"model": "a", "provider": "P"}, {"model": "b"})) as server:
        options = ["--no-html", "--api-url", server.url, "--name", "m"]
        assert run(tasks, tmp_path / "one", *options, model="a") == 0
        for number in (1, 2):
            assert run(tasks, tmp_path / "parts", *options, "--part", f"{number}/2", model="a") == 0
    assert command(tmp_path / "parts", "merge", "m", "--no-html") == 0
    found = [report(tmp_path / name, "m")["replies"] for name in ("one", "parts")]
    assert found[0] == found[1] and len(found[0]["answered_by"]) == 2
    manifest = load(tmp_path / "parts/m/run_weibo.json")
    assert manifest and manifest.replies == found[0]
    assert command(tmp_path / "parts", "verify", "--name", "m") == 0


def test_part_says_that_it_is_one_and_resumes_without_a_flag(tasks, tmp_path, capsys):
    """Its manifest selects the part, its report and tables name it, and `resume` plays nobody else;
    a limit is shared, the manifest keeps the whole."""
    with serving(busy) as server:
        where = (
            "--api-url",
            server.url,
            "--part",
            "2/4",
            "--concurrency",
            "7",
            "--no-html",
            *UNTIL_STOPPED,
        )
        assert run(tasks, tmp_path, *where, model="m") == 3
        assert " 2 of the 7 requests" in capsys.readouterr().out
        server.script = baseline
        assert command(tmp_path, "resume", "--api-url", server.url) == 0
    made = report(tmp_path, "m.part2of4")
    inside = in_slice(tasks / "weibo_inference_tasks.jsonl", 2, 4)
    assert (made["run"]["part"], made["coverage"]["expected_users"]) == ("2/4", len(inside))
    manifest = load(tmp_path / "m.part2of4/run_weibo.json")
    assert manifest and manifest.tuning["concurrency"] == 7
    assert manifest.times["schedule"] and manifest.times["schedule"]["slots"] == 2
    assert "part 2/4" in (tmp_path / "m.part2of4/eval_report_weibo.txt").read_text()
    capsys.readouterr()
    assert command(tmp_path, "stats") == command(tmp_path, "verify") == 0
    assert "part 2/4" in capsys.readouterr().out


def test_what_auto_learned_is_kept_as_the_whole(tasks, tmp_path):
    """So all limits of a manifest are of the whole, and the next process takes its share of it
    again."""
    auto = (
        "--concurrency",
        "auto",
        "--auto-floor",
        "40",
        "--auto-start",
        "40",
        "--part",
        "1/4",
        "--no-html",
    )
    assert run(tasks, tmp_path, *auto) == 0
    manifest = load(tmp_path / "recency.part1of4/run_weibo.json")
    assert manifest and manifest.tuning["learned_limit"] == 40


def test_a_part_that_is_none_is_refused(tasks, played, tmp_path):
    """On the command line and in a manifest."""
    manifest = (played / "recency.part1of4/run_weibo.json").read_bytes()
    for part in ("0/4", "5/4", "1", "1/4/2", "a/b", "1/99999", "-1/4", "1/0"):
        assert run(tasks, tmp_path, "--part", part) == 2
        path = tmp_path / "run_weibo.json"
        path.write_bytes(manifest.replace(b'"1/4"', orjson.dumps(part)))
        with pytest.raises(BadInput, match=r"selection\.part"):
            load(path)


def test_more_parts_than_users_or_requests_are_refused(tasks, tmp_path):
    """A part without users, or without a request at once, has nothing to do."""
    assert run(tasks, tmp_path, "--part", "3/3", "--limit", "2") == 2
    assert run(tasks, tmp_path, "--part", "3/3", "--concurrency", "2") == 2
    assert run(tasks, tmp_path, "--part", "1/17") == 2
    assert command(tmp_path, "status") == 2 and not list(tmp_path.glob("*/run_*.json"))


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    made = orjson.loads(path.read_bytes())
    change(made)
    path.write_bytes(orjson.dumps(made))


def missing(results: Path) -> None:
    shutil.rmtree(results / "recency.part3of4")


def doubled(results: Path) -> None:
    shutil.copytree(results / "recency.part3of4", results / "recency.part30of4")


def other_model(results: Path) -> None:
    edit(
        results / "recency.part2of4/run_weibo.json",
        lambda made: made["identity"].update(model="other"),
    )


def other_tasks(results: Path) -> None:
    edit(
        results / "recency.part2of4/run_weibo.json",
        lambda made: made["tasks"].update(sha256="0" * 64),
    )


def other_count(results: Path) -> None:
    edit(
        results / "recency.part2of4/run_weibo.json",
        lambda made: made["selection"].update(part="2/5"),
    )


def other_seed(results: Path) -> None:
    edit(
        results / "recency.part2of4/run_weibo.json",
        lambda made: made["selection"].update(sample_seed=1),
    )


def no_part(results: Path) -> None:
    for path in results.glob("*/run_weibo.json"):
        edit(path, lambda made: made["selection"].pop("part"))


def overlapping(results: Path) -> None:
    line = (results / "recency.part1of4" / RESULTS).read_bytes().splitlines(keepends=True)[0]
    with (results / "recency.part2of4" / RESULTS).open("ab") as file:
        file.write(line)
    edit(
        results / "recency.part2of4/run_weibo.json",
        lambda made: made.update(state="stopped", results_sha256=None),
    )


def changed(results: Path) -> None:
    path = results / "recency.part4of4" / RESULTS
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def no_subset(results: Path) -> None:
    shutil.copy(
        results / "recency.part1of4/run_weibo.json", results / "recency.part1of4/run_zhihu.json"
    )


def no_prompt(results: Path) -> None:
    for path in results.glob("*/prompt_own.txt"):
        path.unlink()


def taken(results: Path) -> None:
    (results / "recency").mkdir()


REFUSED = {
    missing: "missing of 4 parts: 3",
    doubled: "part 3 is given twice",
    other_model: 'identity.model is "other"',
    other_tasks: "tasks.sha256 is",
    other_count: "selection.parts is 5, not 4",
    other_seed: "selection.sample_seed is 1",
    no_part: "`run --part I/N`",
    overlapping: "part 1 has a record, too",
    changed: "has changed since its run was complete",
    no_subset: "has no run of zhihu",
    no_prompt: "has no prompt_own.txt",
    taken: "exists: give the run another name",
}


@pytest.mark.parametrize("damage", REFUSED)
def test_parts_that_do_not_make_one_run_are_refused(damage, results, capsys):
    """With one sentence; nothing is written, and the parts stay as they are."""
    damage(results)
    before = contents(results)
    assert command(results, "merge", "recency") == 2
    error = capsys.readouterr().err
    assert error.startswith("harness: ") and error.count("\n") == 1 and REFUSED[damage] in error
    after = {
        name: content
        for name, content in contents(results).items()
        if name in before or ".index" not in name
    }
    after.pop(".merging/lock", None)
    assert after == before


def test_parts_of_tasks_that_have_changed_are_refused(results, tasks, tmp_path):
    """One run would play the users again whose tasks have changed: each part does so first, with
    `resume`."""
    shutil.copytree(tasks, tmp_path / "tasks")
    write_tasks(tmp_path / "tasks", USERS + 1)
    assert command(results, "merge", "recency", "--tasks-dir", str(tmp_path / "tasks")) == 2
    assert not (results / "recency").exists()


def test_replies_of_other_parts_users_and_damaged_copies_are_left_out(results, whole):
    """A part that once had another share may have replies of users that another part has played; a
    kept file that was changed in one part is taken from the next."""
    (results / "recency.part1of4/prompt_own.txt").write_text("changed")
    line = (
        (results / "recency.part2of4/responses_weibo.jsonl")
        .read_bytes()
        .splitlines(keepends=True)[0]
    )
    with (results / "recency.part1of4/responses_weibo.jsonl").open("ab") as file:
        file.write(line)
    assert command(results, "merge", "recency", "--no-html") == 0
    assert timeless(results / "recency") == timeless(whole)


def test_part_in_use_is_refused(results):
    """A part that is being played is not merged."""
    lock = RunLock(results / "recency.part2of4/run_weibo.lock", lambda: 1.0)
    assert command(results, "merge", "recency") == 4
    lock.release()
    assert command(results, "merge", "recency", "--no-html") == 0


def test_parts_may_be_folders_elsewhere_under_any_name(results, whole, tmp_path):
    """Each may come from another machine; then `--out` names the run."""
    results.rename(tmp_path / "moved")
    folders = [tmp_path / f"moved/recency.part{number}of4" for number in (1, 2, 3)]
    folders.append((tmp_path / "moved/recency.part4of4").rename(tmp_path / "last"))
    assert command(tmp_path / "out", "merge", *map(str, folders), "--no-html") == 2
    assert command(tmp_path / "out", "merge", *map(str, folders), "--out", "n", "--no-html") == 0
    assert (tmp_path / "out/n" / RESULTS).read_bytes() == (whole / RESULTS).read_bytes()
    assert command(tmp_path / "out", "verify") == 0


def test_incomplete_parts_make_a_run_that_resume_completes(tasks, tmp_path, whole):
    """A part that was stopped, with a torn line, and one with a failed user are merged to an
    INCOMPLETE run; `resume` sends what is missing and nothing else, and ends with the bytes of one
    run."""
    first = orjson.loads((tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()[0])[
        "username"
    ]
    count = [0]

    def stopped(body: dict[str, Any]) -> tuple[int, bytes]:
        count[0] += 1
        return (401, b"bad key") if count[0] > 6 else baseline(body)

    def fails(body: dict[str, Any]) -> tuple[int, bytes]:
        return (422, b"no") if first in str(body["messages"]) else baseline(body)

    with serving(baseline) as server:
        where = ("--api-url", server.url, "--no-html", "--concurrency", "3")
        assert run(tasks, tmp_path / "one", *where, model="m") == 0
        needed, codes = len(server.bodies), []
        for number, script in enumerate((stopped, fails, fails), 1):
            server.script = script
            codes.append(run(tasks, tmp_path, *where, "--part", f"{number}/3", model="m"))
        assert codes[0] == 3 and set(codes[1:]) <= {0, 1}
        with (tmp_path / "m.part1of3/responses_weibo.jsonl").open("ab") as file:
            file.write(b'{"user_id":"')
        assert command(tmp_path, "merge", "m", "--no-html") == 1
        made = load(tmp_path / "m/run_weibo.json")
        assert made and made.state == "stopped" and made.results_sha256 is None
        assert report(tmp_path, "m")["coverage"]["complete"] is False
        assert command(tmp_path, "verify", "--name", "m") == 0
        saved = len(lines_of(tmp_path / "m/responses_weibo.jsonl"))
        server.script, before = baseline, len(server.bodies)
        assert command(tmp_path, "resume", "--name", "m", "--no-html") == 0
        assert len(server.bodies) - before == needed - saved
    assert (tmp_path / "m" / RESULTS).read_bytes() == (tmp_path / "one/m" / RESULTS).read_bytes()
    assert command(tmp_path, "verify", "--name", "m") == 0


def merged(results: Path, disk: Disk) -> None:
    """Merge the parts as the command does, on another disk."""
    folders = sorted(results.glob("recency.part*"))
    with (
        merge.locked(folders, ["weibo"]) as found,
        merge.placed(results, "recency", disk) as folder,
        ExitStack() as held,
    ):
        (parts,) = found
        saved = SavedRun(parts[0].files, parts[0].manifest)
        benchmark, path = saved.as_it_was(None, play=False), saved.tasks(None)
        index = held.enter_context(closing(index_file(benchmark, "weibo", path, results)))
        merge.merge(parts, benchmark, index, folder, disk)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["death before", "death midway", "ENOSPC"])
def test_merge_that_fails_anywhere_leaves_no_run_or_the_whole_one(how, results, whole):
    """At each operation in turn: no half run is seen, the parts stay as they are, and the next
    merge is whole."""
    parts = {
        name: content
        for name, content in contents(results).items()
        if name.startswith("recency.part")
    }
    wanted, nth, failed = timeless(whole), 0, 0
    (results / ".merging/recency").mkdir(parents=True)
    (results / ".merging/recency/run_zhihu.json").touch()  # of a merge of more subsets that died
    while True:
        nth += 1
        disk = FaultyDisk(nth, how, inner=QuickDisk())
        try:
            merged(results, disk)
        except (Death, HarnessError):
            failed += 1
        disk.bury()
        if disk.struck is None:
            break
        if (results / "recency").exists():
            assert timeless(results / "recency") == wanted
            shutil.rmtree(results / "recency")
    assert failed > 40
    assert timeless(results / "recency") == wanted
    assert {path.name for path in (results / ".merging").iterdir()} == {"lock"}
    assert {name: content for name, content in contents(results).items() if name in parts} == parts
