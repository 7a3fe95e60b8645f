"""Writes tests/golden/tokenizer/: a vocabulary that Hugging Face's trainer learned, and texts with the ids it gives.

    python3 -m venv VENV && VENV/bin/pip install 'tokenizers==0.23.*'
    VENV/bin/python tests/reference/make_tokenizer_golden.py [--check]

paragraph.txt, which it learns from, is written by hand. The end of text gets id 0 here, so a reader must take ids from
the file. Characters in the cases have been in Unicode long enough that every library knows their class.
"""

import argparse
import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "tokenizer"
VOCAB_SIZE = 400

CASES = [
    "",
    "The keeper wound the clock.",
    # Contractions: the seven that the rule knows, in both cases, and apostrophes that are none.
    "I'm sure they're what we'd hoped you'll say she's, it isn't; I've",
    "I'M SURE THEY'RE WHAT WE'D HOPED YOU'LL SAY SHE'S, IT ISN'T; I'VE",
    "'tis rock'n'roll 'll'd''s ' \u2019s don\u2019t o'clock",
    # Digits: ASCII, mixed with letters, other scripts, number letters and fractions.
    "0 12 345678 3.14159 1,000,000 -7 x86 0x1F600 2nd 7s",
    "\u0664\u0665 \u096a\u096b \uff11\uff12 \u00bd \u2167 \u00b2 \u2460",
    # White space: runs, a run before a word, at the ends, tabs, every kind of line end, and rare kinds.
    "  two   three    end  ",
    " ",
    "\n",
    "a\nb\n\nc\n\n\n d",
    "\ttab\t\ttabs \t mixed\r\nCRLF\rCR\x0bVT\x0cFF \r\n\r\n",
    "a\u00a0b\u00a0\u00a0c\u2003d\u3000e\u2028f\u2029g\u0085h\u1680i\u202fj\u205fk",
    # No white space, though some libraries take them for it.
    "a\u180eb \u200b c\u2060d\ufeffe\x1cf\x1f\x00g",
    # Punctuation and symbols.
    "_under_ --dash-- *** (a)[b]{c} <d> \"e\" #f @g $h %i &j ~k ^l |m \\n /o",
    "\u00ab\u201cquotes\u201d\u00bb \u2014 \u2026 \u20ac5 \u00a3 \u00d7\u00f7\u2260 \u2192",
    # Letters of many scripts.
    "na\u00efve caf\u00e9 \u00dcn\u00efc\u00f6d\u00e9 stra\u00dfe \u01c5 \u0130stanbul \ufb01n",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u03ba\u03cc\u03c3\u03bc\u03b5 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u10d2\u10d0",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u4e2d\u6587\u3002\ud55c\uad6d\uc5b4 \uff26\uff35\uff2c\uff2c",
    # Combining marks: after a letter, after a space, alone, stacked; the same word composed and decomposed.
    "e\u0301 \u0301 \u0301a a\u0308\u0304\u0323 caf\u00e9 cafe\u0301",
    # Emoji: alone, with a modifier, joined, flags, keycap.
    "\U0001f600 \U0001f44d\U0001f3fd \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 1\ufe0f\u20e3 \u2764\ufe0f!",
    # Every plane: letters and symbols of planes 1 to 3, tags of plane 14, private use, and what is unassigned.
    "\U00010330\U0001d400\U0001d7d8 \U00020000\U0002a6d6 \U00030000 \U000e0041 \U000f0000 \U0010fffd",
    " ".join(chr(plane << 16 | 0xFFFD) for plane in range(17)),
    "a\ue000b \ufffd \uffffc",
    # Every character of Latin-1, in order: every class boundary there is in it.
    "".join(map(chr, range(256))),
    # Long runs.
    "a" * 100,
    " " * 100 + "x",
    "clock" * 20,
    "=" * 70,
]


def learn():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([(FOLDER / "paragraph.txt").read_text(encoding="utf-8")], trainer)
    return tokenizer


def golden_files():
    tokenizer = learn()
    with tempfile.TemporaryDirectory() as folder:
        files = {Path(path).name: Path(path).read_text(encoding="utf-8") for path in tokenizer.model.save(folder)}
    cases = []
    for text in CASES:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text
        cases.append({"text": text, "ids": ids})
    files["cases.json"] = "[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n"
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    check = parser.parse_args().check
    for name, text in golden_files().items():
        if check:
            assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name} differs"
        else:
            (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
