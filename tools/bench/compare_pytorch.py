"""Writes docs/performance.md: the head, training steps and generation beside PyTorch's, measured in turn in one run.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' numpy transformers
    bazel build //tools:tapehead
    VENV/bin/python tools/bench/compare_pytorch.py [--only heads] [--shapes 4096,768,50257 2048,256,8192] [--dtypes f32 bf16]
    VENV/bin/python tools/bench/compare_pytorch.py --only training [--models 'gpt2-124m --context 64' quickstart]
    VENV/bin/python tools/bench/compare_pytorch.py --only generation [--texts 'gpt2-124m --tokens 512']

Ours runs as `tapehead bench head`, `bench train` and `bench generate` with their default options. PyTorch computes
the head three ways: eager cross_entropy(linear), the same compiled, and its own chunked linear_cross_entropy with
default options; a training step two ways, eager and compiled, with cross_entropy on the whole logits; and tokens
as transformers' generate does, with its cache. All get two threads unless --threads says otherwise. Ratios of one
run mean more than its seconds. What was measured is kept in docs/performance.json, each row with the commit that
was measured, so that a part can be measured again without the others.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from pytorch_ways import DTYPES, Head, Training, seconds_of

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS, PAGE = ROOT / "docs/performance.json", ROOT / "docs/performance.md"
SHAPES = ("4096,768,50257", "2048,256,8192", "1024,2048,32000", "512,768,50257", "8192,128,50257", "2048,2304,256000")
MODELS = ("gpt2-124m --context 64", "quickstart")
TEXTS = ("gpt2-124m --tokens 512", "quickstart --context 640 --tokens 512")


def run_ours(o, bench, *options):
    """One measurement, after the program's own warm-up, in a process of its own."""
    command = [o.program, "bench", bench, *options, "--repeats", 1, "--threads", o.threads, "--json"]
    return json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout)


def medians(measured):
    """Lists of numbers, by name -> their medians."""
    return {name: statistics.median(values) for name, values in measured.items()}


def warmed_up(pytorch):
    """Its ways have run once, and are compiled."""
    for way in pytorch.ways:
        pytorch.seconds(way)
    return pytorch


# ---- The head


# Ours in other ways than the default one.
VARIANTS = {"auto": ("--chunking-method", "auto"), "filtered": ("--gradient-filter", "stochastic"), "masked": ("--ignored", "0.8")}


def compare_heads(o, shape, dtype):
    pytorch = warmed_up(Head(shape, DTYPES[dtype]))
    measured = {name: [] for name in ("ours", "share", "auto_share", *VARIANTS, *pytorch.ways)}
    for turn in range(o.repeats):
        print(f"{shape} {dtype}: turn {turn + 1} of {o.repeats}", file=sys.stderr)
        ours = run_ours(o, "head", "--shape", shape, "--dtype", dtype)
        measured["ours"].append(ours["total_seconds"])
        measured["share"].append(ours["roofline_share"])
        for name, options in VARIANTS.items():
            variant = run_ours(o, "head", "--shape", shape, "--dtype", dtype, *options)
            measured[name].append(variant["total_seconds"])
            if name == "auto":
                measured["auto_share"].append(variant["roofline_share"])
        for way in pytorch.ways:
            measured[way].append(pytorch.seconds(way))
    return {"shape": shape, "dtype": dtype, "mib": round(ours["peak_bytes"] / 2**20)} | rounded(medians(measured))


# ---- A training step


def compare_training(o, model):
    preset, *sizes = model.split()
    ours = run_ours(o, "train", "--preset", preset, *sizes)  # the first tells the sizes
    pytorch = warmed_up(Training(ours))
    measured = {name: [] for name in ("ours", "tokens_per_second", "share", *pytorch.ways)}
    for turn in range(o.repeats):
        print(f"{model}: turn {turn + 1} of {o.repeats}", file=sys.stderr)
        ours = run_ours(o, "train", "--preset", preset, *sizes)
        measured["ours"].append(ours["step_seconds"])
        measured["tokens_per_second"].append(ours["tokens_per_second"])
        measured["share"].append(ours["floor_share"])
        for way in pytorch.ways:
            measured[way].append(pytorch.seconds(way))
    names = ("n_layer", "n_embd", "vocab_size", "batch_size", "context")
    return {"model": model} | {name: ours[name] for name in names} | rounded(medians(measured))


# ---- Generation


class Transformers:
    """transformers' GPT-2 in the sizes that `bench generate --json` names, weights drawn at random."""

    def __init__(self, sizes):
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(n_layer=sizes["n_layer"], n_head=sizes["n_head"], n_embd=sizes["n_embd"],
                            n_positions=sizes["context"], vocab_size=sizes["vocab_size"], bos_token_id=None, eos_token_id=None)
        self.model = GPT2LMHeadModel(config).eval()
        assert self.model.num_parameters() == sizes["parameters"]
        self.prompt = torch.randint(sizes["vocab_size"], (sizes["samples"], sizes["prompt_tokens"]))
        self.tokens = sizes["tokens"]

    def seconds(self):
        with torch.inference_mode():
            return seconds_of(lambda: self.model.generate(
                self.prompt, attention_mask=torch.ones_like(self.prompt), do_sample=True, top_k=0, pad_token_id=0,
                min_new_tokens=self.tokens, max_new_tokens=self.tokens), "cpu")


def compare_generation(o, text):
    preset, *sizes = text.split()
    options = ("generate", "--preset", preset, *sizes)
    transformers = Transformers(run_ours(o, *options))  # ours tells the sizes
    transformers.seconds()  # warmed up
    measured = {name: [] for name in ("ours", "pace", "transformers", "without_cache")}
    for turn in range(o.repeats):
        print(f"{text}: turn {turn + 1} of {o.repeats}", file=sys.stderr)
        ours = run_ours(o, *options, "--both-ways")
        measured["ours"].append(ours["seconds"])
        measured["pace"].append(ours["weight_bytes_per_second"])
        measured["without_cache"].append(ours["seconds_without_cache"])
        measured["transformers"].append(transformers.seconds())
    names = ("n_layer", "n_embd", "vocab_size", "prompt_tokens", "tokens")
    return {"text": text} | {name: ours[name] for name in names} | rounded(medians(measured))


# ---- The page


def rounded(numbers):
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def circumstances(o):
    cpu = Path("/proc/cpuinfo").read_text()
    names = [line.split(":")[1].strip() for line in cpu.splitlines() if line.startswith("model name")]
    arithmetic = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {name}" in cpu]
    return {"processor": f"{(names or [platform.processor()])[0]} with {', '.join(arithmetic)}", "threads": o.threads,
            "torch": torch.__version__.split("+")[0]}


def commit():
    """Of the sources beside this script, from which the program was built."""
    return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], check=True, capture_output=True, text=True).stdout.strip()


def table(columns, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows])


def measured_on(part):
    runs = sorted({r["repeats"] for r in part["rows"]})
    times = "one run" if runs == [1] else f"medians of {' or '.join(map(str, runs))} runs"
    return f"Measured on {part['processor']}; {part['threads']} threads, {times}, all ways in turn, PyTorch {part['torch']}."


def heads_section(part):
    rows = []
    for r in part["rows"]:
        best = min(r[way] for way in ("eager", "compiled", "chunked"))
        rows.append([r["shape"].replace(",", ", "), r["dtype"], f"{r['ours']:.3f} s", f"{r['share']:.2f}", f"{r['mib']} MiB",
                     *(f"{r[way]:.3f} s" for way in ("eager", "compiled", "chunked")), f"{best / r['ours']:.2f}"])
    columns = ["N, F, C", "T", "ours", "roofline share", "memory", "eager", "compiled", "chunked", "best of PyTorch's / ours"]
    variants = [[r["shape"].replace(",", ", "), r["dtype"], f"{r['auto']:.3f} s", f"{r['auto_share']:.2f}", f"{r['filtered']:.3f} s",
                 f"{r['ours'] / r['filtered']:.2f}", f"{r['masked']:.3f} s", f"{r['masked'] / r['ours']:.2f}"]
                for r in part["rows"] if "auto" in r]
    variant_columns = ["N, F, C", "T", "auto chunks", "roofline share", "stochastic", "default / stochastic", "80 % ignored",
                       "80 % ignored / default"]
    return f"""## linear_cross_entropy

{measured_on(part)}
Forward and backward together, mean over random targets, gradients of input and weight; `tapehead bench head` with its default options.

The roofline share is the time that the three matrix products alone would take, at the rate that the best library here reaches on a
large product in the same run (oneDNN's, for bf16 the faster one of its own and of f32), divided by the op's time. Memory is what
the op allocates beside its arguments, gradients included.

{table(columns, rows)}

Other ways to run it, measured in the same turns: `--chunking-method auto`, whose chunks are small; `--gradient-filter stochastic`
([gradient_filter.md](gradient_filter.md) tells what it does to training), here with logits that are nearly uniform, when most entries
are left; and with 80 % of the targets ignored.

{table(variant_columns, variants)}
"""


def training_section(part):
    rows = []
    for r in part["rows"]:
        sizes = (f"{r['model']}: {r['n_layer']} layers, {r['n_embd']} wide, {r['vocab_size']} words, "
                 f"{r['batch_size']} × {r['context']} tokens")
        rows.append([sizes, f"{r['ours']:.3f} s", f"{r['tokens_per_second']:.0f}", f"{r['share']:.2f}", f"{r['eager']:.3f} s",
                     f"{r['compiled']:.3f} s", f"{r['eager'] / r['ours']:.2f}", f"{r['compiled'] / r['ours']:.2f}"])
    columns = ["GPT-2 in f32", "ours", "tokens/s", "floor share", "eager", "compiled", "eager / ours", "compiled / ours"]
    return f"""## A training step

{measured_on(part)}
Forward, backward, clipping of the gradient and AdamW (PyTorch's fused or its foreach, whichever was faster); `tapehead bench train` with its
default options, without dropout, beside the same model whose loss PyTorch computes from the whole logits.

The floor share is the time that the step's matrix products alone would take at the rate that oneDNN reaches on a large product in
the same run, divided by the step's time.

{table(columns, rows)}
"""


def generation_section(part):
    rows = []
    for r in part["rows"]:
        sizes = f"{r['text'].split()[0]}: {r['n_layer']} layers, {r['n_embd']} wide, {r['vocab_size']} words"
        rows.append([sizes, f"{r['tokens']} after {r['prompt_tokens']}", f"{r['ours']:.3f} s", f"{r['tokens'] / r['ours']:.1f}",
                     f"{r['pace'] / 1e9:.1f} GB/s", f"{r['transformers']:.3f} s", f"{r['transformers'] / r['ours']:.2f}",
                     f"{r['without_cache']:.3f} s", f"{r['without_cache'] / r['ours']:.1f}"])
    columns = ["GPT-2 in f32", "tokens", "ours", "tokens/s", "weights read at", "transformers", "transformers / ours",
               "ours without the cache", "without / with"]
    return f"""## Generation

{measured_on(part)}
One text, each token drawn from all; `tapehead bench generate` beside `generate` of Hugging Face's transformers on PyTorch, both
with a cache of keys and values. A token reads every weight that it is multiplied with once, at the pace that stands beside it.

{table(columns, rows)}
"""


def write_page(results):
    sections = {"heads": heads_section, "training": training_section, "generation": generation_section}
    parts = [section(results[name]) for name, section in sections.items() if name in results]
    PAGE.write_text("\n".join(["# How fast it is\n\nWritten by `tools/bench/compare_pytorch.py`.\n", *parts]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "bazel-bin/tools/tapehead", help="the program to measure")
    parser.add_argument("--only", choices=("heads", "training", "generation"), help="measure one part, and keep the others' results")
    parser.add_argument("--page-only", action="store_true", help="measure nothing; write the page from docs/performance.json")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="N,F,C", help="of the heads")
    parser.add_argument("--dtypes", nargs="+", default=("f32", "bf16"), choices=DTYPES, help="of the heads")
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="PRESET",
                        help="to train: a preset of `bench train`, with options of it in the same word")
    parser.add_argument("--texts", nargs="+", default=TEXTS, metavar="PRESET",
                        help="to write: a preset of `bench generate`, with options of it in the same word")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def measure(part, compare, cases):
        if o.page_only or o.only not in (None, part):
            return
        here = circumstances(o)
        kept = results.get(part, {})
        rows = kept.get("rows", []) if {**kept, "rows": 0} == {**here, "rows": 0} else []  # of the same circumstances
        for case in cases:
            row = compare(o, *case) | {"repeats": o.repeats, "commit": commit()}
            print(row, file=sys.stderr)
            same = [key for key in ("shape", "dtype", "model", "text") if key in row]
            before = [i for i, r in enumerate(rows) if all(r[key] == row[key] for key in same)]
            at = before[0] if before else len(rows)
            rows = rows[:at] + [row] + rows[at + 1:]  # where the case stood
            results[part] = here | {"rows": rows}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")  # at once: an interrupted run keeps what it measured

    measure("heads", compare_heads, [(shape, dtype) for shape in o.shapes for dtype in o.dtypes])
    measure("training", compare_training, [(model,) for model in o.models])
    measure("generation", compare_generation, [(text,) for text in o.texts])
    write_page(results)
    print(f"written to {PAGE}")


main()
