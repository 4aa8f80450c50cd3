"""Weight formats: how the linear layers of a network keep their weights, one file each."""
