"""Pictures, by matplotlib where it is installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from midhop._errors import Error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from midhop._native import Record
    from midhop._records import Records
    from midhop._study import Study

UNITS = {"mbit_per_s": "Mbit/s", "s": "s", "ms": "ms"}


def curves(record: Record, quantity: str, ax: Axes | None) -> Axes:
    """Draw a quantity of a record over time."""
    drawn = [curve for curve in record.curves if curve.quantity == quantity]
    if not drawn:
        there = ", ".join(dict.fromkeys(curve.quantity for curve in record.curves))
        hint = f"there are {there}" if there else "records of a sweep hold no curves: take `run`"
        raise Error(f"the record has no curve of `{quantity}`", hint)
    ax = axes(ax)
    for curve in drawn:
        flow = "" if curve.flow is None else f", flow {curve.flow}"
        ax.plot(curve.time_s, curve.value, label=f"{curve.place}{flow}")
    ax.set(xlabel="time (s)", ylabel=f"{quantity} ({drawn[0].unit})", title=record.title)
    ax.legend()
    return ax


def cells(records: Records, y: str, x: str | None, confidence: float, ax: Axes | None) -> Axes:
    """Draw means over seeds, and their intervals, along an axis of the scenario."""
    table = records.cells(confidence)
    names = [name.removeprefix("cell.") for name in table.column_names if name.startswith("cell.")]
    figures = [name.removesuffix(".mean") for name in table.column_names if name.endswith(".mean")]
    if y not in figures:
        raise Error(f"no figure is called `{y}`", f"there are {', '.join(figures)}")
    if not names:
        raise Error("nothing varies in these records", "give `vary` to a sweep")
    along = names[0] if x is None else x
    if along not in names:
        raise Error(f"no axis is called `{along}`", f"there are {', '.join(names)}")
    means, halves = table.column(f"{y}.mean"), table.column(f"{y}.half_width")
    at = table.column(f"cell.{along}")
    others = [(name, table.column(f"cell.{name}")) for name in names if name != along]
    transfers = table.column("transfer")
    several = len(set(transfers)) > 1
    groups: dict[str, list[int]] = {}
    for row, transfer in enumerate(transfers):
        parts = [transfer] if several or not others else []
        parts += [f"{name} {values[row]}" for name, values in others]
        groups.setdefault(", ".join(parts), []).append(row)
    lines = {
        label: [(at[row], means[row], halves[row]) for row in rows]
        for label, rows in groups.items()
    }
    ax = draw(axes(ax), lines)
    ax.set(xlabel=along, ylabel=named(y))
    if len(lines) > 1:
        ax.legend()
    return ax


def figure(study: Study, name: str, x: str | None, ax: Axes | None) -> Axes:
    """Draw a figure of a study, and as crosses what is published of it."""
    found = study.figure(name)
    varied = [
        axis for axis in found[0]["cell"] if len({cell["cell"].get(axis) for cell in found}) > 1
    ]
    if x is not None and x not in found[0]["cell"]:
        raise Error(f"no axis is called `{x}`", f"there are {', '.join(found[0]['cell'])}")
    along = x or (varied[0] if varied else next(iter(found[0]["cell"]), ""))
    here: dict[str, list[tuple[Any, float | None, float | None]]] = {}
    published: dict[str, list[tuple[Any, float | None, float | None]]] = {}
    for cell in found:
        rest = [f"{cell['cell'][axis]}" for axis in varied if axis != along]
        label, at = ", ".join(rest) or "here", number(cell["cell"].get(along, ""))
        estimate = cell["here"] or {}
        here.setdefault(label, []).append((at, estimate.get("mean"), estimate.get("margin")))
        if cell["published"] is not None:
            published.setdefault(label, []).append((at, cell["published"], None))
    ax = draw(axes(ax), here)
    colours = {str(line.get_label()): line.get_color() for line in ax.get_lines()}
    for label, points in published.items():
        ax.plot(
            [at for at, _, _ in points],
            [float(value) for _, value, _ in points if value is not None],
            "x",
            color=colours.get(label),
            label=f"{label}, published" if len(here) > 1 else "published",
        )
    unit = f" ({found[0]['unit']})" if found[0]["unit"] else ""
    ax.set(xlabel=along, ylabel=f"{found[0]['metric']}{unit}", title=name)
    ax.legend()
    return ax


def draw(ax: Axes, lines: dict[str, list[tuple[Any, float | None, float | None]]]) -> Axes:
    """Draw lines of points with intervals; what is not known is left out."""
    for label, points in lines.items():
        known = [(at, mean, half or 0.0) for at, mean, half in points if mean is not None]
        if known and all(isinstance(at, float | int) for at, _, _ in known):
            known.sort(key=lambda point: point[0])
        ats, means, halves = columns(known)
        line, *_ = ax.errorbar(ats, means, yerr=halves, marker="o", capsize=3)
        line.set_label(label)
    return ax


def columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Return the columns of rows of three."""
    listed = list(rows)
    return [[row[place] for row in listed] for place in range(3)]


def number(label: str) -> float | str:
    """Return a label as the number that it is, or as it stands."""
    try:
        return float(label)
    except ValueError:
        return label


def named(figure: str) -> str:
    """Return a figure's name with its unit in brackets."""
    for suffix, unit in UNITS.items():
        if figure.endswith(f"_{suffix}"):
            return f"{figure.removesuffix(f'_{suffix}')} ({unit})"
    return figure


def axes(ax: Axes | None) -> Axes:
    """Return the given axes, or new ones."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise Error(
            "matplotlib is not installed, which draws pictures",
            "pip install 'midhop[plot]'",
        ) from error
    return pyplot.subplots(layout="constrained")[1]
