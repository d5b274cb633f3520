"""Agent files: a file written for `asbench` runs unchanged (docs/design.md, section 9).

    agent = load_agent(Path("agent.py"), DailyMobilityAgent)
    runner = Runner(agent, World(city, 100, 900), seed=0, warn=print)  # once a run and process
    rows = await play(runner, resident, ask)              # once a resident, many at once

All residents share the file's module, hence its module-level variables, and the dicts of places.
Upstream runs all residents in one process too, so a file written for it expects this. Each resident
has its own agent, memory, clock and place, and its own states of `random` and `numpy.random`.

A task that an agent starts draws from states of its own, which depend on the task that started it
and on how many that one started before; so the draws of several tasks do not depend on whose reply
comes first.

Not reproducible in one process: draws in threads or in bare callbacks of the event loop; the order
of a set of strings (PYTHONHASHSEED); and an agent that looks at this machine's clock, gives up
waiting for a reply, or acts by which of several replies comes first (`asyncio.as_completed`, a list
that its tasks append to).

An agent file is code that its user trusts, and nothing keeps it from the process: `os._exit` ends
the run. Where it stops or replaces the running loop, cancels tasks of others (`asyncio.all_tasks`),
blocks in a callback (`loop.call_soon`), sets the process's alarm (watchdog.py), or breaks the
process in C, the run stops or is held up without a resident's name. Only a day with all its rows
counts.
"""
