"""What is public: names, members of a benchmark, options."""

from __future__ import annotations

import re

import pytest

import harness
from harness.cli import main
from harness.commands.parser import built
from harness.option import options_of
from harness.options import options
from tests.support import ROOT

PUBLIC = {
    *(
        "About",
        "Benchmark",
        "Cards",
        "Chat",
        "InvalidReply",
        "Means",
        "Metric",
        "Records",
        "Role",
        "Scoring",
    ),
    *("Task", "TaskFiles"),
    "__version__",
    *(
        "AnswersUnusable",
        "BadInput",
        "BenchmarkError",
        "EndpointStopped",
        "HarnessError",
        "InUse",
        "MachineError",
    ),
    "RunStopped",
}


def test_public_names_are_these_and_no_others():
    """Each can be imported, and what is not listed may change."""
    assert set(harness.__all__) == PUBLIC
    assert all(getattr(harness, name) for name in PUBLIC)
    with pytest.raises(AttributeError):
        _ = harness.nothing


def test_version_is_the_newest_of_the_changelog_and_the_one_to_cite():
    """A release is named once, in the same way, wherever a reader looks."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d\S*) - (\S+)$", changelog, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert released[0][0] == harness.__version__
    assert "version: {}\ndate-released: {}\n".format(*released[0]) in citation


MEMBERS = """
name version subsets metrics baselines Settings roles about scoring records cards task_files prepare parse play measure
synthesise warn imports origin"""
"""Of a benchmark: what an author writes, and the last three for the harness and what ships with
it."""


def test_members_of_a_benchmark_are_these_and_no_others():
    """What else it has are members of its objects."""
    found = {*dir(harness.Benchmark), *harness.Benchmark.__annotations__}
    assert {name for name in found if not name.startswith("_")} == {*MEMBERS.split()}


def test_every_option_says_what_it_is():
    """A sentence, a unit where it takes a value, and a default that its own check lets pass."""
    for cls in (options.RunOptions, options.ResumeOptions):
        for one in options_of(cls):
            assert one.help_text or one.name == "top_p"
            assert one.kind is bool or one.choices or one.unit, one.name
            if one.default not in (None, ()):
                assert one.value(one.default) == one.default


@pytest.mark.parametrize("command", ["run", "resume"])
def test_help_shows_what_most_people_need_and_names_the_rest(command, capsys):
    """Twenty options and the benchmark's settings; its last line names `--help-all`, which shows
    every one."""
    own, printed = built(command, ()).class_options, {}
    for flag in ("--help", "--help-all"):
        assert main([command, flag]) == 0
        printed[flag] = capsys.readouterr().out
    shown = [
        one
        for one in own
        if one.flags and re.search(rf"^  {one.flags[0]}[ ,\n]", printed["--help"], re.M)
    ]
    assert shown == [one for one in own if one.flags and one.everyday] and len(shown) <= 20
    assert "--help-all" in printed["--help"].strip().splitlines()[-1]
    flags = [flag for one in own for flag in one.flags]
    assert all(re.search(rf"^  .*{flag}[ ,\n]", printed["--help-all"], re.M) for flag in flags)
