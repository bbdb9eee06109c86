"""The error of the evaluation's own."""

from longspan.errors import LongspanError


class DataError(LongspanError):
    """A local data file is missing or does not have the format of its task."""
