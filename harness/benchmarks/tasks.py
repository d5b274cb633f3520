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

MAX_STEPS = 1_000_000
ZEROS = bytes.maketrans(b"123456789", b"000000000")
"""All digits become zeros: a whole number beyond 64 bits is found without decoding a line twice."""
MIN_DIGITS = 19
"""Digits of the smallest whole number beyond 64 bits."""
SAMPLING = 6
"""Every sixth byte of such a number is at least `MIN_DIGITS // SAMPLING` digits in a row, which few
lines have."""
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


class TrackedLine(dict[str, Any]):
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

    name = cls.name
    if cls.origin:
        name = cls.origin.spec

    return (
        f"`harness fetch {name}` downloads them (data set {cls.task_files.data_set} of the Hugging"
        " Face Hub)"
    )


def version(benchmark: Benchmark) -> str:
    """Return the version of the rules that validate task lines."""
    if benchmark.task_files.version:
        return benchmark.task_files.version
    if benchmark.origin:
        return f"{benchmark.version} {benchmark.origin.digest}"
    return benchmark.version


def parse(benchmark: Benchmark, line: bytes, where: Where, subset: str) -> Task:
    """Return the task of a line. Raise `BadInput` with file, line and field for one that the
    benchmark refuses."""
    data = decoded(line, where)
    # Looked up first: a plug-in may take fields out of the line.
    is_synthetic = data.get("synthetic") is True
    task: object = _read(benchmark, benchmark.parse, data, line, where, subset)
    if not isinstance(task, Task):
        raise BenchmarkError(
            f"{benchmark.name}: parse returned {in_brief(task)} for {where}, expected a Task"
        )

    key = _checked(benchmark, task.key, task.steps, where)
    return replace(task, key=key, synthetic=is_synthetic or task.synthetic)


def outline(benchmark: Benchmark, line: bytes, where: Where, subset: str) -> tuple[str, int]:
    """Return key and steps of the task of a line. Raise as `parse` does."""
    data = decoded(line, where)
    outlined = _read(benchmark, benchmark.task_files.outline, data, line, where, subset)
    if outlined is None:
        task = parse(benchmark, line, where, subset)
        return task.key, task.steps

    if not isinstance(outlined, tuple) or len(outlined) != 2:
        raise BenchmarkError(
            f"{benchmark.name}: outline returned {in_brief(outlined)} for {where}, expected key and"
            " steps"
        )

    key, steps = outlined
    return _checked(benchmark, key, steps, where), steps


def _read(
    benchmark: Benchmark,
    read: Callable[[JSON, str], T],
    data: JSON,
    line: bytes,
    where: Where,
    subset: str,
) -> T:
    """Return what a benchmark reads in a decoded line. Only a line that fails is read again as a
    `TrackedLine`, since this is called for every line of a file of any size."""
    try:
        return read(data, subset)
    except Exception:
        # Decoded once more: the benchmark may have changed the first object.
        tracked = TrackedLine(decoded(line, where))

    try:
        with guarded(benchmark, f"{where}", FieldError, *ODD_SHAPE):
            return read(tracked, subset)
    except ODD_SHAPE as error:
        problem = _read_problem(benchmark, error, tracked.last)
        raise BadInput(f"{where}: {problem}") from None


def _read_problem(benchmark: Benchmark, error: Exception, last_field: str | None) -> str:
    """Return why a line could not be read, with the field that was read last."""
    if isinstance(error, FieldError):
        return str(error)

    source_line = ""
    if isinstance(error, KeyError):
        name, *_ = (*error.args, last_field)
        if last_field is None or name == last_field:
            return f"field {name}: expected a value, got nothing (missing)"

        problem = f"{in_brief(name)} is missing or unknown"
        is_mistake = True
    else:
        problem = " ".join(str(error).split()) or type(error).__name__
        is_mistake = not isinstance(error, ValueError)

    if is_mistake and benchmark.origin:
        source_line = place(error, benchmark)

    if last_field:
        problem = f"field {last_field}: {problem}"

    return problem + source_line


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

    if MIN_DIGITS // SAMPLING * b"0" in line[::SAMPLING].translate(ZEROS):
        _check_numbers(line, where)

    return data


def _check_numbers(line: bytes, where: Where) -> None:
    """Raise `BadInput` with the path of a whole number that orjson rounds to a float."""
    with suppress(RecursionError):
        values: list[tuple[str, Any]] = [("", json.loads(line))]
        while values:
            path, value = values.pop()
            if type(value) is int and not -(2**63) <= value < 2**64:
                raise BadInput(
                    f"{where}: field {path}: expected a whole number of at most 64 bits, or text,"
                    f" got {in_brief(value)}"
                )

            if type(value) is dict:
                names = [f"{path}.{name}".removeprefix(".") for name in value]
                values += zip(names, value.values(), strict=True)
            elif type(value) is list:
                values += [(f"{path}[{index}]", member) for index, member in enumerate(value)]


def typed(value: Any, kind: type[T], field: str = "") -> T:
    """Return a decoded value as a type that msgspec can check. Raise `FieldError`; `field` is the
    value's own path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:  # "Expected `int`, got `str` - at `$.steps[2].id`"
        problem, _, path = str(error).rstrip("`").partition(" - at `$")

    name = field + path
    missing = re.fullmatch("Object missing required field `(.+?)`?", problem)
    if missing:
        raise FieldError(f"{name}.{missing[1]}".removeprefix("."), "a value", kind_of(None))

    unknown = re.fullmatch("Object contains unknown field `(.+?)`?", problem)
    if unknown:
        raise FieldError(f"{name}.{unknown[1]}".removeprefix("."), "no such field")

    expected = problem.removeprefix("Expected ").partition(", got ")[0]
    if problem.startswith("Invalid enum value"):
        expected = "one of the known values"

    expected = re.sub("`(.+?)`", _type_names, expected)
    # msgspec does not name the key of a mapping's value.
    got = ""
    if not path.endswith("[...]"):
        got = kind_of(_member(value, path))

    raise FieldError(name.removeprefix("."), expected, got)


def _type_names(types: re.Match[str]) -> str:
    return " or ".join(map(TYPES.__getitem__, types[1].split(" | ")))


def _member(value: Any, path: str) -> Any:
    for key in re.findall(r"\w+", path):
        value = value[int(key) if isinstance(value, list) else key]
    return value


def kind_of(value: object) -> str:
    """Return a short value as it is, else what kind it is: values may be huge, or nested without
    end."""
    if value is None:
        return "nothing (missing or null)"

    if isinstance(value, list):
        return "a list" if value else "an empty list"

    if isinstance(value, dict):
        return "an object"

    if isinstance(value, str) and len(value) > 40:
        return "a long string"

    return repr(value)


def _checked(benchmark: Benchmark, key: object, steps: object, where: Where) -> str:
    """Return the key as text. A wrong number of steps is a mistake of `parse`, not of the line."""
    if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
        raise BenchmarkError(
            f"{benchmark.name}: parse gave {in_brief(steps)} steps for {where}, expected 1 or more"
        )

    if type(key) is int:
        return str(key)

    if not isinstance(key, str):
        got = kind_of(key)
    elif not key:
        got = "an empty one"
    elif is_text(key):
        return key
    else:
        got = "no UTF-8"

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
