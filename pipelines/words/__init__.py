"""A small world of written words, and how the bundled model that writes them was made."""
