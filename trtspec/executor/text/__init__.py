"""From tokens to text, and where a text ends."""
