"""Bundled prompt lists and tiny models, as package data."""
