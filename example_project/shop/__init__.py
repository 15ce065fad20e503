"""Orders, their payments and their parcels."""
