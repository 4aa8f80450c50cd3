"""Multi-token prediction: modules that were trained with the target draft."""
