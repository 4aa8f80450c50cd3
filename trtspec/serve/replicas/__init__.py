"""Replicas of an engine over Ray: which one serves a request, and what happens when one dies."""
