"""The first quarter of an hour on a GPU: what is measured and compared there, in order of value."""
