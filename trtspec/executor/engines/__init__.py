"""Model engines with their caches, and the loops over them that draft pass by pass."""
