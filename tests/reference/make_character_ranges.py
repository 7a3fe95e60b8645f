"""Writes models/character_ranges.h: which characters the `tokenizers` package takes for letters, numbers, white space and marks.

    python3 -m venv VENV && VENV/bin/pip install 'tokenizers==0.23.*'
    VENV/bin/python tests/reference/make_character_ranges.py [--check]

It asks the package about every code point: by way of the classes that its splitting rules are made of, of its step Digits, and
by whether its normal form C reorders the character. The three are of different Unicodes.
"""

import argparse
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

HEADER = Path(__file__).resolve().parents[2] / "models" / "character_ranges.h"
TEXT = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
BEGIN = """// What Unicode 16.0 counts as letters (general category L), as numbers (N) and as White_Space, which
// numbers came with 17.0, and what Unicode 9.0 combines: Canonical_Combining_Class is not 0. Written by
// tests/reference/make_character_ranges.py.
#pragma once

namespace tapehead {

struct CharacterRange {
  char32_t first, last;
};

// clang-format off
"""
END = "// clang-format on\n\n}  // namespace tapehead\n"


def in_class(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    for begin in range(0, len(TEXT), 1024):
        for character, _ in split.pre_tokenize_str("".join(TEXT[begin:begin + 1024])):
            yield ord(character)


def digits():
    """What is cut out of a run of commas."""
    split = pre_tokenizers.Digits(individual_digits=True)
    for begin in range(0, len(TEXT), 1024):
        for piece, _ in split.pre_tokenize_str(",,".join(TEXT[begin:begin + 1024])):
            if len(piece) == 1 and piece != ",":
                yield ord(piece)


def combining():
    """What moves past a mark of class 232, or is passed by one of class 1, on a base that composes with nothing."""
    nfc = normalizers.NFC().normalize_str
    for character in TEXT:
        after, before, normal = "\u25cc\u0315" + character, "\u25cc" + character + "\u0334", nfc(character)
        if nfc(after) == "\u25cc" + normal + "\u0315" or nfc(before) == "\u25cc\u0334" + normal:
            yield ord(character)


def ranges(name, codes):
    found = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    lines = [f"constexpr CharacterRange {name}[] = {{"]
    for first, last in found:
        entry = f"{{0x{first:X}, 0x{last:X}}},"
        if len(lines) == 1 or len(lines[-1]) + 1 + len(entry) > 110:
            lines.append("    " + entry)
        else:
            lines[-1] += " " + entry
    return "\n".join(lines) + "\n};\n\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    check = parser.parse_args().check
    numbers = list(in_class(r"\p{N}"))
    newer_numbers = sorted(set(digits()) - set(numbers))
    header = (BEGIN + ranges("kLetters", in_class(r"\p{L}")) + ranges("kNumbers", numbers) +
              ranges("kNewerNumbers", newer_numbers) + ranges("kSpaces", in_class(r"\s")) +
              ranges("kCombining", combining()) + END)
    if check:
        assert HEADER.read_text() == header, f"{HEADER.name} differs"
    else:
        HEADER.write_text(header)


if __name__ == "__main__":
    main()
