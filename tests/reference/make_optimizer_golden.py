"""Writes tests/golden/optimizer.safetensors: a few steps of torch.optim's SGD, and of Muon with AdamW beside it.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' transformers safetensors numpy
    VENV/bin/python tests/reference/make_optimizer_golden.py [--check]

Gradients are random numbers. Muon's iteration runs in f64, where torch.optim.Muon rounds to bf16.
"""

import json

import torch
import torch.optim._muon as torch_muon

from golden import Cases, finish

SHAPES = {"h.0.wide.weight": (4, 6), "h.1.tall.weight": (7, 3), "h.1.tall.bias": (5,), "embedding.weight": (6, 4)}
STEPS = 4
LR = 0.05
cases = Cases(seed=5)


def orthogonalize(grad, coefficients, steps, eps):
    """_zeropower_via_newtonschulz, without its rounding to bf16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


torch_muon._zeropower_via_newtonschulz = orthogonalize


def is_layer_matrix(name):
    return name.startswith("h.") and len(SHAPES[name]) == 2


def groups(parameters, decay):
    """Matrices decay, vectors do not."""
    return [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]


def sgd(parameters, momentum, nesterov):
    return [torch.optim.SGD(groups(parameters.values(), 0.1), lr=LR, momentum=momentum, nesterov=nesterov)]


def muon(parameters, nesterov):
    matrices = [p for name, p in parameters.items() if is_layer_matrix(name)]
    rest = [p for name, p in parameters.items() if not is_layer_matrix(name)]
    return [torch_muon.Muon(matrices, lr=LR, momentum=0.9, nesterov=nesterov, weight_decay=0.1,
                            adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups(rest, 0.1), lr=LR, betas=(0.9, 0.95), eps=1e-8)]


initial = {name: cases.randn(*shape) for name, shape in SHAPES.items()}
gradients = [{name: cases.randn(*shape) for name, shape in SHAPES.items()} for _ in range(STEPS)]
for name, value in initial.items():
    cases.store(f"initial/{name}", value)
    cases.store(f"gradient/{name}", torch.stack([step[name] for step in gradients]))

for case, settings, optimizers in [
    ("sgd", {"name": "sgd", "momentum": 0.9, "nesterov": False}, lambda p: sgd(p, 0.9, False)),
    ("sgd_nesterov", {"name": "sgd", "momentum": 0.9, "nesterov": True}, lambda p: sgd(p, 0.9, True)),
    ("sgd_plain", {"name": "sgd", "momentum": 0.0, "nesterov": False}, lambda p: sgd(p, 0.0, False)),
    ("muon", {"name": "muon", "momentum": 0.9, "nesterov": False}, lambda p: muon(p, False)),
    ("muon_nesterov", {"name": "muon", "momentum": 0.9, "nesterov": True}, lambda p: muon(p, True)),
]:
    parameters = {name: value.clone().requires_grad_() for name, value in initial.items()}
    chosen = optimizers(parameters)
    for step in gradients:
        for name, parameter in parameters.items():
            parameter.grad = step[name].clone()
        for optimizer in chosen:
            optimizer.step()
    for name, parameter in parameters.items():
        cases.store(f"{case}/{name}", parameter)
    cases.metadata[case] = json.dumps(settings | {"lr": LR, "weight_decay": 0.1})

finish(cases, "optimizer.safetensors", 1e-12, __doc__)
