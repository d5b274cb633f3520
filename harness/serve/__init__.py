"""The embedded OpenAI-compatible endpoint: baseline models, latency and faults, on loopback."""
