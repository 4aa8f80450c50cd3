"""What changes logits before a token is chosen: masks, biases, bans, penalties."""
