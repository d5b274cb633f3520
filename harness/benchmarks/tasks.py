"""From the line of a tasks file to a task, and what is wrong with a line in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from harness.benchmark import Benchmark, Task
from harness.benchmarks.records import ODD_SHAPE
from harness.benchmarks.user_code import guarded
from harness.errors import BadInput, BenchmarkError, FieldError, shown
from harness.model import JSON, Where

T = TypeVar("T")

STEPS_MOST = 1_000_000


class Line(dict[str, Any]):
    """A decoded line that remembers which field was read last, so that an error can name it."""

    last: str | None = None

    def __getitem__(self, name: str) -> Any:
        self.last = name
        return super().__getitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        self.last = name
        return super().pop(name, *default)

    def get(self, name: str, default: Any = None) -> Any:
        self.last = name
        return super().get(name, default)


def parse(benchmark: Benchmark, line: bytes, where: Where, subset: str) -> Task:
    """Return the task of a line. Raise `BadInput` with file, line and field for one that the benchmark refuses."""
    return _parsed(benchmark, decoded(line, where), line, where, subset)


def outline(benchmark: Benchmark, line: bytes, where: Where, subset: str) -> tuple[str, int]:
    """Return key and steps of the task of a line. Raise as `parse` does."""
    data = decoded(line, where)
    found = _read(benchmark, benchmark.outline, data, line, where, subset)
    if found is None:
        task = _parsed(benchmark, data, line, where, subset)
        return task.key, task.steps
    if not isinstance(found, tuple) or len(found) != 2:
        raise BenchmarkError(f"{benchmark.name}: outline returned {shown(found)} for {where}, expected key and steps")
    key, steps = found
    return _checked(benchmark, key, steps, where), steps


def _parsed(benchmark: Benchmark, data: JSON, line: bytes, where: Where, subset: str) -> Task:
    marked = data.get("synthetic") is True
    task: object = _read(benchmark, benchmark.parse, data, line, where, subset)
    if not isinstance(task, Task):
        raise BenchmarkError(f"{benchmark.name}: parse returned {shown(task)} for {where}, expected a Task")
    key = _checked(benchmark, task.key, task.steps, where)
    return replace(task, key=key, synthetic=marked or task.synthetic)


def _read(
    benchmark: Benchmark, read: Callable[[JSON, str], T], data: JSON, line: bytes, where: Where, subset: str
) -> T:
    """Return what a benchmark reads in a decoded line. Only a line that fails is read by what remembers fields, since
    every line of a file of any size passes here."""
    try:
        return read(data, subset)
    except Exception:
        again = Line(decoded(line, where))
    try:
        with guarded(benchmark, f"{where}", FieldError, *ODD_SHAPE):
            return read(again, subset)
    except FieldError as error:
        raise BadInput(f"{where}: {error}") from None
    except KeyError as error:
        raise BadInput(f"{where}: {_missing(error, again.last)}") from None
    except ODD_SHAPE as error:
        field = f"field {again.last}: " if again.last else ""
        raise BadInput(f"{where}: {field}{' '.join(str(error).split()) or type(error).__name__}") from None


def _missing(error: KeyError, last: str | None) -> str:
    """A field that is not there, or what was looked up with the field read last."""
    name = error.args[0] if error.args else last
    if last is None or name == last:
        return f"field {name}: expected a value, got nothing (missing)"
    return f"field {last}: {shown(name)} is missing or unknown"


def decoded(line: bytes, where: Where) -> JSON:
    """Return the object of a line."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{where}: expected a JSON object, got what is not JSON ({error.msg})") from None
    if type(data) is not dict:
        raise BadInput(f"{where}: expected a JSON object, got {kind_of(data)}")
    return data


def kind_of(value: object) -> str:
    """A short value as it is, else what kind of thing it is: values may be huge, or nested without end."""
    if value is None:
        return "nothing (missing or null)"
    if type(value) is list:
        return "a list" if value else "an empty list"
    if type(value) is dict:
        return "an object"
    if type(value) is str and len(value) > 40:
        return "a long string"
    return repr(value)


def _checked(benchmark: Benchmark, given: object, steps: object, where: Where) -> str:
    """The key as text. Steps are what `parse` makes of them, and a wrong number of them no fault of the line."""
    if type(steps) is not int or not 1 <= steps <= STEPS_MOST:
        raise BenchmarkError(f"{benchmark.name}: parse gave {shown(steps)} steps for {where}, expected 1 or more")
    key = str(given) if type(given) is int else given
    if not isinstance(key, str) or not key or not is_text(key):
        got = kind_of(given) if not isinstance(key, str) else "an empty one" if not key else "no UTF-8"
        raise BadInput(f"{where}: field {benchmark.key_field}: expected text or a whole number, got {got}")
    return key


def is_text(text: str) -> bool:
    """Whether a file can hold it: half a surrogate pair is no character."""
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False
