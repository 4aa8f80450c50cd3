#include "options.hpp"

#include <algorithm>
#include <exception>
#include <limits>

namespace trtspec::bench {

const char* const kHelp =
    R"(Usage: trtspec_benchmark --engine_dir DIR --dataset FILE [flags]

Runs the samples of a data set through an engine folder and prints what it took.

  --engine_dir DIR              engine folder, made by trtspec-build
  --dataset FILE                {"samples": [{"input_ids": [...], "output_len": N}, ...]}, or one
                                such sample a line; trtspec-bench prepare-dataset writes it
  --max_num_samples N           the first N samples (default: all)
  --warm_up N                   requests run before the measurement (default 2); they have the
                                lengths of samples and other tokens

Load (default: all requests at once)
  --request_rate R              requests a second, at even distances
  --enable_exp_delays           at exponentially distributed distances instead
  --concurrency N               so many requests are always under way

Limits (default: those of the build; only smaller ones are possible)
  --max_batch_size N            requests in one step
  --max_num_tokens N            rows in one step, prefill chunks and draft nodes included
  --max_seq_len N               prompt and output of one request, in tokens
  --kv_cache_max_tokens N       tokens that the KV caches hold (also --max_tokens_in_paged_kvcache)
  --kv_cache_free_memory_fraction F
                                of the available memory (default 0.5; also
                                --kv_cache_free_gpu_mem_fraction)
  --enable_kv_cache_reuse[=B]   share the blocks of equal prefixes (default true)
  --kv_cache_snapshot_blocks N  of a model that keeps states, blocks between two snapshots of them
                                in a prefix (default 16)
  --onnxruntime FILE            libonnxruntime.so for engines of backend onnx (default: as found at
                                build, else by the system's loader)
  --tensorrt FILE               libnvinfer.so or libtensorrt_rtx.so for engines of backend tensorrt
                                (default: as found at build, else by the system's loader)
  --num_threads N               threads of the kernels (default: OMP_NUM_THREADS, else all cores
                                that the quota of its control group leaves)

Sampling
  --temperature T               0 is greedy (default 0)
  --top_k K, --top_p P, --min_p P
                                filters (default: off)
  --repetition_penalty R        of tokens in prompt or output (default 1: off)
  --presence_penalty P          once, of tokens in the output (default 0)
  --frequency_penalty P         per occurrence in the output (default 0)
  --logit_bias ID:B[,ID:B...]   what is added to the logits of tokens
  --bad_words_ids ID[,ID...][;ID...]
                                sequences of tokens that must not come
  --min_tokens N                output tokens before one that ends a text may come (default 0)
  --logprobs N                  in --responses_json, of each token the log probability by the raw
                                model, and the N best tokens (at most 20) with theirs
  --random_seed S               request i is sampled with seed S + i (default 420)
  --eos_id ID[,ID...]           tokens that end a text (default -1: none, output_len tokens always)

Speculation
  --speculative METHOD          none, ngram, suffix, or what the engine was built for (default)
  --max_draft_len N             draft tokens on one path (default: as built; ngram 5);
                                suffix: in all (default: the depth of the tree)
  --p_min P                     draft model: least probability of a draft token by the draft, below
                                which nothing more is drafted (default: as built; also
                                --draft_p_min)
  --prompt_lookup_max N         ngram: longest n (default 5; also --max_matching_ngram_size)
  --prompt_lookup_min N         ngram: shortest n (default 2)
  --suffix_decoding_max_tree_depth N
                                suffix: longest string counted, match and draft (default 24)
  --suffix_decoding_max_cached_requests N, --suffix_decoding_max_cached_tokens N
                                suffix: responses kept for later requests, and their tokens
                                (default 10000 and 4194304; 0 requests: none, -1: no limit)
  --suffix_decoding_max_spec_factor F, --suffix_decoding_max_spec_offset O
                                suffix: drafts for a match of m tokens, F * m + O (default 1 and 0)
  --suffix_decoding_min_token_prob P
                                suffix: of the path down to a draft (default 0.1)
  --suffix_decoding_tree[=B]    suffix: the likeliest nodes, else one path (default true)

Output
  --streaming                   accepted for its users elsewhere: tokens come step by step here, and
                                first-token and inter-token latencies are always reported
  --output_csv FILE             the printed figures, one column each
  --output_json FILE            all figures, flags, engine and machine
  --responses_json FILE         the tokens of every request
  --log_iteration_data          a line for every step
  --help
)";

namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

// What Python has and this program lacks.
const FlagReader::Texts kElsewhere{
    {"adaptive", "its controller weighs measured costs; choose --max_draft_len here"},
    {"drafters", "a controller weighs the methods of a hybrid; name one with --speculative here"},
    {"simulate_acceptance", "drafts are verified by the model alone here; leave it out"},
    {"lossy_typical_acceptance", "acceptance is lossless here; leave it out"},
    {"stop", "strings need a tokenizer; give the tokens that end a text as --eos_id"},
    {"bad_words", "strings need a tokenizer; give token ids as --bad_words_ids"},
    {"structured_outputs", "grammars need a tokenizer; use trtspec.LLM"},
    {"n", "a sample has one output; repeat it in the data set, each draws with a seed of its own"},
    {"async_scheduling", "a step has little host work here; leave it out"}};

FlagReader read_flags(int argc, const char* const* argv) {
  FlagReader flags({"engine_dir",
                    "dataset",
                    "max_num_samples",
                    "warm_up",
                    "request_rate",
                    "concurrency",
                    "max_batch_size",
                    "max_num_tokens",
                    "max_seq_len",
                    "kv_cache_max_tokens",
                    "kv_cache_free_memory_fraction",
                    "kv_cache_snapshot_blocks",
                    "num_threads",
                    "temperature",
                    "top_k",
                    "top_p",
                    "min_p",
                    "repetition_penalty",
                    "presence_penalty",
                    "frequency_penalty",
                    "logit_bias",
                    "bad_words_ids",
                    "min_tokens",
                    "logprobs",
                    "random_seed",
                    "eos_id",
                    "speculative",
                    "max_draft_len",
                    "p_min",
                    "prompt_lookup_max",
                    "prompt_lookup_min",
                    "suffix_decoding_max_tree_depth",
                    "suffix_decoding_max_cached_requests",
                    "suffix_decoding_max_cached_tokens",
                    "suffix_decoding_max_spec_factor",
                    "suffix_decoding_max_spec_offset",
                    "suffix_decoding_min_token_prob",
                    "onnxruntime",
                    "tensorrt",
                    "output_csv",
                    "output_json",
                    "responses_json"},
                   {"help", "enable_exp_delays", "enable_kv_cache_reuse", "streaming",
                    "log_iteration_data", "suffix_decoding_tree"},
                   {{"max_tokens_in_paged_kvcache", "kv_cache_max_tokens"},
                    {"kv_cache_free_gpu_mem_fraction", "kv_cache_free_memory_fraction"},
                    {"draft_p_min", "p_min"},
                    {"spec_draft_p_min", "p_min"},
                    {"max_matching_ngram_size", "prompt_lookup_max"}},
                   kElsewhere);
  flags.parse(argc, argv);
  return flags;
}

void exclude(const FlagReader& flags, const char* one, const char* other, const char* why) {
  if (flags.has(one) && flags.has(other)) {
    throw UsageError(std::string("--") + one + " and --" + other + " exclude each other: " + why);
  }
}

void read_load(const FlagReader& flags, Options& options) {
  exclude(flags, "request_rate", "concurrency",
          "requests arrive at a rate, or when others have ended");
  options.request_rate = flags.number("request_rate");
  if (options.request_rate && !(*options.request_rate > 0)) {
    throw UsageError("--request_rate " + *flags.text("request_rate") + " must be above 0");
  }
  options.exponential_delays = flags.truth("enable_exp_delays").value_or(false);
  if (options.exponential_delays && !options.request_rate) {
    throw UsageError("--enable_exp_delays needs --request_rate");
  }
  options.concurrency = flags.integer("concurrency", 1, kMax);
}

void read_sampling(const FlagReader& flags, Options& options) {
  SamplingOptions& sampling = options.sampling;
  sampling.temperature = flags.number("temperature").value_or(0.0);
  sampling.top_k = flags.integer("top_k", -1, kMaxInt32).value_or(0);
  sampling.top_p = flags.number("top_p").value_or(1.0);
  sampling.min_p = flags.number("min_p").value_or(0.0);
  LogitsOptions& logits = sampling.logits;
  logits.repetition_penalty = flags.number("repetition_penalty").value_or(1.0);
  logits.presence_penalty = flags.number("presence_penalty").value_or(0.0);
  logits.frequency_penalty = flags.number("frequency_penalty").value_or(0.0);
  logits.logit_bias = flags.pairs("logit_bias");
  logits.bad_words = flags.lists("bad_words_ids");
  logits.min_tokens = flags.integer("min_tokens", 0, kMaxInt32).value_or(0);
  sampling.logprobs = flags.integer("logprobs", 0, 20);
  sampling.max_tokens = kMaxInt32;  // a sample has its own
  sampling.seed = flags.integer("random_seed", -kMax, kMax).value_or(420);
  try {
    sampling.check();
  } catch (const std::exception& error) {
    throw UsageError(error.what());
  }
  const auto eos_ids = flags.integers("eos_id").value_or(std::vector<std::int64_t>{-1});
  if (eos_ids != std::vector<std::int64_t>{-1}) options.eos_ids = eos_ids;
  for (const std::int64_t id : options.eos_ids) {
    if (id < 0) throw UsageError("--eos_id " + std::to_string(id) + " must be -1 (none) or an id");
  }
}

void read_suffix(const FlagReader& flags, Options& options) {
  constexpr const char* kNames[] = {"suffix_decoding_max_tree_depth",
                                    "suffix_decoding_max_cached_requests",
                                    "suffix_decoding_max_cached_tokens",
                                    "suffix_decoding_max_spec_factor",
                                    "suffix_decoding_max_spec_offset",
                                    "suffix_decoding_min_token_prob",
                                    "suffix_decoding_tree"};
  for (const char* name : kNames) {
    if (flags.has(name) && options.source != Speculation::Source::suffix) {
      throw UsageError(std::string("--") + name + " needs --speculative suffix");
    }
  }
  SuffixDecoding& suffix = options.suffix;
  suffix.max_tree_depth = static_cast<std::int32_t>(
      flags.integer(kNames[0], 2, SuffixTree::kMaxDepth).value_or(suffix.max_tree_depth));
  suffix.max_cached_requests =
      flags.integer(kNames[1], -1, kMax).value_or(suffix.max_cached_requests);
  suffix.max_cached_tokens = flags.integer(kNames[2], 0, kMax).value_or(suffix.max_cached_tokens);
  suffix.max_spec_factor = flags.number(kNames[3]).value_or(suffix.max_spec_factor);
  suffix.max_spec_offset = flags.number(kNames[4]).value_or(suffix.max_spec_offset);
  suffix.min_token_prob = flags.number(kNames[5]).value_or(suffix.min_token_prob);
  suffix.tree = flags.truth(kNames[6]).value_or(suffix.tree);
  try {
    suffix.check();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

void read_speculation(const FlagReader& flags, Options& options) {
  if (const auto name = flags.text("speculative")) {
    options.method = *name;
    options.source = source_named(*name);
  }
  options.max_draft_len = flags.integer("max_draft_len", 1, 1023);
  options.p_min = flags.number("p_min");
  if (options.p_min && !(*options.p_min >= 0.0 && *options.p_min < 1.0)) {
    throw UsageError("--p_min " + *flags.text("p_min") + " must be at least 0 and below 1");
  }
  options.max_ngram = flags.integer("prompt_lookup_max", 1, 1024);
  options.min_ngram = flags.integer("prompt_lookup_min", 1, 1024);
  for (const char* name : {"prompt_lookup_max", "prompt_lookup_min"}) {
    if (flags.has(name) && options.source != Speculation::Source::ngram) {
      throw UsageError(std::string("--") + name + " needs --speculative ngram");
    }
  }
  read_suffix(flags, options);
  if (options.max_draft_len && options.source == Speculation::Source::none) {
    throw UsageError("--max_draft_len and --speculative none exclude each other");
  }
}

}  // namespace

Options Options::parse(int argc, const char* const* argv) {
  const FlagReader flags = read_flags(argc, argv);
  Options options;
  options.command_line.assign(argv, argv + argc);
  options.help = flags.truth("help").value_or(false);
  if (options.help) return options;
  for (const char* name : {"engine_dir", "dataset"}) {
    if (!flags.has(name)) throw UsageError(std::string("--") + name + " is missing; see --help");
  }
  options.engine_dir = *flags.text("engine_dir");
  options.dataset = *flags.text("dataset");
  options.max_num_samples = flags.integer("max_num_samples", 1, kMax);
  options.warm_up = flags.integer("warm_up", 0, 1 << 20).value_or(options.warm_up);
  read_load(flags, options);
  options.max_batch_size = flags.integer("max_batch_size", 1, kMax);
  options.max_num_tokens = flags.integer("max_num_tokens", 1, kMax);
  options.max_seq_len = flags.integer("max_seq_len", 2, kMax);
  options.kv.max_tokens = flags.integer("kv_cache_max_tokens", 1, kMax);
  options.kv.free_memory_fraction =
      flags.number("kv_cache_free_memory_fraction").value_or(options.kv.free_memory_fraction);
  if (!(options.kv.free_memory_fraction > 0 && options.kv.free_memory_fraction <= 1)) {
    throw UsageError("--kv_cache_free_memory_fraction " +
                     *flags.text("kv_cache_free_memory_fraction") +
                     " must be above 0 and at most 1");
  }
  options.kv.enable_block_reuse = flags.truth("enable_kv_cache_reuse").value_or(true);
  options.kv.snapshot_blocks =
      flags.integer("kv_cache_snapshot_blocks", 1, kMax).value_or(options.kv.snapshot_blocks);
  options.libraries = {.onnxruntime = flags.text("onnxruntime").value_or(""),
                       .tensorrt = flags.text("tensorrt").value_or("")};
  options.num_threads = flags.integer("num_threads", 1, 4096);
  read_sampling(flags, options);
  read_speculation(flags, options);
  flags.truth("streaming");
  options.output_csv = flags.text("output_csv");
  options.output_json = flags.text("output_json");
  options.responses_json = flags.text("responses_json");
  options.log_iteration_data = flags.truth("log_iteration_data").value_or(false);
  return options;
}

Speculation Options::speculation(const EngineFolder& folder) const {
  Speculation chosen = Speculation::of(folder);
  if (method && *method != chosen.method) {
    chosen.method = *method;
    chosen.source = *source;
    chosen.p_min = 0.0;
    using Source = Speculation::Source;
    chosen.max_draft_len = *source == Source::ngram    ? Speculation::kDefaultNgramLength
                           : *source == Source::suffix ? suffix.max_tree_depth
                                                       : 1;
  }
  chosen.suffix = suffix;
  if (max_draft_len && chosen.source == Speculation::Source::none) {
    throw Error("--max_draft_len " + std::to_string(*max_draft_len) + ": " + folder.path +
                " was built without a draft; name a method with --speculative");
  }
  if (max_draft_len) chosen.max_draft_len = *max_draft_len;
  if (p_min && chosen.source != Speculation::Source::draft) {
    throw Error("--p_min belongs to a draft model, not to " + chosen.method + "; leave it out");
  }
  chosen.p_min = p_min.value_or(chosen.p_min);
  // A size that is not given makes room for the one that is.
  if (max_ngram) chosen.max_ngram = *max_ngram;
  if (min_ngram) chosen.min_ngram = *min_ngram;
  if (!max_ngram) chosen.max_ngram = std::max(chosen.max_ngram, chosen.min_ngram);
  if (!min_ngram) chosen.min_ngram = std::min(chosen.min_ngram, chosen.max_ngram);
  chosen.check(folder);
  return chosen;
}

}  // namespace trtspec::bench
