"""PyTorch's ways to compute the head and a training step of GPT-2, each ready to be timed on any device.

    python3 tools/bench/pytorch_ways.py head DTYPE N,F,C ... [--device cuda] [--repeats 5]
    python3 tools/bench/pytorch_ways.py train DTYPE SIZES ... [--device cuda] [--repeats 5]

print a line of JSON as soon as a way is measured: {"sizes": ..., "way": ..., "seconds": ...}, medians, null where
memory does not suffice. SIZES is the JSON of `tapehead bench train --json`, of which n_layer, n_head, n_embd,
vocab_size, context, batch_size and parameters are read. Example:

    python3 tools/bench/pytorch_ways.py head bf16 4096,768,50257 2048,256,8192 --device cuda
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def seconds_of(work, device):
    """Wall time of work(), and of what it leaves the device to do."""
    def wait():
        if device != "cpu":
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


# ---- The head


def eager(x, w, t):
    return F.cross_entropy(F.linear(x, w), t)


def chunked(x, w, t):
    return F.linear_cross_entropy(x, w, t, options=nn.LinearCrossEntropyOptions())


class Head:
    def __init__(self, shape, dtype, device="cpu"):
        N, features, C = map(int, shape.split(","))
        self.device = device
        self.x = torch.randn(N, features, device=device).to(dtype).requires_grad_()
        self.w = (torch.randn(C, features, device=device) * 0.02).to(dtype).requires_grad_()
        self.t = torch.randint(C, (N,), device=device)
        torch._dynamo.reset()
        self.ways = {"eager": eager, "compiled": torch.compile(eager)}
        if hasattr(F, "linear_cross_entropy"):  # of 2.15
            self.ways["chunked"] = chunked

    def seconds(self, way):
        self.x.grad = self.w.grad = None
        return seconds_of(lambda: self.ways[way](self.x, self.w, self.t).backward(), self.device)


# ---- A training step


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, width = x.shape
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.attention_in(self.ln_1(x)).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(B, T, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """The model of models/gpt.h, in the sizes that `bench train --json` names; its forward is the loss on the whole logits."""

    def __init__(self, sizes):
        super().__init__()
        width = sizes["n_embd"]
        self.tokens, self.positions = nn.Embedding(sizes["vocab_size"], width), nn.Embedding(sizes["context"], width)
        self.blocks = nn.ModuleList(Block(width, sizes["n_head"]) for _ in range(sizes["n_layer"]))
        self.ln_f = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Training:
    """The ways share the model and the optimiser. Weights are f32; with bf16, products are under autocast."""

    def __init__(self, sizes, dtype=torch.float32, device="cpu"):
        self.device, self.dtype = device, dtype
        self.model = GPT2(sizes).to(device)
        assert sum(p.numel() for p in self.model.parameters()) == sizes["parameters"]
        shape = sizes["batch_size"], sizes["context"]
        self.ids, self.targets = (torch.randint(sizes["vocab_size"], shape, device=device) for _ in range(2))
        torch._dynamo.reset()
        self.ways = {"eager": self.model, "compiled": torch.compile(self.model)}
        if device != "cpu":
            self.ways["compiled with CUDA graphs"] = torch.compile(self.model, mode="reduce-overhead")
        self.optimizer = self.fastest_optimizer()

    def loss(self, model):
        with torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32):
            return model(self.ids, self.targets)

    def fastest_optimizer(self):
        """AdamW by PyTorch's fused kernel or by operations on lists, whichever is faster here."""
        parameters = list(self.model.parameters())
        groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
                  {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}]
        self.loss(self.model).backward()
        timed = {}
        for kind in ("fused", "foreach"):
            optimizer = torch.optim.AdamW([dict(group) for group in groups], lr=1e-4, betas=(0.9, 0.95), **{kind: True})
            optimizer.step()  # makes its moments
            timed[seconds_of(optimizer.step, self.device)] = optimizer
        return timed[min(timed)]

    def step(self, way):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.ways[way])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()  # ours reports it, too

    def seconds(self, way):
        self.step(way)  # what ran in between has taken the caches
        return seconds_of(lambda: self.step(way), self.device)


# ---- All ways of one


def median_seconds(subject, way, repeats):
    """The first run warms the way up, and compiles it. None where there is not the memory for it."""
    try:
        return statistics.median([subject.seconds(way) for _ in range(repeats + 1)][1:])
    except torch.OutOfMemoryError:
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("head", "train"))
    parser.add_argument("dtype", choices=DTYPES)
    parser.add_argument("sizes", nargs="+", help="N,F,C of a head; of a training step JSON")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    o = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    for sizes in o.sizes:
        if o.what == "head":
            subject = Head(sizes, DTYPES[o.dtype], o.device)
        else:
            subject = Training(json.loads(sizes), DTYPES[o.dtype], o.device)
        for way in subject.ways:
            seconds = median_seconds(subject, way, o.repeats)
            print(json.dumps({"sizes": sizes, "way": way, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
