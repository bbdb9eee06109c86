"""Errors that name the thing, the reason and the way out."""


class LongspanError(ValueError):
    """Something longspan was asked for cannot be done."""


class AttachError(LongspanError):
    """A model, or one of its layers, cannot be extended; nothing was changed."""


class CacheError(LongspanError):
    """A cache does not belong to this model, method or batch."""


class CalibrationError(LongspanError):
    """A calibration cannot be made or read, or belongs to another model."""


class DataError(LongspanError):
    """A local data file is missing, or not as its task needs it."""
