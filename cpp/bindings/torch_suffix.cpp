// SuffixDrafter, SuffixCache and SuffixTree as torch sees them. Errors come to Python as RuntimeError,
// those of a drafter's options as ValueError.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <trtspec/runtime/suffix_drafter.hpp>
#include <trtspec/suffix_cache.hpp>

#include <tuple>
#include <utility>
#include <vector>

#include "cache_holder.hpp"
#include "drafts_holder.hpp"
#include "sequence_holder.hpp"

namespace {

using trtspec::SuffixDraft;
using trtspec::SuffixOptions;
using trtspec::TokenId;
using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;

// Drafts one behind the other: sizes, tokens, parents, probabilities, scores, lengths of matches.
using Drafts = std::tuple<Ints, Ints, Ints, Floats, Floats, Ints>;

std::vector<TokenId> narrow_tokens(const Ints& tokens) {
  std::vector<TokenId> out(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    TORCH_CHECK(tokens[i] >= 0 && tokens[i] <= INT32_MAX, "suffix: token ", tokens[i],
                " is not between 0 and 2^31 - 1");
    out[i] = TokenId(tokens[i]);
  }
  return out;
}

// An exception of a constructor would come as a ValueError, those of methods do not.
int32_t checked_depth(int64_t max_depth) {
  TORCH_CHECK(max_depth >= 1 && max_depth <= trtspec::SuffixTree::kMaxDepth,
              "suffix: max_depth=", max_depth, " must be between 1 and ",
              trtspec::SuffixTree::kMaxDepth);
  return int32_t(max_depth);
}

int64_t at_least(const char* name, int64_t value, int64_t low) {
  TORCH_CHECK(value >= low, "suffix: ", name, "=", value, " must be ", low, " or more");
  return value;
}

SuffixOptions options_of(int64_t max_tokens, double factor, double offset, double min_prob,
                         bool tree) {
  TORCH_CHECK(factor >= 0, "suffix: factor=", factor, " must be 0 or more");
  return {max_tokens, factor, offset, min_prob, tree};
}

void add(Drafts& drafts, const SuffixDraft& draft) {
  auto& [sizes, tokens, parents, probs, scores, matches] = drafts;
  sizes.push_back(int64_t(draft.tokens.size()));
  tokens.insert(tokens.end(), draft.tokens.begin(), draft.tokens.end());
  parents.insert(parents.end(), draft.parents.begin(), draft.parents.end());
  probs.insert(probs.end(), draft.probs.begin(), draft.probs.end());
  scores.push_back(draft.score);
  matches.push_back(draft.match_len);
}

// Active requests, entries, tokens of the entries, bytes.
using Sizes = std::tuple<int64_t, int64_t, int64_t, int64_t>;

Sizes sizes_of(const trtspec::SuffixCache& cache) {
  return {cache.num_active(), cache.num_cached(), cache.num_cached_tokens(),
          int64_t(cache.memory_bytes())};
}

struct Cache : torch::CustomClassHolder {
  Cache(int64_t max_depth, int64_t max_requests, int64_t max_tokens)
      : cache(checked_depth(max_depth), at_least("max_requests", max_requests, -1),
              at_least("max_tokens", max_tokens, 0)) {}

  void start(int64_t request) { cache.start(request); }
  bool is_active(int64_t request) { return cache.is_active(request); }
  void append_prompt(int64_t request, const Ints& tokens) {
    cache.append_prompt(request, narrow_tokens(tokens));
  }
  void append_response(int64_t request, const Ints& tokens) {
    cache.append_response(request, narrow_tokens(tokens));
  }
  Drafts speculate(const Ints& requests, const Ints& max_tokens, double factor, double offset,
                   double min_prob, bool tree) {
    TORCH_CHECK(requests.size() == max_tokens.size(), "suffix: ", requests.size(), " requests but ",
                max_tokens.size(), " numbers of tokens");
    Drafts drafts;
    for (size_t i = 0; i < requests.size(); ++i) {
      add(drafts,
          cache.speculate(requests[i], options_of(max_tokens[i], factor, offset, min_prob, tree)));
    }
    return drafts;
  }
  void stop(int64_t request) { cache.stop(request); }
  bool evict(int64_t request) { return cache.evict(request); }
  Sizes sizes() { return sizes_of(cache); }

  trtspec::SuffixCache cache;
};

struct Drafter : torch::CustomClassHolder {
  Drafter(int64_t max_draft_len, int64_t max_depth, int64_t max_requests, int64_t max_tokens,
          double factor, double offset, double min_prob, bool tree)
      : drafter(as_value_error([&] {
          return trtspec::SuffixDrafter({max_draft_len, checked_depth(max_depth), max_requests,
                                         max_tokens, factor, offset, min_prob, tree});
        })) {}

  DescribedDrafts prepare(const at::Tensor& plan) {
    return described(drafter.prepare_draft_tokens(plan_of(plan)));
  }
  // start: see StepResult.
  void on_accepted(const at::Tensor& plan, Ints start) {
    drafter.on_accepted(plan_of(plan), {std::move(start), {}, {}, {}});
  }
  void release(int64_t request) { drafter.release(request); }
  Ints live_requests() { return drafter.live_requests(); }
  bool evict(int64_t request) { return drafter.cache().evict(request); }
  Sizes sizes() { return sizes_of(drafter.cache()); }

  trtspec::SuffixDrafter drafter;
};

struct Tree : torch::CustomClassHolder {
  explicit Tree(int64_t max_depth) : tree(checked_depth(max_depth)) {}

  int64_t add_sequence() { return tree.add_sequence(); }
  void append(int64_t sequence, const Ints& tokens) {
    tree.append(int32_t(sequence), narrow_tokens(tokens));
  }
  void close(int64_t sequence) { tree.close(int32_t(sequence)); }
  void remove(int64_t sequence) { tree.remove(int32_t(sequence)); }
  int64_t count(const Ints& tokens) { return tree.count(narrow_tokens(tokens)); }
  Drafts speculate(const Ints& context, int64_t sequence, int64_t max_tokens, double factor,
                   double offset, double min_prob, bool grown) {
    Drafts drafts;
    add(drafts,
        tree.speculate(narrow_tokens(context),
                       options_of(max_tokens, factor, offset, min_prob, grown), int32_t(sequence)));
    return drafts;
  }
  void compact() { tree.compact(); }
  void check() { tree.check(); }
  std::tuple<int64_t, int64_t, int64_t> sizes() {
    return {tree.num_tokens(), tree.num_nodes(), int64_t(tree.memory_bytes())};
  }

  trtspec::SuffixTree tree;
};

}  // namespace

void register_suffix(torch::Library& m) {
  m.class_<Cache>("SuffixCache")
      .def(torch::init<int64_t, int64_t, int64_t>())
      .def("start", &Cache::start)
      .def("is_active", &Cache::is_active)
      .def("append_prompt", &Cache::append_prompt)
      .def("append_response", &Cache::append_response)
      .def("speculate", &Cache::speculate)
      .def("stop", &Cache::stop)
      .def("evict", &Cache::evict)
      .def("sizes", &Cache::sizes);
  m.class_<Drafter>("SuffixDrafter")
      .def(torch::init<int64_t, int64_t, int64_t, int64_t, double, double, double, bool>())
      .def("prepare", &Drafter::prepare)
      .def("on_accepted", &Drafter::on_accepted)
      .def("release", &Drafter::release)
      .def("live_requests", &Drafter::live_requests)
      .def("evict", &Drafter::evict)
      .def("sizes", &Drafter::sizes);
  m.class_<Tree>("SuffixTree")
      .def(torch::init<int64_t>())
      .def("add_sequence", &Tree::add_sequence)
      .def("append", &Tree::append)
      .def("close", &Tree::close)
      .def("remove", &Tree::remove)
      .def("count", &Tree::count)
      .def("speculate", &Tree::speculate)
      .def("compact", &Tree::compact)
      .def("check", &Tree::check)
      .def("sizes", &Tree::sizes);
}
