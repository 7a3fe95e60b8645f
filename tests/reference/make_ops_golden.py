"""Writes tests/golden/ops.safetensors: each op's values and gradients, in f64, as PyTorch computes them.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' transformers safetensors numpy
    VENV/bin/python tests/reference/make_ops_golden.py [--check]
"""

import itertools

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from golden import Cases, finish

INF = float("inf")
# All cases draw from one generator, in order: append new ones at the end, and the file changes by them alone.
cases = Cases(seed=1)
randn, positive, randint = cases.randn, cases.positive, cases.randint


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def elementwise():
    shapes = {
        "same": ((2, 3), (2, 3)),
        "scalar": ((2, 3), ()),
        "row": ((4, 3), (3,)),
        "both": ((4, 1, 3), (2, 1)),
        "size_1": ((1,), (1, 1)),
        "empty": ((0, 3), (3,)),
        "empty_by_broadcast": ((2, 1), (2, 0)),
    }
    for op, (case, (left, right)) in itertools.product(("add", "sub", "mul", "div"), shapes.items()):
        b = positive(*right) if op == "div" else randn(*right)
        cases.add(f"{op}/{case}", getattr(torch, op), {"a": randn(*left), "b": b})

    unary = {
        "neg": torch.neg, "exp": torch.exp, "log": torch.log, "tanh": torch.tanh, "sqrt": torch.sqrt, "relu": F.relu,
        "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    }
    # A new one would shift what all later cases draw: it gets cases of its own, after the last ones below.
    for op, function in unary.items():
        for case, shape in {"matrix": (3, 4), "scalar": (), "size_1": (1, 1, 1), "empty": (2, 0)}.items():
            x = positive(*shape) if op in ("log", "sqrt") else 2 * randn(*shape)
            cases.add(f"{op}/{case}", function, {"x": x})
    # Where a formula written the plain way overflows or cancels, and relu's corner.
    tails = values(-800, -40, -10, -6, -1e-9, 0, 1e-9, 6, 10, 40, 800)
    for op in ("tanh", "relu", "gelu", "gelu_tanh", "silu"):
        cases.add(f"{op}/tails", unary[op], {"x": tails})
    cases.add("exp/tails", torch.exp, {"x": values(-800, -40, -1e-9, 0, 1e-9, 40, 700)})
    cases.add("log/tails", torch.log, {"x": values(1e-300, 1e-9, 1, 1 + 1e-9, 1e300)})
    cases.add("sqrt/tails", torch.sqrt, {"x": values(1e-300, 1e-9, 1, 1e300)})


def reductions():
    for op, function in {"sum": torch.sum, "mean": torch.mean}.items():
        for case, shape in {"all": (2, 3, 4), "all_scalar": (), "all_size_1": (1, 1)}.items():
            cases.add(f"{op}/{case}", function, {"x": randn(*shape)}, axis=None, keepdim=False)
    cases.add("sum/all_empty", torch.sum, {"x": randn(0, 3)}, axis=None, keepdim=False)
    for case, shape in {"all": (2, 3, 4), "all_scalar": ()}.items():
        cases.add(f"max/{case}", torch.amax, {"x": randn(*shape)}, axis=None, keepdim=False)
    cases.add("max/all_ties", torch.amax, {"x": values(1, 3, 2, 3)}, axis=None, keepdim=False)

    for op, function in {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}.items():
        for axis, keepdim in itertools.product((0, 1, 2, -1), (False, True)):
            cases.add(f"{op}/axis{axis}_keepdim{int(keepdim)}", lambda x: function(x, dim=axis, keepdim=keepdim),
                      {"x": randn(2, 3, 4)}, axis=axis, keepdim=keepdim)
        cases.add(f"{op}/axis_size_1", lambda x: function(x, dim=1), {"x": randn(3, 1, 2)}, axis=1, keepdim=False)
        # The other axis is empty: nothing to reduce, no value invented.
        cases.add(f"{op}/other_axis_empty", lambda x: function(x, dim=1), {"x": randn(0, 3)}, axis=1, keepdim=False)
    for op, function in {"sum": torch.sum, "mean": torch.mean}.items():
        cases.add(f"{op}/axis_empty", lambda x: function(x, dim=1), {"x": randn(2, 0)}, axis=1, keepdim=False)
    # Small integers, so that most rows have ties; torch.amax shares the gradient equally among them.
    for axis in (0, 1, 2):
        cases.add(f"max/ties_axis{axis}", lambda x: torch.amax(x, dim=axis), {"x": randint(2, 3, 4, 5).double()},
                  axis=axis, keepdim=False)


def softmaxes():
    for op, function in {"softmax": F.softmax, "log_softmax": F.log_softmax}.items():
        for axis in (0, 1, 2, -1):
            cases.add(f"{op}/axis{axis}", lambda x: function(x, dim=axis), {"x": 3 * randn(2, 3, 4)}, axis=axis)
        last = lambda x: function(x, dim=-1)
        cases.add(f"{op}/vector", last, {"x": randn(5)}, axis=-1)
        cases.add(f"{op}/axis_size_1", last, {"x": randn(3, 1)}, axis=-1)
        cases.add(f"{op}/empty", last, {"x": randn(0, 4)}, axis=-1)
        cases.add(f"{op}/offset", last, {"x": 1e6 + randn(2, 5)}, axis=-1)
        cases.add(f"{op}/equal_and_huge", last, {"x": torch.full((2, 4), 1e20, dtype=torch.float64)}, axis=-1)
        cases.add(f"{op}/far_apart", last, {"x": values(-1000, 0, 1000)}, axis=-1)
    cases.add("softmax/masked", lambda x: F.softmax(x, dim=-1), {"x": values(-INF, 1, 2, -INF)}, axis=-1)


def products():
    shapes = {
        "matrix": ((3, 4), (4, 2)),
        "size_1": ((1, 1), (1, 1)),
        "inner_1": ((3, 1), (1, 2)),
        "vector_vector": ((4,), (4,)),
        "matrix_vector": ((3, 4), (4,)),
        "vector_matrix": ((4,), (4, 2)),
        "batch": ((2, 3, 4), (2, 4, 2)),
        "batch_matrix": ((2, 3, 4), (4, 2)),
        "matrix_batch": ((3, 4), (2, 4, 2)),
        "batch_vector": ((2, 3, 4), (4,)),
        "vector_batch": ((4,), (2, 4, 2)),
        "broadcast": ((2, 1, 3, 4), (5, 4, 2)),
        "broadcast_size_1": ((1, 3, 4), (3, 4, 2)),
        "rows_empty": ((0, 4), (4, 2)),
        "inner_empty": ((3, 0), (0, 2)),
        "batch_empty": ((0, 3, 4), (4, 2)),
    }
    for case, (left, right) in shapes.items():
        cases.add(f"matmul/{case}", torch.matmul, {"a": randn(*left), "b": randn(*right)})

    for case, shape in {"matrix": (3, 4), "batch": (2, 3, 4), "vector": (4,), "row": (1, 4), "empty": (0, 4)}.items():
        inputs = {"input": randn(*shape), "weight": randn(5, 4)}
        cases.add(f"linear/{case}", F.linear, inputs)
        cases.add(f"linear/{case}_bias", F.linear, inputs | {"bias": randn(5)})
    cases.add("linear/size_1_bias", F.linear, {"input": randn(1, 1), "weight": randn(1, 1), "bias": randn(1)})


def layers():
    # The last two of the 7 rows are never read: their gradient is zero.
    for case, indices in {"matrix": randint(5, 3, 4), "vector": randint(5, 6), "scalar": torch.tensor(2),
                          "repeated": torch.tensor([3, 3, 3]), "empty": randint(5, 0)}.items():
        cases.add(f"embedding/{case}", F.embedding, {"indices": indices, "weight": randn(7, 3)})

    for case, shape in {"matrix": (3, 5), "batch": (2, 3, 4), "vector": (6,), "axis_size_1": (3, 1),
                        "empty": (0, 4)}.items():
        for scaled, eps in itertools.product((True, False), (1e-5, 0.1)):
            inputs = {"input": randn(*shape)}
            if scaled:
                inputs |= {"weight": randn(shape[-1]), "bias": randn(shape[-1])}
            function = lambda x, weight=None, bias=None: F.layer_norm(x, shape[-1:], weight, bias, eps)
            cases.add(f"layer_norm/{case}_{'affine' if scaled else 'plain'}_eps{eps}", function, inputs, eps=eps)
    function = lambda x, weight, bias: F.layer_norm(x, (5,), weight, bias, 1e-5)
    cases.add("layer_norm/offset", function,
              {"input": 1e4 + randn(3, 5), "weight": randn(5), "bias": randn(5)}, eps=1e-5)

    def attention(q, k, v):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for case, (shape, scale) in {"plain": ((2, 3, 5, 4), 1), "one_token": ((2, 2, 1, 4), 1),
                                 "one_head": ((1, 1, 7, 3), 1), "width_1": ((1, 2, 4, 1), 1),
                                 "batch_empty": ((0, 2, 3, 4), 1), "large_scores": ((1, 2, 6, 4), 30)}.items():
        cases.add(f"attention/{case}", attention, {"q": scale * randn(*shape), "k": randn(*shape), "v": randn(*shape)},
                  causal=True)


def views():
    for case, (axis, shapes) in {"axis0": (0, [(2, 3), (1, 3)]), "axis1": (1, [(2, 3), (2, 1), (2, 4)]),
                                 "negative_axis": (-1, [(2, 3, 1), (2, 3, 2)]), "single": (0, [(2, 2)]),
                                 "with_empty": (0, [(0, 3), (2, 3), (0, 3)])}.items():
        cases.add(f"concat/{case}", lambda *parts: torch.cat(parts, dim=axis),
                  {f"part{i}": randn(*shape) for i, shape in enumerate(shapes)}, axis=axis)

    for case, (old, new) in {"merge": ((2, 3, 4), (6, 4)), "split": ((6, 4), (2, 3, 4)), "flat": ((2, 3), (6,)),
                             "inferred": ((2, 6), (3, -1)), "to_scalar": ((1, 1), ()), "from_scalar": ((), (1, 1)),
                             "empty": ((0, 3), (3, 0))}.items():
        cases.add(f"reshape/{case}", lambda x: x.reshape(new), {"x": randn(*old)}, shape=new)

    for case, (shape, a, b) in {"matrix": ((2, 3), 0, 1), "outer": ((2, 3, 4), 0, 2), "negative": ((2, 3, 4), -1, -2),
                                "same": ((2, 3), 1, 1), "empty": ((0, 3), 0, 1)}.items():
        cases.add(f"transpose/{case}", lambda x: x.transpose(a, b), {"x": randn(*shape)}, axes=[a, b])
    cases.add("transpose_reshape/heads", lambda x: x.transpose(1, 2).reshape(2, 3, 20), {"x": randn(2, 4, 3, 5)},
              axes=[1, 2], shape=[2, 3, 20])

    for case, (shape, axis, start, end, step) in {"axis0": ((5, 3), 0, 1, 4, 1), "axis1": ((2, 6), 1, 2, 6, 1),
                                                  "step": ((2, 7), 1, 1, 7, 2), "whole": ((3, 2), 0, 0, 3, 1),
                                                  "none": ((3, 2), 0, 2, 2, 1), "one": ((3, 2), 0, 2, 3, 1)}.items():
        index = (slice(None),) * axis + (slice(start, end, step),)
        cases.add(f"slice/{case}", lambda x: x[index], {"x": randn(*shape)}, axis=axis, start=start, end=end, step=step)

    for case, (shape, axis, index) in {"axis0": ((3, 4), 0, 2), "axis1": ((3, 4, 2), 1, 0),
                                       "negative": ((3, 4), -1, -1), "to_scalar": ((3,), 0, 1)}.items():
        cases.add(f"select/{case}", lambda x: x.select(axis, index), {"x": randn(*shape)}, axis=axis, index=index)

    for case, (old, new) in {"row": ((3,), (4, 3)), "size_1": ((2, 1, 3), (2, 5, 3)), "scalar": ((), (2, 2)),
                             "same": ((2, 3), (2, 3)), "to_empty": ((1, 3), (0, 3))}.items():
        cases.add(f"expand/{case}", lambda x: x.expand(new), {"x": randn(*old)}, shape=new)


def cross_entropies():
    """Classes lie on axis 1, or 0 of a vector. Probability targets get a gradient too; class weights never do."""

    def add(case, logits, target, class_weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0, **notes):
        inputs = {"logits": logits, "target": target}
        if class_weight is not None:
            inputs["class_weight"] = class_weight
        function = lambda x, y, w=None: F.cross_entropy(x, y, w, ignore_index=ignore_index, reduction=reduction,
                                                        label_smoothing=label_smoothing)
        cases.add(f"cross_entropy/{case}", function, inputs, constants=("class_weight",), reduction=reduction,
                  ignore_index=ignore_index, label_smoothing=label_smoothing, **notes)

    N, C = 6, 5
    for reduction, weighted, smoothing in itertools.product(("mean", "sum", "none"), (False, True), (0.0, 0.3)):
        weight = positive(C) if weighted else None
        suffix = f"{reduction}{'_weighted' if weighted else ''}{'_smooth' if smoothing else ''}"
        options = dict(class_weight=weight, reduction=reduction, label_smoothing=smoothing)
        target = randint(C, N)
        masked = target.clone()
        masked[0] = masked[3] = -100
        in_range = torch.tensor([2, 0, 2, 1, 4, 3])
        add(f"indices_{suffix}", randn(N, C), target, **options)
        add(f"masked_{suffix}", randn(N, C), masked, **options)
        add(f"masked_in_range_{suffix}", randn(N, C), in_range, ignore_index=2, **options)
        add(f"probabilities_{suffix}", randn(N, C), F.softmax(randn(N, C), dim=1), **options)
    add("smooth_fully", randn(N, C), randint(C, N), label_smoothing=1.0)
    add("not_normalised_probabilities", randn(N, C), randn(N, C))

    for reduction in ("mean", "sum", "none"):
        add(f"vector_{reduction}", randn(C), torch.tensor(3), reduction=reduction)
        add(f"vector_probabilities_{reduction}", randn(C), F.softmax(randn(C), dim=0), reduction=reduction)
        add(f"one_class_{reduction}", randn(3, 1), torch.zeros(3, dtype=torch.int64), reduction=reduction)
        add(f"no_rows_{reduction}", randn(0, C), randint(C, 0), reduction=reduction)
        # PyTorch gives mean a NaN loss but zero gradients here (its chunked linear_cross_entropy: NaN gradients).
        add(f"all_masked_{reduction}", randn(3, C), torch.full((3,), -100), reduction=reduction,
            degenerate=reduction == "mean")
        for smoothing in (0.0, 0.3):
            target = randint(C, 2, 3)
            target[1, 2] = -100
            suffix = f"{reduction}{'_smooth' if smoothing else ''}"
            add(f"kdim_{suffix}", randn(2, C, 3), target, positive(C), reduction=reduction, label_smoothing=smoothing)
            add(f"kdim_probabilities_{suffix}", randn(2, C, 3), F.softmax(randn(2, C, 3), dim=1), positive(C),
                reduction=reduction, label_smoothing=smoothing)
    add("offset", 1e6 + randn(3, C), randint(C, 3))
    add("equal_and_huge", torch.full((2, 4), 1e20, dtype=torch.float64), torch.tensor([0, 3]))
    add("target_at_minus_infinity", torch.stack([values(-INF, 1, 2), values(1, 2, 3)]), torch.tensor([0, 1]))


def llama_layers():
    for case, shape in {"matrix": (3, 5), "batch": (2, 3, 4), "vector": (6,), "axis_size_1": (3, 1), "empty": (0, 4)}.items():
        for scaled, eps in itertools.product((True, False), (1e-6, 0.1)):
            inputs = {"input": randn(*shape)}
            if scaled:
                inputs |= {"weight": randn(shape[-1])}
            function = lambda x, weight=None: F.rms_norm(x, shape[-1:], weight, eps)
            cases.add(f"rms_norm/{case}_{'scaled' if scaled else 'plain'}_eps{eps}", function, inputs, eps=eps)

    def attention(q, k, v, first_seen=None):
        key = torch.arange(k.size(2))
        seen = key <= torch.arange(k.size(2) - q.size(2), k.size(2))[:, None]
        if first_seen is not None:
            seen = (seen & (key >= first_seen[:, :, None]))[:, None]
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)

    documents = torch.tensor([[0, 0, 2, 2, 4], [0, 1, 1, 1, 1]])
    for case, (H, G, T, S, first_seen) in {"groups": (4, 2, 5, 5, None), "one_group": (3, 1, 5, 5, None),
                                           "past": (2, 2, 2, 5, None), "one_query": (4, 2, 1, 5, None),
                                           "documents": (2, 1, 5, 5, documents),
                                           "documents_and_past": (4, 2, 2, 5, documents[:, 3:])}.items():
        inputs = {"q": randn(2, H, T, 3), "k": randn(2, G, S, 3), "v": randn(2, G, S, 3)}
        if first_seen is not None:
            inputs["first_seen"] = first_seen
        cases.add(f"grouped_attention/{case}", attention, inputs)

    for case, (shape, first) in {"heads": ((2, 3, 5, 4), 0), "past": ((1, 2, 3, 6), 7), "pair": ((1, 1, 2, 2), 0)}.items():
        frequencies = 1 / 100 ** (torch.arange(0, shape[3], 2).float() / shape[3])
        angles = torch.arange(first, first + shape[2]).float()[:, None] * frequencies
        cosine, sine = (torch.cat([f(angles.double())] * 2, dim=-1)[None] for f in (torch.cos, torch.sin))
        cases.add(f"rotary/{case}", lambda x: apply_rotary_pos_emb(x, x, cosine, sine)[0], {"x": randn(*shape)},
                  first=first, frequencies=frequencies.tolist())


for section in (elementwise, reductions, softmaxes, products, layers, views, cross_entropies, llama_layers):
    section()
finish(cases, "ops.safetensors", 1e-12, __doc__)
