"""Commands that only one benchmark has."""

from __future__ import annotations

from importlib import import_module

import pytest

from harness.benchmarks.registry import COMMANDS
from harness.cli import main
from harness.option import options_of


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_the_options_of_its_module_and_json(name, capsys):
    """They are in its help; without those that it requires it is refused."""
    assert main([name, "--help"]) == 0
    printed, own = capsys.readouterr().out, options_of(import_module(COMMANDS[name].module).Options)
    assert (
        own
        and all(flag in printed for one in own for flag in (*one.flags, one.position))
        and "--json" in printed
    )
    assert main([name]) == 2
