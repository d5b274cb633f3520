"""Templates of prompts and dicts with dots. Expected values are what agentsociety 1.5.7's own
classes give."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from harness.benchmarks.agents.prompt import (
    DotDict,
    FormatPrompt,
    auto_deepcopy_dotdict,
)

HELD = {"age": 5, "home": {"aoi": {"id": 7}}, "list": [1, [2, 3]], "none": None}


class Status:
    async def get(self, key: str) -> Any:
        return deepcopy(HELD[key])


def formatted(template: str, context: Any = None, memory: bool = True) -> str:
    prompt = FormatPrompt(template, memory=SimpleNamespace(status=Status()) if memory else None)
    return asyncio.run(prompt.format(context=context, name="Li", unused=1))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{name} {{}}", "Li {}"),
        ("${name} {name}", "${name} Li"),
        ("${ status.age } $${profile.age}", "5 $5"),
        ("${profile.home['aoi'][\"id\"]} ${status.list[1][0]}", "7 2"),
        ("${status.home.aoi} ${status.list[9]} ${status.gone}", "Don't know Don't know Don't know"),
        ("${status.none}|${status.age + 1}", "|${status.age + 1}"),
        (
            "${context.a} ${context.a.b} ${context['a']['b']} ${context.gone}",
            "{'b': 1} Don't know 1 Don't know",
        ),
        ("__EXPR_0__ ${status.age}", "5 5"),
    ],
)
def test_a_template_is_filled_as_upstream_fills_it(template, text):
    """An expression without a value is "Don't know"; one that is not allowed stays as it is."""
    assert formatted(template, {"a": {"b": 1}}) == text


def test_without_a_memory_an_expression_is_empty():
    """And without a context it is unknown."""
    assert formatted("${status.age}|${context.a}", memory=False) == "|Don't know"


@pytest.mark.parametrize(
    ("template", "error"),
    [("{gone}", KeyError), ("{name!r}", KeyError), ("{", ValueError), ("{0}", ValueError)],
)
def test_a_template_that_cannot_be_filled_raises(template, error):
    """A name without a value is a `KeyError`; only bare names have one."""
    with pytest.raises(error):
        formatted(template)


def test_a_dialog_has_the_system_prompt_and_the_form():
    """Each only where it is given."""
    prompt = FormatPrompt("Hello {name}", format_prompt="In JSON.", system_prompt="Be brief.")
    asyncio.run(prompt.format(name="Li"))
    assert prompt.variables == ["name"] and prompt.formatted_string == "Hello Li"
    assert prompt.to_dialog() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello Li\nIn JSON."},
    ]
    assert FormatPrompt("x").to_dialog() == [{"role": "user", "content": ""}]


def test_dicts_with_dots_merge_in_depth_and_copy():
    """`|` leaves both sides as they are, `|=` and `merge` change the left one."""
    left, right = DotDict({"x": {"y": 1}, "list": [{"z": 2}, 3]}), DotDict(x={"w": 2})
    assert (left.x.y, left.list[0].z, left.gone) == (1, 2, None)
    assert left | right == {"x": {"y": 1, "w": 2}, "list": [{"z": 2}, 3]} and left.x == {"y": 1}
    left |= {"x": {"n": 1}}
    left.own = deepcopy(left)
    left.own.x.y = 9
    del left.gone, left.list
    assert left == {"x": {"y": 1, "n": 1}, "own": {"x": {"y": 9, "n": 1}, "list": [{"z": 2}, 3]}}


def test_a_function_may_get_copies_of_its_contexts():
    """What it changes is its own."""
    context = DotDict({"x": {"y": 1}})

    @auto_deepcopy_dotdict
    def change(first: Any, *, second: Any) -> Any:
        first.x.y = second.x.y = 5
        return first.x.y

    assert change(context, second=context) == 5 and context.x.y == 1
