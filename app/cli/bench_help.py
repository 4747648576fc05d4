"""What `tiercel bench --help` says of its figures, and of the file that --matrix reads. Texts only."""

from __future__ import annotations

from typing import Final

_MATRIX: Final = """\
With --matrix FILE.toml every combination of settings is measured. The file has
a text, which is scored, and the settings; only text and model must be there:
  text = "book.txt"            paths are taken from where the file lies
  prompt_file = "prompt.txt"   is continued; or prompt = "..."
                               (the text's first 1500 characters)
  decode_tokens = 64           of a reply
  repetitions = 3              replies to take medians of
  temperature = 0.0
  seed = 0
  window = 512                 in which tokens are scored
  scored_tokens = 1024
  reference = "big-f16.gguf"   what all are compared with (each model itself,
                               with 16-bit KV, fast, and nothing left out)
  [matrix]                     a value, or a list of values, for each setting
  model = ["smollm2", "other.gguf"]
  skip = ["off", "cos=0.98", "kl=0.05", "blk.3-5"]
  draft = ["off", "ngram", "self", "resident", "exit", "model"]
  draft_k = ["auto", 4]
and also draft_model, exit_layer, ram_budget, vram_budget, gpu_layers, place,
executor, kv_type, precision, prefetch, threads, device.
Nothing is timed before the products with the model's matrices are checked, and
before a greedy reply with drafts is found to be the one without. NAME.csv and
NAME.json have the results after each case, with seed, version and commit; cells
have `settings`, and `error` where something is missing:
  quantisation, device, plan, predicted_decode_tok_s, vram_bytes, ram_bytes
  skipped_blocks, prompt_tokens, completion_tokens
  prefill_tok_s, decode_tok_s (a median), decode_tok_s_min, decode_tok_s_max
  nvme_read_bytes, h2d_bytes   for each token of a reply, its prompt included
  drafted_tokens, accepted_tokens, acceptance_rate
  agreeing_tokens              of the greedy replies with drafts and without
  perplexity, perplexity_change, perplexity_low, perplexity_high
                               (the change's 95 % interval)
  kl_mean, kl_p99, kl_max      nats, over 64 tokens and a bucket for the others
  top1, scored_tokens
and `pareto` has the numbers of the cells that no other one beats in both speed
and KL."""

EPILOG: Final = f"""\
In the table, GB/s are those of the weights read, share is their part of plain
reads of memory at the time, KV the GB/s of keys and values beside them, and
plan the tok/s that were predicted. On a GPU the memory is the GPU's, and host
is the part of a step in which it did not work.

--json prints one object: `device`, and `cells`, one for each model, number of
threads and depth. Rates are medians; what was not measured is null. A cell has
  path, quantisation           the file, and the type that holds most of it
  threads, depth, repetitions
  prompt_tokens                0 where no prompt was measured
  decode_tokens
  prefill_tok_s                with prefill_tok_s_min, prefill_tok_s_max
  ttft_ms                      until a prompt's last logits are there
  decode_tok_s                 with decode_tok_s_min, decode_tok_s_max
  weight_bytes, weight_gb_s    of the matrices that a decode step reads
  kv_bytes                     of the cache that a decode step reads
  read_gb_s                    plain reads of memory, at the time of this cell
  bandwidth_share              weight_gb_s / read_gb_s
  copy_gb_s, h2d_gb_s          copies in a GPU's memory (both ways), and to it
  host_share                   of a step, without work for a GPU; null on CPUs
  predicted_decode_tok_s       what the plan promises from an empty context
  predicted_prefill_tok_s      the same for a prompt of 512 tokens
  nvme_read_bytes              of a decode step, for weights beyond the budget
  stall_ms                     of a decode step, waiting for the disk and copies
  disk_gb_s                    direct reads of the file, at the time
  h2d_bytes                    weights copied to a GPU for a decode step

With --kernels, one cell for each type, number of threads (0 on a GPU), shape
and columns:
  quant_type, threads, columns, rows, row_length, repetitions
  us                           of one call, with us_min, us_max
  weight_gb_s, gflop_s, read_gb_s, bandwidth_share
  relative_time                per row of the matrix; 1 with one column

With --ops, one cell for each model, depth and operation of a decode step:
  path, quantisation, depth, repetitions, op
  launches                     of kernels in a step
  us                           of all of them alone, with us_min, us_max
  share                        us as a part of the whole step's

{_MATRIX}

example: tiercel bench -m smollm2 -p 512 -n 64 -d 0,1000 -t 1,2"""
