"""Play users in worker processes, on one machine or on many (docs/scale.md).

The driver decides and saves, a worker plays and sends. Each try of a request needs a `Send` of the driver, so that one
limit, one rate and one outage hold over all workers, and a play goes on only once its reply is in the driver's files.
So a worker can be lost at any moment: its users are played again elsewhere from their saved replies.

    messages   what both send each other
    player     a worker: benchmarks, event loop and connections; knows no driver and no Ray
    crew       the driver's side of all workers
    shipping   a benchmark with its files, for a machine that has none of them
    cluster    starts workers as actors of Ray
"""
