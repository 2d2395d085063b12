"""Compares two sets of records."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from midhop import _native
from midhop._errors import Error
from midhop._measured import Measured
from midhop._native import Record, Table


@dataclass(frozen=True, slots=True)
class Contrast:
    """One quantity of both sides."""

    means: tuple[float, float]
    """The means of both sides, in the unit that the name of the contrast has."""
    runs: tuple[int, int]
    """The number of runs in each mean."""
    ratio: float | None
    """The ratio of the geometric means, first to second; None if one of them is zero."""
    interval: tuple[float, float] | None
    """The ends of the ratio's confidence interval; None if each side has only one run."""
    real: bool | None
    """Whether the interval does not contain 1; None without an interval."""

    @classmethod
    def _of(cls, keys: dict[str, Any]) -> Contrast:
        interval = keys.pop("interval")
        return cls(
            means=tuple(keys.pop("means")),
            runs=tuple(keys.pop("runs")),
            interval=None if interval is None else tuple(interval),
            **keys,
        )


@dataclass(frozen=True, slots=True)
class ComparisonLine:
    """One transfer in one cell, on both sides."""

    scenario: str | None
    """The title of its scenario; None if each side has only one."""
    place: str | None
    """The place of its runs: `sim`, `lab`, …; None if each side has only one."""
    cell: dict[str, str]
    """The cell's position: axis to label."""
    transfer: str
    """The transfer's name; both names if each side has only one transfer and the names differ."""
    goodput_bit_per_s: Contrast
    """Goodput: payload over time."""
    time_s: Contrast | None
    """Time from the first SYN to the last byte; None if a run did not deliver everything."""

    @classmethod
    def _of(cls, keys: dict[str, Any]) -> ComparisonLine:
        time = keys.pop("time_s")
        return cls(
            goodput_bit_per_s=Contrast._of(keys.pop("goodput_bit_per_s")),
            time_s=None if time is None else Contrast._of(time),
            **keys,
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well two sides agree in goodput."""

    lines: int
    """The number of lines with a ratio."""
    median: float
    """The median of the ratios."""
    within_5_percent: float
    """The fraction of the ratios within 5 % of 1."""
    within_15_percent: float
    """The fraction of the ratios within 15 % of 1."""
    real: int
    """The number of lines whose difference is real."""
    real_beyond_15_percent: int
    """The number of these lines whose ratio is more than 15 % from 1."""
    confidence: float
    """The confidence level of the intervals."""


class Comparison:
    """The comparison of two sets of records, as `midhop compare` shows it.

    Two cells are the same if their labels agree on every axis. An axis with only one label on each
    side distinguishes the sides, not their cells. The same holds for scenario, transfer, and place.
    """

    throughout: tuple[dict[str, str], dict[str, str]]
    """The labels that all cells of a side share: axis to label."""
    places: tuple[list[str], list[str]]
    """The places of each side's runs: `sim`, `lab`, …"""
    scenarios: tuple[list[str], list[str]]
    """The titles of each side's scenarios."""
    lines: list[ComparisonLine]
    """One line for each cell and transfer that both sides have, in the order of the first side."""
    alone: tuple[list[str], list[str]]
    """The cells and transfers that only one side has, in words."""
    invalid: tuple[int, int]
    """The number of runs that are left out because they are not valid."""
    summary: Agreement | None
    """The summary of all lines; None if no line has a ratio."""

    def __init__(self, native: _native.Comparison) -> None:
        self._native = native
        keys: dict[str, Any] = json.loads(native.to_json())
        self.throughout = tuple(keys["throughout"])
        self.places = tuple(keys["places"])
        self.scenarios = tuple(keys["scenarios"])
        self.lines = [ComparisonLine._of(line) for line in keys["lines"]]
        self.alone = tuple(keys["alone"])
        self.invalid = tuple(keys["invalid"])
        summary = keys["summary"]
        self.summary = None if summary is None else Agreement(**summary)

    def line(self, transfer: str | None = None, **cell: object) -> ComparisonLine:
        """Return the one line of a transfer whose cell has these labels."""
        wanted = {axis: str(label) for axis, label in cell.items()}.items()
        found = [
            line
            for line in self.lines
            if transfer in (None, line.transfer) and wanted <= line.cell.items()
        ]
        if len(found) == 1:
            return found[0]
        there = "; ".join(f"{line.transfer} {line.cell}" for line in self.lines[:5])
        hint = f"lines are {there}" if there else "the sides have no cell in common"
        raise Error(f"{len(found)} lines match, not one", hint)

    def table(self) -> Table:
        """Return one row for each line: means, runs, ratios with their intervals."""
        return self._native.table()

    def to_json(self) -> str:
        """Return the output of `midhop compare --json`."""
        return self._native.to_json()

    def to_text(self, columns: int = 100) -> str:
        """Return the table that `midhop compare` prints, with a width of `columns` characters."""
        return self._native.shown(columns)

    def __repr__(self) -> str:
        return f"Comparison({len(self.lines)} lines)"

    def __str__(self) -> str:
        return self.to_text()


Side = str | os.PathLike[str] | Iterable[Record] | Record | Measured


def compare(first: Side, second: Side, *, confidence: float = 0.95) -> Comparison:
    """Compare two sets of records, and decide which differences are real.

    A ratio is that of geometric means over seeds, with an interval from the logarithms (Welch's
    t). A difference is real if the interval does not contain 1.

    Args:
        first: Records, one record or measurement, or a place as `midhop compare` takes it: a
            directory that contains records at any depth, or a file of records or measurements. If
            the other side is within it, its records are left out of this side.
        second: The records to which the first are compared.
        confidence: The confidence level of the ratios' intervals.

    Raises:
        Error: When a place cannot be read or has no records, or the confidence is out of range.

    """
    sides = [side(first, second), side(second, first)]
    (ours, name), (theirs, other_name) = sides
    return Comparison(_native.Comparison(ours, theirs, (name, other_name), confidence))


def side(own: Side, other: Side) -> tuple[list[Record], str]:
    """Return the records and the name of a side."""
    if isinstance(own, str | os.PathLike):
        beside = other if isinstance(other, str | os.PathLike) else None
        found, name, notes = _native.side(own, beside)
        for note in notes:
            warnings.warn(note, stacklevel=3)
        return [record for at in range(len(found)) if (record := found.at(at))], name
    if isinstance(own, Measured):
        return [own.record], own.name
    records = [own] if isinstance(own, Record) else list(own)
    if not records:
        raise Error("no records found", "a side without records cannot be compared", code=64)
    return records, "1 record" if len(records) == 1 else f"{len(records)} records"
