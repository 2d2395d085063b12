"""TCP over satellite links in virtual time: scenarios, sweeps and published studies.

>>> import midhop
>>> records = midhop.run("scenarios/quick.toml")
>>> records[0].transfers[0].goodput_mbit_per_s

What a scenario may say, what is run and what is refused is what the program `midhop` takes, runs
and refuses: a record of `midhop.run` is that of `midhop sim run`, byte for byte but for
`environment`, which says when and how long it ran.
"""

from midhop._compare import Agreement, Comparison, ComparisonLine, Contrast, compare
from midhop._errors import Error
from midhop._measured import LinkDirection, LinkReport, Measured, measured
from midhop._native import Curve, Flow, Link, Record, Table, Transfer, studies
from midhop._records import Records, read
from midhop._run import Scenario, run, sweep
from midhop._study import Study, study

__all__ = [
    "Agreement",
    "Comparison",
    "ComparisonLine",
    "Contrast",
    "Curve",
    "Error",
    "Flow",
    "Link",
    "LinkDirection",
    "LinkReport",
    "Measured",
    "Record",
    "Records",
    "Scenario",
    "Study",
    "Table",
    "Transfer",
    "compare",
    "measured",
    "read",
    "run",
    "studies",
    "study",
    "sweep",
]
