"""Writes tests/golden/lce.safetensors and tests/golden/lce_resolve.json: PyTorch's linear_cross_entropy.

The first holds losses and gradients of the reference path (options null) and of the chunked one, in f64 and f32;
the second what PyTorch makes of options, for given sizes, on the CPU.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' transformers safetensors numpy
    VENV/bin/python tests/reference/make_lce_golden.py [--check]
"""

import itertools
import json
import sys
import warnings

import torch
import torch.nn.functional as F
from torch.nn import LinearCrossEntropyOptions

from golden import FOLDER, Cases, finish

F32, F64 = torch.float32, torch.float64
CPU = torch.device("cpu")
REDUCTIONS = ("mean", "sum", "none")
cases = Cases(seed=2)
randn, positive, randint = cases.randn, cases.positive, cases.randint

# Each makes another chunk size of 13 rows, or takes another path through the options.
OPTIONS = (
    {},
    {"batch_chunk_size": 3},
    {"batch_chunk_size": 1},
    {"batch_chunk_size": 100},
    {"chunking_method": "aspect_ratio:2"},
    {"chunking_method": None},
    {"acc_policy": "accurate"},
    {"allow_retain_graph": True, "batch_chunk_size": 4},
)


def name_of(dtype):
    return {torch.bfloat16: "bf16", torch.float16: "f16", F32: "f32", F64: "f64"}[dtype]


def resolve(options, N, F_, C, dtype, probabilities):
    # Private in PyTorch, and the only place where it says what it resolves to.
    made = LinearCrossEntropyOptions(**options)._adjust(N, F_, C, dtype, CPU, probabilities)
    return {"batch_chunk_size": made.batch_chunk_size, "chunking_method": made.chunking_method,
            "acc_policy": made.acc_policy, "acc_dtype": name_of(made.acc_dtype)}


def add(case, input, weight, target, bias=None, class_weight=None, options=None, reduction="mean", ignore_index=None,
        label_smoothing=0.0, **notes):
    inputs = {"input": input, "weight": weight, "target": target}
    if bias is not None:
        inputs["bias"] = bias
    if class_weight is not None:
        inputs["class_weight"] = class_weight
    probabilities = target.is_floating_point()

    def function(*tensors):
        given = dict(zip(inputs, tensors))
        return F.linear_cross_entropy(
            given["input"], given["weight"], given["target"], linear_bias=given.get("bias"),
            weight=given.get("class_weight"), reduction=reduction, ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            options=None if options is None else LinearCrossEntropyOptions(**options))

    # The chunked path has no gradient for probabilities; asking for one would make it fall back.
    constants = ("class_weight",) if options is None else ("class_weight", "target")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parameters = dict(reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing,
                          probabilities=probabilities, options=options)
        fell_back = label_smoothing > 0 or weight.dim() > 2
        if options is not None and not fell_back:
            N = input.shape[0] if input.dim() == 2 else 1
            parameters["resolved"] = resolve(options, N, weight.shape[1], weight.shape[0], input.dtype, probabilities)
        parameters["path"] = "chunked" if "resolved" in parameters else "reference"
        parameters["warns"] = options is not None and fell_back
        cases.add(f"lce/{case}", function, inputs, constants, **parameters, **notes)
    assert bool(caught) == parameters["warns"], (case, caught)


def targets(kind, N, C, dtype):
    """Indices, indices of which some are masked (the first row, and four rows in a row), or probabilities."""
    if kind == "probabilities":
        return F.softmax(randn(N, C, dtype=dtype), dim=1)
    target = randint(C, N)
    if kind == "masked":
        target[0] = -100
        target[N // 2 : N // 2 + 4] = -100
    return target


def both_paths():
    cycle = itertools.cycle(OPTIONS)
    kinds = ("indices", "masked", "probabilities")
    for kind, reduction, biased, weighted in itertools.product(kinds, REDUCTIONS, (False, True), (False, True)):
        suffix = f"{kind}_{reduction}{'_bias' if biased else ''}{'_weighted' if weighted else ''}"

        def make(path, shape, dtype, options):
            N, F_, C = shape
            add(f"{path}_{suffix}_{name_of(dtype)}", randn(N, F_, dtype=dtype), randn(C, F_, dtype=dtype),
                targets(kind, N, C, dtype), randn(C, dtype=dtype) if biased else None,
                positive(C, dtype=dtype) if weighted else None, options, reduction)

        make("reference", (8, 5, 4), F64, None)
        make("chunked", (13, 4, 6), F64, next(cycle))
        if biased and weighted:
            make("reference", (8, 5, 4), F32, None)
            make("chunked", (13, 4, 6), F32, next(cycle))


def every_option():
    for i, options in enumerate(OPTIONS):
        for reduction in ("mean", "none"):
            add(f"options{i}_{reduction}", randn(13, 7), randn(11, 7), targets("masked", 13, 11, F64), randn(11),
                options=options, reduction=reduction)


def shapes():
    for path, options in {"reference": None, "chunked": {}}.items():
        for reduction in REDUCTIONS:
            tail = f"{path}_{reduction}"
            given = dict(options=options, reduction=reduction)
            add(f"one_of_everything_{tail}", randn(1, 1), randn(1, 1), torch.tensor([0]), randn(1), **given)
            add(f"one_class_{tail}", randn(3, 2), randn(1, 2), torch.tensor([0, 0, 0]), **given)
            add(f"one_feature_{tail}", randn(3, 1), randn(4, 1), randint(4, 3), randn(4), **given)
            add(f"no_batch_{tail}", randn(4), randn(6, 4), torch.tensor(4), randn(6), **given)
            add(f"no_batch_masked_{tail}", randn(4), randn(6, 4), torch.tensor(-100), **given,
                degenerate=reduction == "mean")
            add(f"no_batch_probabilities_{tail}", randn(4), randn(6, 4), F.softmax(randn(6), dim=0), **given)
            # Under mean the loss is NaN, but its gradients are a matter of taste: without rows PyTorch gives zeros;
            # with all rows masked its reference path gives zeros, its chunked path NaN.
            add(f"no_rows_{tail}", randn(0, 5), randn(4, 5), randint(4, 0), **given, degenerate=reduction == "mean")
            add(f"all_masked_{tail}", randn(3, 5), randn(4, 5), torch.full((3,), -100), **given,
                degenerate=reduction == "mean")


def ignoring():
    for path, options in {"reference": None, "chunked": {"batch_chunk_size": 2}}.items():
        for reduction, weighted in itertools.product(REDUCTIONS, (False, True)):
            for case, index in {"in_range": 2, "beyond_classes": 1000, "minus_one": -1}.items():
                target = torch.tensor([index, 0, 1, index, 3, 1, index, index])
                add(f"ignore_{case}_{path}_{reduction}{'_weighted' if weighted else ''}", randn(8, 5), randn(4, 5),
                    target, class_weight=positive(4) if weighted else None, options=options, reduction=reduction,
                    ignore_index=index)


def smoothing():
    for kind, reduction, weighted in itertools.product(("masked", "probabilities"), REDUCTIONS, (False, True)):
        suffix = f"{kind}_{reduction}{'_weighted' if weighted else ''}"
        # With options PyTorch warns and takes the reference path.
        options = {"batch_chunk_size": 3} if weighted else None
        add(f"smooth_{suffix}", randn(8, 5), randn(6, 5), targets(kind, 8, 6, F64), randn(6),
            positive(6) if weighted else None, options, reduction, label_smoothing=0.2)


def many_dimensions():
    for dims, probabilities, reduction in itertools.product(((2,), (2, 3)), (False, True), REDUCTIONS):
        N, C, F_ = 3, 4, 5
        if probabilities:
            target = F.softmax(randn(N, C, *dims), dim=1)
        else:
            target = randint(C, N, *dims)
            target[1, 0] = -100
        suffix = f"{len(dims)}_{'probabilities' if probabilities else 'indices'}_{reduction}"
        # With options PyTorch warns and takes the reference path.
        add(f"kdim{suffix}", randn(N, F_), randn(C, *dims, F_), target, randn(C, *dims), positive(C),
            {} if reduction == "sum" else None, reduction)


def hard_numbers():
    for path, options in {"reference": None, "chunked": {"batch_chunk_size": 1}}.items():
        offset = torch.full((4,), 1e6, dtype=F64)
        add(f"offset_{path}", randn(3, 5), randn(4, 5), randint(4, 3), offset + randn(4), options=options)
        add(f"equal_and_huge_{path}", torch.full((2, 1), 1e20, dtype=F64), torch.ones(4, 1, dtype=F64),
            torch.tensor([0, 3]), options=options)
        bias = torch.full((4,), -torch.inf, dtype=F64)
        bias[2] = 0
        add(f"one_class_left_{path}", randn(3, 5), randn(4, 5), torch.tensor([2, 2, 2]), bias, options=options)
        bias = torch.zeros(4, dtype=F64)
        bias[2] = -torch.inf
        add(f"target_at_minus_infinity_{path}", randn(3, 5), randn(4, 5), torch.tensor([0, 2, 1]), bias,
            options=options)


def resolve_table():
    sizes = [(4096, 2048, 32000), (4096, 8192, 32000), (32768, 8192, 8192), (1024, 4096, 1024), (13, 7, 11), (13, 5, 4),
             (8, 5, 4), (4096, 768, 50257), (0, 5, 4), (1, 1, 1), (1000, 64, 1), (7, 1, 1000003)]
    methods = [{"chunking_method": method} for method in ("aspect_ratio", "aspect_ratio:2", "aspect_ratio:4",
                                                          "aspect_ratio:1000", None)]
    policies = [{"acc_policy": policy} for policy in ("auto", "accurate", "compact")]
    rows = []
    for (N, F_, C), (options, dtype, probabilities) in itertools.product(sizes, [
            *itertools.product(methods, (F32,), (False,)),
            *itertools.product(policies, (F32,), (False, True)),
            *itertools.product(policies, (torch.bfloat16,), (False,)),
            *itertools.product(policies[:1], (F64, torch.float16), (False,)),
            ({"acc_dtype": F32}, torch.bfloat16, False),
            *itertools.product([{"batch_chunk_size": 5}, {"batch_chunk_size": 8},
                                {"batch_chunk_size": 8, "chunking_method": "aspect_ratio"}], (F32,), (False,))]):
        row = {"N": N, "F": F_, "C": C, "dtype": name_of(dtype), "probabilities": probabilities, "options": {
            key: name_of(value) if isinstance(value, torch.dtype) else value for key, value in options.items()}}
        try:
            rows.append(row | resolve(options, N, F_, C, dtype, probabilities))
        except ValueError:
            rows.append(row | {"error": "ValueError"})
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


for section in (both_paths, every_option, shapes, ignoring, smoothing, many_dimensions, hard_numbers):
    section()
table = FOLDER / "lce_resolve.json"
if "--check" not in sys.argv:
    table.write_text(resolve_table())
elif table.read_text() != resolve_table():
    sys.exit(f"{table.name} differs")
finish(cases, "lce.safetensors", 1e-5, __doc__)
