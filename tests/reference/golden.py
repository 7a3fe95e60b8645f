"""What the golden-file scripts share: collecting cases and writing or checking one safetensors file."""

import argparse
import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parent.parent / "golden"


class Cases:
    """Collects `<op>/<case>/…` tensors, and per case a JSON object of parameters."""

    def __init__(self, seed):
        # A fixed seed and one thread: a second run on one machine gives the same bits.
        torch.set_num_threads(1)
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors, self.metadata = {}, {}

    def randn(self, *shape, dtype=torch.float64):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(dtype)

    def positive(self, *shape, dtype=torch.float64):
        """Between 0.5 and 2: away from the poles of log, sqrt and division."""
        return (0.5 + 1.5 * torch.rand(shape, generator=self.generator, dtype=torch.float64)).to(dtype)

    def randint(self, high, *shape):
        return torch.randint(high, shape, generator=self.generator)

    def add(self, name, function, inputs, constants=(), **parameters):
        """Runs function(*inputs) forward and backward under a random upstream gradient.

        inputs maps a role to its tensor. Floating inputs get a gradient unless their role is in constants.
        """
        assert name not in self.metadata, name
        leaves = []
        for role, tensor in inputs.items():
            wants_grad = tensor.is_floating_point() and role not in constants
            leaves.append(tensor.detach().clone().requires_grad_(wants_grad))
        out = function(*leaves)
        grad_out = self.randn(*out.shape, dtype=out.dtype)
        out.backward(grad_out)

        self.metadata[name] = json.dumps({"inputs": list(inputs), **parameters})
        for i, leaf in enumerate(leaves):
            self.store(f"{name}/in{i}", leaf)
            if leaf.requires_grad:
                self.store(f"{name}/grad{i}", leaf.grad)
        self.store(f"{name}/out", out)
        self.store(f"{name}/grad_out", grad_out)

    def store(self, name, tensor):
        # A copy: safetensors refuses tensors that share storage, and an optimiser changes parameters in place.
        self.tensors[name] = tensor.detach().clone().contiguous()


def read(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def differences(tensors, metadata, path, rtol):
    """Lines that say where the file differs from what was made now."""
    old_tensors, old_metadata = read(path)
    lines = [f"{name}: only in one of the two" for name in old_tensors.keys() ^ tensors.keys()]
    lines += [f"{key}: metadata differs" for key in sorted(old_metadata.keys() | metadata.keys())
              if old_metadata.get(key) != metadata.get(key)]
    for name in sorted(old_tensors.keys() & tensors.keys()):
        try:
            torch.testing.assert_close(tensors[name], old_tensors[name], rtol=rtol, atol=rtol, equal_nan=True)
        except AssertionError as error:
            lines.append(f"{name}: {error}")
    return lines


def finish(cases, filename, rtol, description):
    """Writes the file, or under --check compares it with what was made now."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file instead of writing it")
    check = parser.parse_args().check
    path = FOLDER / filename
    if check:
        lines = differences(cases.tensors, cases.metadata, path, rtol)
        print("\n".join(lines + [f"{path.name}: {len(lines)} differences"]))
        raise SystemExit(1 if lines else 0)
    # safetensors orders metadata at random, so an unchanged file is left alone rather than shuffled.
    if path.exists() and not differences(cases.tensors, cases.metadata, path, rtol=0):
        print(f"{path.name}: unchanged")
        return
    path.parent.mkdir(exist_ok=True)
    save_file(cases.tensors, path, cases.metadata)
    print(f"{path.name}: {len(cases.tensors)} tensors, {path.stat().st_size} bytes")
