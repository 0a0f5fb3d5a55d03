"""A small world of coloured shapes, and how the bundled model that draws it was made."""
