"""See runs in the browser (`view`), and watch and steer one that is being played (`watch`, `set`, `stop`)."""

from typing import Any

from harness.feature import Command, Feature


class _View(Feature):
    def is_on(self, args: Any) -> bool:
        return True


FEATURE = _View(
    "view",
    needs=("plays", "documents"),
    commands={
        "view": Command("harness.commands.view.command", "show runs in the browser, also while they are played"),
        "watch": Command("harness.commands.watch", "show the dashboard of runs that play in another terminal"),
        "set": Command("harness.commands.set", "change the limits of a run while it is played"),
        "stop": Command("harness.commands.stop", "end a run that is being played, as Ctrl-C does"),
    },
    extension="harness.engine.control_server:Control",
)
