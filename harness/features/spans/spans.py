"""Make spans of what a session plays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from harness.config.plan import Plan
from harness.engine.extension import Extension, Say
from harness.engine.lane import Play, Send
from harness.engine.run import Run
from harness.errors import BadInput, to_install


class Spans(Extension):
    def begin(self, plans: Sequence[Plan], held: ExitStack, say: Say) -> None:
        try:
            from harness.features.spans.tracing import tracing  # an extra package
        except ModuleNotFoundError as error:
            raise BadInput(f"--otel needs the package {error.name}: {to_install('behavior-harness[otel]')}") from None
        except ValueError as error:  # limits of spans are read at the first import
            raise BadInput(f"--otel: the variables OTEL_* cannot be used: {error}") from None
        self._tracer = held.enter_context(tracing(say))

    def playing(self, plan: Plan, runs: Sequence[Run], play: Play) -> Play:
        return self._tracer.player(plan.name, plan.found, runs, play)

    def sending(self, send: Send) -> Send:
        return self._tracer.sender(send)
