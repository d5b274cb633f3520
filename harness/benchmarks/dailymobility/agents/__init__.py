"""Agent files: the surroundings in which a file written for `asbench` runs unchanged (docs/design.md, section 9).

    agent = load_agent(Path("agent.py"))
    stage = Stage(agent, city, seed=0, warn=print)        # once a run and process
    rows = await stage.play(resident, ask)                # once a resident, many at once

What is the same for all residents: the file's module, hence whatever it keeps in module-level variables, and the
dicts in which it sees places. Upstream runs all residents in one process too, so a file written for it knows this.
What is each resident's own: its agent, memory, clock and place, and the states of `random` and `numpy.random`.

A task that an agent starts draws from states of its own, which depend on who started it and how many before it; so
what several tasks draw does not depend on whose reply comes first.

What cannot be had in one process: draws in threads that an agent starts, or in bare callbacks of the event loop, come
from the process's own states; the order of a set of strings, on which a draw may depend, is the process's
(PYTHONHASHSEED); and an agent that looks at the time of day of this machine, gives up waiting for a reply, or acts by
which of several replies comes first (`asyncio.as_completed`, a list that its tasks append to), plays another day each
time.

An agent file is code that its user trusts, and what it does to the event loop or the process is not always known for
its doing. Whoever stops or replaces the running loop, cancels tasks of others (`asyncio.all_tasks`), blocks in a
callback (`loop.call_soon`), sets the process's alarm (slices.py), closes its files, or forks or ends it, stops the
run, or holds it up, without a resident's name. No such day is scored: a day counts with all of its rows alone.
"""

from harness.benchmarks.dailymobility.agents.loader import KEPT, AgentFile, load_agent
from harness.benchmarks.dailymobility.agents.runner import Stage

__all__ = ["KEPT", "AgentFile", "Stage", "load_agent"]
