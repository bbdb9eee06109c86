"""The documents of a server: their routes, their library and their records."""
