#!/usr/bin/env python3
"""Compares what `heuristic` measured with the split throughput heuristic: a split has the lesser of what its segments have alone.

    midhop reproduce splitting-today --in sim --out RESULTS
    studies/splitting-today/law.py RESULTS/splitting-today

Reads a directory of records. For each congestion control it prints quantiles of the ratio of the split's goodput over the lesser of the
two, of medians over seeds, and the pairs that are farthest from 1.
"""

import json
import pathlib
import statistics
import sys
from collections import defaultdict

TITLE = "Any two segments in series, and each alone"
STUDY_ERROR = 0.14  # the greatest that the study found
SHOWN = 5


def goodputs(directory):
    """Congestion control, first and second segment: goodput of each run in Mbit/s."""
    found = defaultdict(list)
    for path in pathlib.Path(directory).glob("*.json"):
        record = json.loads(path.read_text())
        if record["title"] == TITLE:
            cell = record["cell"]
            (transfer,) = record["transfers"]
            key = cell["congestion"], cell["first"], cell["second"]
            found[key].append(transfer["goodput_bit_per_s"] / 1e6)
    return found


def ratios(medians, congestion):
    """Ratio, first and second segment, the split's goodput and what each has alone; the least first."""
    alone = {first: it for (name, first, second), it in medians.items() if (name, second) == (congestion, "alone")}
    split = [(first, second, it) for (name, first, second), it in medians.items() if name == congestion and second != "alone"]
    return alone, sorted((it / min(alone[a], alone[b]), a, b, it, alone[a], alone[b]) for a, b, it in split)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = goodputs(sys.argv[1])
    if not found:
        sys.exit(f"no records of `heuristic` in {sys.argv[1]}")
    medians = {key: statistics.median(runs) for key, runs in found.items()}
    for congestion in sorted({key[0] for key in found}):
        alone, sorted_ratios = ratios(medians, congestion)
        values = [it[0] for it in sorted_ratios]
        at = lambda share: values[round(share * (len(values) - 1))]
        near = sum(abs(1 / it - 1) <= STUDY_ERROR for it in values)
        error = statistics.mean(abs(1 / it - 1) for it in values)
        print(f"{congestion}: alone, Mbit/s: " + ", ".join(f"{name} {it:.2f}" for name, it in alone.items()))
        print(f"  {len(values)} pairs; ratio: least {at(0):.2f}, 5 % {at(0.05):.2f}, 25 % {at(0.25):.2f}, median {at(0.5):.2f}, "
              f"75 % {at(0.75):.2f}, 95 % {at(0.95):.2f}, greatest {at(1):.2f}")
        print(f"  predicted within {STUDY_ERROR:.0%}: {near}; mean error {error:.1%}")
        for ratio, first, second, split, own, other in sorted_ratios[:SHOWN] + sorted_ratios[-SHOWN:]:
            print(f"  {ratio:.2f}: {first}, {second}: split {split:.2f}, alone {own:.2f} and {other:.2f}")


if __name__ == "__main__":
    main()
