"""The books of every cache, and which rows a step feeds."""
