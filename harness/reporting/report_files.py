"""Reports read back from their files, of this format or an earlier one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from harness.benchmarks import registry
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.errors import BadInput, in_brief
from harness.model import JSON
from harness.scoring.reports import FORMAT, Diagnostics, Report, Scored, declared

MAX_METRICS = 1000
"""Metrics of a report that is read: a row of a table and a tile of a page each."""
NOT_A_REPORT = "not a report that this version reads: regenerate it with `reeval`"


def loaded(path: Path) -> Report:
    """Return the report in a file `eval_report_<subset>.json`. Raise `BadInput` for any other
    file."""
    try:
        report = read(content(path, DOCUMENT_MOST))
    except OSError:
        raise BadInput(NOT_A_REPORT) from None
    if report.subset not in report.subsets:
        raise BadInput(
            f"a report of {in_brief(report.benchmark)} on {in_brief(report.subset)}, which it does"
            " not have"
        )
    if path.name != f"eval_report_{report.subset}.json":
        raise BadInput(
            f"not the report that its name says but one of the subset {in_brief(report.subset)}"
        )
    return report


def read(content: bytes) -> Report:
    """Return the report in a file's content, of this format or an earlier one. Raise `BadInput`.

    Format 3 had no approximate intervals, format 2 intervals by the bootstrap, and format 1 most
    names at another path too.
    """
    try:
        data = msgspec.json.decode(content)
        found = data["format"]
        if type(found) is not int or found not in range(1, FORMAT + 1):
            raise BadInput(
                f"a report of format {in_brief(found)}, not {FORMAT}: regenerate it with `reeval`"
            )
        made = (
            _upgraded(data) if found == 1 else msgspec.convert({**data, "format": FORMAT}, Report)
        )
        _check_metrics(made)
    except (
        msgspec.MsgspecError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ):
        raise BadInput(NOT_A_REPORT) from None
    return made


def _check_metrics(report: Report) -> None:
    """Raise `ValueError` for metrics that nobody can have declared so."""
    if not report.units.keys() >= {*report.headline, *report.values}:
        raise ValueError("a value of no declared metric")
    if len(report.units) > MAX_METRICS or len(set(report.headline)) < len(report.headline):
        raise ValueError("more figures than a table has room for")


def _upgraded(data: JSON) -> Report:
    """Return a report of format 1 as one of this format."""
    fields, of = Report.__struct_fields__, data.get("diagnostics", {})
    own = {name: value for name, value in data.items() if name not in (*fields, "bootstrap")}
    made = {
        "secondary": {},
        **data,
        "format": FORMAT,
        "details": (
            {name: value for name, value in of.items() if name not in Diagnostics.__struct_fields__}
            | own
        ),
        "diagnostics": {
            **of,
            "answers": of.get("valid_answers", 0) + sum(of.get("invalid", {}).values()),
        },
        "sections": [{"block": block["kind"], **block} for block in data.get("sections", ())],
    }
    if not registry.is_shipped(data["benchmark"]):
        return msgspec.convert(made, Report)
    cls, nothing = registry.find(data["benchmark"]), np.empty(0)
    report = msgspec.convert(cls.imports.upgraded({**declared(cls), **made}), Report)
    scored = Scored(report.subset, 0, {}, nothing, None, None, nothing, report)
    sections = cls(folder=None).scoring.sections(scored) if report.coverage.scored_users else ()
    return msgspec.structs.replace(report, sections=tuple(sections))
