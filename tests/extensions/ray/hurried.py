"""The command with other constants: `python -m tests.extensions.ray.hurried crew.SILENT_SECONDS=5
-- run ...`."""

from __future__ import annotations

import sys

from harness.cli import main
from harness.extensions.ray import cluster, crew

OF = {"cluster": cluster, "crew": crew}

if __name__ == "__main__":
    split = sys.argv.index("--")
    for words in sys.argv[1:split]:
        name, _, value = words.partition("=")
        module, _, constant = name.partition(".")
        assert hasattr(OF[module], constant)
        setattr(OF[module], constant, float(value))
    sys.exit(main(sys.argv[split + 1 :]))
