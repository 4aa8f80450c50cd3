"""The host side of a decoding step: scheduling, KV bookkeeping, and the order of the engine calls.

Submodules are imported by name; nothing is re-exported here, so that the pure bookkeeping
(`kv_cache`, `resources`, `scheduler`) stays importable without an engine.
"""
