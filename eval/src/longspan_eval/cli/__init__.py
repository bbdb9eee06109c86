"""Commands that longspan's command line takes up as entry points."""
