"""Papers' tables, made again with any model: their parameters scaled to its window, their figures beside ours.

A paper is the tables in the file of its name and one line below; a table is a list of cells, each with what is measured
for it. Beside that file lie its methods (``*_methods``) and the tables that read data, look at heads or take times;
``published.json`` has what the paper prints.
"""

from longspan_eval.reproduce.dca import DCA_PAPER
from longspan_eval.reproduce.esa import ESA_PAPER
from longspan_eval.reproduce.longheads import LONGHEADS
from longspan_eval.reproduce.table import Paper

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (LONGHEADS, DCA_PAPER, ESA_PAPER)}
"""Every paper with tables here, by the name of its method."""

__all__ = ["PAPERS", "Paper"]
