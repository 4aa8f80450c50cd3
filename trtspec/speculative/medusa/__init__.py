"""Medusa: heads on the target's newest state each guess one token further ahead."""
