"""Writes tests/golden/tokenizer/: vocabularies that Hugging Face's trainer learned, and texts with the ids they give.

    python3 -m venv VENV && VENV/bin/pip install 'tokenizers==0.23.*'
    VENV/bin/python tests/reference/make_tokenizer_golden.py [--check]

paragraph.txt, which they learn from, is written by hand. The folder itself is GPT-2's kind, vocab.json and merges.txt, and the
end of text gets id 0 there, so a reader must take ids from the file. Below it are a tokenizer.json for each of the other
kinds. Characters in the cases have been in Unicode long enough that every library knows their class.
"""

import argparse
import json
import tempfile
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "tokenizer"
VOCAB_SIZE = 400

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")

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


# Texts for what only the other kinds have: special and added tokens, and a token that no merges make.
MORE_CASES = [
    "<|im_start|>user\nHello<|im_end|>\n<|endoftext|>",
    "a<|end_of_text|><|begin_of_text|> b <|eot_id|>\n\n<|eot_id",
    "<tool_call>{}</tool_call> <|im_end<|im_end|>|>",
    "the caf\u00e9 and the cafe\u0301s of cafe<|endoftext|>\u0301",
    " clockmaker clockmakers  clockmaker\nclockmaker",
    # Numbers of one to seven digits, and white space of every kind before them.
    "1 12 123 1234 12345 123456 1234567  1\n2 \n 3\t4\u00a0\u00a05a6",
    # Line ends after symbols and white space.
    "end.\n\n  next();\r\n\r\n\t}\n \n\n  \n",
    # The long s is an s in any case.
    "it'\u017f IT'S it'S 'Re 'lL 'LL 'vE d'D '\u017ft",
    # Hangul: composed, and its letters one by one.
    "\ud55c\uae00 \u1112\u1161\u11ab\u1100\u1173\u11af \u1112\u1161x\u11ab",
    # Marks in another order than the normal one; a singleton; what composes is excluded from it.
    "a\u0323\u0308 a\u0308\u0323 \u212b \u2126 \u0915\u093c \u0958 \U0001d15e",
]


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])


def learn(kind, text, vocab_size=VOCAB_SIZE):
    """A tokenizer of a model's kind: gpt2, smollm, llama3 or qwen2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = {
        "gpt2": lambda: byte_level(True),
        "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]),
        "llama3": lambda: split(LLAMA3),
        "qwen2": lambda: split(QWEN2),
    }[kind]()
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    # Special tokens before all others, or after them.
    first = {"gpt2": ["<|endoftext|>"], "smollm": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]}.get(kind, [])
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=first, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    if kind == "llama3":
        model = json.loads(tokenizer.to_str())
        model["model"]["ignore_merges"] = True
        model["model"]["vocab"]["\u0120clockmaker"] = vocab_size
        tokenizer = Tokenizer.from_str(json.dumps(model))
        tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
        begin = tokenizer.token_to_id("<|begin_of_text|>")
        template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), template])
    if kind == "qwen2":
        tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False, special=False),
                              AddedToken("caf\u00e9", normalized=True, special=False)])
    return tokenizer


def cases_of(tokenizer, texts):
    """Lines of JSON: a text, its ids, and its ids when special tokens are recognised, too, if they differ."""
    cases = []
    for text in texts:
        case = {"text": text}
        for key, as_text in (("ids", True), ("recognized", False)):
            tokenizer.encode_special_tokens = as_text
            case[key] = tokenizer.encode(text, add_special_tokens=False).ids
        if case["recognized"] == case["ids"]:
            del case["recognized"]
        cases.append(json.dumps(case))
    return "[\n" + ",\n".join(cases) + "\n]\n"


def golden_files():
    text = (FOLDER / "paragraph.txt").read_text(encoding="utf-8")
    gpt2 = learn("gpt2", text)
    with tempfile.TemporaryDirectory() as folder:
        files = {Path(path).name: Path(path).read_text(encoding="utf-8") for path in gpt2.model.save(folder)}
    files["cases.json"] = cases_of(gpt2, CASES)
    for kind in ("smollm", "llama3", "qwen2"):
        tokenizer = learn(kind, text)
        files[f"{kind}/tokenizer.json"] = tokenizer.to_str() + "\n"
        files[f"{kind}/cases.json"] = cases_of(tokenizer, CASES + MORE_CASES)
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    check = parser.parse_args().check
    for name, text in golden_files().items():
        path = FOLDER / name
        if check:
            assert path.read_text(encoding="utf-8") == text, f"{name} differs"
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
