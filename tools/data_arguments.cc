#include "tapehead/tools/data_arguments.h"

namespace tapehead {

void add_data_options(Command command, DataOptions& data) {
  Option sources = command.add_option(
      "--data", data.sources,
      "what to train on, more than one if need be: a text file, a folder of them, or lines of JSON "
      "(FILE.jsonl) "
      "with \"text\", or with \"prompt\" and \"completion\" of which the completion is learnt. PATH=WEIGHT: "
      "contexts are taken from the sources as their weights say");
  Option text = command.add_option("--text", data.text, "the same for one file");
  Option tokens =
      command.add_option("--tokens", data.tokens, "or a file of `tapehead tokenize encode --out`");
  Option held_out_tokens = command.add_option("--held-out-tokens", data.held_out_tokens,
                                              "with --tokens: a second one, to measure on");
  Option tokenizer = command.add_option("--tokenizer", data.tokenizer, "use the tokenizer in this folder");
  Option vocab_size =
      command.add_option("--vocab-size", data.vocab_size, "of the tokenizer that is trained, 257 or more");
  Option held_out = command.add_option(
      "--held-out", data.held_out, "fraction of the documents, or of a single text, to measure on; 0: none");
  Option split_seed = command.add_option("--split-seed", data.split_seed, "chooses what is held out");
  Option skip_bad_lines =
      command.add_flag("--skip-bad-lines", data.skip_bad_lines, "pass over lines of JSON that are broken");
  Option shards = command.add_option(
      "--shards", data.shards,
      "keep the tokens in this folder, for other runs on the same data; otherwise in the run's own");
  Option shard_size = command.add_option("--shard-size", data.shard_size, "the largest file of tokens");

  text.excludes(sources);
  for (Option option :
       {sources, text, vocab_size, held_out, split_seed, skip_bad_lines, shards, shard_size}) {
    tokens.excludes(option);
  }
  held_out_tokens.needs(tokens);
  vocab_size.excludes(tokenizer);
  sources.type_name("PATH[=WEIGHT]");
  for (Option option : {text, tokens, held_out_tokens}) option.type_name("FILE");
  for (Option option : {tokenizer, shards}) option.type_name("FOLDER");
  shard_size.type_name("SIZE");
  for (Option option : {sources, text, tokens, held_out_tokens, tokenizer, vocab_size, held_out, split_seed,
                        skip_bad_lines, shards, shard_size}) {
    option.group("Data");
  }
}

}  // namespace tapehead
