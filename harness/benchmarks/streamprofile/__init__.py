"""StreamProfileBench: persona summaries and next-tag choices over five Chinese social platforms."""
