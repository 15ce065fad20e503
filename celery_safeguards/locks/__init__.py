"""Owner-token locks with fencing: one lock for each entity, held by one acquisition at a time."""
