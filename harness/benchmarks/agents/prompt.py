"""Templates of prompts, and dicts with dots. Names and behaviour as in `agentsociety` 1.5.7."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import wraps
from typing import Any, Protocol

UNKNOWN = "Don't know"
"""The text for an expression that has no value."""
_VARIABLE = re.compile(r"\{(\w+)\}")
_EXPRESSION = re.compile(r"\$\{([^}]+)\}")
_PATH = re.compile(
    r"(profile|status|context)((?:\.[a-zA-Z_]\w*|\[(?:'\w+'|\"\w+\"|\d+)\])*)",
    re.ASCII,
)
_STEP = re.compile(r"\.(\w+)|\[(['\"]?)(\w+)\2\]")


class DotDict(dict[Any, Any]):
    """A dict whose items are attributes too; an unknown one is None. Dicts in it are copied into
    this class."""

    def __init__(self, *items: Any, **named: Any) -> None:
        super().__init__(*items, **named)
        for key, value in self.items():
            if isinstance(value, list):
                self[key] = [*map(_dotted, value)]
            else:
                self[key] = _dotted(value)

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        self.pop(name, None)

    def merge(self, other: Mapping[Any, Any]) -> DotDict:
        """Take the items of another, of dicts on both sides theirs."""
        if not isinstance(other, DotDict):
            other = DotDict(other)

        for key, value in other.items():
            current = self.get(key)
            if isinstance(current, DotDict) and isinstance(value, DotDict):
                value = current.merge(value)

            self[key] = value

        return self

    def __or__(self, other: Mapping[Any, Any]) -> Any:
        return DotDict(self).merge(other)

    __ior__ = merge  # type: ignore[assignment]


def _dotted(value: object) -> Any:
    if isinstance(value, dict):
        return DotDict(value)
    return value


class _Dumped(Protocol):
    def model_dump(self) -> dict[str, Any]: ...


def context_to_dot_dict(context: _Dumped) -> DotDict:
    return DotDict(context.model_dump())


def auto_deepcopy_dotdict(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with copies of the arguments that are of this class."""

    def copied(value: object) -> Any:
        if isinstance(value, DotDict):
            return deepcopy(value)
        return value

    @wraps(function)
    def with_copies(*values: object, **named: object) -> Any:
        named_copies = {name: copied(value) for name, value in named.items()}
        return function(*map(copied, values), **named_copies)

    return with_copies


class FormatPrompt:
    """A template with `{names}` of `format`'s arguments and `${expressions}` on status and
    context."""

    def __init__(
        self,
        template: str,
        format_prompt: str | None = None,
        system_prompt: str | None = None,
        memory: Any = None,
    ) -> None:
        self.template = template
        self.format_prompt = format_prompt
        self.system_prompt = system_prompt
        self.memory = memory
        self.variables: list[str] = _VARIABLE.findall(template)
        self.formatted_string = ""

    async def format(self, context: Any = None, **values: Any) -> str:
        """Return the text, which `to_dialog` uses. Raise `KeyError` for a name without a value,
        `ValueError` for a template that cannot be formatted."""
        expressions: list[str] = _EXPRESSION.findall(self.template)
        # `str.format` would take the braces of expressions for names.
        marks = iter(range(len(expressions)))
        text = _EXPRESSION.sub(lambda _: f"__EXPR_{next(marks)}__", self.template)
        variables = {name: value for name, value in values.items() if name in self.variables}
        try:
            text = text.format(**variables)
        except KeyError as missing:
            raise KeyError(f"Missing required variable in template: {missing}") from missing
        except Exception as error:
            raise ValueError(f"Error formatting template: {error}") from error

        for number, expression in enumerate(expressions):
            value = await self._value(expression, context or {})
            if value is None:
                value = ""

            text = text.replace(f"__EXPR_{number}__", str(value))

        self.formatted_string = text
        return text

    async def _value(self, expression: str, context: Mapping[str, Any]) -> Any:
        """Return the value of an expression; the expression itself where it is none."""
        path = _PATH.fullmatch(expression.strip())
        if path is None:
            return f"${{{expression}}}"

        root, steps = path.groups()
        try:
            if root == "context":
                if steps.startswith("."):
                    return context.get(steps[1:], UNKNOWN)

                return _walked(context, steps)

            return await self._status_value(steps)
        except Exception:
            return UNKNOWN

    async def _status_value(self, steps: str) -> Any:
        if not steps.startswith("."):
            return _walked(self.memory.status if self.memory else {}, steps)
        key, bracket, further_steps = steps[1:].partition("[")
        value = None
        if self.memory:
            value = await self.memory.status.get(key)
        return _walked(value, bracket + further_steps)

    def to_dialog(self) -> list[dict[str, str]]:
        dialog = []
        if self.system_prompt:
            dialog.append({"role": "system", "content": self.system_prompt})

        text = self.formatted_string
        if self.format_prompt:
            text += f"\n{self.format_prompt}"

        dialog.append({"role": "user", "content": text})
        return dialog

    def log(self) -> None:
        print(vars(self))


def _walked(value: Any, steps: str) -> Any:
    for name, quote, key in _STEP.findall(steps):
        if name:
            value = getattr(value, name)
        elif quote:
            value = value[key]
        else:
            value = value[int(key)]

    return value
