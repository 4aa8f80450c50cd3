// trtspec_replay: runs the scenarios of a trace that tests/conformance/recorder.py wrote from the
// Python executor, and reports the first difference of each.
//
//   trtspec_replay TRACE.jsonl
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <trtspec/json.hpp>
#include <trtspec/kv_cache_manager.hpp>
#include <trtspec/runtime/executor.hpp>
#include <trtspec/runtime/ngram_drafter.hpp>
#include <trtspec/runtime/rollout_drafter.hpp>
#include <trtspec/runtime/suffix_drafter.hpp>
#include <utility>
#include <vector>

#include "toy_engine.hpp"
#include "trace_values.hpp"

namespace {

using namespace trace;

// Passes everything on to a drafter and notes what the step is made of.
class WatchedDrafter final : public trtspec::Drafter {
 public:
  WatchedDrafter(std::unique_ptr<trtspec::Drafter> drafter,
                 const trtspec::ResourceManager& resources, Fields& seen)
      : drafter_(std::move(drafter)), resources_(resources), seen_(seen) {}

  const trtspec::DrafterNeeds& needs() const override { return drafter_->needs(); }
  const trtspec::ModelEngine* engine() const override { return drafter_->engine(); }
  void release(std::int64_t request_id) override { drafter_->release(request_id); }
  std::vector<std::int64_t> on_accepted(const trtspec::StepPlan& plan,
                                        const trtspec::StepResult& result) override {
    return drafter_->on_accepted(plan, result);
  }

  trtspec::DraftBatch prepare_draft_tokens(const trtspec::StepPlan& plan) override {
    std::vector<Value> items, preempted, target_blocks, draft_blocks, drafts;
    for (const trtspec::ScheduledRows& item : plan.items) {
      const trtspec::Sequence& request = *item.sequence;
      items.push_back(std::vector<Value>{request.id, item.start, item.num_rows, item.is_generation,
                                         item.max_nodes, item.samples});
      target_blocks.push_back(Value::of(resources_.target_block_table(request)));
      if (resources_.num_drafts() > 0) {
        draft_blocks.push_back(Value::of(resources_.draft_block_table(request)));
      }
    }
    for (const trtspec::Sequence* request : plan.preempted) preempted.emplace_back(request->id);
    seen_["items"] = std::move(items);
    seen_["preempted"] = std::move(preempted);
    seen_["target_blocks"] = std::move(target_blocks);
    seen_["draft_blocks"] = std::move(draft_blocks);
    seen_["drafts"] = std::vector<Value>{};
    trtspec::DraftBatch drafted = drafter_->prepare_draft_tokens(plan);
    for (std::size_t i = 0; i < drafted.size(); ++i) {
      const trtspec::TreeView tree = drafted[i];
      drafts.push_back(std::vector<Value>{Value::of(tree.tokens), Value::of(tree.parents)});
    }
    seen_["drafts"] = std::move(drafts);
    return drafted;
  }

 private:
  std::unique_ptr<trtspec::Drafter> drafter_;
  const trtspec::ResourceManager& resources_;
  Fields& seen_;
};

Value value_of(const std::vector<trtspec::TokenLogprobs>& logprobs) {
  std::vector<Value> entries;
  for (const trtspec::TokenLogprobs& entry : logprobs) {
    std::vector<Value> top;
    for (const auto& [token, logprob] : entry.top) {
      top.push_back(std::vector<Value>{token, logprob});
    }
    entries.push_back(std::vector<Value>{entry.token, entry.logprob, std::move(top)});
  }
  return entries;
}

// One scenario, run by Executor over toy engines, as tests/conformance/recorder.py runs it.
class Replay {
 public:
  explicit Replay(const Json& scenario)
      : scenario_(scenario),
        target_(toy::Kind::target, model(false),
                {number("tokens_per_block"), number("blocks_per_sequence"), number("mask_words")},
                number("num_blocks"), calls("failing_target_calls")),
        resources_(std::make_shared<trtspec::KVCacheManager>(
                       number("num_blocks"), number("tokens_per_block"),
                       scenario.at("enable_block_reuse").as_bool()),
                   drafts()) {
    if (has_draft()) {
      draft_.emplace(
          kind() == "eagle" ? toy::Kind::eagle : toy::Kind::draft_model, model(true),
          trtspec::CacheLayout{number("draft_tokens_per_block"),
                               number("draft_blocks_per_sequence"), number("mask_words")},
          number("draft_num_blocks"), calls("failing_draft_calls"));
    }
    executor_.emplace(target_, resources_,
                      std::make_unique<WatchedDrafter>(make_drafter(), resources_, seen_),
                      trtspec::SchedulerLimits{number("max_batch_size"), number("max_num_tokens"),
                                               number("max_seq_len")});
  }

  // Runs the step of a line of the trace; throws Difference.
  void step(const Json& line) {
    const std::int64_t step = line.at("step").as_int();
    std::vector<Value> refused;
    for (const Json& arrival : scenario_.at("requests").items()) {
      if (arrival.at("arrival").as_int() == step && !add(arrival)) {
        refused.push_back(arrival.at("id").as_int());
      }
    }
    for (const Json& arrival : scenario_.at("requests").items()) {
      const Json& abort = arrival.at("abort");
      if (abort.is_int() && abort.as_int() == step) executor_->abort(arrival.at("id").as_int());
    }
    expect(line, "refused", refused);
    if (!executor_->has_work()) {
      if (line.has("items")) throw Difference("items: there is no work left in this run");
      return;
    }
    compare(line, executor_->step());
  }

  // Compares the figures of the whole run.
  void end(const Json& line) const {
    if (executor_->has_work()) throw Difference("the trace ends, but there is work left");
    const trtspec::ExecutorMetrics& metrics = executor_->metrics();
    const trtspec::SpeculativeMetrics& total = metrics.total();
    expect(line, "histogram", Value::of(total.histogram()));
    expect(line, "num_steps", total.num_steps());
    expect(line, "num_drafts", total.num_drafts());
    expect(line, "num_draft_tokens", total.num_draft_tokens());
    expect(line, "num_accepted_tokens", total.num_accepted_tokens());
    expect(line, "num_emitted_tokens", total.num_emitted_tokens());
    expect(line, "num_accepted_tokens_per_pos", Value::of(total.num_accepted_tokens_per_pos()));
    expect(line, "num_drafts_per_pos", Value::of(total.num_drafts_per_pos()));
    expect(line, "acceptance_rate_per_pos", Value::of(total.acceptance_rate_per_pos()));
    expect(line, "acceptance_length", total.acceptance_length());
    expect(line, "acceptance_rate", total.acceptance_rate());
    expect(line, "num_engine_steps", metrics.num_engine_steps());
    expect(line, "num_target_calls", metrics.clock().target_calls);
    expect(line, "num_draft_calls", metrics.clock().draft_calls);
    for (const auto& [id, histogram] : line.at("of").members()) {
      expect(line.at("of"), id.c_str(), Value::of(metrics.of(std::stoll(id)).histogram()));
    }
  }

 private:
  std::int64_t number(const char* name) const { return scenario_.at(name).as_int(); }
  std::int64_t draft_number(const char* name) const {
    return scenario_.at("draft").at(name).as_int();
  }
  const std::string& kind() const { return scenario_.at("draft").at("kind").as_string(); }
  bool has_draft() const { return kind() == "draft_model" || kind() == "eagle"; }
  std::set<std::int64_t> calls(const char* name) const {
    const std::vector<std::int64_t> all = numbers(scenario_.at(name));
    return {all.begin(), all.end()};
  }

  toy::Model model(bool draft) const {
    return {.vocab = number(draft ? "draft_vocab" : "vocab"),
            .text_vocab = number("vocab"),
            .salt = toy::Word(number("salt")),
            .period = number("period"),
            .regularity = number("regularity"),
            .skill = number("skill"),
            .nan_every = toy::Word(number("nan_every")),
            .topk = draft_number("topk"),
            .num_steps = draft_number("num_steps"),
            .num_nodes = draft_number("num_draft_tokens") - 1};
  }

  std::int64_t lookahead() const { return kind() == "eagle" ? 1 : 0; }

  std::vector<trtspec::ResourceManager::Draft> drafts() const {
    if (!has_draft()) return {};
    return {{std::make_shared<trtspec::KVCacheManager>(
                 number("draft_num_blocks"), number("draft_tokens_per_block"),
                 scenario_.at("enable_block_reuse").as_bool(), lookahead()),
             kind() == "draft_model"}};
  }

  std::unique_ptr<trtspec::Drafter> make_drafter() {
    const auto shape =
        trtspec::RolloutShape::dynamic(draft_number("topk"), draft_number("num_steps"),
                                       draft_number("num_draft_tokens"), lookahead());
    if (kind() == "ngram") {
      return std::make_unique<trtspec::NGramDrafter>(trtspec::NGramOptions{
          draft_number("max_draft_len"), std::int32_t(draft_number("min_ngram")),
          std::int32_t(draft_number("max_ngram"))});
    }
    if (kind() == "suffix") {
      const Json& suffix = scenario_.at("draft").at("suffix");
      return std::make_unique<trtspec::SuffixDrafter>(trtspec::SuffixDecoding{
          .max_draft_len = draft_number("max_draft_len"),
          .max_tree_depth = std::int32_t(suffix.at("max_tree_depth").as_int()),
          .max_cached_requests = suffix.at("max_cached_requests").as_int(),
          .max_cached_tokens = suffix.at("max_cached_tokens").as_int(),
          .max_spec_factor = suffix.at("max_spec_factor").as_double(),
          .max_spec_offset = suffix.at("max_spec_offset").as_double(),
          .min_token_prob = suffix.at("min_token_prob").as_double(),
          .tree = suffix.at("tree").as_bool()});
    }
    if (kind() == "eagle") {
      return std::make_unique<trtspec::HiddenStateDrafter>(*draft_, resources_, shape);
    }
    if (kind() == "draft_model") {
      return std::make_unique<trtspec::TokenDrafter>(*draft_, resources_, shape);
    }
    return std::make_unique<trtspec::NoDrafter>();
  }

  bool add(const Json& arrival) {
    trtspec::SamplingOptions options{
        .temperature = arrival.at("temperature").as_double(),
        .top_k = arrival.at("top_k").as_int(),
        .top_p = arrival.at("top_p").as_double(),
        .min_p = arrival.at("min_p").as_double(),
        .seed = arrival.at("seed").as_int(),
        .sample_index = arrival.at("sample_index").as_int(),
        .max_tokens = arrival.at("max_tokens").as_int(),
        .ignore_eos = arrival.at("ignore_eos").as_bool(),
        .stop_token_ids = numbers(arrival.at("stop_token_ids")),
        .logits = {.repetition_penalty = arrival.at("repetition_penalty").as_double(),
                   .presence_penalty = arrival.at("presence_penalty").as_double(),
                   .frequency_penalty = arrival.at("frequency_penalty").as_double(),
                   .min_tokens = arrival.at("min_tokens").as_int()},
    };
    for (const Json& pair : arrival.at("logit_bias").items()) {
      options.logits.logit_bias.emplace_back(pair.items()[0].as_int(), pair.items()[1].as_double());
    }
    for (const Json& word : arrival.at("bad_words").items()) {
      options.logits.bad_words.push_back(numbers(word));
    }
    if (arrival.at("logprobs").is_int()) options.logprobs = arrival.at("logprobs").as_int();
    try {
      executor_->add(trtspec::Request::create(
          arrival.at("id").as_int(), numbers(arrival.at("prompt")), std::move(options),
          number("max_seq_len"), numbers(arrival.at("eos_token_ids"))));
    } catch (const trtspec::Error&) {
      return false;
    }
    return true;
  }

  void compare(const Json& line, const std::vector<trtspec::StepOutput>& outputs) {
    for (const char* field : {"items", "preempted", "target_blocks", "draft_blocks", "drafts"}) {
      expect(line, field, seen_[field]);
    }
    resources_.check_invariants();
    std::vector<Value> said, logprobs, committed;
    for (const trtspec::StepOutput& output : outputs) {
      const bool goes_on = output.finish_reason == trtspec::FinishReason::none;
      said.push_back(std::vector<Value>{output.request_id, Value::of(output.tokens),
                                        goes_on ? Value() : name_of(output.finish_reason)});
      if (!output.logprobs.empty()) {
        logprobs.push_back(std::vector<Value>{output.request_id, value_of(output.logprobs)});
      }
      if (!goes_on) continue;
      trtspec::Sequence request;  // the caches know a request by its id
      request.id = output.request_id;
      committed.push_back(
          std::vector<Value>{request.id, resources_.target_committed(request),
                             has_draft() ? resources_.draft_committed(request) : 0});
    }
    expect(line, "outputs", said);
    expect(line, "logprobs", logprobs);
    expect(line, "committed", committed);
    std::vector<Value> free{resources_.target().num_free_blocks()};
    if (has_draft()) free.emplace_back(resources_.draft().num_free_blocks());
    expect(line, "free", free);
    expect(line, "running", executor_->num_running());
    expect(line, "waiting", executor_->num_waiting());
  }

  Json scenario_;
  Fields seen_;
  toy::ToyEngine target_;
  std::optional<toy::ToyEngine> draft_;
  trtspec::ResourceManager resources_;
  std::optional<trtspec::Executor> executor_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s TRACE.jsonl\n", argv[0]);
    return 2;
  }
  std::ifstream file(argv[1]);
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", argv[1]);
    return 2;
  }
  constexpr int kMaxReported = 10;
  int scenarios = 0, steps = 0, different = 0;
  std::optional<Replay> replay;  // none after a difference, up to the next scenario
  std::int64_t number = 0;
  std::string where;
  std::string text;
  while (std::getline(file, text)) {
    const Json line = Json::parse(text, argv[1], ++number);
    try {
      if (const Json* scenario = line.find("scenario")) {
        where = "scenario " + std::to_string(scenario->at("seed").as_int());
        ++scenarios;
        replay.emplace(*scenario);
      } else if (const Json* end = line.find("end"); end && replay) {
        where += ", end";
        replay->end(*end);
      } else if (replay) {
        const std::string before =
            std::exchange(where, where + ", step " + std::to_string(line.at("step").as_int()));
        replay->step(line);
        where = before;
        ++steps;
      }
    } catch (const std::exception& error) {
      if (different++ < kMaxReported) {
        std::printf("%s:%lld: %s: %s\n", argv[1], static_cast<long long>(number), where.c_str(),
                    error.what());
      }
      replay.reset();
    }
  }
  std::printf("%d scenarios, %d steps, %d different\n", scenarios, steps, different);
  return different == 0 && scenarios > 0 ? 0 : 1;
}
