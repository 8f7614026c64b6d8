"""Fakes that ship with the product, for its tests and its users."""
