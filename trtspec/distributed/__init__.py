"""Networks that are split over processes."""
