"""Writes docs/gradient_filter.md and .svg: what training loses and gains by the head's gradient filter.

    python3 -m venv VENV && VENV/bin/pip install numpy matplotlib
    bazel build //tools:tapehead
    VENV/bin/python tools/bench/filter_experiment.py --text bible.txt --gpt2 FOLDER [--runs FOLDER] [--page-only]

Trains the model of tools/quickstart with its own tokenizer and with GPT-2's (FOLDER holds its vocab.json and
merges.txt), each with the exact gradient and with filters, over several seeds. Runs that are there already
are not made again. Afterwards times a step of each kind in turn.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent.parent
FILTERS = ("none", "stochastic:0.001953125", "stochastic:0.0078125", "stochastic:0.03125", "threshold:0.000244140625")
LABELS = ("exact", "stochastic, TAU = 2⁻⁹", "stochastic, TAU = 2⁻⁷", "stochastic, TAU = 2⁻⁵", "threshold, EPS = 2⁻¹²")
MODELS = ("small", "large")
COLORS = ("#222222", "#0072b2", "#009e73", "#e69f00", "#cc3311")


def run(options, model, name, seed):
    """The metrics of one run: a list of steps, and what it ended with."""
    folder = options.runs / f"{model}-{name.replace(':', '-')}-{seed}"
    if not (folder / "summary.json").exists():
        command = [options.program, "train", "--text", options.text, "--out", folder, "--seed", seed, "--eval-every", 0,
                   "--save-every", 0, "--head-gradient-filter", name, "--steps", options.steps[model],
                   "--batch-size", options.batch[model]]
        trained = options.runs / "small-tokenizer"  # once, by the first run
        tokenizer = options.gpt2 if model == "large" else trained
        if tokenizer.exists():
            command += ["--tokenizer", tokenizer]
        print("run:", folder.name, flush=True)
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        if not trained.exists():
            trained.symlink_to(folder.resolve() / "tokenizer")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line], json.loads((folder / "summary.json").read_text())


def times(options, model, vocabulary):
    """Seconds of a whole step with each filter, measured in turn."""
    seconds = {name: [] for name in FILTERS}
    for _ in range(options.repeats):
        for name in FILTERS:
            command = [options.program, "bench", "train", "--json", "--repeats", 3, "--vocab-size", vocabulary, "--batch-size",
                       options.batch[model], "--head-gradient-filter", name]
            out = subprocess.run(list(map(str, command)), check=True, capture_output=True).stdout
            seconds[name].append(json.loads(out)["step_seconds"])
    return {name: statistics.median(values) for name, values in seconds.items()}


def smooth(values, width=15):
    padded = np.pad(values, width // 2, mode="edge")
    return np.convolve(padded, np.ones(width) / width, mode="valid")[: len(values)]


def entries_per_step(runs):
    """Means over the runs in which the step had sparse rows; None where none had."""
    means = []
    for step in zip(*runs):
        left = [s["head_entries_per_row"] for s in step if s.get("head_sparse_share", 0) > 0]
        means.append(round(statistics.mean(left), 1) if left else None)
    return means


def measure(options):
    results = {}
    for model in MODELS:
        for name in FILTERS:
            runs = [run(options, model, name, seed) for seed in options.seeds]
            steps = [r[0] for r in runs]
            results.setdefault(model, {})[name] = {
                "held_out": [r[1]["held_out_loss"] for r in runs],
                "loss": np.mean([[s["loss"] for s in one] for one in steps], axis=0).round(4).tolist(),
                "entries": entries_per_step(steps),
                "sparse": float(np.mean([[s.get("head_sparse_share", 0) for s in one] for one in steps])),
                "mass": float(np.mean([[s.get("head_filtered_mass", 0) for s in one[-20:]] for one in steps]))}
        config = json.loads((options.runs / f"{model}-none-{options.seeds[0]}" / "checkpoint.json").read_text())
        vocabulary = config["model"]["vocab_size"]
        for name, seconds in times(options, model, vocabulary).items():
            results[model][name]["step_seconds"] = seconds
        results[model]["vocabulary"] = vocabulary
        results[model]["tokens"] = config["training"]["batch_size"] * config["model"]["n_positions"]
    return results


def draw(results, path):
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "filter", "font.family": "sans-serif", "font.size": 11})
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), height_ratios=(3, 2), sharex="col")
    for column, model in enumerate(MODELS):
        of = results[model]
        for name, label, color in zip(FILTERS, LABELS, COLORS):
            steps = np.arange(1, len(of[name]["loss"]) + 1)
            style = "--" if name == "none" else "-"
            axes[0, column].plot(steps, smooth(np.array(of[name]["loss"])), style, color=color, label=label, linewidth=1.5)
            if name != "none":
                entries = [np.nan if e is None else e for e in of[name]["entries"]]
                axes[1, column].plot(steps, entries, color=color, linewidth=1.5)
        axes[0, column].set_title(f"{of['vocabulary']:,} classes", fontsize=12)
        axes[1, column].set_yscale("log")
        axes[1, column].set_xlabel("step")
        for row in (0, 1):
            axes[row, column].grid(alpha=0.3)
            axes[row, column].spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("training loss (nats per token)")
    axes[1, 0].set_ylabel("entries left in a row")
    axes[0, 0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def spread(values):
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def mean_of(entries):
    left = [e for e in entries if e is not None]
    return f"{statistics.mean(left):.0f}" if left else "dense"


def table(of):
    lines = ["| gradient | held-out loss | difference from exact, seed by seed | entries a row, first and last 20 steps | sparse rows | "
             "mass below the level, at the end | step | exact / this |", "|---|---|---|---|---|---|---|---|"]
    exact = of["none"]
    for name, label in zip(FILTERS, LABELS):
        r = of[name]
        differences = [a - b for a, b in zip(r["held_out"], exact["held_out"])]
        filtered = name != "none"
        entries = f"{mean_of(r['entries'][:20])}, {mean_of(r['entries'][-20:])}" if filtered else "all"
        lines.append(f"| {label} | {spread(r['held_out'])} | {spread(differences) if filtered else ''} | {entries} | "
                     f"{format(r['sparse'], '.0%') if filtered else ''} | {format(r['mass'], '.2f') if filtered else ''} | "
                     f"{r['step_seconds']:.3f} s | {exact['step_seconds'] / r['step_seconds']:.2f} |")
    return "\n".join(lines)


def verdict(results):
    """What the figures say, for the page."""
    lines = []
    for model in MODELS:
        of = results[model]
        noise = statistics.stdev(of["none"]["held_out"]) if len(of["none"]["held_out"]) > 1 else float("nan")
        for name, label in list(zip(FILTERS, LABELS))[1:]:
            cost = statistics.mean(of[name]["held_out"]) - statistics.mean(of["none"]["held_out"])
            speed = of["none"]["step_seconds"] / of[name]["step_seconds"]
            judged = "costs more than 0.01 nats" if cost > 0.01 else "within 0.01 nats of the exact gradient"
            lines.append(f"- {of['vocabulary']:,} classes, {label}: {cost:+.4f} nats ({judged}; the exact runs' spread over seeds is "
                         f"{noise:.4f}), a step {speed:.2f}× as fast.")
    return "\n".join(lines)


def report(results, seeds, steps):
    small, large = results["small"], results["large"]
    return f"""# Training with the gradient filter

Written by `tools/bench/filter_experiment.py`. The model of `tools/quickstart` on its text, {len(seeds)} seeds each, with the exact gradient and with
`--head-gradient-filter`: {steps['small']} steps of {small['tokens']:,} tokens with its {small['vocabulary']:,} classes, and {steps['large']} steps of {large['tokens']:,} tokens
with GPT-2's {large['vocabulary']:,}. The loss itself is always exact. Means over seeds, ± their standard deviation. Steps were timed
in turn, untrained, when most entries are left by `stochastic` and fewest by `threshold`.

![Loss and entries over training](gradient_filter.svg)

A line of entries ends where so much is left that products are dense.

## {small['vocabulary']:,} classes

{table(small)}

## {large['vocabulary']:,} classes

{table(large)}

## What they say

{verdict(results)}

`stochastic` is without bias from the first step, and what it leaves is bounded: about 1 / TAU entries a row. Its price is noise. With
many classes, few tokens a step and few steps it shows, presumably as AdamW divides a rare class's few steps by the noise between
them: there take a smaller TAU, or the exact gradient. With fewer classes and more tokens a step TAU = 2⁻⁷ costs nothing that three
seeds can show. `threshold` drops all that is small: early in training that is nearly everything but the target, so its gradient only pushes the
right class up, and its steps are cheapest just when they are most wrong.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="what to train on")
    parser.add_argument("--gpt2", type=Path, help="folder with GPT-2's vocab.json and merges.txt")
    parser.add_argument("--runs", type=Path, default=Path("runs/filter"), help="where the runs are kept")
    parser.add_argument("--program", type=Path, default=ROOT / "bazel-bin/tools/tapehead")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--small-steps", type=int, default=200)
    parser.add_argument("--large-steps", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=5, help="of the timing")
    parser.add_argument("--page-only", action="store_true", help="write page and picture from docs/gradient_filter.json")
    o = parser.parse_args()
    o.steps = {"small": o.small_steps, "large": o.large_steps}
    o.batch = {"small": 16, "large": 8}
    docs = ROOT / "docs"
    if o.page_only:
        kept = json.loads((docs / "gradient_filter.json").read_text())
        results, o.seeds, o.steps = kept["results"], kept["seeds"], kept["steps"]
    else:
        o.runs.mkdir(parents=True, exist_ok=True)
        results = measure(o)
        (docs / "gradient_filter.json").write_text(json.dumps({"seeds": o.seeds, "steps": o.steps, "results": results}) + "\n")
    draw(results, docs / "gradient_filter.svg")
    (docs / "gradient_filter.md").write_text(report(results, o.seeds, o.steps))
    print(f"written to {docs / 'gradient_filter.md'}")


main()
