"""Calls to OpenAI-compatible endpoints: `client` speaks HTTP, `caller` limits and retries."""
