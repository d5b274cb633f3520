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
    r"(profile|status|context)((?:\.[a-zA-Z_]\w*|\[(?:'\w+'|\"\w+\"|\d+)\])*)", re.ASCII
)
_STEP = re.compile(r"\.(\w+)|\[(['\"]?)(\w+)\2\]")


class DotDict(dict[Any, Any]):
    """A dict whose items are attributes too; an unknown one is None. Dicts in it are copied into
    this class."""

    def __init__(self, *items: Any, **named: Any) -> None:
        super().__init__(*items, **named)
        for key, value in self.items():
            self[key] = (
                [_dotted(each) for each in value] if isinstance(value, list) else _dotted(value)
            )

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        self.pop(name, None)

    def merge(self, other: Mapping[Any, Any]) -> DotDict:
        """Take the items of another, of dicts on both sides theirs."""
        for key, value in (other if isinstance(other, DotDict) else DotDict(other)).items():
            held = self.get(key)
            self[key] = (
                held.merge(value)
                if isinstance(held, DotDict) and isinstance(value, DotDict)
                else value
            )
        return self

    def __or__(self, other: Mapping[Any, Any]) -> Any:
        return DotDict(self).merge(other)

    __ior__ = merge  # type: ignore[assignment]


def _dotted(value: object) -> Any:
    return DotDict(value) if isinstance(value, dict) else value


class _Dumped(Protocol):
    def model_dump(self) -> dict[str, Any]: ...


def context_to_dot_dict(context: _Dumped) -> DotDict:
    return DotDict(context.model_dump())


def auto_deepcopy_dotdict(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with copies of the arguments that are of this class."""

    def own(value: object) -> Any:
        return deepcopy(value) if isinstance(value, DotDict) else value

    @wraps(function)
    def copying(*values: object, **named: object) -> Any:
        return function(*map(own, values), **{name: own(value) for name, value in named.items()})

    return copying


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
        marks = iter(range(len(expressions)))
        text = _EXPRESSION.sub(lambda _: f"__EXPR_{next(marks)}__", self.template)
        try:
            text = text.format(
                **{name: value for name, value in values.items() if name in self.variables}
            )
        except KeyError as missing:
            raise KeyError(f"Missing required variable in template: {missing}") from missing
        except Exception as error:
            raise ValueError(f"Error formatting template: {error}") from error
        for number, expression in enumerate(expressions):
            value = await self._value(expression, context or {})
            text = text.replace(f"__EXPR_{number}__", "" if value is None else str(value))
        self.formatted_string = text
        return text

    async def _value(self, expression: str, context: Mapping[str, Any]) -> Any:
        """Return the value of an expression; the expression itself where it is none."""
        path = _PATH.fullmatch(expression.strip())
        if path is None:
            return f"${{{expression}}}"
        root, rest = path.groups()
        try:
            if not rest.startswith("."):
                held = self.memory.status if self.memory else {}
                return _walked(context if root == "context" else held, rest)
            if root == "context":
                return context.get(rest[1:], UNKNOWN)
            key, bracket, steps = rest[1:].partition("[")
            return _walked(
                await self.memory.status.get(key) if self.memory else None, bracket + steps
            )
        except Exception:
            return UNKNOWN

    def to_dialog(self) -> list[dict[str, str]]:
        text = (
            f"{self.formatted_string}\n{self.format_prompt}"
            if self.format_prompt
            else self.formatted_string
        )
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return [*system, {"role": "user", "content": text}]

    def log(self) -> None:
        print(vars(self))


def _walked(value: Any, steps: str) -> Any:
    for name, quote, key in _STEP.findall(steps):
        value = getattr(value, name) if name else value[key if quote else int(key)]
    return value
