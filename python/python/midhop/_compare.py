"""Two sets of records side by side, and which differences are real."""

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
    """One quantity on both sides."""

    means: tuple[float, float]
    """The means of both sides, in the unit of the name of what this is."""
    runs: tuple[int, int]
    """Runs that went into each."""
    ratio: float | None
    """The first over the second, of geometric means; None where one is zero."""
    interval: tuple[float, float] | None
    """The ends of the ratio's interval; None where each side has but one run."""
    real: bool | None
    """Whether the interval leaves out 1; None without an interval."""

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
    """The title of its scenario; None where each side has but one."""
    place: str | None
    """What it ran in; None where each side has but one."""
    cell: dict[str, str]
    """Where the cell stands: axis to label."""
    transfer: str
    """The transfer's name; both, where each side has but one and they differ."""
    goodput_bit_per_s: Contrast
    """Payload over time."""
    time_s: Contrast | None
    """From the first SYN to the last byte; None where a run did not deliver everything."""

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
    """Lines that have a ratio."""
    median: float
    """The middle one of the ratios."""
    within_5_percent: float
    """How many of them are within 5 % of 1, as a fraction."""
    within_15_percent: float
    """How many of them are within 15 % of 1, as a fraction."""
    real: int
    """Lines whose difference is real."""
    real_beyond_15_percent: int
    """Of these, lines that are more than 15 % from 1."""
    confidence: float
    """The confidence of the intervals."""


class Comparison:
    """Two sets of records side by side, as `midhop compare` shows them.

    Two cells are the same where every axis says the same. An axis that has one label on each side
    tells the sides apart, not their cells; so do scenario, transfer, and place.
    """

    throughout: tuple[dict[str, str], dict[str, str]]
    """What holds throughout each side: axis to label."""
    places: tuple[list[str], list[str]]
    """What each side ran in: `sim`, `lab`, …"""
    scenarios: tuple[list[str], list[str]]
    """The titles of each side's scenarios."""
    lines: list[ComparisonLine]
    """One for each cell and transfer that both sides have, in the order of the first."""
    alone: tuple[list[str], list[str]]
    """What only one side has: its cell and transfer, in words."""
    invalid: tuple[int, int]
    """Runs that are left out because they are not valid."""
    summary: Agreement | None
    """All lines in short; None without a line that has a ratio."""

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
        raise Error(f"{len(found)} lines are of that, not one", hint)

    def table(self) -> Table:
        """Return one row for each line: means, runs, ratios with their intervals."""
        return self._native.table()

    def to_json(self) -> str:
        """Return what `midhop compare --json` prints."""
        return self._native.to_json()

    def to_text(self, columns: int = 100) -> str:
        """Return the table that `midhop compare` prints, so many characters wide."""
        return self._native.shown(columns)

    def __repr__(self) -> str:
        return f"Comparison({len(self.lines)} lines)"

    def __str__(self) -> str:
        return self.to_text()


Side = str | os.PathLike[str] | Iterable[Record] | Record | Measured


def compare(first: Side, second: Side, *, confidence: float = 0.95) -> Comparison:
    """Set two sets of records side by side, and say which differences are real.

    A ratio is that of geometric means over seeds, with an interval by Welch's t from the
    logarithms. A difference is real where the interval leaves out 1.

    Args:
        first: Records, one record or measurement, or a place as `midhop compare` takes it: a
            directory in and below which records lie, or a file of them or of measurements. Where
            the other side lies in it, it is what else is there.
        second: What they are set against.
        confidence: The confidence of the intervals around ratios.

    Raises:
        Error: When a place cannot be read or has no records, or the confidence is none.

    """
    sides = [side(first, second), side(second, first)]
    (ours, name), (theirs, other_name) = sides
    return Comparison(_native.Comparison(ours, theirs, (name, other_name), confidence))


def side(own: Side, other: Side) -> tuple[list[Record], str]:
    """Return the records of a side, and what it is called."""
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
