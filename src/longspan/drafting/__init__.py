"""Drafts of an answer's next tokens, which cost little and which the model verifies, several in one forward."""

from longspan.drafting.lengths import DraftLengths, Record
from longspan.drafting.lookup import Lookup
from longspan.drafting.proposal import Drafter, Drafts, Proposal

__all__ = ["DraftLengths", "Drafter", "Drafts", "Lookup", "Proposal", "Record"]
