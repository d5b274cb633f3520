"""Coverage-guided fuzzing of everything that reads what others wrote (`python -m bench.fuzz`).

A module here is a target: `SEEDS`, good inputs to begin with; `EXPECTED`, the exceptions by which
bad ones are refused; and `run`, which reads one input and asserts what must hold of whatever was
let in.
"""
