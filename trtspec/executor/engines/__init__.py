"""Model engines with their caches, and rollouts that run pass by pass."""
