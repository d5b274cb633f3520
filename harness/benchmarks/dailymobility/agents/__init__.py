"""Agent files: the surroundings in which a file written for `asbench` runs unchanged (docs/design.md, section 9).

    agent = load_agent(Path("agent.py"))
    stage = Stage(agent, city, seed=0, warn=print)        # once a run and process
    rows = await stage.play(resident, ask)                # once a resident, many at once

What is the same for all residents: the file's module, hence whatever it keeps in module-level variables, and the
dicts in which it sees places. Upstream runs all residents in one process too, so a file written for it knows this.
What is each resident's own: its agent, memory, clock and place, and the states of `random` and `numpy.random`.

What cannot be had in one process: draws in threads that an agent starts, or in bare callbacks of the event loop, come
from the process's own states; the order of a set of strings, on which a draw may depend, is the process's
(PYTHONHASHSEED); and an agent that looks at the time of day of this machine, or gives up waiting for a reply,
plays another day each time.
"""

from harness.benchmarks.dailymobility.agents.loader import KEPT, AgentFile, load_agent
from harness.benchmarks.dailymobility.agents.stage import Stage

__all__ = ["KEPT", "AgentFile", "Stage", "load_agent"]
