"""Logits processors that depend on the text so far: grammars, thinking budgets, user code."""
