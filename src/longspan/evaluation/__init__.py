"""Tasks and measures for models that read past their window."""
