"""A model, whatever engine runs it: its layers, its window, how it is split, and what is said of it."""
