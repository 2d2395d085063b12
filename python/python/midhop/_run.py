"""Scenarios run here, on all processors, or on a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from midhop import _native
from midhop._errors import Error
from midhop._records import Records

Scenario: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""A scenario: a path; a text, which has several lines; or a dictionary of its tables."""

Changes: TypeAlias = "Mapping[str, object] | Iterable[str] | None"
Progress: TypeAlias = "bool | Callable[[int, int], object] | None"


def run(
    scenario: Scenario,
    *,
    seed: int | None = None,
    seeds: int | None = None,
    set: Changes = None,  # noqa: A002
    jobs: int | None = None,
    progress: Progress = None,
) -> Records:
    """Run every cell of a scenario, and return whole records.

    The interpreter is released while it runs, and Ctrl-C ends it.

    Args:
        scenario: A path, a text of several lines, or a dictionary. The files that it names count
            from where it is; those of a text or a dictionary from the working directory.
        seed: The first seed. Given alone, each cell runs once, with this one.
        seeds: How many seeds each cell runs with, whatever the scenario says.
        set: What is changed: dotted key to value, or the name of an axis to one of its labels.
            Strings are as on the command line, so that "20 Mbit/s" needs no quotes and "20" is a
            number; a list of "KEY=VALUE" is taken too.
        jobs: Runs at a time; all processors when not given.
        progress: True shows a line on standard error, False none; a function is called with how
            many runs are over, and of how many. When not given, as on a terminal.

    Raises:
        Error: In the program's words, with a hint, when the scenario or a change is wrong, or a run
            fails; then the exception's `records` are those that there are.

    """
    changes = changed(set)
    if seed is not None:
        changes.append(("seed", seed))
        seeds = 1 if seeds is None else seeds
    campaign = _native.Campaign(
        source(scenario), set=changes, vary=[], seeds=seeds, out=None, series=True, whole=True
    )
    with Watch(progress) as watch:
        campaign.run(jobs, watch.function)
    return finished(campaign)


def sweep(
    scenario: Scenario,
    *,
    vary: Mapping[str, Iterable[object]] | Iterable[str] | None = None,
    seeds: int | None = None,
    set: Changes = None,  # noqa: A002
    jobs: int | None = None,
    engine: str | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    series: bool = False,
    confidence: float = 0.95,
    progress: Progress = None,
) -> Records:
    """Run a scenario over many values, and return records without plans and curves.

    Args:
        scenario: As `run` takes it.
        vary: What is varied: dotted key to values, or the name of an axis to some of its labels; a
            list of "KEY=VALUE,…" is taken too.
        seeds: How many seeds each cell runs with, whatever the scenario says.
        set: What is changed, as `run` takes it.
        jobs: Runs at a time; all processors when not given. On a cluster, at most so many.
        engine: None runs here. "ray" runs on the cluster of Ray's that this process belongs to or
            that RAY_ADDRESS names, else on one that is started here; "ray://HOST:PORT" and
            "HOST:PORT" name one.
        out: A directory for records.jsonl, one record a line the moment it is there, and for the
            tables of runs and cells as CSV and Parquet.
        resume: Whether records that `out` has of the same plans, made by this build, count. With
            False a directory that has records is refused.
        series: Whether the records in `out` keep their curves over time.
        confidence: Of the intervals in the tables of `out`.
        progress: As `run` takes it.

    Raises:
        Error: As `run`.
        KeyboardInterrupt: By Ctrl-C. With `out`, the same call goes on from there.

    """
    if out is not None and not resume and (Path(out) / "records.jsonl").exists():
        raise Error(
            f"{os.fspath(out)} has records already",
            "resume=True goes on from them; another directory keeps apart",
            code=64,
        )
    check_engine(engine)
    campaign = _native.Campaign(
        source(scenario),
        set=changed(set),
        vary=changed(vary),
        seeds=seeds,
        out=out,
        series=series,
        whole=False,
    )
    try:
        work_through(campaign, engine, jobs, progress, out)
    finally:
        if out is not None:
            campaign.write_tables(confidence)
    return finished(campaign)


def work_through(
    work: _native.Campaign | _native.StudyRun,
    engine: str | None,
    jobs: int | None,
    progress: Progress,
    out: str | os.PathLike[str] | None,
) -> None:
    """Run what is left of a sweep or of a study, here or on a cluster."""
    there = len(work) - len(work.left())
    with Watch(progress, there, len(work)) as watch:
        try:
            if engine is None:
                work.run(jobs, watch.function)
            else:
                from midhop import _ray

                _ray.run(work, engine, jobs, watch.function)
        except KeyboardInterrupt as interrupt:
            if out is not None:
                interrupt.add_note(f"hint: the same call goes on from {os.fspath(out)}")
            raise


def check_engine(engine: str | None) -> None:
    """Refuse what names no engine."""
    if engine is None or engine == "ray" or engine.startswith("ray://") or ":" in engine:
        return
    raise Error(
        f"no engine is called `{engine}`",
        "there are ray, ray://HOST:PORT and HOST:PORT",
        code=64,
    )


def source(scenario: Scenario) -> _native.Source:
    """Read a scenario, whatever it is given as."""
    if isinstance(scenario, Mapping):
        return _native.Source.dict(dict(scenario), Path())
    if isinstance(scenario, str) and "\n" in scenario:
        return _native.Source.text(scenario, Path())
    return _native.Source.file(scenario)


def changed(
    changes: Mapping[str, Any] | Iterable[str] | None,
) -> list[str | tuple[str, object]]:
    """Return what is changed as a list: of keys with values, or of what the command line has."""
    if changes is None:
        return []
    if isinstance(changes, Mapping):
        return list(changes.items())
    return [changes] if isinstance(changes, str) else list(changes)


def finished(campaign: _native.Campaign) -> Records:
    """Return the records of a campaign, if no run has failed."""
    records = Records(campaign.records())
    failures = campaign.failures
    if failures:
        error = Error(
            f"{len(failures)} of {len(campaign)} runs failed, or were not kept",
            "the exception's `records` are those that there are",
            failures[:5],
        )
        error.records = records
        raise error
    return records


class Watch:
    """A line on standard error, or a function, for how far a campaign is."""

    def __init__(self, progress: Progress, there: int = 0, whole: int | None = None) -> None:
        self._there = there
        self._whole = whole
        self._shown = False
        self.function: Callable[[int, int], object] | None = None
        if progress is None:
            progress = sys.stderr is not None and sys.stderr.isatty()
        if callable(progress):
            self._told = progress
            self.function = self._tell
        elif progress:
            self._told = self._line
            self.function = self._tell

    def _tell(self, done: int, whole: int) -> None:
        self._told(self._there + done, self._whole if self._whole is not None else whole)

    def _line(self, done: int, whole: int) -> None:
        self._shown = True
        print(f"\r{done} of {whole} runs", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print(file=sys.stderr)
