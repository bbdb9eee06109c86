"""Methods over keys and values in pages, which an engine shares between texts; an engine is an adapter to this."""
