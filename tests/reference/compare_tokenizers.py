"""Compares the program's tokens with those of the `tokenizers` package on megabytes of mixed text.

    python3 -m venv VENV && VENV/bin/pip install 'tokenizers==0.23.*'
    bazel build //tools:tapehead
    VENV/bin/python tests/reference/compare_tokenizers.py [--megabytes 10] [--tokenizer FOLDER]

The text is the same every time: prose and code from this repository, all of Unicode's planes, white space, numbers,
contractions, accents in pieces, and special tokens' names. For each splitting rule a vocabulary is learned on some of it; FOLDER may
hold one of a real model. The program must give the package's ids for it, with special tokens and without; the tokens
of the same text with bytes in it that are no UTF-8 must decode to it; and a run's copy of the tokenizer must be worth as
much as the original to the package.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from make_tokenizer_golden import learn
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bazel-bin" / "tools" / "tapehead"
SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<tool_call>"]


def mixed_text(size, seed=1):
    """About `size` bytes of UTF-8."""
    draw = random.Random(seed)
    prose = sorted(p for ext in ("md", "txt") for p in ROOT.glob(f"*/**/*.{ext}")) + [ROOT / "README.md"]
    code = sorted(p for ext in ("cc", "h", "py", "json") for folder in ("core", "models", "ops", "tests")
                  for p in (ROOT / folder).rglob(f"*.{ext}"))
    files = [path.read_text(encoding="utf-8") for path in prose + code]

    def cut_of_a_file():
        text = draw.choice(files)
        begin = draw.randrange(len(text))
        return text[begin:begin + draw.randrange(1, 400)]

    def character(first=0, last=0x10FFFF):
        code = draw.randint(first, last)
        return chr(code) if not 0xD800 <= code < 0xE000 else "\n"

    def near(count):
        """Neighbours, as scripts have them."""
        middle = draw.randint(0, 0x1FFFF)
        return "".join(character(middle, middle + 60) for _ in range(count))

    def accents():
        return "".join(draw.choice("aeiouAnNyc\u0915\u1100\u1112\uac00") +
                       "".join(character(0x300, 0x345) if draw.random() < 0.8 else draw.choice("\u1161\u11a8\u093c")
                               for _ in range(draw.randrange(3))) for _ in range(draw.randrange(1, 9)))

    kinds = [
        (8, cut_of_a_file),
        (2, lambda: "".join(character() for _ in range(draw.randrange(1, 30)))),
        (2, lambda: near(draw.randrange(1, 30))),
        (1, lambda: "".join(character(0, 0x2FF) for _ in range(draw.randrange(1, 30)))),
        (2, lambda: "".join(draw.choice(SPACES) for _ in range(draw.randrange(1, 8)))),
        (2, lambda: draw.choice(SPACES) * draw.randrange(1, 40)),
        (2, lambda: "".join(draw.choice("0123456789") for _ in range(draw.randrange(1, 12)))),
        (2, lambda: "'" + draw.choice(["s", "S", "t", "re", "RE", "vE", "m", "ll", "Ll", "d", "\u017f", "x", "l", ""])),
        (1, lambda: draw.choice("=-*#\n \ta") * draw.randrange(1, 300)),
        (1, accents),
        (1, lambda: draw.choice(SPECIAL)[draw.randrange(2):]),
    ]
    weights, makers = zip(*kinds)
    parts, made = [], 0
    while made < size:
        part = draw.choices(makers, weights)[0]()
        parts.append(part)
        made += len(part.encode())
    return "".join(parts)


def spoil(data, seed=2):
    """Bytes that are no UTF-8, here and there."""
    draw = random.Random(seed)
    pieces = [data[i:i + 50] for i in range(0, len(data), 50)]
    return b"".join(piece + draw.randbytes(draw.randrange(3)) for piece in pieces)


def run(*args):
    return subprocess.run([PROGRAM, *map(str, args)], check=True, stdout=subprocess.PIPE).stdout


def compare(name, folder, text, scratch):
    package = Tokenizer.from_file(str(folder / "tokenizer.json"))
    file = scratch / "text"
    file.write_bytes(text.encode())
    for flags in ([], ["--special-tokens"]):
        package.encode_special_tokens = not flags
        expected = package.encode(text, add_special_tokens=bool(flags)).ids
        ids = list(map(int, run("tokenize", "encode", folder, file, *flags).split()))
        if ids != expected:
            place = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
            sys.exit(f"{name} {flags}: token {place} differs, after {package.decode(expected[max(0, place - 5):place])!r}: the "
                     f"package has {[package.id_to_token(i) for i in expected[place:place + 5]]}, the program "
                     f"{[package.id_to_token(i) for i in ids[place:place + 5]]}")
        print(f"{name}: {len(text.encode()):,} bytes, {len(ids):,} tokens{' with special ones' if flags else ''}, all equal")

    bytes_ = spoil(text.encode())
    if package.normalizer is None:
        file.write_bytes(bytes_)
        run("tokenize", "encode", folder, file, "--out", scratch / "tokens")
        if run("tokenize", "decode", folder, scratch / "tokens") != bytes_:
            sys.exit(f"{name}: decoding does not give back bytes that are no UTF-8")
        print(f"{name}: {len(bytes_):,} bytes that are no UTF-8, encoded and decoded")

    file.write_text(text[:10000], encoding="utf-8")
    run("train", "--text", file, "--tokenizer", folder, "--out", scratch / name, "--n-layer", 1, "--n-embd", 8, "--n-head", 1,
        "--context", 8, "--batch-size", 1, "--steps", 1)
    copy = Tokenizer.from_file(str(scratch / name / "tokenizer" / "tokenizer.json"))
    if copy.encode(text).ids != expected:
        sys.exit(f"{name}: the package gives other ids with what the program saved")
    print(f"{name}: the package gives the same ids with what the program saved")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=10, help="of text (10)")
    parser.add_argument("--vocab-size", type=int, default=8000, help="of the vocabularies that are learned (8000)")
    parser.add_argument("--tokenizer", type=Path, help="a folder with tokenizer.json to compare with, too")
    parser.add_argument("--kinds", nargs="*", default=["gpt2", "smollm", "llama3", "qwen2"], help="of splitting rules (all)")
    options = parser.parse_args()
    text = mixed_text(int(options.megabytes * 2**20))
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        folders = {}
        for kind in options.kinds:
            folders[kind] = scratch / f"{kind}-tokenizer"
            folders[kind].mkdir()
            learn(kind, text[:1000000], options.vocab_size).save(str(folders[kind] / "tokenizer.json"))
        if options.tokenizer:
            folders[options.tokenizer.name] = options.tokenizer
        for name, folder in folders.items():
            compare(name, folder, text, scratch)


if __name__ == "__main__":
    main()
