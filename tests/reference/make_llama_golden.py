"""Writes tests/golden/llama.safetensors: logits, losses and gradients of small Llamas and of a Qwen2.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' transformers safetensors numpy
    VENV/bin/python tests/reference/make_llama_golden.py [--check]

Each model is computed in f32 and, from the same parameters, in f64 (names with _f64); rotary angles are f32 products in both,
as transformers makes them.
"""

import json

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from golden import Cases, finish

SIZES = {"vocab_size": 29, "n_layer": 2, "n_embd": 16, "n_inner": 24, "n_positions": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 0.5, "high_freq_factor": 1.5,
          "original_max_position_embeddings": 12}
# Under ModelConfig's names; what is left out has its default.
MODELS = {
    "tied": {"n_head": 4, "n_kv_head": 2, "tied_head": True, "norm_epsilon": 1e-5, "rope_theta": 500.0},
    "untied": {"n_head": 2, "n_kv_head": 2, "tied_head": False, "norm_epsilon": 1e-6, "attention_bias": True,
               "attention_out_bias": True, "mlp_bias": True},
    "wide_heads": {"n_head": 4, "n_kv_head": 1, "head_dim": 10, "tied_head": True, "norm_epsilon": 1e-5,
                   "rope_theta": 100.0, "rope_scaling": LLAMA3},
    "linear": {"n_head": 2, "n_kv_head": 1, "tied_head": False, "norm_epsilon": 1e-5,
               "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "qwen2": {"n_head": 4, "n_kv_head": 2, "tied_head": True, "norm_epsilon": 1e-6, "attention_bias": True},
}
ROWS, TOKENS = 2, 13
IGNORE = -100
cases = Cases(seed=4)


def new_model(name):
    m = MODELS[name]
    shared = {"vocab_size": SIZES["vocab_size"], "num_hidden_layers": SIZES["n_layer"], "hidden_size": SIZES["n_embd"],
              "intermediate_size": SIZES["n_inner"], "max_position_embeddings": SIZES["n_positions"],
              "num_attention_heads": m["n_head"], "num_key_value_heads": m["n_kv_head"],
              "rms_norm_eps": m["norm_epsilon"], "tie_word_embeddings": m["tied_head"],
              "rope_parameters": {"rope_type": "default", "rope_theta": m.get("rope_theta", 10000.0)} | m.get("rope_scaling", {}),
              "bos_token_id": None, "eos_token_id": None, "attn_implementation": "eager"}
    if name == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**shared))
    if "head_dim" in m:
        shared["head_dim"] = m["head_dim"]
    assert m.get("attention_bias", False) == m.get("attention_out_bias", False)
    return LlamaForCausalLM(LlamaConfig(**shared, attention_bias=m.get("attention_bias", False),
                                        mlp_bias=m.get("mlp_bias", False)))


def initial_parameters(name):
    """Larger than a trained model's usual start, so that no part's contribution is too small to be tested."""
    return {key: (0.8 if "norm" in key else 0.0) + 0.25 * cases.randn(*old.shape, dtype=torch.float32)
            for key, old in new_model(name).named_parameters()}


def store(name):
    parameters = initial_parameters(name)
    ids, targets = (cases.randint(SIZES["vocab_size"], ROWS, TOKENS) for _ in range(2))
    targets[1, 4:7] = IGNORE
    for key, parameter in parameters.items():
        cases.store(f"{name}/{key}", parameter)
    cases.store(f"{name}/input_ids", ids)
    cases.store(f"{name}/targets", targets)
    for dtype, suffix in ((torch.float32, ""), (torch.float64, "_f64")):
        model = new_model(name).to(dtype)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(parameters[key])
        logits = model(ids).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        loss.backward()
        cases.store(f"{name}/logits{suffix}", logits)
        cases.store(f"{name}/loss{suffix}", loss)
        if dtype == torch.float32:
            for key, parameter in model.named_parameters():
                cases.store(f"{name}/grad/{key}", parameter.grad)


for name in MODELS:
    store(name)
cases.metadata |= {"models": json.dumps({name: SIZES | model for name, model in MODELS.items()})}
finish(cases, "llama.safetensors", 1e-5, __doc__)
