"""The offline API: `LLM`, its outputs and its options."""
