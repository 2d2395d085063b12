"""Records of many runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from midhop import _native
from midhop._errors import Error
from midhop._native import Record, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from midhop._measured import Measured
    from midhop._run import Scenario


class Records(Sequence[Record]):
    """Records in the order of their plans: cell after cell, and in each cell seed after seed."""

    def __init__(self, records: Iterable[Record] | _native.Records = ()) -> None:
        """Take records together; those of several scenarios may be among them."""
        if not isinstance(records, _native.Records):
            records = _native.Records(list(records))
        self._native = records

    def __len__(self) -> int:
        return len(self._native)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> Records: ...
    def __getitem__(self, place: int | slice) -> Record | Records:
        if isinstance(place, slice):
            return Records(self[at] for at in range(*place.indices(len(self))))
        record = (
            self._native.at(place + len(self) if place < 0 else place)
            if (-len(self) <= place < len(self))
            else None
        )
        if record is None:
            raise IndexError(f"no record {place}: there are {len(self)}")
        return record

    def __iter__(self) -> Iterator[Record]:
        return (self[place] for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Records) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Records({len(self)})"

    def __str__(self) -> str:
        return self.to_text()

    def __reduce__(self) -> tuple[type[Records], tuple[list[Record]]]:
        return Records, (list(self),)

    def where(self, **cell: object) -> Records:
        """Return those whose cell has these labels: `records.where(proxy="none")`."""
        return self.at({axis: str(label) for axis, label in cell.items()})

    def at(self, cell: dict[str, str]) -> Records:
        """Return those whose cell has these labels, where an axis has dots in its name."""
        wanted = cell.items()
        return Records(record for record in self if wanted <= record.cell.items())

    def limited(self, limit: Scenario | Measured) -> Records:
        """Return them with the physical limits of what was measured without a scenario.

        `limit` is a scenario of one cell, or what `midhop meter link` measured: its JSON as a path
        or a dictionary, or what `midhop.measured` has made of it.
        """
        from midhop import _measured

        return _measured.limited(self, limit)

    def runs(self) -> Table:
        """Return one row for each run and transfer, nothing averaged."""
        return self._native.runs()

    def cells(self, confidence: float = 0.95) -> Table:
        """Return one row for each cell and transfer: means over seeds, with intervals."""
        return self._native.cells(confidence)

    def samples(self) -> Table:
        """Return one row for each sample of each curve of each run."""
        return self._native.samples()

    def to_json(self) -> str:
        """Return the records, one JSON object a line, as `midhop sim run --json` prints them."""
        return self._native.to_json()

    def to_text(self, columns: int = 100) -> str:
        """Return the table that `midhop sim run` prints, so many characters wide."""
        return self._native.shown(columns)

    def plot(
        self,
        y: str = "goodput_mbit_per_s",
        *,
        x: str | None = None,
        confidence: float = 0.95,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw means over seeds and their intervals along an axis, and return matplotlib's axes.

        `y` is a figure of `cells()`; `x` is an axis of the scenario, its first when not given. Each
        transfer and each position on the other axes has a line of its own.
        """
        from midhop import _plot

        return _plot.cells(self, y, x, confidence, ax)


def read(*places: str | os.PathLike[str]) -> Records:
    """Read the records that the program or a sweep has left, and what was measured without one.

    Args:
        places: Directories of `midhop sim run --out`, `midhop lab run --out`, `midhop sim sweep`
            and `midhop.sweep`, or files: of one record, or of one on each line. What `midhop meter
            run --json`, `midhop meter link --json` and `iperf3 --json` print is taken too. Of runs
            that are there twice, in this order, the last counts.

    Raises:
        Error: When a place cannot be read, has no records, or what is there is none.

    """
    found: dict[tuple[str, str, str, int, int], Record] = {}
    for place in map(Path, places):
        among_others = place.is_dir()
        records = [record for file in files(place) for record in parsed(file, among_others)]
        if not records:
            raise Error(
                f"{place} has no records", "name what a run has written with --out", code=64
            )
        for record in records:
            runner = str(record.environment["runner"])
            cell = str(sorted(record.cell.items()))
            # Of what was measured without a plan, each is one more.
            more = 0 if _native.has_plan(record) else len(found)
            found[(record.title, runner, cell, record.seed, more)] = record
    return Records(_native.numbered(list(found.values())))


def files(place: Path) -> list[Path]:
    """Return the files of records at a place."""
    if not place.is_dir():
        return [place]
    lines = place / "records.jsonl"
    return [lines] if lines.exists() else sorted(place.glob("*.json"))


def parsed(file: Path, among_others: bool) -> list[Record]:
    """Read the records of a file; a line that a crash has cut short is passed over."""
    text = _native.text_of(file)
    if file.suffix == ".jsonl":
        return [Record.from_json(line) for line in text.splitlines() if line.endswith("}")]
    records, notes = _native.found(str(file), text, among_others)
    for note in notes:
        warnings.warn(note, stacklevel=4)
    return records
