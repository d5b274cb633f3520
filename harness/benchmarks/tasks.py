"""Make tasks of the lines of a tasks file, and describe what is wrong with a line in one
sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import orjson

from harness.benchmark import Benchmark, Task
from harness.benchmarks.files import other_format
from harness.benchmarks.records import ODD_SHAPE
from harness.benchmarks.user_code import guarded, place
from harness.errors import BadInput, BenchmarkError, FieldError, in_brief
from harness.model import JSON, Where

T = TypeVar("T")

STEPS_MOST = 1_000_000
ZEROS = bytes.maketrans(b"123456789", b"000000000")
"""All digits become zeros: a whole number beyond 64 bits is found without decoding a line twice."""
LEAST_DIGITS = 19
"""That a whole number beyond 64 bits has."""
SAMPLED = 6
"""Every sixth byte of such a number is at least `LEAST_DIGITS // SAMPLED` digits in a row, which
few lines have."""
TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
"""msgspec's names of JSON types, in words."""


class Line(dict[str, Any]):
    """A decoded line that remembers which field was read last, so that an error can name it. `read`
    are those that were read without a default."""

    last: str | None = None

    def __init__(self, line: JSON) -> None:
        super().__init__(line)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.last = name
        self.read.add(name)
        return super().__getitem__(name)

    def pop(self, name: str, *default: object) -> Any:
        self.last = name
        return super().pop(name, *default)

    def get(self, name: str, default: object = None) -> Any:
        self.last = name
        return super().get(name, default)


def how_to_get(cls: type[Benchmark]) -> str:
    """Return what a user can do about missing tasks, as a main clause."""
    if not cls.task_files.data_set:
        return "put them there"
    return (
        f"`harness fetch {cls.origin.spec if cls.origin else cls.name}` downloads them (data set "
        f"{cls.task_files.data_set} of the Hugging Face Hub)"
    )


def version(benchmark: Benchmark) -> str:
    """Return the version of the rules that validate task lines."""
    own, origin = benchmark.task_files.version, benchmark.origin
    return own or (f"{benchmark.version} {origin.digest}" if origin else benchmark.version)


def parse(benchmark: Benchmark, line: bytes, where: Where, subset: str) -> Task:
    """Return the task of a line. Raise `BadInput` with file, line and field for one that the
    benchmark refuses."""
    data = decoded(line, where)
    marked = data.get("synthetic") is True
    task: object = _read(benchmark, benchmark.parse, data, line, where, subset)
    if not isinstance(task, Task):
        raise BenchmarkError(
            f"{benchmark.name}: parse returned {in_brief(task)} for {where}, expected a Task"
        )
    key = _checked(benchmark, task.key, task.steps, where)
    return replace(task, key=key, synthetic=marked or task.synthetic)


def outline(benchmark: Benchmark, line: bytes, where: Where, subset: str) -> tuple[str, int]:
    """Return key and steps of the task of a line. Raise as `parse` does."""
    found = _read(
        benchmark, benchmark.task_files.outline, decoded(line, where), line, where, subset
    )
    if found is None:
        task = parse(benchmark, line, where, subset)
        return task.key, task.steps
    if not isinstance(found, tuple) or len(found) != 2:
        raise BenchmarkError(
            f"{benchmark.name}: outline returned {in_brief(found)} for {where}, expected key and"
            " steps"
        )
    return _checked(benchmark, *found, where), found[1]


def _read(
    benchmark: Benchmark,
    read: Callable[[JSON, str], T],
    data: JSON,
    line: bytes,
    where: Where,
    subset: str,
) -> T:
    """Return what a benchmark reads in a decoded line. Only a line that fails is read again by a
    `Line`, since this is called for every line of a file of any size."""
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
        name = error.args[0] if error.args else again.last
        if again.last is None or name == again.last:
            raise BadInput(
                f"{where}: field {name}: expected a value, got nothing (missing)"
            ) from None
        at = place(error, benchmark) if benchmark.origin else ""
        raise BadInput(
            f"{where}: field {again.last}: {in_brief(name)} is missing or unknown{at}"
        ) from None
    except ODD_SHAPE as error:
        field = f"field {again.last}: " if again.last else ""
        is_mistake = benchmark.origin and not isinstance(error, ValueError)
        at = place(error, benchmark) if is_mistake else ""
        raise BadInput(
            f"{where}: {field}{' '.join(str(error).split()) or type(error).__name__}{at}"
        ) from None


def decoded(line: bytes, where: Where) -> JSON:
    """Return the object of a line. Raise `BadInput`, also for a whole number that is read as
    another one."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        got = other_format(line) or f"what is not JSON ({error.msg})"
        raise BadInput(f"{where}: expected a JSON object, got {got}") from None
    if type(data) is not dict:
        raise BadInput(f"{where}: expected a JSON object, got {kind_of(data)}")
    many_digits = LEAST_DIGITS // SAMPLED * b"0" in line[::SAMPLED].translate(ZEROS)
    if many_digits and (found := _too_large(line)):
        field, number = found
        raise BadInput(
            f"{where}: field {field}: expected a whole number of at most 64 bits, or text, got"
            f" {in_brief(number)}"
        )
    return data


def _too_large(line: bytes) -> tuple[str, int] | None:
    """Return a whole number that orjson rounds to a float, with its path; None if a line has
    none."""
    with suppress(RecursionError):
        values: list[tuple[str, Any]] = [("", json.loads(line))]
        while values:
            path, value = values.pop()
            if type(value) is int and not -(2**63) <= value < 2**64:
                return path, value
            if type(value) is dict:
                values += [
                    (f"{path}.{name}".removeprefix("."), each) for name, each in value.items()
                ]
            elif type(value) is list:
                values += [(f"{path}[{place}]", each) for place, each in enumerate(value)]
    return None


def typed(value: Any, kind: type[T], field: str = "") -> T:
    """Return a decoded value as a type that msgspec can check. Raise `FieldError`; `field` is the
    value's own path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:  # "Expected `int`, got `str` - at `$.steps[2].id`"
        problem, _, path = str(error).rstrip("`").partition(" - at `$")
    if missing := re.fullmatch("Object missing required field `(.+?)`?", problem):
        raise FieldError(f"{field}{path}.{missing[1]}".removeprefix("."), "a value", kind_of(None))
    if unknown := re.fullmatch("Object contains unknown field `(.+?)`?", problem):
        raise FieldError(f"{field}{path}.{unknown[1]}".removeprefix("."), "no such field")
    for step in re.findall(r"\w+", path):
        value = value[int(step) if step.isdigit() else step]
    expected = problem.removeprefix("Expected ").partition(", got ")[0]
    if problem.startswith("Invalid enum value"):
        expected = "one of the known values"
    expected = re.sub(
        "`(.+?)`",
        lambda found: " or ".join(TYPES[name] for name in found[1].split(" | ")),
        expected,
    )
    got = (
        "" if path.endswith("[...]") else kind_of(value)
    )  # of a mapping's value, its key is not named
    raise FieldError(f"{field}{path}".removeprefix("."), expected, got)


def kind_of(value: object) -> str:
    """Return a short value as it is, else what kind it is: values may be huge, or nested without
    end."""
    if value is None:
        return "nothing (missing or null)"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "an object"
    return "a long string" if isinstance(value, str) and len(value) > 40 else repr(value)


def _checked(benchmark: Benchmark, given: object, steps: object, where: Where) -> str:
    """Return the key as text. A wrong number of steps is a mistake of `parse`, not of the line."""
    if type(steps) is not int or not 1 <= steps <= STEPS_MOST:
        raise BenchmarkError(
            f"{benchmark.name}: parse gave {in_brief(steps)} steps for {where}, expected 1 or more"
        )
    key = str(given) if type(given) is int else given
    if isinstance(key, str) and key and is_text(key):
        return key
    got = kind_of(given) if not isinstance(key, str) else "no UTF-8" if key else "an empty one"
    raise BadInput(
        f"{where}: field {benchmark.task_files.key_field}: expected text or a whole number, got"
        f" {got}"
    )


def is_text(text: str) -> bool:
    """Return whether a file can hold it: half a surrogate pair is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
