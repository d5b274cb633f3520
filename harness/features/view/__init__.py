"""See runs in the browser (`view`), and watch and steer one that is being played (`watch`, `set`, `stop`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "view",
    commands={
        "view": Command("harness.features.view.command", "show runs in the browser, also while they are played"),
        "watch": Command("harness.features.view.watching", "show the dashboard of runs that play in another terminal"),
        "set": Command("harness.features.view.setting", "change the limits of a run while it is played"),
        "stop": Command("harness.features.view.stopping", "end a run that is being played, as Ctrl-C does"),
    },
    is_on=lambda args: True,
    extension="harness.features.view.control:Control",
)
