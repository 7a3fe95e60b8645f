"""Writes docs/exactness.md and docs/exactness.svg: how far linear_cross_entropy is from the truth, beside PyTorch's.

Both get the same inputs of each dtype, and both are compared with loss and gradients from their definition, in 80-bit numbers.
Ours runs as `tapehead head`.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' safetensors numpy matplotlib
    bazel build //tools:tapehead
    VENV/bin/python tests/reference/measure_exactness.py
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.nn import LinearCrossEntropyOptions

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent.parent
N, FEATURES, CLASSES = 1000, 64, 1000
CHUNKS = (1, 4, 10, 40, 100, 250, 1000)
SEEDS = range(3)
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}
REDUCTIONS = ("mean", "sum", "none")
QUANTITIES = ("loss", "input", "weight", "bias")  # the last three: their gradients


def half(name):
    return name in ("bf16", "f16")


def policies(name):
    # Wider inputs have no wider arithmetic to choose.
    return ("accurate", "balanced", "compact") if half(name) else ("compact",)


def problem(name, seed):
    """Inputs that are exact in the dtype, a target for each row, and an upstream gradient for each row."""
    generator = torch.Generator().manual_seed(seed)
    randn = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)
    tensors = {"input": randn(N, FEATURES), "weight": randn(CLASSES, FEATURES) / 4, "bias": randn(CLASSES),
               "grad_output": randn(N)}
    tensors = {key: value.to(DTYPES[name]) for key, value in tensors.items()}
    return tensors | {"target": torch.randint(CLASSES, (N,), generator=generator)}


def run_pytorch(p, biased, reduction, options):
    leaves = [p[key].clone().requires_grad_() for key in ("input", "weight", "bias")]
    bias = leaves[2] if biased else None
    loss = F.linear_cross_entropy(leaves[0], leaves[1], p["target"], linear_bias=bias, reduction=reduction,
                                  options=LinearCrossEntropyOptions(**options))
    loss.backward(p["grad_output"].to(loss.dtype) if reduction == "none" else None)
    return dict(zip(QUANTITIES, [loss.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]))


def run_ours(program, folder, p, biased, reduction, name, policy, rows):
    case = {key: value for key, value in p.items() if (key != "bias" or biased) and (key != "grad_output" or reduction == "none")}
    save_file(case, folder / "case.safetensors")
    command = [program, "head", folder / "case.safetensors", "--out", folder / "out.safetensors", "--reduction", reduction,
               "--batch-chunk-size", rows, "--acc-policy", policy, "--json"]
    if half(name):
        command += ["--acc-dtype", "f32"]
    report = json.loads(subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout)
    assert report["path"] == "chunked" and report["chunks"] == -(-N // rows), report
    out = load_file(folder / "out.safetensors")
    return {q: out["loss" if q == "loss" else f"grad_{q}"] for q in QUANTITIES if q == "loss" or f"grad_{q}" in out}


def run_exactly(p, biased, reduction):
    """Loss and gradients from their definition, in the processor's 80-bit numbers: they have 11 digits (binary) more than f64."""
    x, w, b, up = (p[key].double().numpy().astype(np.longdouble) for key in ("input", "weight", "bias", "grad_output"))
    rows, t = np.arange(N), p["target"].numpy()
    z = x @ w.T + (b if biased else 0)
    z -= z.max(axis=1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    losses = -log_p[rows, t]
    loss = {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]
    g = np.exp(log_p)
    g[rows, t] -= 1
    g *= up[:, None] if reduction == "none" else np.longdouble(1) / (N if reduction == "mean" else 1)
    exact = {"loss": loss, "input": g @ w, "weight": g.T @ x}
    return exact | {"bias": g.sum(axis=0)} if biased else exact


def error(result, exact, name):
    """‖result - exact‖ / ‖exact‖, in units of the dtype's epsilon."""
    difference = np.linalg.norm(np.ravel(result.double().numpy() - exact).astype(np.longdouble))
    return float(difference / np.linalg.norm(np.ravel(exact))) / torch.finfo(DTYPES[name]).eps


def pytorch_options(name, policy, rows):
    # PyTorch has no policy "balanced"; its nearest is accurate.
    options = {"batch_chunk_size": rows, "acc_policy": "accurate" if policy == "balanced" else policy}
    return options | ({"acc_dtype": torch.float32} if half(name) else {})


def measure(program):
    """{(dtype, policy, reduction, biased, quantity, chunks): (ours, PyTorch's)}, each the mean over seeds."""
    cells = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in DTYPES:
            for reduction in REDUCTIONS:
                print(f"{name} {reduction}", file=sys.stderr)
                for biased in (False, True):
                    for seed in SEEDS:
                        p = problem(name, seed)
                        exact = run_exactly(p, biased, reduction)
                        for policy in policies(name):
                            for chunks in CHUNKS:
                                rows = N // chunks
                                ours = run_ours(program, folder, p, biased, reduction, name, policy, rows)
                                theirs = run_pytorch(p, biased, reduction, pytorch_options(name, policy, rows))
                                for q in exact:
                                    key = (name, policy, reduction, biased, q, chunks)
                                    pair = cells.setdefault(key, ([], []))
                                    pair[0].append(error(ours[q], exact[q], name))
                                    pair[1].append(error(theirs[q], exact[q], name))
    return {key: tuple(sum(errors) / len(errors) for errors in pair) for key, pair in cells.items()}


def figure(x):
    return f"{x:.2f}" if math.isfinite(x) and x < 100 else f"{x:.0f}" if math.isfinite(x) else str(x)


def table(cells, name):
    lines = ["| policy | reduction | bias | of | " + " | ".join(map(str, CHUNKS)) + " |",
             "|---|---|---|---|" + "---|" * len(CHUNKS)]
    for policy in policies(name):
        for reduction in REDUCTIONS:
            for biased in (False, True):
                for q in QUANTITIES:
                    row = [cells.get((name, policy, reduction, biased, q, chunks)) for chunks in CHUNKS]
                    if row[0]:
                        lines.append(f"| {policy} | {reduction} | {'yes' if biased else 'no'} | {q} | "
                                     + " | ".join(f"{figure(a)} ({figure(b)})" for a, b in row) + " |")
    return "\n".join(lines)


def worst(cells, chosen):
    return max(value[0] for key, value in cells.items() if chosen(key))


def draw(cells, path):
    """The weight gradient's error over the number of chunks, in bf16: where the policies part."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "exactness", "font.family": "sans-serif", "font.size": 11})
    chart, axes = plt.subplots(figsize=(7.5, 4.2))
    series = lambda policy, who: [cells["bf16", policy, "mean", True, "weight", chunks][who] for chunks in CHUNKS]
    for policy, style in (("accurate", "o-"), ("balanced", "s--"), ("compact", "^-")):
        axes.plot(CHUNKS, series(policy, 0), style, label=f"Tapehead, {policy}")
    for policy, style in (("accurate", "x:"), ("compact", "+:")):
        axes.plot(CHUNKS, series(policy, 1), style, color={"accurate": "gray", "compact": "black"}[policy],
                  label=f"PyTorch, {policy}")
    axes.axhline(3, color="lightgray", zorder=0)
    axes.set(xscale="log", ylim=(0, 3.2), xlabel="chunks", ylabel="error of the weight gradient / eps(bf16)",
             title="bf16, mean, with bias: ‖Δ‖ / ‖reference‖")
    axes.set_xticks(CHUNKS, CHUNKS)
    axes.minorticks_off()
    axes.text(CHUNKS[0], 3.03, "guarantee of accurate and balanced", color="gray", fontsize=9)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    chart.tight_layout()
    chart.savefig(path, metadata={"Date": None})


def report(cells):
    gap = {key: ours - theirs for key, (ours, theirs) in cells.items()}
    worse = [key for key in cells if figure(cells[key][0]) != figure(cells[key][1]) and gap[key] > 0]
    better = [key for key in cells if figure(cells[key][0]) != figure(cells[key][1]) and gap[key] < 0]
    groups = {}
    for key in worse:
        groups.setdefault((key[0], key[1], key[4]), []).append(key)
    rows = "\n".join(f"| {' | '.join(group)} | {len(keys)} | {figure(max(gap[key] for key in keys))} |"
                     for group, keys in groups.items())
    guaranteed = lambda key: half(key[0]) and key[1] != "compact"
    compact = lambda name, chunks: cells[name, "compact", "mean", True, "weight", chunks][0]
    growth = "\n".join(f"| {name} | " + " | ".join(figure(compact(name, chunks)) for chunks in CHUNKS) + " |"
                       for name in ("bf16", "f16"))
    tables = "\n\n".join(f"### {name}\n\n{table(cells, name)}" for name in DTYPES)
    return f"""# How exact linear_cross_entropy is

Written by `tests/reference/measure_exactness.py` from runs of `tapehead head` and of PyTorch {torch.__version__.split("+")[0]} on the CPU.

{N} rows, {FEATURES} features, {CLASSES} classes, random normal inputs that are exact in their dtype (logits of standard deviation
2), {len(SEEDS)} seeds. The error of a result is ‖result - exact‖ / ‖exact‖ in units of eps(T), 2⁻⁷ for bf16, 2⁻¹⁰ for f16, 2⁻²³ for f32,
2⁻⁵² for f64, where `exact` comes from the definition, on the same inputs, in numbers of 64 binary digits. Each figure is the mean
over the seeds; PyTorch's follows in parentheses. bf16 and f16 accumulate in f32 on both sides. PyTorch has no policy
"balanced"; beside it stands PyTorch's "accurate". Rounding an exact result to T costs about 0.2 to 0.3.

![The weight gradient's error over the number of chunks](exactness.svg)

- The guarantee of accurate and balanced is 3. The worst figure here is {figure(worst(cells, guaranteed))}.
- f32 and f64 have no wider arithmetic to choose, so their policies are one. Their worst figures are
  {figure(worst(cells, lambda key: key[0] == "f32"))} and {figure(worst(cells, lambda key: key[0] == "f64"))}.
- Of {len(cells)} cells, {len(better)} are better than PyTorch's, by up to {figure(-min(gap.values()))}, and {len(worse)} are worse, by up to
  {figure(max(gap.values()))}:

| T | policy | of | cells worse | by at most |
|---|---|---|---|---|
{rows}

Where balanced or compact are worse by 0.01 to 0.03 it is their nature: they round the gradient of the logits to T before the
products, which makes those faster. PyTorch keeps it in f32 under both of its policies.

## What compact costs

Compact adds each chunk's weight gradient to a buffer of T, so it rounds once a chunk. Its error grows with the number of chunks:

| weight gradient, mean; chunks: | {" | ".join(map(str, CHUNKS))} |
|---|{"---|" * len(CHUNKS)}
{growth}

Use it where an f32 buffer of the weight's size does not fit, and with few chunks.

## Every cell

{tables}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "bazel-bin/tools/tapehead", help="the program to measure")
    program = parser.parse_args().program
    torch.set_num_threads(2)
    cells = measure(program)
    docs = ROOT / "docs"
    docs.mkdir(exist_ok=True)
    (docs / "exactness.md").write_text(report(cells))
    draw(cells, docs / "exactness.svg")
    print(f"{docs / 'exactness.md'}: {len(cells)} cells")


main()
