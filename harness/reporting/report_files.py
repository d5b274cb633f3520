"""Reports read back from their files, of this format or an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from harness.benchmarks import registry
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.records import ODD_SHAPE
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
        number = data["format"]
        # By its exact type: `true` is an int in Python, and would be format 1.
        if type(number) is not int or not 1 <= number <= FORMAT:
            raise BadInput(
                f"a report of format {in_brief(number)}, not {FORMAT}: regenerate it with `reeval`"
            )

        # Formats 2 to 4 have the same members; what is new in one has a default.
        if number == 1:
            report = _upgraded(data)
        else:
            report = msgspec.convert({**data, "format": FORMAT}, Report)

        _check_metrics(report)
    except (*ODD_SHAPE, msgspec.MsgspecError, RecursionError):
        raise BadInput(NOT_A_REPORT) from None

    return report


def _check_metrics(report: Report) -> None:
    """Raise `ValueError` for metrics that nobody can have declared so."""
    if not report.units.keys() >= {*report.headline, *report.values}:
        raise ValueError("a value of no declared metric")
    if len(report.units) > MAX_METRICS or len(set(report.headline)) < len(report.headline):
        raise ValueError("more figures than a table has room for")


def _without(data: JSON, names: Sequence[str]) -> JSON:
    return {name: value for name, value in data.items() if name not in names}


def _upgraded(data: JSON) -> Report:
    """Return a report of format 1 as one of this format."""
    diagnostics = dict(data.get("diagnostics", {}))
    details = _without(diagnostics, Diagnostics.__struct_fields__)
    details |= _without(data, (*Report.__struct_fields__, "bootstrap"))
    diagnostics["answers"] = diagnostics.get("valid_answers", 0) + sum(
        diagnostics.get("invalid", {}).values()
    )
    members = {
        "secondary": {},
        **data,
        "format": FORMAT,
        "details": details,
        "diagnostics": diagnostics,
        "sections": [{"block": block["kind"], **block} for block in data.get("sections", ())],
    }
    # Sections of another benchmark stay as they are: no code of it runs to read a report.
    if not registry.is_shipped(data["benchmark"]):
        return msgspec.convert(members, Report)

    cls = registry.find(data["benchmark"])
    report = msgspec.convert(cls.imports.upgraded({**declared(cls), **members}), Report)
    if not report.coverage.scored_users:
        return msgspec.structs.replace(report, sections=())

    no_rows = np.empty(0)
    scored = Scored(report.subset, 0, {}, no_rows, None, None, no_rows, report)
    sections = cls(folder=None).scoring.sections(scored)

    return msgspec.structs.replace(report, sections=tuple(sections))
