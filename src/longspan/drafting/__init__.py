"""Drafts of an answer's next tokens, which cost little and which the model verifies, several in one forward."""

from longspan.drafting.lookup import Lookup
from longspan.drafting.pace import Pace, Record
from longspan.drafting.proposal import Drafter, Drafts, Proposal

__all__ = ["Drafter", "Drafts", "Lookup", "Pace", "Proposal", "Record"]
