"""Writes tests/golden/hugging_face/: small random models as transformers saves them, and what it computes with them.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' 'transformers==5.*' safetensors numpy
    VENV/bin/python tests/reference/make_hugging_face_golden.py [--check]

Each folder is a model with its tokenizer. expected.safetensors beside it holds input_ids, the logits in f32, and in its
metadata a text with the ids that AutoTokenizer gives it.

| folder | model | weights | tokenizer |
|---|---|---|---|
| gpt2 | GPT-2 | one file, f16 | vocab.json and merges.txt |
| llama | Llama: grouped queries, an untied head | several shards, bf16 | tokenizer.json |
| qwen2 | Qwen2: bias of queries, keys and values, a tied head, another rope_theta | one file, f32 | tokenizer.json |

The vocabularies are padded: the models have more embeddings than the tokenizers tokens.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, PreTrainedTokenizerFast,
                          Qwen2Config)

from golden import FOLDER as GOLDEN
from golden import differences, read

FOLDER = GOLDEN / "hugging_face"
TOKENS = 264
END_OF_TEXT = "<|endoftext|>"
TEXT = "The keeper wound the clock, 12 times;\n  it doesn't tick. \u00dcn\u00efc\u00f6d\u00e9 \U0001f600"
SIZES = {"vocab_size": TOKENS + 8, "bos_token_id": 0, "eos_token_id": 0}
LLAMA_SIZES = SIZES | {"hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "max_position_embeddings": 24}

MODELS = {
    "gpt2": (GPT2Config(**SIZES, n_positions=24, n_embd=16, n_layer=2, n_head=2), torch.float16),
    "llama": (LlamaConfig(**LLAMA_SIZES, rms_norm_eps=1e-5, tie_word_embeddings=False), torch.bfloat16),
    "qwen2": (Qwen2Config(**LLAMA_SIZES, rms_norm_eps=1e-6, rope_theta=50000.0, tie_word_embeddings=True), torch.float32),
}


def random_model(config, generator):
    """Louder than a usual start, so that no part's contribution is too small to be tested."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = parameter.dim() == 1 and name.endswith(".weight")
            parameter.copy_(0.8 + 0.2 * noise if norm else 0.25 * noise)
    return model


def learn_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=TOKENS, special_tokens=[END_OF_TEXT], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([(GOLDEN / "tokenizer" / "paragraph.txt").read_text(encoding="utf-8")], trainer)
    return tokenizer


def save_tokenizer(folder):
    tokenizer = learn_tokenizer()
    if folder.name == "gpt2":
        tokenizer.model.save(str(folder))
    else:
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT).save_pretrained(folder)


def make(folder):
    """The tensors and the metadata of its expected.safetensors."""
    config, dtype = MODELS[folder.name]
    generator = torch.Generator().manual_seed(sorted(MODELS).index(folder.name))
    shard = "12KB" if folder.name == "llama" else "1GB"
    random_model(config, generator).to(dtype).save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_tokenizer(folder)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids = torch.randint(config.vocab_size, (2, 5), generator=generator)
    with torch.no_grad():
        logits = model(ids).logits
    tokens = AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    return {"input_ids": ids, "logits": logits}, {"text": TEXT, "tokens": json.dumps(tokens)}


def without_version(text):
    return "\n".join(line for line in text.splitlines() if "transformers_version" not in line)


def compare(made, folder):
    """Lines that say where a folder differs from what was made now."""
    lines = [f"{name}: only in one of the two" for name in
             {p.name for p in made.iterdir()} ^ {p.name for p in folder.iterdir()}]
    for path in sorted(made.iterdir()):
        if path.suffix == ".safetensors":
            lines += differences(*read(path), folder / path.name, 1e-6)
        elif without_version(path.read_text()) != without_version((folder / path.name).read_text()):
            lines.append(f"{path.name} differs")
    return [f"{folder.name}: {line}" for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in MODELS:
            folder = (Path(temporary) if check else FOLDER) / name
            folder.mkdir(parents=True, exist_ok=True)
            tensors, metadata = make(folder)
            save_file(tensors, folder / "expected.safetensors", metadata)
            if check:
                lines += compare(folder, FOLDER / name)
            else:
                print(f"{name}: {sum(p.stat().st_size for p in folder.iterdir())} bytes")
    print(*lines, sep="\n", end="\n" if lines else "")
    raise SystemExit(1 if lines else 0)


if __name__ == "__main__":
    main()
