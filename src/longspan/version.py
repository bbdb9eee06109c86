"""The version of longspan."""

__version__ = "0.1.0"
