"""Writes tests/golden/gpt2.safetensors: a small GPT-2's logits, loss, gradients and ten AdamW steps.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' transformers safetensors numpy
    VENV/bin/python tests/reference/make_gpt2_golden.py [--check]

Everything is computed twice, in f32 and in f64 from the same f32 parameters; names with _f64 are the second.

The keys' bias (the middle third of attn.c_attn.bias) has no effect on attention, so its gradient is rounding noise,
which AdamW blows up to steps of up to lr: leave that third out when comparing final parameters.
"""

import json
import math

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from golden import Cases, finish

MODEL = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 97, "n_positions": 16,
         "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
TRAINING = {"steps": 10, "warmup_steps": 3, "peak_lr": 1e-3, "min_lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
            "weight_decay": 0.1, "clip_norm": 1.0, "clip_eps": 1e-6}
ROWS, TOKENS = 4, 16
IGNORE = -100
cases = Cases(seed=3)


def new_model():
    config = GPT2Config(**MODEL, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=True,
                        bos_token_id=None, eos_token_id=None, attn_implementation="eager")
    return GPT2LMHeadModel(config)


def initial_parameters():
    """Larger than a trained model's usual start, so that no part's contribution is too small to be tested.

    The layer norms' scale is chosen so that some of the ten steps are clipped and others are not.
    """
    parameters = {}
    for name, old in new_model().named_parameters():  # names the tied head once, as transformer.wte.weight
        if ".ln_" in name and name.endswith(".weight"):
            parameters[name] = 0.7 + 0.2 * cases.randn(*old.shape, dtype=torch.float32)
        else:
            parameters[name] = 0.2 * cases.randn(*old.shape, dtype=torch.float32)
    return parameters


def model_of(parameters, dtype):
    model = new_model().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(parameters[name])
    return model


def batch(masked):
    """Rows of tokens and, already shifted, the tokens that follow them; masked lists (row, first, end)."""
    tokens = cases.randint(MODEL["vocab_size"], ROWS, TOKENS + 1)
    ids, targets = tokens[:, :-1].clone(), tokens[:, 1:].clone()
    for row, first, end in masked:
        targets[row, first:end] = IGNORE
    return ids, targets


def loss_of(logits, targets, reduction="mean"):
    """mean: over the unmasked targets of the batch."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction=reduction)


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def lr_of(step):
    """Steps count from 1: linear to the peak at warmup_steps, then a half cosine that ends at min_lr on the last."""
    warmup, steps, peak, low = (TRAINING[key] for key in ("warmup_steps", "steps", "peak_lr", "min_lr"))
    if step <= warmup:
        return peak * step / warmup
    progress = (step - warmup) / (steps - warmup)
    return low + (peak - low) * (1 + math.cos(math.pi * progress)) / 2


def train(model, batches):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": TRAINING["weight_decay"]},
                                   {"params": others, "weight_decay": 0.0}],
                                  betas=(TRAINING["beta1"], TRAINING["beta2"]), eps=TRAINING["eps"])
    losses, norms = [], []
    for step, (ids, targets) in enumerate(batches, start=1):
        for group in optimizer.param_groups:
            group["lr"] = lr_of(step)
        optimizer.zero_grad()
        loss = loss_of(model(ids).logits, targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), TRAINING["clip_norm"]))
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), torch.stack(norms)


def check_accumulation(parameters, ids, targets, whole, split):
    """Sums over micro-batches, divided by the whole batch's unmasked targets, give the whole batch's gradients."""
    model = model_of(parameters, torch.float64)
    sums, counts = [], []
    for micro_ids, micro_targets in zip(ids.split(split), targets.split(split)):
        loss = loss_of(model(micro_ids).logits, micro_targets, reduction="sum")
        loss.backward()
        sums.append(loss.detach())
        counts.append((micro_targets != IGNORE).sum())
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient / sum(counts), whole[name], rtol=1e-10, atol=1e-12)
    cases.store("accumulation/rows", torch.tensor(split))
    cases.store("accumulation/unmasked", torch.stack(counts))
    cases.store("accumulation/loss_sum_f64", torch.stack(sums))


parameters = initial_parameters()
# Per row 0, 3, 1 and 9 targets are masked: a mean of the micro-batches' means would be plainly wrong.
ids, targets = batch([(1, 0, 3), (2, 15, 16), (3, 4, 13)])
batches = [batch([(step % ROWS, 0, step)]) for step in range(TRAINING["steps"])]

for name, parameter in parameters.items():
    cases.store(name, parameter)
cases.store("input_ids", ids)
cases.store("targets", targets)
cases.store("train/input_ids", torch.stack([b[0] for b in batches]))
cases.store("train/targets", torch.stack([b[1] for b in batches]))
cases.store("train/lr", torch.tensor([lr_of(step) for step in range(1, TRAINING["steps"] + 1)], dtype=torch.float64))

for dtype, suffix in ((torch.float32, ""), (torch.float64, "_f64")):
    model = model_of(parameters, dtype)
    logits = model(ids).logits
    loss = loss_of(logits, targets)
    loss.backward()
    cases.store(f"logits{suffix}", logits)
    cases.store(f"loss{suffix}", loss)
    whole = gradients(model)
    if dtype == torch.float32:
        for name, gradient in whole.items():
            cases.store(f"grad/{name}", gradient)
    else:
        check_accumulation(parameters, ids, targets, whole, split=[3, 1])

    model.zero_grad()
    losses, norms = train(model, batches)
    assert (norms > 1.01).any() and (norms < 0.99).any(), norms
    cases.store(f"train/loss{suffix}", losses)
    cases.store(f"train/grad_norm{suffix}", norms)
    if dtype == torch.float32:
        for name, parameter in model.named_parameters():
            cases.store(f"final/{name}", parameter)

cases.metadata |= {"model": json.dumps(MODEL), "training": json.dumps(TRAINING | {"ignore_index": IGNORE})}
finish(cases, "gpt2.safetensors", 1e-5, __doc__)
