#!/usr/bin/env python3
"""Compares what `heuristic` measured with the split throughput heuristic: a split has the lesser of what its segments have alone.
Counts what `gain` measured as the study's Table 3 does.

    midhop reproduce splitting-today --in sim --out RESULTS
    studies/splitting-today/law.py RESULTS/splitting-today

Reads a directory of records. For each congestion control it prints quantiles of the ratio of the split's goodput over the lesser of the
two, of medians over seeds, and the pairs that are farthest from 1; then over how many pairs a split gains, and which pairs they are.
"""

import json
import pathlib
import statistics
import sys
from collections import defaultdict

HEURISTIC = "Any two segments in series, and each alone"
GAIN = "Any two segments in series, end to end and split"
RATE_MBIT_PER_S = 20
GAINS = 3  # times what it has end to end: the bounds of Table 3
USES = 0.5  # of the rate
STUDY_ERROR = 0.14  # the greatest that the study found
SHOWN = 5


def medians_of(directory):
    """Of both scenarios: congestion control and the positions on the other two axes: the median goodput in Mbit/s."""
    axes = {HEURISTIC: ("congestion", "first", "second"), GAIN: ("congestion", "pair", "way")}
    found = {title: defaultdict(list) for title in axes}
    for path in pathlib.Path(directory).glob("*.json"):
        text = path.read_text()
        if not any(title in text[:200] for title in axes):
            continue
        record = json.loads(text)
        (transfer,) = record["transfers"]
        key = tuple(record["cell"][axis] for axis in axes[record["title"]])
        found[record["title"]][key].append(transfer["goodput_bit_per_s"] / 1e6)
    return [{key: statistics.median(runs) for key, runs in found[title].items()} for title in axes]


def count_gains(medians):
    """Prints, for each congestion control, over how many pairs it gains by splitting."""
    for congestion in sorted({key[0] for key in medians}):
        ways = {pair: (medians[congestion, pair, "direct"], medians[congestion, pair, "split"])
                for name, pair, way in medians if (name, way) == (congestion, "split")}
        gained = [pair for pair, (direct, split) in ways.items() if split >= GAINS * direct]
        used = [pair for pair in gained if ways[pair][1] >= USES * RATE_MBIT_PER_S]
        gains = [split / direct for direct, split in ways.values()]
        print(f"{congestion}: {len(ways)} pairs; gain {min(gains):.2f} to {max(gains):.1f}; {GAINS} times or more: {len(gained)}; "
              f"of these {USES:.0%} of the rate or more: {len(used)}: {', '.join(sorted(used))}")


def ratios(medians, congestion):
    """Ratio, first and second segment, the split's goodput and what each has alone; the least first."""
    alone = {first: it for (name, first, second), it in medians.items() if (name, second) == (congestion, "alone")}
    split = [(first, second, it) for (name, first, second), it in medians.items() if name == congestion and second != "alone"]
    return alone, sorted((it / min(alone[a], alone[b]), a, b, it, alone[a], alone[b]) for a, b, it in split)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    medians, gains = medians_of(sys.argv[1])
    if not medians:
        sys.exit(f"no records of `heuristic` in {sys.argv[1]}")
    for congestion in sorted({key[0] for key in medians}):
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
    count_gains(gains)


if __name__ == "__main__":
    main()
