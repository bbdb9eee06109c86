"""Which methods can score by reduced queries and keys, and whether a calibration fits one."""

from __future__ import annotations

from longspan.calibration import Calibration
from longspan.errors import CalibrationError
from longspan.methods.base import Method
from longspan.methods.esa import ESA
from longspan.methods.longheads import LongHeads


def uses_calibration(method: Method) -> bool:
    """Whether a method's scores can be reduced ones."""
    return isinstance(method, ESA) or (isinstance(method, LongHeads) and method.score == "token_max")


def check_calibration(method: Method, calibration: Calibration | None) -> None:
    """Raise ``CalibrationError`` unless a calibration is there where one is asked for, fits, and will be used."""
    wanted = getattr(method, "reduced", None)
    if calibration is None:
        if wanted is not None:
            raise CalibrationError(
                f"{method.name} is to score keys reduced to {wanted}, and no calibration was given; make one with "
                "longspan.calibrate and pass calibration=, or leave reduced out for exact scores"
            )
        return
    if not uses_calibration(method):
        raise CalibrationError(
            f"{method.name} has no use for a calibration (esa has, and longheads with score='token_max'); leave "
            "calibration out"
        )
    if isinstance(method, ESA) and (method.share, method.combine, method.score_at) != ("layer", "sum", 0):
        raise CalibrationError(
            "reduced scores are those of all heads of a layer, summed and unrotated; leave calibration out for "
            f"share={method.share!r}, combine={method.combine!r}, score_at={method.score_at}"
        )
    if wanted is not None and calibration.reduced != wanted:
        raise CalibrationError(f"{method.name} has reduced={wanted} and the calibration {calibration.reduced}")
