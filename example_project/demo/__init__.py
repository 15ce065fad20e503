"""Breaks the shop, and counts what became of the money."""
