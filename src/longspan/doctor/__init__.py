"""Will a text fit, how fast is it read, and by which method: a look at a machine and a model, and a short run."""

from longspan.doctor.diagnosis import Diagnosis
from longspan.doctor.examine import diagnose

__all__ = ["Diagnosis", "diagnose"]
