"""Agent files: a file written for `asbench` runs unchanged (docs/design.md, section 9).

    agent = load_agent(Path("agent.py"))
    runner = Runner(agent, city, seed=0, warn=print)      # once a run and process
    rows = await runner.play(resident, ask)               # once a resident, many at once

All residents share the file's module, hence its module-level variables, and the dicts of places. Upstream runs all
residents in one process too, so a file written for it expects this. Each resident has its own agent, memory, clock and
place, and its own states of `random` and `numpy.random`.

A task that an agent starts draws from states of its own, which depend on the task that started it and on how many that
one started before; so the draws of several tasks do not depend on whose reply comes first.

Not reproducible in one process: draws in threads that an agent starts, or in bare callbacks of the event loop, come
from the process's own states; the order of a set of strings, on which a draw may depend, is the process's
(PYTHONHASHSEED); and an agent that looks at this machine's clock, gives up waiting for a reply, or acts by which of
several replies comes first (`asyncio.as_completed`, a list that its tasks append to), plays another day each time.

An agent file is code that its user trusts, and the harness cannot always name it as the cause of what it does to the
event loop or the process. Code that stops or replaces the running loop, cancels tasks of others (`asyncio.all_tasks`),
blocks in a callback (`loop.call_soon`), sets the process's alarm (watchdog.py), closes its files, or forks or ends it,
stops the run, or holds it up, without a resident's name. No such day is scored: only a day with all of its rows counts.
"""

from harness.benchmarks.dailymobility.agents.loader import KEPT, AgentFile, load_agent
from harness.benchmarks.dailymobility.agents.runner import Runner
from harness.benchmarks.dailymobility.agents.watchdog import Limits

__all__ = ["KEPT", "AgentFile", "Limits", "Runner", "load_agent"]
