#include "report.hpp"

#include <stdlib.h>

#include <fstream>
#include <thread>
#include <trtspec/isa.hpp>
#include <trtspec/json.hpp>
#include <trtspec/team.hpp>

namespace trtspec::bench {

namespace {

template <class T>
void write_optional(JsonWriter& json, const char* name, const std::optional<T>& value) {
  json.key(name);
  if (value) {
    json.value(*value);
  } else {
    json.null();
  }
}

void write_figures(JsonWriter& json, const std::vector<Figure>& figures) {
  json.key("figures").begin_object();
  for (const Figure& figure : figures) {
    if (figure.is_count && figure.value) {
      json.key(figure.name).value(static_cast<std::int64_t>(*figure.value));
    } else {
      write_optional(json, figure.name.c_str(), figure.value);
    }
  }
  json.end_object();
  json.key("units").begin_object();
  for (const Figure& figure : figures) {
    if (!figure.unit.empty()) json.key(figure.name).value(figure.unit);
  }
  json.end_object();
}

void write_speculation(JsonWriter& json, const Speculation& speculation) {
  json.key("speculation").begin_object();
  json.key("method").value(speculation.method);
  json.key("max_draft_len").value(speculation.max_draft_len);
  if (speculation.source == Speculation::Source::ngram) {
    json.key("prompt_lookup_min").value(std::int64_t{speculation.min_ngram});
    json.key("prompt_lookup_max").value(std::int64_t{speculation.max_ngram});
  }
  if (speculation.source == Speculation::Source::suffix) {
    const SuffixDecoding& suffix = speculation.suffix;
    json.key("suffix_decoding_max_tree_depth").value(std::int64_t{suffix.max_tree_depth});
    json.key("suffix_decoding_max_cached_requests").value(suffix.max_cached_requests);
    json.key("suffix_decoding_max_cached_tokens").value(suffix.max_cached_tokens);
    json.key("suffix_decoding_max_spec_factor").value(suffix.max_spec_factor);
    json.key("suffix_decoding_max_spec_offset").value(suffix.max_spec_offset);
    json.key("suffix_decoding_min_token_prob").value(suffix.min_token_prob);
    json.key("suffix_decoding_tree").value(suffix.tree);
  }
  json.end_object();
}

void write_decoder(JsonWriter& json, const char* name, const DecoderShape& shape) {
  json.key(name).begin_object();
  json.key("architecture").value(shape.architecture);
  json.key("vocab_size").value(shape.vocab_size);
  json.key("hidden_size").value(shape.hidden_size);
  json.key("num_layers").value(shape.num_layers);
  json.key("kv_bytes_per_token").value(shape.kv_bytes_per_token);
  json.end_object();
}

void write_engine(JsonWriter& json, const Setting& setting) {
  const EngineFolder& folder = setting.folder;
  json.key("engine").begin_object();
  json.key("path").value(folder.path);
  json.key("format_version").value(kEngineFormatVersion);
  json.key("backend").value(name_of(folder.build.backend));
  json.key("dtype").value(folder.build.dtype);
  json.key("max_batch_size").value(setting.limits.max_batch_size);
  json.key("max_num_tokens").value(setting.limits.max_num_tokens);
  json.key("max_seq_len").value(setting.limits.max_seq_len);
  json.key("tokens_per_block").value(folder.layout().tokens_per_block);
  json.key("kv_cache_tokens").value(setting.kv_cache_tokens);
  json.key("target_weight_bytes").value(folder.target.pass_bytes);
  json.key("rollout_weight_bytes").value(folder.rollout_weight_bytes());
  write_decoder(json, "target", folder.target);
  if (folder.draft) write_decoder(json, "draft", folder.draft->decoder);
  if (const auto& built = folder.speculation) {
    json.key("built_for").begin_object();
    json.key("method").value(built->method);
    json.key("topk").value(built->topk);
    json.key("num_steps").value(built->num_steps);
    json.key("num_draft_tokens").value(built->num_draft_tokens);
    json.end_object();
  }
  json.end_object();
}

void write_logits_options(JsonWriter& json, const LogitsOptions& options) {
  json.key("repetition_penalty").value(options.repetition_penalty);
  json.key("presence_penalty").value(options.presence_penalty);
  json.key("frequency_penalty").value(options.frequency_penalty);
  json.key("logit_bias").begin_object();
  for (const auto& [token, bias] : options.logit_bias) json.key(std::to_string(token)).value(bias);
  json.end_object();
  json.key("bad_words_ids").begin_array();
  for (const auto& word : options.bad_words) json.value(std::span<const std::int64_t>(word));
  json.end_array();
  json.key("min_tokens").value(options.min_tokens);
}

void write_flags(JsonWriter& json, const Options& options) {
  json.key("command_line").begin_array();
  for (const std::string& word : options.command_line) json.value(word);
  json.end_array();
  json.key("flags").begin_object();
  json.key("engine_dir").value(options.engine_dir);
  json.key("dataset").value(options.dataset);
  write_optional(json, "max_num_samples", options.max_num_samples);
  json.key("warm_up").value(options.warm_up);
  write_optional(json, "request_rate", options.request_rate);
  json.key("enable_exp_delays").value(options.exponential_delays);
  write_optional(json, "concurrency", options.concurrency);
  json.key("enable_kv_cache_reuse").value(options.kv.enable_block_reuse);
  write_optional(json, "kv_cache_max_tokens", options.kv.max_tokens);
  json.key("kv_cache_free_memory_fraction").value(options.kv.free_memory_fraction);
  json.key("temperature").value(options.sampling.temperature);
  json.key("top_k").value(options.sampling.top_k);
  json.key("top_p").value(options.sampling.top_p);
  json.key("min_p").value(options.sampling.min_p);
  write_logits_options(json, options.sampling.logits);
  write_optional(json, "logprobs", options.sampling.logprobs);
  json.key("random_seed").value(options.sampling.seed);
  json.key("eos_id").value(std::span<const std::int64_t>(options.eos_ids));
  json.end_object();
}

// The value of the first "name : value" line of a file of /proc; "" without one.
std::string proc_value(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

void write_machine(JsonWriter& json, const Libraries& libraries) {
  const Environment here = Environment::here();
  double load[1] = {0.0};
  json.key("machine").begin_object();
  json.key("cpu").value(proc_value("/proc/cpuinfo", "model name"));
  json.key("cores").value(std::int64_t{std::thread::hardware_concurrency()});
  json.key("threads").value(std::int64_t{max_threads()});
  json.key("instruction_set").value(isa_name(active_isa()));
  json.key("memory").value(proc_value("/proc/meminfo", "MemTotal"));
  if (::getloadavg(load, 1) == 1) json.key("load_average").value(load[0]);
  json.key("machine").value(here.machine);
  json.key("torch").value(here.torch);
  if (const auto& tensorrt = libraries.tensorrt) {
    json.key("gpu").value(tensorrt->gpu()->name());
    json.key("compute_capability").value(tensorrt->gpu()->compute_capability());
    json.key("tensorrt").value(tensorrt->version());
  }
  json.end_object();
}

void write_logprobs(JsonWriter& json, const std::vector<TokenLogprobs>& logprobs) {
  json.key("logprobs").begin_array();
  for (const TokenLogprobs& entry : logprobs) {
    json.begin_object();
    json.key("token").value(entry.token);
    json.key("logprob").value(entry.logprob);
    json.key("top").begin_object();
    for (const auto& [token, logprob] : entry.top) json.key(std::to_string(token)).value(logprob);
    json.end_object().end_object();
  }
  json.end_array();
}

}  // namespace

std::string report_json(const Setting& setting, const RunResult& result,
                        const std::vector<Figure>& figures) {
  JsonWriter json;
  json.begin_object();
  write_figures(json, figures);
  json.key("metrics").begin_object();
  result.metrics.write(json);
  json.end_object();
  write_speculation(json, setting.speculation);
  write_engine(json, setting);
  write_flags(json, setting.options);
  write_machine(json, setting.libraries);
  return json.end_object().text() + "\n";
}

std::string responses_json(const RunResult& result) {
  JsonWriter json;
  json.begin_object().key("responses").begin_array();
  for (std::int64_t id = 0; const Record& record : result.records) {
    json.begin_object();
    json.key("id").value(id++);
    json.key("input_len").value(record.num_input_tokens);
    json.key("tokens").value(std::span<const std::int64_t>(record.tokens));
    json.key("finish_reason").value(name_of(record.finish_reason));
    if (record.failed()) json.key("error").value(record.error);
    if (!record.logprobs.empty()) write_logprobs(json, record.logprobs);
    json.key("metrics").begin_object();
    record.metrics.write(json);
    json.end_object();
    json.end_object();
  }
  return json.end_array().end_object().text() + "\n";
}

}  // namespace trtspec::bench
