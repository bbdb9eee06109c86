"""Texts: read from files, turned to tokens and back."""
