"""Read results of the benchmark authors' own runner, and note what limits their scores.

That runner writes bare `NaN` for undefined metrics, and after an API failure or a reply without
JSON a step that predicts nothing, its reasoning `Error: ...`. It scores both as empty predictions.
Here a user with an API failure is a failed user, who is not scored; the report has the figures with
these users, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

from harness.benchmark import VALID, Task
from harness.errors import BadInput
from harness.model import JSON, Where

API_FAILURE, NO_JSON = "authors_api_failure", "authors_no_json"
"""Outcomes of steps."""
_CALL_FAILED = re.compile(r"Error: (?:Error code: \d|Connection|Request timed out)")
_NO_JSON = re.compile(
    r"json|parse|decode|expecting|\(char \d+\)$|expected string or bytes",
    re.IGNORECASE,
)
"""Messages of Python's `json` for a reply that is not JSON (they end in the character's position),
and of `re` for one without content."""
ADDED_BY_REEVAL = ("crc", "task", "format")
"""Fields that an earlier `reeval` added to a line. They are removed, and added again if the line
can be scored."""
TEXTS = ("reasoning", "persona_summary")
ORIGIN_NOTE = (
    "Answers of the benchmark authors' runner. Its replies without JSON count as empty predictions,"
    " as there."
)


def record(line: bytes, where: Where) -> JSON:
    """Return one user's line, made regular: a prediction that is one string is one tag, numbers in
    it become text, texts that a step lacks are empty.

    Raise `BadInput` with file, line and field.
    """
    data = _decode(line, where)
    if type(data) is not dict or type(data.get("user_id")) not in (str, int):
        raise BadInput(f"{where}: field user_id: expected a string or a whole number")

    # Only this harness writes that field: without its manifest nobody knows what was run.
    if "usage" in data:
        raise BadInput(
            f"{where}: this harness wrote it, and the run's manifest (run_*.json) is missing: put"
            " it back"
        )

    for name in ADDED_BY_REEVAL:
        data.pop(name, None)

    steps = data.get("steps")
    if type(steps) is not list:
        raise BadInput(f"{where}: field steps: expected a list")

    data["steps"] = [
        _step(step, f"{where}: field steps[{number}]") for number, step in enumerate(steps)
    ]
    return data


def _decode(line: bytes, where: Where) -> Any:
    try:
        # Python's own reader accepts NaN, and its writer half surrogates, which orjson refuses.
        loose = json.loads(line, parse_constant=lambda name: None)
        data = orjson.loads(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace"))
        # The line is written again later. What can be read may be nested too deep for that.
        orjson.dumps([[data]])
    except TypeError:
        raise BadInput(f"{where}: nested too deep to be written again") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON ({error})") from None

    return data


def _step(step: object, field: str) -> JSON:
    if not isinstance(step, dict) or type(step.get("step_id")) is not int:
        raise BadInput(f"{field}.step_id: expected a whole number")

    tags = step.get("prediction")
    if type(tags) is str:
        tags = [tags]

    if type(tags) is not list or not {*map(type, tags)} <= {str, int, float}:
        raise BadInput(f"{field}.prediction: expected a list of strings")

    regular = {**step, "prediction": [*map(str, tags)]}
    for name in TEXTS:
        regular[name] = _text(step.get(name))

    return regular


def _text(value: object) -> str:
    """Return a text that pages show; no score depends on it. A value of another type becomes its
    JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def outcome(saved: JSON) -> str:
    """Return how a step ended: after an API failure, or a reply without JSON, the step predicted
    nothing, and its reasoning is `Error: ...`."""
    reasoning: str = saved["reasoning"]
    if saved["prediction"] or not reasoning.startswith("Error:"):
        return VALID
    # An API failure comes first: its message may contain the word JSON, too.
    if _NO_JSON.search(reasoning) and not _CALL_FAILED.match(reasoning):
        return NO_JSON
    return API_FAILURE


def is_partial(task: Task, record: JSON) -> bool:
    """Return whether a record has steps of the task, but not each of them once: it was cut off, or
    merged with another, and what could be scored of it is no score of the user."""
    step_ids = [step["step_id"] for step in record["steps"]]
    expected = [step.step_id for step in task.given.steps]
    # The steps of a task are in ascending order.
    return {*step_ids} <= {*expected} and sorted(step_ids) != expected


def has_failed(record: JSON) -> bool:
    """Return whether the API failed at a step of a scored record."""
    return any(step["outcome"] == API_FAILURE for step in record["steps"])


def notes(outcomes: Mapping[str, int]) -> tuple[str, ...]:
    """Return what a report says of such answers, from the number of steps by outcome."""
    sentences = [ORIGIN_NOTE]
    failed = outcomes.get(API_FAILURE)
    if failed:
        sentences.append(f"{failed} of its steps were API failures.")

    without_json = outcomes.get(NO_JSON)
    if without_json:
        sentences.append(
            f"{without_json} of its steps were replies without JSON, scored as empty predictions."
        )

    return tuple(sentences)
