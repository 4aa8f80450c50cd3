"""What an answer is made of: reasoning, content and tool calls, read out of a model's text."""
