// Requests: what is refused, and where a text ends. Figures: from one histogram.
#include <limits>
#include <trtspec/error.hpp>
#include <trtspec/runtime/metrics.hpp>
#include <trtspec/runtime/request.hpp>
#include <vector>

#include "check.hpp"
#include "trees.hpp"

namespace {

using trtspec::FinishReason;
using trtspec::Request;
using trtspec::SamplingOptions;
using trtspec::text_end;
using trtspec::TextEnd;
using trtspec::test::Tree;
using Tokens = std::vector<std::int64_t>;
using Rates = std::vector<double>;

void test_options() {
  SamplingOptions().check();
  SamplingOptions{.temperature = 1e6,
                  .top_k = -1,
                  .top_p = 1e-9,
                  .min_p = 1.0,
                  .seed = -1,
                  .max_tokens = 1,
                  .stop_token_ids = {}}
      .check();
  const auto refused = [](SamplingOptions options) { CHECK_THROWS(options.check()); };
  refused({.temperature = -0.1, .stop_token_ids = {}});
  refused({.temperature = 1e-6, .stop_token_ids = {}});
  refused({.temperature = std::numeric_limits<double>::quiet_NaN(), .stop_token_ids = {}});
  refused({.top_k = -2, .stop_token_ids = {}});
  refused({.top_p = 0.0, .stop_token_ids = {}});
  refused({.top_p = 1.1, .stop_token_ids = {}});
  refused({.min_p = -0.1, .stop_token_ids = {}});
  refused({.sample_index = -1, .stop_token_ids = {}});
  refused({.max_tokens = 0, .stop_token_ids = {}});
  const auto refused_logits = [&](trtspec::LogitsOptions logits) {
    refused({.max_tokens = 8, .stop_token_ids = {}, .logits = std::move(logits)});
  };
  refused_logits({.repetition_penalty = 0.0});
  refused_logits({.presence_penalty = 2.1});
  refused_logits({.frequency_penalty = -2.1});
  refused_logits({.logit_bias = {{1, 1e31}}});
  refused_logits({.bad_words = {{1}, {}}});
  refused_logits({.min_tokens = 9});
  refused({.stop_token_ids = {}, .logprobs = 21});
  refused({.stop_token_ids = {}, .num_speculative_tokens = -1});
  SamplingOptions named{.stop_token_ids = {},
                        .logits = {.logit_bias = {{9, 1.0}}, .bad_words = {{2, 7}}}};
  named.check_vocabulary(10);
  CHECK_THROWS(named.check_vocabulary(9));
  named.logits.logit_bias.clear();
  named.check_vocabulary(8);
  CHECK_THROWS(named.check_vocabulary(7));
}

void test_create() {
  const Tokens prompt = {5, 6, 7};
  Request request = Request::create(1, prompt, {.max_tokens = 9, .stop_token_ids = {2}}, 10, {3});
  CHECK(request.tokens == prompt);
  CHECK_EQ(request.max_output_tokens, 7);  // what max_seq_len leaves
  CHECK_EQ(request.remaining_tokens(), 7);
  CHECK(request.end_tokens == (Tokens{3, 2}));
  request.tokens.push_back(8);
  CHECK_EQ(request.num_output_tokens(), 1);
  CHECK_EQ(request.remaining_tokens(), 6);
  CHECK_EQ(request.draft_depth(), 5);
  SamplingOptions options{.max_tokens = 9, .stop_token_ids = {}, .num_speculative_tokens = 2};
  CHECK_EQ(Request::create(1, prompt, options, 20).draft_depth(), 2);
  options.num_speculative_tokens = 0;
  CHECK(!Request::create(1, prompt, options, 20).may_draft());
  CHECK_THROWS(Request::create(1, {}, {}, 10));
  CHECK_THROWS(Request::create(1, prompt, {}, 3));
  CHECK_THROWS(Request::create(1, prompt, {.max_tokens = 0, .stop_token_ids = {}}, 10));
}

void test_where_a_text_ends() {
  SamplingOptions options{.max_tokens = 4, .stop_token_ids = {2}};
  const Request request = Request::create(1, Tokens{5}, options, 10, {3});
  const auto ends = [&request](const Tokens& tokens, std::int64_t remaining, std::size_t count,
                               FinishReason reason) {
    const TextEnd end = text_end(tokens, request.end_tokens, remaining);
    CHECK_EQ(end.count, count);
    CHECK(end.reason == reason);
  };
  ends({1}, 2, 1, FinishReason::none);
  ends({1}, 1, 1, FinishReason::length);
  ends({1, 1, 2}, 2, 2, FinishReason::length);
  ends({2}, 9, 1, FinishReason::stop);
  ends({1, 3, 2, 1}, 9, 2, FinishReason::stop);
  ends({1, 3}, 2, 2, FinishReason::stop);  // the last token allowed is an end
  options.ignore_eos = true;
  CHECK(Request::create(1, Tokens{5}, options, 10, {3}).end_tokens == Tokens{2});
  CHECK_EQ(std::string(name_of(FinishReason::stop)), std::string("stop"));
  CHECK_EQ(std::string(name_of(FinishReason::none)), std::string("none"));
}

void test_figures() {
  trtspec::SpeculativeMetrics metrics;
  CHECK_EQ(metrics.acceptance_length(), 0.0);
  CHECK(metrics.num_accepted_tokens_per_pos().empty());
  const Tree tree = {{1, 2, 3, 4}, {-1, 0, -1, 1}};
  metrics.record(Tokens{0, 1, 2}, tree);  // two of four nodes
  metrics.record(Tokens{0}, tree);
  metrics.record(Tokens{0}, {});  // no drafts
  CHECK(metrics.histogram() == (Tokens{2, 0, 1}));
  CHECK(metrics.drafted_depths() == (Tokens{1, 0, 0, 2}));
  CHECK_EQ(metrics.num_steps(), 3);
  CHECK_EQ(metrics.num_drafts(), 2);
  CHECK_EQ(metrics.num_accepted_tokens(), 2);
  CHECK_EQ(metrics.num_emitted_tokens(), 5);
  CHECK(metrics.num_accepted_tokens_per_pos() == (Tokens{1, 1, 0}));
  CHECK(metrics.num_drafts_per_pos() == (Tokens{2, 2, 2}));
  CHECK(metrics.acceptance_rate_per_pos() == (Rates{0.5, 0.5, 0.0}));
  CHECK_EQ(metrics.acceptance_length(), 5.0 / 3.0);
  CHECK_EQ(metrics.acceptance_rate(), 0.25);
  CHECK(metrics.num_draft_tokens_per_source() == Tokens{8});
  CHECK(metrics.num_accepted_tokens_per_source() == Tokens{2});
  const Tree one = {{1}, {-1}};
  CHECK_THROWS(metrics.record({}, one));
  CHECK_THROWS(metrics.record(Tokens{0, 1, 1}, one));

  trtspec::SpeculativeMetrics more;
  const Tree chain = {{1, 2, 3, 4}, {-1, 0, 1, 2}};
  const std::vector<std::uint8_t> sources = {2, 0, 2, trtspec::TreeView::kNoSource};
  more.record(Tokens{0, 1, 2, 3, 4}, {chain.tokens, chain.parents, {}, sources});
  more.merge(metrics);
  CHECK(more.histogram() == (Tokens{2, 0, 1, 0, 1}));
  CHECK_EQ(more.num_draft_tokens(), 12);
  CHECK(more.num_draft_tokens_per_source() == (Tokens{9, 0, 2}));
  CHECK(more.num_accepted_tokens_per_source() == (Tokens{3, 0, 2}));
}

void test_executor_figures() {
  trtspec::ExecutorMetrics metrics;
  metrics.record_verify(4, Tokens{0, 1}, Tree{{1, 2, 3}, {-1, 0, 1}});
  metrics.record_step({.seconds = 0.5,
                       .target_seconds = 0.25,
                       .draft_seconds = 0.125,
                       .target_calls = 1,
                       .draft_calls = 2});
  metrics.record_step({.seconds = 0.5,
                       .target_seconds = 0.5,
                       .draft_seconds = 0.0,
                       .target_calls = 1,
                       .draft_calls = 0});
  trtspec::JsonWriter out(0);
  out.begin_object();
  metrics.write(out);
  out.end_object();
  const trtspec::Json figures = trtspec::Json::parse(out.text(), "figures");
  CHECK_EQ(figures.members().size(), 24u);
  CHECK_EQ(figures.at("acceptance_length").as_double(), 2.0);
  CHECK_EQ(figures.at("num_engine_calls").as_int(), 4);
  CHECK_EQ(figures.at("num_draft_calls").as_int(), 2);
  CHECK_EQ(figures.at("step_ms").as_double(), 500.0);
  CHECK_EQ(figures.at("target_ms").as_double(), 750.0);
  CHECK_EQ(figures.at("draft_ms").as_double(), 125.0);
  CHECK_EQ(figures.at("host_ms").as_double(), 125.0);
  CHECK_EQ(figures.at("host_share").as_double(), 0.125);
  CHECK_EQ(figures.at("histogram").items()[1].as_int(), 1);
}

}  // namespace

int main() {
  test_options();
  test_create();
  test_where_a_text_ends();
  test_figures();
  test_executor_figures();
  return check_result();
}
