"""An endpoint on this machine, for tests, campaigns and measurements: baselines, latency, faults,
providers' manners.

In a test: `tests.support.embedded`. As a process: `python -m tests.support.endpoint_double --port
0`, which prints `listening on URL`, until SIGINT or SIGTERM.

**Faults** (`--fault-rate R --faults KIND,...`) are kinds or groups of `faults.GROUPS`. They are
drawn from seed, request body and the try's number, so that a run can be repeated. Those of
transport and streams, `rate_limit` and `overloaded` are drawn again at each try; the others depend
on the body alone, so that a body's completion stays the same. The group `batch` is drawn at each
step of the Batch API, and each line of a batch draws as a request does.

**Requests** are checked as OpenAI's API checks a chat call (bench/clients/openai_calls.py). The
answer is a baseline's JSON; with a `json_schema` it is made to fit. A token is two characters. What
a baseline cannot do (pictures, `logprobs`, a tool that must be called) is refused with OpenAI's
`param` and `code`. Imitations of other providers check only the members that decide an answer.

**Imitations** (`--imitate NAME`) answer any model but `no-such-model`, in the shapes of a provider:
members of replies and chunks, where thoughts are, what keeps a connection alive, refused
parameters, the words of errors. Each is a data file in `imitations/`, written after the public
pages that it names.

`GET /stats` returns how many requests there were, over how many seconds, at most at once, streamed,
without a key.
"""
