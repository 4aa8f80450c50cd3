"""Other engines beside trtspec: the same prompts and weights, each in a process of its own."""
