"""How a command that works on several runs reports the errors of each."""

from __future__ import annotations

from harness.analysis.selection import each
from harness.errors import BadInput, MachineError


def test_error_of_a_run_is_reported_under_its_name_once_and_the_others_go_on(
    capsys,
):
    """Whether the error itself begins with the name or not."""
    errors = {"a": BadInput("a: no address"), "b": MachineError("no disk")}

    def work(name: str) -> str:
        if name in errors:
            raise errors[name]
        return name

    assert each("abc", work, str) == (["c"], MachineError.exit_code)
    assert [
        line.count("a: ") for line in capsys.readouterr().err.splitlines() if "no address" in line
    ] == [1]
