"""Will a text fit, how fast is it read, and by which method: a look at a machine and a model, and a short run."""

from longspan.doctor.diagnose import diagnose
from longspan.doctor.diagnosis import Diagnosis

__all__ = ["Diagnosis", "diagnose"]
