// Reading a SuffixTree: where a string is, and what follows it.
#include <cmath>

#include "suffix_tree_impl.hpp"

namespace trtspec {

using suffix::kNone;
using suffix::kRoot;
using suffix::Node;

bool SuffixTree::Impl::find(const TokenId* string, std::int32_t size, Place& place) const {
  place = {kRoot, 0};
  for (std::int32_t at = 0; at < size;) {
    if (nodes.is_tail(place.node)) return false;
    const std::int32_t child = nodes.find_child(place.node, string[at]);
    if (child == kNone) return false;
    const std::int32_t take = std::min(length(child), size - at);
    const TokenId* tokens = edge(child);
    if (!std::equal(tokens + 1, tokens + take, string + at + 1)) return false;
    place = {child, take};
    at += take;
  }
  return true;
}

namespace {
// More than what rounding adds to a sum of probabilities.
constexpr double kRounding = 1e-9;
}  // namespace

// How much of a context's end is in the tree, and where.
class SuffixTree::Impl::Matches {
 public:
  Matches(const Impl& tree, std::span<const TokenId> context, std::int32_t sequence)
      : tree_(tree), context_(context) {
    const std::int32_t limit = std::int32_t(context.size()) - 1;
    if (sequence != kNone && tree.sequences[std::size_t(sequence)].open) {
      own_ = &tree.sequences[std::size_t(sequence)];
      walkers_ = std::min(own_->walkers, limit);
      const std::int32_t whole = std::min(own_->size(), limit);
      if (walkers_ < whole) {
        // The next suffix is in a tail: it occurs once, at the end, and nothing longer goes on.
        usable_ = walkers_;
        longest_ = whole;
        return;
      }
    }
    // All shorter ones match if one does.
    std::int32_t low = walkers_, high = limit;
    while (low < high) {
      const std::int32_t m = low + (high - low + 1) / 2;
      Place place{};
      if (search(m, place)) {
        low = m;
      } else {
        high = m - 1;
      }
    }
    usable_ = longest_ = low;
  }

  // The longest m whose last m tokens are in the tree, and the longest that may go on.
  std::int32_t longest() const { return longest_; }
  std::int32_t usable() const { return usable_; }
  Place at(std::int32_t m) const {
    Place place{};
    if (m > walkers_) {
      search(m, place);
      return place;
    }
    place.node = own_->ring[std::size_t((own_->size() - m) & tree_.mask)];
    place.used = tree_.nodes[place.node].len;
    return place;
  }

 private:
  bool search(std::int32_t m, Place& place) const {
    return tree_.find(context_.data() + context_.size() - std::size_t(m), m, place);
  }

  const Impl& tree_;
  std::span<const TokenId> context_;
  const SuffixSequence* own_ = nullptr;
  std::int32_t walkers_ = 0, longest_ = 0, usable_ = 0;
};

SuffixDraft SuffixTree::Impl::speculate(std::span<const TokenId> context,
                                        const SuffixOptions& options, std::int32_t sequence) const {
  if (context.size() > std::size_t(max_depth)) context = context.last(std::size_t(max_depth));
  SuffixDraft best;
  if (context.size() < 2) return best;
  const Matches matches(*this, context, sequence);
  best.match_len = matches.longest();
  // What a match of m tokens may draft at most, in tokens and in depth: no score is above that, as
  // the probabilities of one depth add up to 1. It rises with m and then falls, so from its peak
  // outwards the better chances come first and the rest can often be left out.
  const auto size_at = [&](std::int32_t m) {
    const double wanted = std::trunc(options.factor * m + options.offset + 1e-6);
    const double most = double(std::max<std::int64_t>(options.max_tokens, 0));
    return std::int64_t(std::clamp(wanted, 0.0, most));
  };
  const auto bound_at = [&](std::int32_t m) {
    if (m < 1 || m > matches.usable()) return -1.0;
    const double bound = double(std::min<std::int64_t>(size_at(m), max_depth - m));
    return options.tree ? bound + kRounding : bound;
  };
  std::int32_t shorter = matches.usable();
  while (shorter > 1 && bound_at(shorter - 1) >= bound_at(shorter)) --shorter;
  std::int32_t longer = shorter + 1;
  SuffixDraft draft;
  Place found{kNone, 0};
  std::int32_t found_m = matches.longest();
  while (true) {
    const double below = bound_at(shorter), above = bound_at(longer);
    const std::int32_t m = below >= above ? shorter-- : longer++;
    if (std::max(below, above) < best.score || m < 1 || m > matches.usable()) break;
    const std::int64_t k = size_at(m);
    if (k == 0 || (m < found_m && std::max(below, above) <= best.score)) continue;
    const Place place = matches.at(m);
    const double score = options.tree ? grow_tree(place, k, options.min_prob, draft)
                                      : path_score(place, k, options.min_prob);
    // The longest of equals.
    if (score < best.score || score == 0 || (score == best.score && m < found_m)) continue;
    if (options.tree) std::swap(draft, best);
    best.score = score;
    found = place;
    found_m = m;
  }
  best.match_len = found_m;
  if (found.node != kNone && !options.tree) path(found, size_at(found_m), options.min_prob, best);
  return best;
}

// Adds probabilities one by one, so that equal sums stay equal however edges are cut.
double SuffixTree::Impl::path_score(Place place, std::int64_t k, double min_prob) const {
  double score = 0.0, p = 1.0;
  std::int32_t here = place.node;
  std::int64_t take = length(here) - place.used;
  while (true) {
    take = std::min(take, k);
    for (std::int64_t i = 0; i < take; ++i) score += p;
    k -= take;
    if (k == 0) return score;
    const std::int32_t child = nodes.first_child(here);
    if (child == kNone) return score;
    p *= double(nodes[child].count) / double(nodes[here].count);
    if (p < min_prob) return score;
    here = child;
    take = length(here);
  }
}

void SuffixTree::Impl::path(Place place, std::int64_t k, double min_prob,
                            SuffixDraft& draft) const {
  double p = 1.0;
  std::int32_t here = place.node, used = place.used;
  while (true) {
    const TokenId* tokens = edge(here);
    for (const std::int32_t end = length(here); used < end; ++used) {
      if (std::int64_t(draft.tokens.size()) == k) return;
      draft.parents.push_back(std::int32_t(draft.tokens.size()) - 1);
      draft.tokens.push_back(tokens[used]);
      draft.probs.push_back(p);
    }
    const std::int32_t child = nodes.first_child(here);
    if (child == kNone) return;
    p *= double(nodes[child].count) / double(nodes[here].count);
    if (p < min_prob) return;
    here = child;
    used = 0;
  }
}

// The k nodes of the highest probability; of equal ones the one first seen.
double SuffixTree::Impl::grow_tree(Place place, std::int64_t k, double min_prob,
                                   SuffixDraft& draft) const {
  struct Open {
    double p;
    std::int32_t order;   // when it was seen
    std::int32_t parent;  // in the draft
    Place place;
  };
  const auto later = [](const Open& a, const Open& b) {
    return a.p != b.p ? a.p < b.p : a.order > b.order;
  };
  draft.tokens.clear();
  draft.parents.clear();
  draft.probs.clear();
  draft.score = 0.0;
  std::vector<Open> heap;
  std::int32_t order = 0, parent = -1;
  double p = 1.0;
  while (true) {
    // What follows `place`; no more of it than there is room for.
    const std::int64_t room = k - std::int64_t(draft.tokens.size());
    if (room == 0) return draft.score;
    if (place.used < length(place.node)) {
      heap.push_back({p, order++, parent, {place.node, place.used + 1}});
      std::push_heap(heap.begin(), heap.end(), later);
    } else {
      std::int64_t seen = 0;
      for (std::int32_t child = nodes.first_child(place.node); child != kNone && seen < room;
           child = nodes[child].next, ++seen) {
        const double q = p * (double(nodes[child].count) / double(nodes[place.node].count));
        if (q < min_prob) break;
        heap.push_back({q, order++, parent, {child, 1}});
        std::push_heap(heap.begin(), heap.end(), later);
      }
    }
    if (heap.empty()) return draft.score;
    std::pop_heap(heap.begin(), heap.end(), later);
    const Open next = heap.back();
    heap.pop_back();
    p = next.p;
    place = next.place;
    parent = std::int32_t(draft.tokens.size());
    draft.tokens.push_back(edge(place.node)[place.used - 1]);
    draft.parents.push_back(next.parent);
    draft.probs.push_back(p);
    draft.score += p;
  }
}

void SuffixDraft::append_to(DraftBatch& drafts, const DraftCut& cut) const {
  const auto trust = static_cast<float>(match_len / (match_len + 1.0));
  std::vector<float> scores;
  for (const double prob : probs) scores.push_back(std::log(static_cast<float>(prob) * trust));
  const std::vector<std::int64_t> ids(tokens.begin(), tokens.end());
  drafts.append_best({ids, parents, scores}, cut);
}

}  // namespace trtspec
