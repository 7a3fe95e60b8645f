"""Writes tests/golden/sampler.safetensors: what transformers leaves of random logits before it draws a token.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' transformers safetensors numpy
    VENV/bin/python tests/reference/make_sampler_golden.py [--check]

The processors and their order are those that a model's generate() takes for the settings.
"""

import json

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from golden import Cases, finish

VOCAB_SIZE, TEXT = 60, 15
SETTINGS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 7},
    "top_k_of_more_than_all": {"top_k": 100},
    "top_p": {"top_p": 0.9},
    "top_p_of_one_token": {"top_p": 0.01},
    "min_p": {"min_p": 0.05},
    "min_p_of_one_token": {"min_p": 1.0},
    "penalty": {"repetition_penalty": 1.3},
    "reward": {"repetition_penalty": 0.8},
    "all": {"repetition_penalty": 1.2, "temperature": 1.5, "top_k": 30, "top_p": 0.8, "min_p": 0.1},
    "all_mildly": {"repetition_penalty": 1.05, "temperature": 0.9, "top_k": 50, "top_p": 0.99, "min_p": 0.001},
}

cases = Cases(seed=8)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=2, vocab_size=VOCAB_SIZE, n_positions=2,
                                   bos_token_id=None, eos_token_id=None))


def processors(settings):
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0}
    config = GenerationConfig(do_sample=True, **(neutral | settings))
    return model._get_logits_processor(config, input_ids_seq_length=TEXT)


for name, settings in SETTINGS.items():
    for ties in (False, True):
        logits = 2 * cases.randn(1, VOCAB_SIZE)
        if ties:  # many logits are equal; which of them top-p keeps is nobody's rule
            if "top_p" in settings:
                continue
            logits = logits.round()
        text = cases.randint(VOCAB_SIZE, 1, TEXT)
        case = f"sampler/{name}{'_with_ties' if ties else ''}"
        cases.metadata[case] = json.dumps(settings)
        cases.store(f"{case}/logits", logits[0])
        cases.store(f"{case}/text", text[0])
        cases.store(f"{case}/processed", processors(settings)(text, logits.clone())[0])

finish(cases, "sampler.safetensors", 1e-12, __doc__)
