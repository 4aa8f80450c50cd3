"""Model families: one file each, mapping config.json and tensor names to one internal form."""
