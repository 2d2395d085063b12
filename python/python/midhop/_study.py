"""Published studies, run again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from midhop import _native
from midhop._errors import Error
from midhop._records import Records
from midhop._run import Progress, check_engine, work_through

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Study:
    """What came of a study: its figures beside what is published, and its claims."""

    name: str
    """What it was asked for by."""
    title: str
    """What it is about, in a line."""
    source: str
    """Who published it, where and when."""
    figures: list[dict[str, Any]]
    """One for each figure and cell: what is published there, and what came out here."""
    claims: list[dict[str, Any]]
    """Each claim with what became of it."""
    faults: list[str]
    """Why some runs are not to be believed."""
    records: Records
    """All records, without plans and curves."""

    def __init__(self, native: _native.StudyOutcome) -> None:
        self._native = native
        self._json: dict[str, Any] = json.loads(native.to_json())
        self.name = self._json["study"]
        self.title = self._json["title"]
        self.source = self._json["source"]
        self.figures = self._json["figures"]
        self.claims = self._json["claims"]
        self.faults = self._json["faults"]
        self.records = Records(native.records())

    def figure(self, name: str) -> list[dict[str, Any]]:
        """Return the cells of the figure called `name`."""
        cells = [figure for figure in self.figures if figure["figure"] == name]
        if not cells:
            names = ", ".join(dict.fromkeys(figure["figure"] for figure in self.figures))
            raise Error(f"no figure is called `{name}`", f"there are {names}")
        return cells

    def to_json(self) -> str:
        """Return what `midhop reproduce --json` prints."""
        return self._native.to_json()

    def to_text(self, columns: int = 100) -> str:
        """Return the tables that `midhop reproduce` prints, so many characters wide."""
        return self._native.shown(columns)

    def plot(self, figure: str, *, x: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw a figure with what is published beside it, and return matplotlib's axes.

        `x` is an axis of the figure's scenario, its first that varies when not given.
        """
        from midhop import _plot

        return _plot.figure(self, figure, x, ax)

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {len(self.records)} records, {len(self.claims)} claims)"

    def __str__(self) -> str:
        return self.to_text()


def study(
    name: str | os.PathLike[str],
    *,
    quick: bool = False,
    seeds: int | None = None,
    cells: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    engine: str | None = None,
    progress: Progress = None,
) -> Study:
    """Run a published study again in virtual time, and hold its figures and claims against ours.

    Args:
        name: One of `midhop.studies()`, or a directory with a study.toml.
        quick: Fewer cells and seeds, as the study's file says.
        seeds: How many seeds each cell runs with.
        cells: Only these: "SCENARIO", or "SCENARIO:AXIS=LABEL,…".
        out: A directory below which records are kept, and found again by a later call.
        jobs: Runs at a time; all processors when not given. On a cluster, at most so many.
        engine: Where it runs, as `midhop.sweep` takes it.
        progress: As `midhop.run` takes it.

    Raises:
        Error: When there is no such study or cell, or a run fails; then the exception's `records`
            are those that there are.
        KeyboardInterrupt: By Ctrl-C. With `out`, the same call goes on from there.

    """
    ran = run(name, quick, seeds, cells, out, jobs, engine, progress)
    if ran.failures:
        error = Error(f"{len(ran.failures)} runs failed", None, ran.failures[:5])
        error.records = Records(ran.records())
        raise error
    return Study(ran.outcome())


def run(
    name: str | os.PathLike[str],
    quick: bool,
    seeds: int | None,
    cells: Sequence[str],
    out: str | os.PathLike[str] | None,
    jobs: int | None,
    engine: str | None,
    progress: Progress,
) -> _native.StudyRun:
    """Run a study as far as it goes; arguments are those of `study`."""
    check_engine(engine)
    ran = _native.StudyRun(os.fspath(name), quick=quick, seeds=seeds, cells=list(cells), out=out)
    work_through(ran, engine, jobs, progress, out)
    return ran
