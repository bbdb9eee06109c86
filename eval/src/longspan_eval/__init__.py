"""Measures methods for long contexts: tasks, perplexity, the papers' tables, and what the heads choose."""

__version__ = "0.1.0"
