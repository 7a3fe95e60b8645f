"""Writes the hand-made seeds in tests/fuzz/seeds: small files that reach far into the readers and the commands.

    python3 tests/fuzz/make_seeds.py

A finding of a fuzzer is put beside them by hand, under the name of what it found.
"""

import json
import struct
from pathlib import Path

SEEDS = Path(__file__).resolve().parent / "seeds"
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1}


def safetensors(tensors, metadata=None, data=None, header=None):
    """tensors: name -> (dtype, shape, bytes)."""
    entries, offset = {}, 0
    for name, (dtype, shape, content) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
    if metadata is not None:
        entries["__metadata__"] = metadata
    text = (json.dumps(entries) if header is None else header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + (b"".join(t[2] for t in tensors.values()) if data is None else data)


def zeros(dtype, *shape):
    count = 1
    for size in shape:
        count *= size
    return dtype, list(shape), bytes(SIZES[dtype] * count)


def numbers(dtype, *shape):
    """Small numbers of both signs."""
    count = 1
    for size in shape:
        count *= size
    values = [((7 * i) % 11 - 5) / 4 for i in range(count)]
    if dtype == "BF16":
        return dtype, list(shape), b"".join(struct.pack("<f", v)[2:] for v in values)
    return dtype, list(shape), struct.pack(f"<{count}{ {'F64': 'd', 'F32': 'f', 'F16': 'e'}[dtype] }", *values)


def indices(*values, dtype="I64"):
    return dtype, [len(values)], struct.pack(f"<{len(values)}{'q' if dtype == 'I64' else 'i'}", *values)


def write(folder, name, content):
    path = SEEDS / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def readers():
    write("safetensors", "empty", b"")
    write("safetensors", "header_alone", struct.pack("<Q", 2) + b"{}")
    write("safetensors", "longer_than_the_file", struct.pack("<Q", 1 << 62) + b"{}")
    write("safetensors", "every_dtype", safetensors({d.lower(): zeros(d, 2, 3) for d in SIZES if d != "U8"}))
    write("safetensors", "unknown_dtype", safetensors({"x": zeros("U8", 3)}))
    write("safetensors", "metadata", safetensors({"x": numbers("F32", 2)}, {"format": "pt", "zwölf": "\u2028"}))
    write("safetensors", "scalar_and_nothing", safetensors({"one": numbers("F64"), "none": zeros("F32", 0, 5)}))
    write("safetensors", "cut", safetensors({"x": numbers("F32", 4)})[:-3])
    write("safetensors", "more_data", safetensors({"x": numbers("F32", 4)}) + b"more")
    whole = '{"x":{"dtype":"F32","shape":[%s],"data_offsets":[%s]}%s}'
    for name, shape, offsets, more in (
            ("overflowing_shape", "4294967296,4294967296,2", "0,0", ""), ("negative_shape", "-1", "0,4", ""),
            ("real_shape", "1.5", "0,4", ""), ("backwards", "1", "4,0", ""), ("huge_offsets", "1", "0,18446744073709551615", ""),
            ("overlap", "1", "0,4", ',"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'),
            ("hole", "1", "0,4", ',"y":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}'),
            ("twice", "1", "0,4", ',"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}')):
        write("safetensors", name, safetensors({}, header=whole % (shape, offsets, more), data=bytes(12)))
    write("safetensors", "deep", safetensors({}, header="[" * 3000))
    write("safetensors", "no_utf8", struct.pack("<Q", 8) + b'{"\xff":1}')


def heads():
    def case(name, flags, dtype="F32", N=3, F=2, C=5, target=None, **more):
        tensors = {"input": numbers(dtype, N, F), "weight": numbers(dtype, C, F),
                   "target": target or indices(*(i % C for i in range(N)))}
        write("head", name, flags.encode() + b"\n" + safetensors(tensors | more))

    case("plain", "")
    case("bias_by_rows", "--batch-chunk-size 1 --reduction sum --json", bias=numbers("F32", 5))
    case("bf16", "--acc-policy compact --acc-dtype f32 --chunking-method aspect_ratio:2", "BF16")
    case("f16", "--loss-dtype f64 --chunking-method none --recompute", "F16")
    case("f64_none", "--reduction none --stats --chunking-method budget:1KiB", "F64", grad_output=numbers("F64", 3))
    case("reference", "--reference --softcap 3 --logit-scale -2 --z-loss 0.5", bias=numbers("F32", 5))
    case("extras", "--label-smoothing 0.3 --normalizer 2 --ignore-index 1 --softcap 1e-30", class_weight=numbers("F32", 5),
         token_weight=numbers("F32", 3))
    case("probabilities", "--json --no-grad", target=numbers("F32", 3, 5))
    case("many_dimensions", "", target=("I64", [3, 2], bytes(48)), weight=numbers("F32", 5, 2, 2))
    case("i32", "--freeze input,weight --chunking-method auto_table", target=indices(4, -100, 0, dtype="I32"))
    case("beyond", "", target=indices(0, 5, -1))
    case("no_rows", "--reduction mean", N=0, target=indices())
    case("no_features", "", F=0)
    case("no_features_many_rows", "--reference", weight=("F32", [1 << 40, 0], b""), input=("F32", [3, 0], b""))
    case("no_classes", "", C=0, target=indices(0, 0, 0))
    case("huge_rows", "", input=("F32", [1 << 40, 0], b""), weight=("F32", [5, 0], b""))
    case("infinite", "--stats", input=("F32", [3, 2], struct.pack("<6f", *[float("inf"), float("nan")] * 3)))
    case("contradiction", "--reference --recompute")
    write("head", "no_file", b"--stats\n")
    write("head", "not_ours", b"\n" + safetensors({"logits": numbers("F32", 2)}))


def features():
    def case(name, dtype="F32", N=6, F=3, targets=None, **more):
        tensors = {"features": numbers(dtype, N, F),
                   "targets": targets or indices(*(i % 4 for i in range(N)))}
        write("features", name, safetensors(tensors | more))

    case("plain")
    case("odd_rows", N=7, targets=indices(0, 1, 2, -100, 1, 0, 2))
    case("bf16", "BF16")
    case("f16", "F16")
    case("f64_i32", "F64", targets=indices(3, 2, 1, 0, -100, 1, dtype="I32"))
    case("nothing_counts", targets=indices(*[-100] * 6))
    case("negative", targets=indices(0, 1, -7, 1, 0, 1))
    case("huge_target", targets=indices(0, 1, (1 << 62) + 3, 1, 0, 1))
    case("largest_target", targets=indices(0, 1, (1 << 63) - 1, 1, 0, 1))
    case("many_classes", targets=indices(0, 1, (1 << 31) - 2, 1, 0, 1))
    case("fewer_targets", targets=indices(0, 1))
    case("floating_targets", targets=numbers("F32", 6))
    case("one_row", N=1)
    case("no_rows", N=0, targets=indices())
    case("no_features", F=0)
    case("infinite", features=("F32", [6, 1], struct.pack("<6f", *[float("inf"), float("nan"), 1] * 2)))
    write("features", "no_targets", safetensors({"features": numbers("F32", 6, 3)}))
    whole = safetensors({"features": numbers("F32", 6, 3), "targets": indices(*range(6))})
    write("features", "cut", whole[:-3])


def tokenizers():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = [chr(c) for c in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    pair = "\u0120a"
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}

    def case(name, merges=("\u0120 a",), added=(), drop=(), model=None, vocab=None, **settings):
        tokens = {token: i for i, token in enumerate([*characters, pair])} | (vocab or {})
        document = {"added_tokens": [{"id": 257 + i, "content": content, "special": i == 0} for i, content in enumerate(added)],
                    "pre_tokenizer": byte_level, "model": {"vocab": tokens, "merges": list(merges)} | (model or {})}
        document |= settings
        for key in drop:
            del document[key]
        write("tokenizer", name, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())

    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}
    end = "<|endoftext|>"
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": end}}, {"Sequence": {"id": "A"}}],
                "special_tokens": {end: {"ids": [257]}}}
    case("plain")
    case("pairs", merges=[["\u0120", "a"]])
    case("added", added=[end, "<|", "<", "model"])
    case("added_again", added=[end, end])
    case("added_of_the_model", added=["a"])
    case("added_takes_a_byte", added=["\u0120"], vocab={})
    case("digits", pre_tokenizer=digits)
    case("nfc", normalizer={"type": "NFC"}, added=[end, "e\u0301"])
    case("template", added=[end], post_processor=template)
    case("template_beyond", post_processor=template)
    case("ignore_merges", model={"ignore_merges": True})
    case("no_model", drop=["model"])
    case("no_rule", drop=["pre_tokenizer"])
    case("merge_of_strangers", merges=["x y"])
    case("merge_twice", merges=["\u0120 a", "\u0120 a"])
    case("gap", vocab={pair: 300})
    case("same_id", vocab={pair: 0})
    case("huge_id", vocab={pair: 1 << 63})
    case("negative_id", vocab={pair: -1})
    case("empty_token", vocab={"": 257})
    write("tokenizer", "cut", b'{"model":{"vocab":{')
    write("tokenizer", "deep", b"[" * 3000)
    write("tokenizer", "no_utf8", b'{"model":{"vocab":{"\xff":0}}}')


readers()
heads()
features()
tokenizers()
