"""Where users are played: what starts when (`schedule`), how `ask` is answered (`conversation`),
and the engines."""
