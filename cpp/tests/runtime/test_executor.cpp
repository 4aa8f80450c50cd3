// The executor over toy engines: texts do not depend on how they are drafted, failures and aborts
// leave everything in order. (What it decides in each step is held to Python's by trtspec_replay.)
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <trtspec/error.hpp>
#include <trtspec/kv_cache_manager.hpp>
#include <trtspec/runtime/executor.hpp>
#include <trtspec/runtime/ngram_drafter.hpp>
#include <trtspec/runtime/rollout_drafter.hpp>
#include <trtspec/runtime/suffix_drafter.hpp>
#include <utility>
#include <vector>

#include "check.hpp"
#include "toy_engine.hpp"

namespace {

using trtspec::FinishReason;
using trtspec::Request;
using Tokens = std::vector<std::int64_t>;
using Calls = std::set<std::int64_t>;

constexpr std::int64_t kBlock = 3;
constexpr std::int64_t kMaxSeqLen = 48;
constexpr std::int64_t kVocab = 8;

struct World {
  std::string drafter = "none";
  std::int64_t num_blocks = 200;
  std::int64_t max_batch_size = 4;
  std::int64_t max_num_tokens = 20;
  Calls failing_target_calls = {};
  toy::Word nan_every = 0;
};

// An executor with all that it stands on, and what came out of it.
class Run {
 public:
  explicit Run(World world)
      : target_(toy::Kind::target, model(world.nan_every), {kBlock, 20, 1}, world.num_blocks,
                world.failing_target_calls),
        draft_(world.drafter == "eagle" ? toy::Kind::eagle : toy::Kind::draft_model, model(0),
               {kBlock, 20, 1}, world.num_blocks),
        resources_(std::make_shared<trtspec::KVCacheManager>(world.num_blocks, kBlock),
                   drafts(world)),
        executor_(target_, resources_, make_drafter(world.drafter),
                  {world.max_batch_size, world.max_num_tokens, kMaxSeqLen}) {}

  trtspec::Executor& executor() { return executor_; }
  const trtspec::ResourceManager& resources() const { return resources_; }

  void add(std::int64_t id, Tokens prompt, trtspec::SamplingOptions options = {}, Tokens eos = {}) {
    options.max_tokens = std::min<std::int64_t>(options.max_tokens, 24);
    executor_.add(Request::create(id, prompt, std::move(options), kMaxSeqLen, std::move(eos)));
  }
  void step() {
    for (trtspec::StepOutput& output : executor_.step()) {
      Tokens& text = texts[output.request_id];
      text.insert(text.end(), output.tokens.begin(), output.tokens.end());
      for (const trtspec::TokenLogprobs& entry : output.logprobs) {
        CHECK_EQ(entry.top.size(), 3u);
        logprobs[output.request_id].emplace_back(entry.token, entry.logprob);
      }
      if (output.finish_reason != FinishReason::none) {
        reasons[output.request_id] = output.finish_reason;
        errors[output.request_id] = output.error;
      }
    }
    resources_.check_invariants();
  }
  void finish() {
    while (executor_.has_work()) step();
    CHECK_EQ(resources_.target().num_free_blocks(), resources_.target().num_blocks());
    if (resources_.num_drafts() > 0) {
      CHECK_EQ(resources_.draft().num_free_blocks(), resources_.draft().num_blocks());
    }
    CHECK_EQ(executor_.num_running() + executor_.num_waiting(), 0);
  }

  std::map<std::int64_t, Tokens> texts;
  std::map<std::int64_t, std::vector<std::pair<std::int64_t, double>>> logprobs;
  std::map<std::int64_t, FinishReason> reasons;
  std::map<std::int64_t, std::string> errors;

 private:
  static toy::Model model(toy::Word nan_every) {
    return {.vocab = kVocab,
            .text_vocab = kVocab,
            .salt = 12345,
            .period = 3,
            .regularity = 60,
            .skill = 80,
            .nan_every = nan_every,
            .topk = 2,
            .num_steps = 3,
            .num_nodes = 6};
  }
  static std::vector<trtspec::ResourceManager::Draft> drafts(const World& world) {
    if (world.drafter != "draft_model" && world.drafter != "eagle") return {};
    const bool is_eagle = world.drafter == "eagle";
    return {{std::make_shared<trtspec::KVCacheManager>(world.num_blocks, kBlock, true, is_eagle),
             !is_eagle}};
  }
  std::unique_ptr<trtspec::Drafter> make_drafter(const std::string& name) {
    const auto shape = trtspec::RolloutShape::dynamic(2, 3, 7, name == "eagle" ? 1 : 0);
    if (name == "ngram") {
      return std::make_unique<trtspec::NGramDrafter>(trtspec::NGramOptions{4, 1, 2});
    }
    if (name == "suffix") {
      return std::make_unique<trtspec::SuffixDrafter>(
          trtspec::SuffixDecoding{.max_draft_len = 6, .max_tree_depth = 8});
    }
    if (name == "draft_model") {
      return std::make_unique<trtspec::TokenDrafter>(draft_, resources_, shape);
    }
    if (name == "eagle")
      return std::make_unique<trtspec::HiddenStateDrafter>(draft_, resources_, shape);
    return std::make_unique<trtspec::NoDrafter>();
  }

  toy::ToyEngine target_;
  toy::ToyEngine draft_;
  trtspec::ResourceManager resources_;
  trtspec::Executor executor_;
};

// limits: whether every third request is not drafted for, and every third one token deep.
void add_all(Run& run, bool changes = false, bool limits = false) {
  for (std::int64_t id = 0; id < 6; ++id) {
    trtspec::SamplingOptions options;
    options.temperature = id % 2 ? 1.0 : 0.0;
    options.top_p = id == 3 ? 0.9 : 1.0;
    options.seed = 100 + id;
    if (id == 4) options.stop_token_ids = {2};
    options.logprobs = id == 2 ? std::optional<std::int64_t>(3) : std::nullopt;
    if (changes) {
      options.logits = {.repetition_penalty = 1.3,
                        .frequency_penalty = 0.5,
                        .logit_bias = {{id % kVocab, 2.5}},
                        .bad_words = {{3}, {1, 2}},
                        .min_tokens = id};
    }
    if (limits && id % 3 < 2) options.num_speculative_tokens = id % 3;
    const Tokens eos = id == 5 ? Tokens{1} : Tokens{};
    run.add(id, Tokens(std::size_t(1 + 3 * id), id % kVocab), options, eos);
  }
}

// changes: whether the logits are changed by what a text holds already.
std::map<std::int64_t, Tokens> test_drafts_do_not_change_texts(bool changes) {
  Run plain({});
  add_all(plain, changes);
  plain.finish();
  CHECK_EQ(plain.texts.size(), 6u);
  CHECK_EQ(plain.executor().metrics().total().num_draft_tokens(), 0);
  CHECK_EQ(plain.logprobs[2].size(), plain.texts[2].size());
  CHECK(plain.logprobs[3].empty());
  for (const char* drafter : {"none", "ngram", "suffix", "draft_model", "eagle"}) {
    for (const std::int64_t num_blocks : {200, 20}) {  // with few blocks some are preempted
      Run run({.drafter = drafter, .num_blocks = num_blocks});
      add_all(run, changes);
      run.finish();
      CHECK(run.texts == plain.texts);
      CHECK(run.reasons == plain.reasons);
      CHECK(run.logprobs[2] == plain.logprobs[2]);
      const trtspec::SpeculativeMetrics& total = run.executor().metrics().total();
      if (std::string(drafter) != "none") CHECK(total.num_accepted_tokens() > 5);
    }
  }
  return plain.texts;
}

void test_requests_limit_their_drafts() {
  Run plain({});
  add_all(plain);
  plain.finish();
  for (const char* drafter : {"ngram", "suffix", "draft_model", "eagle"}) {
    for (const std::int64_t num_blocks : {200, 20}) {
      Run run({.drafter = drafter, .num_blocks = num_blocks});
      add_all(run, false, true);
      run.finish();
      CHECK(run.texts == plain.texts);
      std::int64_t deeper = 0;
      for (std::int64_t id = 0; id < 6; ++id) {
        const auto depths = run.executor().metrics().of(id).num_drafts_per_pos();
        if (id % 3 < 2) CHECK(std::ssize(depths) <= id % 3);
        if (id % 3 == 2) deeper += std::ssize(depths) > 1;
      }
      CHECK(deeper > 0);
    }
  }
  const auto drafts_of = [](std::int64_t depth) {
    trtspec::SamplingOptions options;
    options.num_speculative_tokens = depth;
    return options;
  };
  Run none({.drafter = "draft_model"});
  none.add(0, Tokens(9, 1), drafts_of(0));
  none.finish();
  CHECK_EQ(none.executor().metrics().clock().draft_calls, 0);
  none.add(1, Tokens(9, 1), drafts_of(3));
  CHECK_THROWS(none.add(2, Tokens(9, 1), drafts_of(4)));
  Run undrafted({});
  undrafted.add(0, Tokens(9, 1), drafts_of(0));
  CHECK_THROWS(undrafted.add(1, Tokens(9, 1), drafts_of(1)));
}

// Turns of a chat, each with the text so far as its prompt; and prompts that leave it at any token.
void test_drafts_do_not_shorten_what_is_found_in_the_caches() {
  std::map<std::int64_t, Tokens> texts;
  std::int64_t hits = 0;
  for (const char* drafter : {"none", "ngram", "suffix", "draft_model", "eagle"}) {
    Run run({.drafter = drafter});
    Tokens chat(7, 1);
    for (std::int64_t turn = 0; turn < 5; ++turn) {
      run.add(turn, chat, {.max_tokens = 5});
      run.finish();
      chat.insert(chat.end(), run.texts[turn].begin(), run.texts[turn].end());
      chat.insert(chat.end(), {2, turn});
    }
    for (std::int64_t length = 4; length < 20; ++length) {
      Tokens prompt(chat.begin(), chat.begin() + length);
      prompt.insert(prompt.end(), {5, 6});
      run.add(100 + length, prompt, {.max_tokens = 4});
      run.finish();
    }
    if (texts.empty()) {
      texts = run.texts;
      hits = run.executor().metrics().num_prefix_cache_hits();
    }
    CHECK(run.texts == texts);
    CHECK_EQ(run.executor().metrics().num_prefix_cache_hits(), hits);
  }
  CHECK(hits > 150);
}

void test_changed_logits_change_texts() {
  const auto changed = test_drafts_do_not_change_texts(true);
  const auto plain = test_drafts_do_not_change_texts(false);
  CHECK(changed != plain);
  for (const auto& [id, text] : changed) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      CHECK(text[i] != 3);
      CHECK(i == 0 || text[i - 1] != 1 || text[i] != 2);
    }
    CHECK(static_cast<std::int64_t>(text.size()) >= id);
  }
}

void test_texts_are_forgotten() {
  const auto drafted = [](bool forgets) {
    Run run({.drafter = "suffix"});
    run.add(0, {1, 2, 3});
    run.step();
    CHECK_THROWS(run.executor().forget_ended());
    run.finish();
    if (forgets) run.executor().forget_ended();
    run.executor().reset_metrics();
    run.add(1, {1, 2, 3});
    run.finish();
    return run.executor().metrics().total().num_accepted_tokens();
  };
  CHECK(drafted(true) < drafted(false));
}

void test_a_failing_step_ends_its_requests_alone() {
  for (const char* drafter : {"none", "draft_model", "eagle"}) {
    Run run({.drafter = drafter, .max_batch_size = 2, .failing_target_calls = {4}});
    for (std::int64_t id = 0; id < 4; ++id) run.add(id, Tokens(4, id));
    run.finish();
    CHECK_EQ(run.errors[0], std::string("the step failed: a call fails on purpose"));
    CHECK(run.reasons[0] == FinishReason::error && run.reasons[1] == FinishReason::error);
    CHECK(run.reasons[2] == FinishReason::length && run.reasons[3] == FinishReason::length);
    CHECK_EQ(run.texts[2].size(), 24u);
    CHECK_EQ(run.errors[2], std::string());
  }
}

void test_unusable_logits_end_one_request() {
  Run run({.drafter = "eagle", .nan_every = 40});
  add_all(run);
  run.finish();
  std::int64_t failed = 0;
  for (const auto& [id, reason] : run.reasons) {
    if (reason != FinishReason::error) continue;
    ++failed;
    const std::string count = std::to_string(run.texts[id].size());
    CHECK(run.errors[id].find("no usable logits at output token " + count) != std::string::npos);
  }
  CHECK(failed > 0 && failed < 6);
}

void test_aborts() {
  Run run({.drafter = "draft_model", .max_batch_size = 2});
  for (std::int64_t id = 0; id < 3; ++id) run.add(id, Tokens(5, id));
  run.step();
  CHECK_EQ(run.executor().num_running(), 2);
  CHECK_EQ(run.executor().num_waiting(), 1);
  CHECK(run.executor().kv_cache_usage() > 0.0);
  run.executor().abort(0);
  run.executor().abort(2);
  run.executor().abort(99);
  CHECK_EQ(run.executor().num_running(), 1);
  CHECK_EQ(run.executor().num_waiting(), 0);
  run.finish();
  run.executor().abort(1);
  CHECK_EQ(run.texts[1].size(), 24u);
  CHECK(!run.reasons.contains(0));
}

void test_requests_that_can_never_run_are_refused() {
  Run run({.num_blocks = 5});
  const auto error_of = [&](std::int64_t max_tokens, std::size_t prompt) {
    try {
      trtspec::SamplingOptions options;
      options.max_tokens = max_tokens;
      run.executor().add(Request::create(7, Tokens(prompt, 1), options, kMaxSeqLen + 10));
    } catch (const trtspec::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(error_of(10, 45).find("do not fit max_seq_len=48") != std::string::npos);
  CHECK(error_of(10, 6).find("= 16 tokens, but the target KV cache holds 15 (5 blocks of 3)") !=
        std::string::npos);
  CHECK_EQ(error_of(10, 5), std::string());
  CHECK_THROWS(run.add(7, Tokens(2, 1)));  // the id is in use
  run.finish();
}

void test_limits_are_checked() {
  toy::ToyEngine target(toy::Kind::target,
                        {.vocab = 2,
                         .text_vocab = 2,
                         .salt = 1,
                         .period = 1,
                         .regularity = 0,
                         .skill = 0,
                         .nan_every = 0,
                         .topk = 0,
                         .num_steps = 0,
                         .num_nodes = 0},
                        {kBlock, 4, 1}, 4);
  trtspec::ResourceManager resources(std::make_shared<trtspec::KVCacheManager>(4, kBlock));
  const auto make = [&](trtspec::SchedulerLimits limits) {
    trtspec::Executor(target, resources, std::make_unique<trtspec::NoDrafter>(), limits);
  };
  make({2, 2, 8});
  CHECK_THROWS(make({0, 2, 8}));
  CHECK_THROWS(make({3, 2, 8}));
  const auto shape = trtspec::RolloutShape::dynamic(1, 2, 3);
  CHECK_THROWS(trtspec::Executor(target, resources,
                                 std::make_unique<trtspec::TokenDrafter>(target, resources, shape),
                                 {2, 2, 8}));  // there is no draft cache
}

void test_clocks() {
  Run run({.drafter = "eagle"});
  run.add(0, Tokens(5, 1));
  run.finish();
  const trtspec::ExecutorMetrics& metrics = run.executor().metrics();
  CHECK_EQ(metrics.num_engine_steps(), metrics.clock().target_calls);
  CHECK(metrics.clock().draft_calls >= metrics.num_engine_steps() - 1);
  CHECK(metrics.clock().seconds >= metrics.last_step().seconds);
  CHECK_EQ(metrics.clock().host_seconds(), metrics.clock().seconds);  // toys take no time
  CHECK(metrics.of(0).histogram() == metrics.total().histogram());
  run.executor().release_metrics(0);
  CHECK(metrics.of(0).histogram().empty());
  run.executor().reset_metrics();
  CHECK_EQ(metrics.num_engine_steps(), 0);
}

}  // namespace

int main() {
  test_drafts_do_not_shorten_what_is_found_in_the_caches();
  test_changed_logits_change_texts();
  test_requests_limit_their_drafts();
  test_texts_are_forgotten();
  test_a_failing_step_ends_its_requests_alone();
  test_unusable_logits_end_one_request();
  test_aborts();
  test_requests_that_can_never_run_are_refused();
  test_limits_are_checked();
  test_clocks();
  return check_result();
}
