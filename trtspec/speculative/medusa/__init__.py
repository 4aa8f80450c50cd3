"""Medusa: heads on the target's newest hidden state, each guessing one token further ahead."""
