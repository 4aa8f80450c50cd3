"""Engine folders on disk and the sessions that run them."""
