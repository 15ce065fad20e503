"""An edited copy of a letter: what may be changed, what a person sees of it, and how it goes out as work of its own."""
