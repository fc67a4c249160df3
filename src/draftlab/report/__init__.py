"""Tables, figures and the self-contained page of one evaluated run, and the comparison of several.

>>> from draftlab.report import compare_runs, write_report
>>> write_report("outputs/demo")                              # doctest: +SKIP
>>> compare_runs(["outputs/a", "outputs/b"], "outputs/a_b")   # doctest: +SKIP
"""

from draftlab.report.comparable import comparable_runs, find_runs
from draftlab.report.compare import compare_runs
from draftlab.report.html import write_report, write_reports
from draftlab.report.run import Run, read_run
from draftlab.report.tables import length_table, position_table

__all__ = [
    "Run",
    "comparable_runs",
    "compare_runs",
    "find_runs",
    "length_table",
    "position_table",
    "read_run",
    "write_report",
    "write_reports",
]
