"""The first quarter of an hour on a GPU: measurements and comparisons, in order of value."""
