"""Processors of logits that follow a text: grammars, thinking budgets, code of users."""
