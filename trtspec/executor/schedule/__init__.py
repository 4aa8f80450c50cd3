"""The bookkeeping of every cache, and which rows a step feeds."""
