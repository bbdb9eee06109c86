"""Studies beside the papers' tables, each a list of cells: ``longspan eval``, ``longspan demo``, quality."""
