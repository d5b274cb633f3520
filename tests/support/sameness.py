"""Compare outputs by their values: results by bytes, documents by the numbers in them, whatever
their words."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import orjson

Path = tuple[str, ...]
Leaf = str | float | bool | None
Renamed = Mapping[str, str]
"""From paths of earlier documents to paths of today's, parts separated by `/`. `*` is any one part.
A path includes all paths below it."""

TOLERANCE = 1e-12
"""Relative and absolute: the same numbers summed in another order."""

VERSIONS = ("format",)
"""Keys that say how a document is written. They change with it."""

NUMBER = re.compile(
    r"(?:\*\*|<ins>|\\textbf\{|\\underline\{)?(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w…])(?:\\?\*)?"
)
"""A number with its marks: best, second best, not of all users."""
ROW = re.compile(r"^ +[^\\\s]|\S {2,}\S|^\||&")
"""Lines of tables: in text with columns, in Markdown, in LaTeX."""
CSV_KEYS = ("benchmark", "metric", "run", "subset")
EARLIER = {"platform": "subset", "platforms": "subsets", "Avg.": "all"}
"""Words of earlier tables and comparisons: names of keys and columns, and the subset that an
average is of."""


NAMES = (
    *("Precision", "Recall", "Recall_Novelty", "Recall_Stability", "F1^NS"),
    *("Error_Peer", "Error_Viral", "Error_Decay", "Error_Random"),
)
DETAILS = (
    *(
        "cold_start",
        "persona_augmented",
        "delta",
        "learning_curve",
        "cohort",
        "cohort_curve",
        "ceiling",
    ),
    *(
        "protocols",
        "without_bias",
        "per_slot",
        "histograms",
        "day",
        "valid_days",
        "beside_truth",
        "ground_truth",
    ),
)
DIAGNOSTICS = (
    *(
        "unscored_steps",
        "users_without_scored_step",
        "repaired_steps",
        "release_code_left_out",
        "out_of_pool",
    ),
    *(
        "wrong_number",
        "at_asked",
        "errors_over_valid",
        "modes",
        "repaired_users",
        "warned_users",
        "warnings",
    ),
)
FORMAT_2: Renamed = {
    **{name: f"details/{name}" for name in DETAILS},
    **{f"diagnostics/{name}": f"details/{name}" for name in DIAGNOSTICS},
    **{f"fwt/{name}": f"secondary/FWT {name}" for name in NAMES},
    **{
        f"metrics/{name}": f"secondary/{name}"
        for name in ("JSD_per_slot", "Score (asbench)", "Score (agentsociety2)")
    },
    "release_code/F1^NS": "secondary/F1^NS (release code)/value",
    "coverage/scored_steps": "details/scored_steps",
    "diagnostics/steps": "diagnostics/answers",
    "diagnostics/valid_days": "diagnostics/valid_answers",
}
"""Paths of reports of format 1 in those of format 2."""


STATS: Renamed = {
    "*/percent": "*/value",
    "F1^NS (release code)/*/*/users": "newly counted",
    "FWT F1^NS/*/*/place": "no longer ranked",
}
"""Paths of tables in those of today. How many users the release code's F1^NS covers was null."""


def differences(name: str, old: bytes, new: bytes, renamed: Renamed | None = None) -> list[str]:
    """Return what is missing from the new document or different in it, a sentence each. Additions
    are no difference."""
    if name.endswith((".jsonl", "generated_beijing.json")):
        return _bytes(old, new)
    if name.endswith(".xlsx.json"):
        return _workbooks(orjson.loads(old), orjson.loads(new))
    if name.endswith(".json"):
        return _values(orjson.loads(old), orjson.loads(new), renamed or {})
    if name.endswith(".csv"):
        return _values(_table(old), _table(new), renamed or {})
    return _texts(
        old.decode(),
        new.decode(),
        rows_may_move="eval_report" in name,
        repeats=name.endswith(".tex"),
    )


def without_intervals(name: str, content: bytes) -> bytes:
    """Return a document without its 95 % intervals: format 2 of reports and before had others, by
    the bootstrap.

    Numbers of a text have no plus: reports before format 4 had one before shares that may be below
    0."""
    if name.endswith(".jsonl") or "generated" in name:
        return content
    if name.endswith(".json"):
        return orjson.dumps(_dropped(orjson.loads(content)))
    text = content.decode()
    if name.endswith(".csv"):
        rows = [
            {k: v for k, v in row.items() if k not in ("from", "to")}
            for row in csv.DictReader(io.StringIO(text))
        ]
        made = io.StringIO()
        writer = csv.DictWriter(made, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        return made.getvalue().encode()
    text = re.sub(r"~?\[[-+]?[\d.]+,\s+[-+]?[\d.]+\]|too few", "[]", text)
    text = re.sub(r"(?<![\w.])\+(?=\d)", "", text)
    return re.sub(r"(?m)^ *95 %(?:.+\n)+", "", text).encode()


CHANGED = {
    "ci95",
    "bootstrap",
    "p",
    "p_holm",
    "users_needed",
    "few_users",
    "permutations",
    "verdicts",
}
"""Keys of what is computed in another way now; the latter ones are of format 1 of `compare`, with
Holm's procedure."""


def _dropped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _dropped(one) for name, one in value.items() if name not in CHANGED}
    return list(map(_dropped, value)) if isinstance(value, list) else value


def _bytes(old: bytes, new: bytes) -> list[str]:
    if old == new:
        return []
    before, after = old.splitlines(), new.splitlines()
    if len(before) != len(after):
        return [f"{len(before)} lines were, {len(after)} are"]
    number = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b), len(before)
    )
    at = before[number : number + 1], after[number : number + 1]
    return [f"line {number + 1} differs: {at[0]!r:.2000} is now {at[1]!r:.2000}"]


# Documents with keys


def _values(old: Any, new: Any, renamed: Renamed) -> list[str]:
    there = dict(_leaves(new))
    found = []
    for path, was in _leaves(old):
        if path[-1] in VERSIONS:
            continue
        now_at = _now_at(path, renamed)
        now_at = now_at if now_at in there else tuple(EARLIER.get(part, part) for part in now_at)
        if now_at in there:
            if not _same(was, there[now_at]):
                found.append(f"{'/'.join(path)}: {was!r} is now {there[now_at]!r}")
        elif _is_number(was):
            found.append(f"{'/'.join(path)}: {was!r} is missing")
    return found


def _leaves(value: Any, path: Path = ()) -> Iterable[tuple[Path, Leaf]]:
    """Yield values with their paths. A list of sentences is one text; any other list has its length
    as well."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, (*path, str(key)))
    elif isinstance(value, list) and any(isinstance(one, str) and " " in one for one in value):
        yield path, " \n".join(map(str, value))
    elif isinstance(value, list):
        if value:
            yield (*path, "length"), len(value)
        for number, one in enumerate(value):
            yield from _leaves(one, (*path, str(number)))
    else:
        yield path, value


def _now_at(path: Path, renamed: Renamed) -> Path:
    """Return today's path: the longest entry that matches the beginning is replaced, each `*` by
    what it matched."""
    for old in sorted(renamed, key=len, reverse=True):
        parts = old.split("/")
        head, rest = path[: len(parts)], path[len(parts) :]
        if len(head) == len(parts) and all(a in ("*", b) for a, b in zip(parts, head, strict=True)):
            matched = iter([b for a, b in zip(parts, head, strict=True) if a == "*"])
            return (
                *(next(matched) if part == "*" else part for part in renamed[old].split("/")),
                *rest,
            )
    return path


def _is_number(value: Leaf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(a: Leaf, b: Leaf) -> bool:
    if isinstance(a, str) and isinstance(b, str) and " " in a:
        return not _lost(NUMBER.findall(a), NUMBER.findall(b))
    if _is_number(a) and _is_number(b):
        return close(float(a), float(b))  # type: ignore[arg-type]
    return type(a) is type(b) and a == b


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _table(content: bytes) -> dict[str, Any]:
    """Return the rows of a CSV file by benchmark, metric, run and subset, each by its columns."""
    rows: dict[str, Any] = {}
    for line in csv.DictReader(io.StringIO(content.decode())):
        line = {EARLIER.get(column, column): text for column, text in line.items()}
        key = " | ".join(EARLIER.get(text, text) for text in map(line.pop, CSV_KEYS))
        assert key not in rows, f"two rows are of {key}"
        rows[key] = {column: _cell(text) for column, text in line.items()}
    return rows


def _cell(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


# Documents for people


def _texts(old: str, new: str, *, rows_may_move: bool, repeats: bool) -> list[str]:
    """Compare numbers of tables in their order (in that of each row alone, if rows may move), those
    of sentences in any order, and each only once if the earlier document `repeats` them."""
    if rows_may_move:
        found = _rows(_numbers_by_row(old), _numbers_by_row(new))
    else:
        found = _in_order(_numbers(old, rows=True), _numbers(new, rows=True))
    sentences = _numbers(old, rows=False)
    lost = _lost(
        list(dict.fromkeys(sentences)) if repeats else sentences, _numbers(new, rows=False)
    )
    return found + [f"no sentence has the number {number} any more" for number in lost]


def _numbers(text: str, *, rows: bool) -> list[str]:
    return [
        number
        for line in text.splitlines()
        if bool(ROW.search(line)) == rows
        for number in NUMBER.findall(line)
    ]


def _numbers_by_row(text: str) -> list[list[str]]:
    """Return the numbers of each row of a table but its head, which a rule follows."""
    lines = [*text.splitlines(), ""]
    rows = (
        line
        for line, below in pairwise(lines)
        if ROW.search(line) and not re.fullmatch(r"[- ]+", below)
    )
    found = map(NUMBER.findall, rows)
    return sorted((numbers for numbers in found if numbers), key=len, reverse=True)


def _rows(old: list[list[str]], new: list[list[str]]) -> list[str]:
    """Report each row whose numbers are not together in a row of their own, in order."""
    left, found = list(new), []
    for row in old:
        at = next((number for number, one in enumerate(left) if not _in_order(row, one)), None)
        if at is None:
            found.append(f"no row of a table has {', '.join(row)} any more")
        else:
            del left[at]
    return found


def _lost(old: list[str], new: list[str]) -> list[str]:
    """Return missing numbers of two digits at least: shorter ones belong to explanations (step
    1)."""
    return [number for number in Counter(old) - Counter(new) if len(re.sub(r"\D", "", number)) > 1]


def _workbooks(old: Any, new: Any) -> list[str]:
    found = []
    for book, sheets in old.items():
        for sheet, cells in sheets.items():
            now = new.get(book, {}).get(sheet)
            if now is None:
                found.append(f"{book}.xlsx has no sheet {sheet} any more")
                continue
            numbers = [[f"{cell:.10g}" for cell in of if _is_number(cell)] for of in (cells, now)]
            found += [f"{book}.xlsx, {sheet}: {difference}" for difference in _in_order(*numbers)]
    return found


def _in_order(old: list[str], new: list[str]) -> list[str]:
    """Report the first number that does not follow those before it. Other numbers may be between
    them."""
    rest = iter(new)
    for at, number in enumerate(old):
        if number not in rest:
            return [
                f"table number {at + 1}, {number}, is missing after"
                f" {', '.join(old[max(0, at - 5) : at])}"
            ]
    return []
