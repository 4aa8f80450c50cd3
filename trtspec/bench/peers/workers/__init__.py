"""Scripts that serve prompts with one engine; each is run by that engine's own Python."""
