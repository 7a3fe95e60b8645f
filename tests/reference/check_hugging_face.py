"""Holds `tapehead import` and `tapehead export` against transformers, with random models of every architecture and dtype.

    bazel build //tools:tapehead //tests/reference:pretrained_logits
    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' 'transformers==5.*' safetensors numpy
    VENV/bin/python tests/reference/check_hugging_face.py

A line for each model and dtype of its files: the largest difference of logits, relative to the largest logit,
- in: of our model from transformers' folder, to transformers;
- out: of transformers' model from our exported folder, to its own;
- ours: of our model from our exported folder, to transformers' from the same;
and whether AutoTokenizer gives the exported folder the same tokens as the first, and so does `tapehead tokenize`.
Ends with status 1 if a difference is above 1e-5 or a token differs.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, Qwen2Config

from make_hugging_face_golden import SIZES, TEXT, random_model, save_tokenizer

BIN = Path(__file__).resolve().parents[2] / "bazel-bin"
LIMIT = 1e-5
POSITIONS, ROWS = 64, 4
LLAMA_SIZES = SIZES | {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 6,
                       "max_position_embeddings": POSITIONS}
CONFIGS = {
    "gpt2": GPT2Config(**SIZES, n_positions=POSITIONS, n_embd=96, n_layer=4, n_head=6),
    "llama": LlamaConfig(**LLAMA_SIZES, num_key_value_heads=2, rope_theta=500000.0),
    "smollm": LlamaConfig(**LLAMA_SIZES, num_key_value_heads=3, rms_norm_eps=1e-5, tie_word_embeddings=True),
    "llama3": LlamaConfig(**LLAMA_SIZES, num_key_value_heads=1, head_dim=32, attention_bias=True, mlp_bias=True,
                          rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                                           "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                           "original_max_position_embeddings": 32}),
    "qwen2": Qwen2Config(**LLAMA_SIZES, num_key_value_heads=2, rope_theta=1000000.0, tie_word_embeddings=True),
}


def run(program, *args, **more):
    return subprocess.run([BIN / program, *map(str, args)], check=True, capture_output=True, **more).stdout


def reference_logits(folder, ids):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(ids).logits


def our_logits(folder, ids):
    save_file({"input_ids": ids}, folder / "ids")
    run("tests/reference/pretrained_logits", folder, folder / "ids", folder / "logits")
    return load_file(folder / "logits")["logits"]


def difference(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def check(name, dtype, folder):
    original, runs, exported = folder / name, folder / "run", folder / "exported"
    original.mkdir()
    generator = torch.Generator().manual_seed(7)
    random_model(CONFIGS[name], generator).to(dtype).save_pretrained(original, max_shard_size="200KB")
    save_tokenizer(original)
    ids = torch.randint(CONFIGS[name].vocab_size, (ROWS, POSITIONS), generator=generator)

    short = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    run("tools/tapehead", "import", original, "--out", runs)
    run("tools/tapehead", "export", runs, exported, "--dtype", short)
    expected, returned = reference_logits(original, ids), reference_logits(exported, ids)
    differences = {"in": difference(our_logits(original, ids), expected), "out": difference(returned, expected),
                   "ours": difference(our_logits(exported, ids), returned)}

    tokens = [AutoTokenizer.from_pretrained(f)(TEXT)["input_ids"] for f in (original, exported)]
    ours = list(map(int, run("tools/tapehead", "tokenize", "encode", runs, input=TEXT.encode()).split()))
    same = tokens[0] == tokens[1] == ours
    print(f"{name:8}{short:6}" + "".join(f"{key} {value:.1e}  " for key, value in differences.items()) +
          ("same tokens" if same else f"other tokens: {tokens}, {ours}"), flush=True)
    return same and max(differences.values()) <= LIMIT


def main():
    good = True
    for name in CONFIGS:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            with tempfile.TemporaryDirectory() as folder:
                good = check(name, dtype, Path(folder)) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
