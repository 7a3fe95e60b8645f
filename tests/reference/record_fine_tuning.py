"""Writes docs/fine_tuning.md: a model of transformers comes in, learns to answer, is interrupted, and goes back.

    python3 -m venv VENV && VENV/bin/pip install 'torch==2.15.*' transformers tokenizers
    bazel build //tools:tapehead
    VENV/bin/python tests/reference/record_fine_tuning.py --folder /tmp/fine_tuning

The model is shaped like SmolLM (grouped-query attention, tied head, rotary positions) with random weights, and small enough for a minute
on two cores. What it learns, sums of two numbers, is made here too. Every command and its output stand in the page as they ran.
"""

import argparse
import json
import random
import signal
import subprocess
import time
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/fine_tuning.md"
SENTENCE = "What is 12 and 30?"


def questions(count):
    draw = random.Random(1)
    pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(count)]
    return [{"prompt": f"What is {a} and {b}?", "completion": f" It is {a + b}."} for a, b in pairs]


def make_model(folder, texts):
    """A random model of transformers with a tokenizer of SmolLM's kind, as people find them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>").save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=144, intermediate_size=384, num_hidden_layers=4, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=64, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
    )).save_pretrained(folder)


class Recorder:
    """Runs commands in the folder and keeps what they printed, for the page."""

    def __init__(self, program, folder):
        self.program, self.folder, self.page = program, folder, []

    def say(self, text):
        self.page.append(text)

    def run(self, command, interrupt_after=None):
        words = [word.replace("␣", " ") for word in command.split()]
        process = subprocess.Popen([self.program, *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if interrupt_after:
            time.sleep(interrupt_after)
            process.send_signal(signal.SIGINT)
        output = process.communicate()[0].rstrip().replace(str(self.program), "tapehead")
        if process.returncode != 0 and not interrupt_after:
            raise SystemExit(f"tapehead {command}\n{output}")
        shown = " ".join(f'"{w}"' if " " in w else w for w in words)
        self.page.append(f"    $ tapehead {shown}\n" + "\n".join(f"    {line}" for line in output.splitlines()))
        return output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "bazel-bin/tools/tapehead")
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder to work in")
    o = parser.parse_args()
    o.folder.mkdir(parents=True, exist_ok=True)
    lines = questions(4000)
    make_model(o.folder / "model", [q["prompt"] + q["completion"] for q in lines])
    (o.folder / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in lines))

    r = Recorder(o.program.resolve(), o.folder)
    r.say("# From transformers and back\n\nWritten by `tests/reference/record_fine_tuning.py`, which made the model, random weights in the shape of "
          f"SmolLM, and the questions, with transformers {transformers.__version__}. What the program printed is as it was.")
    r.say("A line of `questions.jsonl`, of which the completion alone is learnt:\n\n    " + json.dumps(lines[0]))
    r.say("## In")
    r.run("import model --out runs/imported")
    r.say("## Learning, with an interruption\n\nCtrl-C came in the middle of the first command; the second goes on.")
    r.run("train --from runs/imported --data questions.jsonl --out runs/answers --steps 1000 --batch-size 16 --lr 0.003 --eval-every 250 "
          "--document-mask --sample-prompt What␣is␣12␣and␣30?", interrupt_after=12)
    r.run("train --resume runs/answers")
    r.say("## What it says\n\nUnder a million parameters and about a minute: sums come out near, not always right. A processor that rounds "
          "sums in another order ends elsewhere: between 0.01 and 0.3 nats were seen.")
    said = r.run(f"generate runs/answers --prompt {SENTENCE.replace(' ', '␣')} --tokens 12 --temperature 0")
    r.run("report runs/answers --out report.html")
    r.say("## Out")
    r.run("export runs/answers exported")
    tokenizer = AutoTokenizer.from_pretrained(o.folder / "exported")
    model = AutoModelForCausalLM.from_pretrained(o.folder / "exported")
    ids = tokenizer(SENTENCE, return_tensors="pt").input_ids
    theirs = tokenizer.decode(model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0], skip_special_tokens=True)
    if theirs.strip() != said.strip():
        raise SystemExit(f"transformers says {theirs!r}, the program {said!r}")
    r.say("`AutoModelForCausalLM` and `AutoTokenizer` load that folder, and greedy `generate` gives there\n\n    " + theirs)
    PAGE.write_text("\n\n".join(r.page) + "\n")
    print(f"written to {PAGE}")


main()
