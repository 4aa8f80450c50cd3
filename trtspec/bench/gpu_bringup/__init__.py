"""The first minutes on a GPU: what is built, compared and measured there, part by part."""
