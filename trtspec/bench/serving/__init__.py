"""A benchmark client for any OpenAI-compatible server: load, latencies, acceptance, comparisons."""
