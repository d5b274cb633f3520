"""Results of the benchmark authors' own runner: what its lines hold, and what must be said of their
scores.

That runner writes bare `NaN` for undefined metrics, and after an API failure or a reply without
JSON a step that predicts nothing, its reasoning `Error: ...`. It scores both as empty predictions.
Here a user with an API failure is a failed user, who is not scored; the report has the figures with
these users, too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping

import orjson

from harness.benchmark import VALID, Task
from harness.errors import BadInput
from harness.model import JSON, Where

API_FAILURE, NO_JSON = "authors_api_failure", "authors_no_json"
"""Outcomes of steps."""
_CALL_FAILED = re.compile(r"Error: (?:Error code: \d|Connection|Request timed out)")
_NO_JSON = re.compile(
    r"json|parse|decode|expecting|\(char \d+\)$|expected string or bytes", re.IGNORECASE
)
"""What Python's `json` says of a reply (each complaint of it ends in the place), and `re` of one
without content."""
OURS = ("crc", "task", "format")
"""What an earlier `reeval` added to a line, and this one adds again if it can score it."""
TEXTS = ("reasoning", "persona_summary")
FIRST = (
    "Answers of the benchmark authors' runner. Its replies without JSON count as empty predictions,"
    " as there."
)


def record(line: bytes, where: Where) -> JSON:
    """One user's line. A prediction that is one string is one tag, and numbers in it are their
    text. Texts that a step lacks are empty.

    Raises `BadInput` with file, line and field.
    """
    try:
        loose = json.loads(line, parse_constant=lambda name: None)
        data = orjson.loads(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace"))
        orjson.dumps(
            [[data]]
        )  # the line is written again, and what can be read may be nested too deep to be written
    except TypeError:
        raise BadInput(f"{where}: nested too deep to be written again") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON ({error})") from None
    if type(data) is not dict or type(data.get("user_id")) not in (str, int):
        raise BadInput(f"{where}: field user_id: expected a string or a whole number")
    if "usage" in data:
        raise BadInput(
            f"{where}: this harness wrote it, and the run's manifest (run_*.json) is missing: put"
            " it back"
        )
    for name in OURS:
        data.pop(name, None)
    steps = data.get("steps")
    if type(steps) is not list:
        raise BadInput(f"{where}: field steps: expected a list")
    return {**data, "steps": [_step(step, f"steps[{at}]", where) for at, step in enumerate(steps)]}


def _step(step: object, at: str, where: Where) -> JSON:
    if not isinstance(step, dict) or type(step.get("step_id")) is not int:
        raise BadInput(f"{where}: field {at}.step_id: expected a whole number")
    tags = step.get("prediction")
    if type(tags) is str:
        tags = [tags]
    if type(tags) is not list or any(type(tag) not in (str, int, float) for tag in tags):
        raise BadInput(f"{where}: field {at}.prediction: expected a list of strings")
    return {
        **step,
        "prediction": [str(tag) for tag in tags],
        **{name: _text(step.get(name)) for name in TEXTS},
    }


def _text(value: object) -> str:
    """Return a text that pages show; no score depends on it. A value of another type becomes its
    JSON."""
    return value if type(value) is str else "" if value is None else orjson.dumps(value).decode()


def outcome(saved: JSON) -> str:
    """Return how a step ended: after an API failure, or a reply without JSON, the step predicted
    nothing, and its reasoning is `Error: ...`."""
    reasoning: str = saved["reasoning"]
    if saved["prediction"] or not reasoning.startswith("Error:"):
        return VALID
    if _CALL_FAILED.match(reasoning):  # whose message may well speak of JSON
        return API_FAILURE
    return NO_JSON if _NO_JSON.search(reasoning) else API_FAILURE


def is_partial(task: Task, record: JSON) -> bool:
    """Whether a record has steps of the task, but not each of them once: it was cut off, or merged
    with another, and what could be scored of it is no score of the user."""
    steps, known = (
        Counter(step["step_id"] for step in record["steps"]),
        {step.step_id for step in task.given.steps},
    )
    return steps.keys() <= known and steps != Counter(known)


def has_failed(record: JSON) -> bool:
    """Return whether the API failed at a step of a scored record."""
    return any(step["outcome"] == API_FAILURE for step in record["steps"])


def notes(outcomes: Mapping[str, int]) -> tuple[str, ...]:
    """Return what a report says of such answers, from the number of steps by outcome."""
    failed, unread = outcomes.get(API_FAILURE, 0), outcomes.get(NO_JSON, 0)
    found = [f"{failed} of its steps were API failures."] if failed else []
    found += (
        [f"{unread} of its steps were replies without JSON, scored as empty predictions."]
        if unread
        else []
    )
    return (FIRST, *found)
