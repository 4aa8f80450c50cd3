"""Model families: one file each, from config.json and tensor names to one internal form."""
