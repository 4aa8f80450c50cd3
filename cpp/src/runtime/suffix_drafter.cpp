#include <trtspec/error.hpp>
#include <trtspec/runtime/suffix_drafter.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace trtspec {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kAlmost = 1e-6;  // as SuffixTree rounds how many tokens a match allows

void check_option(const char* name, double value, double low, double high) {
  if (std::isfinite(value) && low <= value && value <= high) return;
  std::ostringstream message;
  message << "suffix_decoding_" << name << "=" << value << " must be ";
  if (std::isfinite(high)) {
    message << "between " << low << " and " << high;
  } else if (std::isfinite(low)) {
    message << low << " or more";
  } else {
    message << "a number";
  }
  throw Error(message.str());
}

std::vector<TokenId> narrowed(std::span<const std::int64_t> tokens) {
  std::vector<TokenId> out;
  out.reserve(tokens.size());
  for (const std::int64_t token : tokens) {
    if (token < 0 || token > std::numeric_limits<TokenId>::max()) {
      throw std::invalid_argument("suffix: token " + std::to_string(token) +
                                  " is not between 0 and 2^31 - 1");
    }
    out.push_back(static_cast<TokenId>(token));
  }
  return out;
}

}  // namespace

void SuffixDecoding::check() const {
  if (max_draft_len < 1) {
    throw Error("max_draft_len=" + std::to_string(max_draft_len) + " must be at least 1");
  }
  check_option("max_tree_depth", max_tree_depth, 2, SuffixTree::kMaxDepth);
  check_option("max_cached_requests", static_cast<double>(max_cached_requests), -1, kInfinity);
  check_option("max_cached_tokens", static_cast<double>(max_cached_tokens), 0, kInfinity);
  check_option("max_spec_factor", max_spec_factor, 0, kInfinity);
  check_option("max_spec_offset", max_spec_offset, -kInfinity, kInfinity);
  check_option("min_token_prob", min_token_prob, 0, 1);
}

DrafterNeeds SuffixDecoding::needs() const {
  const std::int64_t match = max_tree_depth - 1;
  const double allowed = max_spec_factor * static_cast<double>(match) + max_spec_offset + kAlmost;
  const auto nodes =
      static_cast<std::int64_t>(std::clamp(allowed, 0.0, static_cast<double>(max_draft_len)));
  return {.max_nodes = nodes, .max_depth = std::min(nodes, match)};
}

SuffixDrafter::SuffixDrafter(const SuffixDecoding& config)
    : config_((config.check(), config)), needs_(config.needs()), cache_(make_cache()) {}

DraftBatch SuffixDrafter::prepare_draft_tokens(const StepPlan& plan) {
  // All texts first: what enters the cache may take from it what others would find there.
  std::vector<std::int64_t> most;
  for (const ScheduledRows& item : plan.items) {
    const Request& request = request_of(item);
    const std::int64_t depth = request.draft_depth();
    std::int64_t nodes = depth > 0 ? std::min(item.max_nodes, needs_.max_nodes) : 0;
    if (!config_.tree) nodes = std::min(nodes, depth);
    if (nodes > 0) take_in(request, request.size());
    most.push_back(nodes);
  }
  DraftBatch drafts;
  for (std::size_t i = 0; i < most.size(); ++i) {
    const Request& request = request_of(plan.items[i]);
    if (most[i] <= 0) {
      drafts.append();
      continue;
    }
    const SuffixDraft draft =
        cache_.speculate(request.id, {most[i], config_.max_spec_factor, config_.max_spec_offset,
                                      config_.min_token_prob, config_.tree});
    draft.append_to(drafts, {request.end_tokens, request.draft_depth(), most[i]});
  }
  return drafts;
}

std::vector<std::int64_t> SuffixDrafter::on_accepted(const StepPlan& plan,
                                                     const StepResult& result) {
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const ScheduledRows& item = plan.items[i];
    const Request& request = request_of(item);
    // A prompt chunk has taken the text to its end; a step that emits, to the newest token.
    take_in(request, result.num_emitted(i) == 0 ? item.start + item.num_rows : request.size());
  }
  return {};
}

void SuffixDrafter::release(std::int64_t request_id) {
  cache_.stop(request_id);
  known_.erase(request_id);
}

void SuffixDrafter::forget_ended() {
  if (!known_.empty()) throw std::logic_error("texts are forgotten while none is written");
  cache_ = make_cache();
}

std::vector<std::int64_t> SuffixDrafter::live_requests() const {
  std::vector<std::int64_t> ids;
  for (const auto& [id, known] : known_) ids.push_back(id);
  return ids;
}

SuffixCache SuffixDrafter::make_cache() const {
  return SuffixCache(config_.max_tree_depth, config_.max_cached_requests,
                     config_.max_cached_tokens);
}

void SuffixDrafter::take_in(const Request& request, std::int64_t end) {
  const auto [place, is_new] = known_.try_emplace(request.id, 0);
  if (is_new) cache_.start(request.id);
  std::int64_t& known = place->second;
  const auto next = [&](std::int64_t stop) {
    const auto first = static_cast<std::size_t>(known);
    const auto count = static_cast<std::size_t>(stop - known);
    known = stop;
    return narrowed(std::span(request.tokens).subspan(first, count));
  };
  const std::int64_t prompt_end = std::min(end, request.num_prompt_tokens);
  if (known < prompt_end) cache_.append_prompt(request.id, next(prompt_end));
  if (known < end) cache_.append_response(request.id, next(end));
}

}  // namespace trtspec
