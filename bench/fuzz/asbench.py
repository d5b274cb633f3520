"""asbench's YAML file: what is let in says where to ask, and no message shows its key."""

from __future__ import annotations

from bench.fuzz import scratch
from harness.errors import BadInput
from harness.options import endpoint_file as asbench

EXPECTED = (BadInput,)
MOST_BYTES = 256
SEEDS = [
    b"llm:\n- provider: vllm\n  base_url: http://h:1/v1\n"
    b"  api_key: SECRET\n  model: m\n  concurrency: 200\n  timeout: 30\n",
    b'{llm: [{provider: qwen, api_key: "SECRET", model: x, semaphore: 3}, {}]}',
    b"llm: &a {b: *a}",
    b"--- !!map\nllm: !!seq [ ? model\n: 2001-01-01, timeout: .inf, api_key: !!binary SECRET]\n",
    b"a: !!timestamp 2001-13-41\nb: 0o99\nc: 1:99:99\nd: !!int ''\n<<: [*x, 3]\n",
]
PATH = scratch.file("config.yml")


def run(data: bytes) -> None:
    try:
        asbench.read(scratch.written(PATH, data))
    except BadInput as error:
        assert "SECRET" not in str(error) or "api_key" not in str(error)
        raise
