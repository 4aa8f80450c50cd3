"""Networks split over processes."""
