#include "trtspec/runtime/engine_folder.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <trtspec/files.hpp>
#include <trtspec/host.hpp>
#include <trtspec/json.hpp>

namespace trtspec {

namespace {

constexpr const char* kRebuild = "; rebuild it with trtspec-build";
// Beyond any model, and small enough that no product of them overflows.
constexpr std::int64_t kMaxLayers = 1 << 10;
constexpr std::int64_t kMaxHeads = 1 << 10;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
// One mask word, whatever was built: room for drafters that need no engine of their own (n-gram).
constexpr std::int64_t kDefaultTreeRows = 64;
constexpr std::int64_t kMaxTreeRows = 1024;
constexpr std::int64_t kMaxTopk = 64;
constexpr std::string_view kDraft = "draft";  // the folder of the only draft

std::int64_t read_size(const Json& json, std::string_view key, std::int64_t high = kMaxSize) {
  return json.at(key).as_int(1, high);
}

std::vector<std::int64_t> read_ids(const Json& json) {
  std::vector<std::int64_t> ids;
  for (const Json& id : json.items()) ids.push_back(id.as_int(0, kMaxSize));
  return ids;
}

LayerCache::Kind read_kind(const Json& json) {
  constexpr std::array<std::string_view, 3> kKinds{"paged", "slot", "step"};
  const auto found = std::ranges::find(kKinds, std::string_view(json.as_string()));
  if (found == kKinds.end()) json.refuse("is not one of paged, slot, step");
  return static_cast<LayerCache::Kind>(found - kKinds.begin());
}

// The caches of a network's layers, each different one once, and what they cost. A layer without
// one reads that of an earlier layer.
void read_layers(const Json& facts, DecoderShape& shape) {
  std::vector<LayerCache> caches;
  for (const Json& cache : facts.at("caches").items()) {
    LayerCache& own = caches.emplace_back();
    own.window = cache.at("window").as_int(0, kMaxSize);
    for (const Json& buffer : cache.at("buffers").items()) {
      own.buffers.push_back({.heads = read_size(buffer, "heads", kMaxHeads),
                             .size = read_size(buffer, "size", kMaxWidth),
                             .dtype = buffer.at("dtype").as_string(),
                             .kind = read_kind(buffer.at("kind"))});
    }
    if (own.buffers.empty()) cache.refuse("a cache has at least one buffer");
  }
  const Json& layers = facts.at("layers");
  const auto count = static_cast<std::int64_t>(layers.items().size());
  if (count < 1 || count > kMaxLayers) {
    layers.refuse(std::to_string(count) + " is not between 1 and " + std::to_string(kMaxLayers));
  }
  const auto last = static_cast<std::int64_t>(caches.size()) - 1;
  for (const Json& layer : layers.items()) {
    if (layer.is_null()) continue;
    shape.caches.push_back(caches[static_cast<std::size_t>(layer.as_int(0, last))]);
  }
  shape.num_layers = count;
  shape.kv_bytes_per_token = facts.at("kv_bytes_per_token").as_int(0, kMaxSize);
  shape.pass_bytes = facts.at("pass_bytes").as_int(1, kMaxBytes);
}

DecoderShape read_decoder(const Json& facts) {
  DecoderShape shape{
      .architecture = facts.at("architecture").as_string(),
      .vocab_size = read_size(facts, "vocab_size"),
      .hidden_size = read_size(facts, "hidden_size", kMaxWidth),
      .eos_token_ids = read_ids(facts.at("eos_token_ids")),
      .num_layers = 0,
      .caches = {},
      .kv_bytes_per_token = 0,
      .pass_bytes = 0,
  };
  read_layers(facts, shape);
  return shape;
}

DraftShape read_draft(const Json& facts, const std::string& method) {
  const Json& rollout = facts.at("rollout");
  if (rollout.is_null()) {
    rollout.refuse("a draft for '" + method + "' runs in Python only; use trtspec.LLM");
  }
  const bool reads_states = rollout.at("reads_states").as_bool();
  DraftShape shape{
      .decoder = read_decoder(facts),
      .reads_states = reads_states,
      .lookahead = rollout.at("lookahead").as_int(reads_states, reads_states ? kMaxLayers : 0),
      .rollout_rows = rollout.at("rows").as_int(0, kMaxTreeRows * kMaxTopk),
      .num_modules = rollout.at("num_modules").as_int(0, kMaxLayers),
      .mask_token = std::nullopt,
      .by_pass = rollout.at("by_pass").as_bool()};
  const Json& mask = rollout.at("mask_token");
  if (!mask.is_null()) shape.mask_token = mask.as_int(0, shape.decoder.vocab_size - 1);
  return shape;
}

Backend read_backend(const Json& backend) {
  if (const auto found = backend_named(backend.as_string())) return *found;
  backend.refuse("an engine of backend '" + backend.as_string() +
                 "' runs in Python only; rebuild it with --backend aoti, onnx or tensorrt");
}

// Options of a TensorRT build that need more than running the engine.
void check_options(const Json& options) {
  struct Option {
    const char* name;
    const char* meaning;
    const char* remedy;
  };
  constexpr Option kOptions[] = {
      {"paged_attention", "attends by a plugin", "without --paged_attention"},
      {"plugins", "samples and accepts by plugins", "with --no-plugins"},
      {"strip_plan", "has no weights of its own", "without --strip_plan"},
      {"refit", "is given the weights of its folder", "without --refit"}};
  for (const Option& option : kOptions) {
    const Json* value = options.find(option.name);
    if (value && value->is_bool() && value->as_bool()) {
      value->refuse(std::string("a TensorRT engine that ") + option.meaning +
                    " runs in Python only; rebuild it " + option.remedy);
    }
  }
}

BuildLimits read_build(const Json& json) {
  const Backend backend = read_backend(json.at("backend"));
  const Json* device = json.find("device");
  if (backend == Backend::tensorrt) {
    if (const Json* options = json.find("backend_options")) check_options(*options);
  } else if (device && device->as_string() != "cpu") {
    device->refuse("an engine for '" + device->as_string() +
                   "' runs in Python only; rebuild it with --device cpu");
  }
  const Json& dtype = json.at("dtype");
  const std::string& name = dtype.as_string();
  if (name != "float32" && name != "bfloat16" && name != "float16") {
    dtype.refuse("'" + name + "' is not one of float32, bfloat16, float16");
  }
  return {.backend = backend,
          .dtype = name,
          .max_batch_size = read_size(json, "max_batch_size"),
          .max_seq_len = read_size(json, "max_seq_len"),
          .max_num_tokens = read_size(json, "max_num_tokens"),
          .tokens_per_block = read_size(json, "tokens_per_block", 1024)};
}

SpeculationContract read_speculation(const Json& json) {
  SpeculationContract contract{
      .method = json.at("method").as_string(),
      .topk = read_size(json, "topk", kMaxTopk),
      .num_steps = read_size(json, "num_steps", kMaxTreeRows),
      .num_draft_tokens = json.at("num_draft_tokens").as_int(2, kMaxTreeRows),
      .choices = {},
      .p_min = json.at("p_min").as_double()};
  if (!(contract.p_min >= 0.0 && contract.p_min < 1.0)) {
    json.at("p_min").refuse(std::to_string(contract.p_min) + " is not at least 0 and below 1");
  }
  if (const Json* window = json.find("window")) {
    window->refuse(
        "a draft of which rows are let go (draft_window) runs in Python only; use trtspec.LLM, "
        "or rebuild it without");
  }
  const Json* choices = json.find("choices");
  if (choices && !choices->is_null()) {
    for (const Json& path : choices->items()) {
      if (path.items().empty()) path.refuse("a path of a tree must not be empty");
      contract.choices.push_back(read_ids(path));
    }
  }
  return contract;
}

// A fact of an environment: its name, what the folder has, and what there is here.
struct Fact {
  const char* name;
  std::string built;
  std::string here;
};

void check_facts(const EngineFolder& folder, std::span<const Fact> facts) {
  std::string wrong;
  for (const Fact& fact : facts) {
    if (fact.built == fact.here) continue;
    wrong += (wrong.empty() ? "" : ", ") + std::string(fact.name) + " " + fact.built + " (here " +
             fact.here + ")";
  }
  if (!wrong.empty()) throw Error(folder.path + " was compiled for " + wrong + kRebuild);
}

void check_environment(const EngineFolder& folder) {
  const Environment& built = folder.environment;
  const Environment here = Environment::here();
  const std::string lacking = missing_instructions(built.instructions.value_or(""));
  check_facts(folder,
              std::array<Fact, 5>{{{"torch", built.torch, here.torch},
                                   {"machine", built.machine, here.machine},
                                   {"vector_isa", built.vector_isa, here.vector_isa},
                                   {"ops", std::to_string(built.ops), std::to_string(here.ops)},
                                   {"instructions", lacking, lacking.empty() ? "" : "missing"}}});
}

std::optional<std::string> read_fact(const Json& environment, std::string_view key) {
  const Json* fact = environment.find(key);
  if (!fact || fact->is_null()) return std::nullopt;
  return fact->as_string();
}

WeightRecord read_record(const Json& json) {
  WeightRecord record;
  for (const auto& [name, facts] : json.members()) record.emplace(name, facts.as_string());
  return record;
}

// The only draft; a null pointer without one.
const Json* find_draft(const Json& json) {
  const Json& together = json.at("speculation");
  const std::span<const Json> drafts = json.at("drafts").items();
  if (!together.is_null() || drafts.size() > 1) {
    together.refuse(
        "an engine for a hybrid, of several drafters, runs in Python only; use "
        "trtspec.LLM, or build an engine for one of the drafters");
  }
  if (drafts.empty()) return nullptr;
  const Json& folder = drafts.front().at("folder");
  if (folder.as_string() != kDraft) {
    folder.refuse("the folder of a draft is '" + std::string(kDraft) + "'");
  }
  return &drafts.front();
}

EngineFolder read_config(const std::string& path, const Json& json) {
  const Json& facts = json.at("facts");
  const Json* draft = find_draft(json);
  const Json* ranks = json.at("build").find("tensor_parallel_size");
  if (ranks && ranks->as_int() > 1) {
    ranks->refuse("an engine that is split over ranks runs in Python only; use trtspec.LLM");
  }
  const Json* adapters = json.at("build").find("enable_lora");
  if (adapters && adapters->as_bool()) {
    adapters->refuse("an engine with room for adapters runs in Python only; use trtspec.LLM");
  }
  const Json& environment = json.at("environment");
  EngineFolder folder{
      .path = path,
      .target = read_decoder(facts.at("target")),
      .draft = std::nullopt,
      .build = read_build(json.at("build")),
      .speculation = std::nullopt,
      .environment = {.torch = environment.at("torch").as_string(),
                      .machine = environment.at("machine").as_string(),
                      .vector_isa = environment.at("vector_isa").as_string(),
                      .ops = environment.at("ops").as_int(),
                      .compute_capability = read_fact(environment, "compute_capability"),
                      .tensorrt = read_fact(environment, "tensorrt"),
                      .instructions = read_fact(environment, "instructions")},
      .target_record = read_record(json.at("weights").at("target")),
      .draft_record = {}};
  if (draft) {
    folder.speculation = read_speculation(draft->at("speculation"));
    folder.draft = read_draft(facts.at(kDraft), folder.speculation->method);
    if (folder.draft->decoder.keeps_states() && !folder.draft->by_pass) {
      facts.at(kDraft).refuse("a draft whose layers keep states is rolled out pass by pass");
    }
    folder.draft_record = read_record(json.at("weights").at(kDraft));
  }
  return folder;
}

}  // namespace

std::int64_t DecoderShape::row_bytes(LayerCache::Kind kind) const {
  std::int64_t bytes = 0;
  for (const LayerCache& cache : caches) {
    for (const LayerCache::Buffer& buffer : cache.buffers) {
      if (buffer.kind == kind) bytes += buffer.row_bytes();
    }
  }
  return bytes;
}

std::size_t DecoderShape::num_buffers() const {
  std::size_t count = 0;
  for (const LayerCache& cache : caches) count += cache.buffers.size();
  return count;
}

std::vector<std::int64_t> DecoderShape::windows() const {
  std::set<std::int64_t> found;
  for (const LayerCache& cache : caches) found.insert(cache.window);
  return {found.begin(), found.end()};
}

std::int64_t DecoderShape::min_window() const {
  const std::vector<std::int64_t> rising = windows();
  const auto found = std::find_if(rising.begin(), rising.end(), [](auto w) { return w > 0; });
  return found == rising.end() ? 0 : *found;
}

std::int64_t DecoderShape::widest_window() const {
  const std::vector<std::int64_t> rising = windows();
  return rising.empty() || rising.front() == 0 ? 0 : rising.back();
}

EngineFolder EngineFolder::read(const std::string& path) {
  const std::string name = path + "/config.json";
  const Json json = Json::parse(read_file(name), name);
  const Json* version = json.is_object() ? json.find("format_version") : nullptr;
  if (!version) {
    throw Error(path +
                " is not an engine folder: its config.json has no format_version; build one "
                "with trtspec-build");
  }
  if (version->as_int() != kEngineFormatVersion) {
    throw Error(path + " has engine format " + std::to_string(version->as_int()) +
                ", this trtspec reads " + std::to_string(kEngineFormatVersion) + kRebuild);
  }
  try {
    EngineFolder folder = read_config(path, json);
    if (folder.build.backend == Backend::aoti) check_environment(folder);
    return folder;
  } catch (const Error& error) {
    const std::string what = error.what();
    if (what.find("rebuild") != std::string::npos) throw;
    throw Error(what + kRebuild);
  }
}

void EngineFolder::check_tensorrt(const std::string& compute_capability,
                                  const std::string& version) const {
  const std::array<Fact, 2> facts{
      {{"compute_capability", environment.compute_capability.value_or(compute_capability),
        compute_capability},
       {"tensorrt", environment.tensorrt.value_or(version), version}}};
  check_facts(*this, facts);
}

RolloutShape EngineFolder::rollout_shape(std::int64_t steps) const {
  const SpeculationContract& built = *speculation;
  const std::int64_t topk = built.topk, capacity = 1 + topk + (steps - 1) * topk * topk;
  const std::int64_t rows = topk == 1 ? steps + 1 : std::min(built.num_draft_tokens, capacity);
  RolloutShape cut = built.choices.empty()
                         ? RolloutShape::dynamic(topk, steps, rows, draft->lookahead)
                         : RolloutShape::fixed(built.choices, draft->lookahead);
  cut.num_rollout_rows = draft->rollout_rows;
  return cut;
}

std::int64_t EngineFolder::speculative_rows() const {
  if (!speculation) return kDefaultTreeRows;
  const RolloutShape shape = rollout_shape(speculation->num_steps);
  return std::max({kDefaultTreeRows, shape.num_nodes + 1, 1 + shape.num_rollout_rows});
}

CacheLayout EngineFolder::layout() const {
  const auto divided_up = [](std::int64_t n, std::int64_t size) { return (n + size - 1) / size; };
  const std::int64_t rows = speculative_rows(), tokens = build.max_seq_len + rows;
  const std::int64_t words = divided_up(rows, TreeView::kBitsPerWord);
  if (build.has_slots()) return {tokens + rows, 1, words, /*is_slots=*/true};
  return {.tokens_per_block = build.tokens_per_block,
          .blocks_per_sequence = divided_up(tokens, build.tokens_per_block),
          .mask_words = words};
}

std::int64_t EngineFolder::rollout_passes() const {
  if (!draft) return 0;
  return draft->in_one_pass() ? 1 : speculation->num_steps;
}

std::int64_t EngineFolder::rollout_weight_bytes() const {
  return draft ? draft->decoder.pass_bytes * rollout_passes() : 0;
}

}  // namespace trtspec
