"""The papers' tables, as far as they are planned and not measured."""

from __future__ import annotations

from longspan_eval.reproduce import PAPERS


def made(row, kind):
    """The method of a row, which is one of a kind."""
    assert isinstance(row.method, kind)
    return row.method


def table_of(paper, name):
    (chosen,) = (one for one in PAPERS[paper].tables if one.name == name)
    return chosen


def measured(paper, name, session):
    """The cells of a table for which something is measured."""
    return [cell for cell in table_of(paper, name).cells(session) if cell.measures]


def figures_of(paper, name, session):
    """What is measured for a table, whatever the cell."""
    return [one for cell in measured(paper, name, session) for one in cell.measures]
