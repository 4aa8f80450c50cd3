// SuffixTree against a trie without compression, over random operations.
#include <trtspec/suffix_tree.hpp>

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <random>

#include "check.hpp"

namespace {

using trtspec::SuffixDraft;
using trtspec::SuffixOptions;
using trtspec::SuffixTree;
using trtspec::TokenId;
using Tokens = std::vector<TokenId>;

struct PlainNode {
  TokenId token = -1;
  std::int64_t count = 0;
  std::list<PlainNode> children;  // a changed child becomes the first of its new count

  PlainNode* child(TokenId wanted) {
    for (PlainNode& c : children) {
      if (c.token == wanted) return &c;
    }
    return nullptr;
  }
  void change(TokenId wanted, int by) {
    std::list<PlainNode> moved;
    for (auto c = children.begin(); c != children.end(); ++c) {
      if (c->token == wanted) {
        moved.splice(moved.begin(), children, c);
        break;
      }
    }
    if (moved.empty()) moved.push_back({wanted, 0, {}});
    const std::int64_t count = moved.front().count += by;
    if (count == 0) return;
    auto before = children.begin();
    while (before != children.end() && before->count > count) ++before;
    children.splice(before, moved);
  }
};

// The definition: every window in a trie.
struct PlainTree {
  int depth;
  PlainNode root{};
  std::map<int, Tokens> sequences{};

  void append(int sequence, TokenId token) {
    Tokens& text = sequences[sequence];
    text.push_back(token);
    const int n = int(text.size());
    ++root.count;
    for (int start = n - 1; start >= std::max(0, n - depth); --start) {
      PlainNode* node = &root;
      for (int i = start; i < n - 1; ++i) node = node->child(text[std::size_t(i)]);
      node->change(token, 1);
    }
  }
  void remove(int sequence) {
    const Tokens& text = sequences[sequence];
    for (int start = 0; start < int(text.size()); ++start) {
      --root.count;
      PlainNode* node = &root;
      for (int i = start; node != nullptr && i < std::min(int(text.size()), start + depth); ++i) {
        node->change(text[std::size_t(i)], -1);
        node = node->child(text[std::size_t(i)]);
      }
    }
    sequences.erase(sequence);
  }
  PlainNode* find(const TokenId* string, std::size_t size) {
    PlainNode* node = &root;
    for (std::size_t i = 0; i < size && node != nullptr; ++i) node = node->child(string[i]);
    return node;
  }

  SuffixDraft path(PlainNode* node, std::int64_t k, double min_prob) {
    SuffixDraft draft;
    double p = 1;
    while (std::int64_t(draft.tokens.size()) < k && !node->children.empty()) {
      PlainNode& best = node->children.front();
      p *= double(best.count) / double(node->count);
      if (p < min_prob) break;
      draft.parents.push_back(int(draft.tokens.size()) - 1);
      draft.tokens.push_back(best.token);
      draft.probs.push_back(p);
      draft.score += p;
      node = &best;
    }
    return draft;
  }
  SuffixDraft tree(PlainNode* node, std::int64_t k, double min_prob) {
    struct Open {
      double p;
      int parent;
      PlainNode* node;
    };
    SuffixDraft draft;
    std::list<Open> seen;
    double p = 1;
    int parent = -1;
    while (std::int64_t(draft.tokens.size()) < k) {
      for (PlainNode& c : node->children) {
        const double q = p * (double(c.count) / double(node->count));
        if (q >= min_prob) seen.push_back({q, parent, &c});
      }
      if (seen.empty()) break;
      auto best = std::max_element(seen.begin(), seen.end(),
                                   [](const Open& a, const Open& b) { return a.p < b.p; });
      p = best->p;
      node = best->node;
      parent = int(draft.tokens.size());
      draft.tokens.push_back(node->token);
      draft.parents.push_back(best->parent);
      draft.probs.push_back(p);
      draft.score += p;
      seen.erase(best);
    }
    return draft;
  }
  SuffixDraft speculate(Tokens context, const SuffixOptions& o) {
    if (int(context.size()) > depth) context.erase(context.begin(), context.end() - depth);
    SuffixDraft best;
    for (int m = 1; m < int(context.size()); ++m) {
      PlainNode* node = find(context.data() + context.size() - m, std::size_t(m));
      if (node == nullptr) break;
      const std::int64_t k = std::max<std::int64_t>(
          0, std::min<std::int64_t>(o.max_tokens, std::int64_t(o.factor * m + o.offset + 1e-6)));
      SuffixDraft draft = o.tree ? tree(node, k, o.min_prob) : path(node, k, o.min_prob);
      if (draft.score >= best.score) {
        best = draft;
        best.match_len = m;
      }
    }
    return best;
  }
};

bool equal(const SuffixDraft& a, const SuffixDraft& b) {
  return a.tokens == b.tokens && a.parents == b.parents && a.probs == b.probs &&
         a.score == b.score && a.match_len == b.match_len;
}

// One run of random operations; its numbers of queries and of drafts found.
void random_operations(unsigned seed, int& queries, int& drafts) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const int depth = pick(1, seed % 3 == 0 ? 4 : 12);
  const int alphabet = seed % 5 == 0 ? 30 : pick(1, 4);
  SuffixTree tree(depth);
  PlainTree plain{depth};
  std::vector<int> known;
  for (int i = 0; i < 60; ++i) {
    const int what = pick(0, 9);
    if (known.empty() || what == 0) {
      known.push_back(tree.add_sequence());
      plain.sequences[known.back()] = {};
      continue;
    }
    const int at = pick(0, int(known.size()) - 1);
    const int sequence = known[std::size_t(at)];
    Tokens& text = plain.sequences[sequence];
    if (what == 1) {
      plain.remove(sequence);
      tree.remove(sequence);
      known.erase(known.begin() + at);
    } else if (what == 2) {
      tree.close(sequence);
    } else if (what == 3) {
      tree.compact();
    } else {
      Tokens more;
      if (what == 4) {  // repeat what some sequence said
        const Tokens& other = plain.sequences[known[std::size_t(pick(0, int(known.size()) - 1))]];
        const int from = pick(0, int(other.size()));
        more.assign(other.begin() + from, other.begin() + std::min(int(other.size()), from + 15));
      } else {
        for (int n = pick(0, 6); n > 0; --n) more.push_back(pick(0, alphabet - 1));
      }
      tree.append(sequence, more);
      for (const TokenId token : more) plain.append(sequence, token);
      CHECK(std::equal(text.begin(), text.end(), tree.text(sequence).begin(),
                       tree.text(sequence).end()));
    }
    tree.check();
    std::int64_t tokens = 0;
    for (const auto& [key, value] : plain.sequences) tokens += std::int64_t(value.size());
    CHECK_EQ(tree.num_tokens(), tokens);
    CHECK(tree.num_nodes() <= 2 * tokens);
    SuffixOptions options;
    options.max_tokens = pick(0, 10);
    options.factor = pick(0, 4) / 2.0;
    options.offset = pick(-2, 4) / 2.0;
    options.min_prob = pick(0, 5) / 10.0;
    options.tree = pick(0, 1) == 1;
    // What a request asks (its own text, or that behind a prompt), then any string.
    Tokens context;
    for (int n = pick(0, 3); n > 0; --n) context.push_back(pick(0, alphabet - 1));
    const bool own = plain.sequences.count(sequence) != 0;
    if (own) {
      context.insert(context.end(), plain.sequences[sequence].begin(),
                     plain.sequences[sequence].end());
    }
    const SuffixDraft expected = plain.speculate(context, options);
    ++queries;
    drafts += !expected.tokens.empty();
    CHECK(equal(tree.speculate(context, options), expected));
    if (own) CHECK(equal(tree.speculate(context, options, sequence), expected));
    Tokens string;
    for (int n = pick(0, 4); n > 0; --n) string.push_back(pick(0, alphabet - 1));
    PlainNode* node = plain.find(string.data(), string.size());
    CHECK_EQ(tree.count(string), node == nullptr || int(string.size()) > depth ? 0 : node->count);
    CHECK(equal(tree.speculate(string, options), plain.speculate(string, options)));
  }
  while (!known.empty()) {
    tree.remove(known.back());
    known.pop_back();
    tree.check();
  }
  CHECK_EQ(tree.num_nodes(), 0);
}

void many_children() {
  // A node with thousands of children keeps its order while counts go up and down.
  SuffixTree tree(3);
  PlainTree plain{3};
  std::mt19937 random(7);
  std::vector<int> numbers;
  for (int s = 0; s < 6; ++s) {
    numbers.push_back(tree.add_sequence());
    Tokens text;
    for (int i = 0; i < 400; ++i) {
      text.push_back(0);
      text.push_back(TokenId(1 + std::min(random() % 300, random() % 300)));
    }
    tree.append(numbers.back(), text);
    for (const TokenId token : text) plain.append(numbers.back(), token);
    if (s >= 2) {
      tree.remove(numbers[std::size_t(s - 2)]);
      plain.remove(numbers[std::size_t(s - 2)]);
    }
    tree.check();
    SuffixOptions options;
    options.max_tokens = 40;
    options.factor = 40;
    options.min_prob = 0;
    for (const bool grown : {false, true}) {
      options.tree = grown;
      const Tokens context{5, 0};
      CHECK(equal(tree.speculate(context, options), plain.speculate(context, options)));
    }
  }
}

void removed_text_is_let_go() {
  // Sequences come and go; what stays is bounded by what is alive.
  SuffixTree tree(16);
  std::mt19937 random(3);
  std::vector<int> window;
  std::size_t most = 0;
  for (int i = 0; i < 3000; ++i) {
    window.push_back(tree.add_sequence());
    Tokens text;
    for (int n = 0; n < 200; ++n) text.push_back(TokenId(n % 50 < 25 ? n : random() % 1000));
    tree.append(window.back(), text);
    tree.close(window.back());
    if (window.size() > 20) {
      tree.remove(window.front());
      window.erase(window.begin());
    }
    if (i == 400) most = tree.memory_bytes();
  }
  tree.check();
  CHECK(tree.memory_bytes() <= most + most / 8);
}

void wrong_arguments() {
  CHECK_THROWS(SuffixTree(0));
  CHECK_THROWS(SuffixTree(1025));
  SuffixTree tree(4);
  CHECK_THROWS(tree.append(0, Tokens{1}));
  const int sequence = tree.add_sequence();
  CHECK_THROWS(tree.append(sequence, (Tokens{1, -1})));
  CHECK_EQ(tree.num_tokens(), 0);
  tree.remove(sequence);
  CHECK_THROWS(tree.remove(sequence));
  CHECK_THROWS(tree.text(-1));
}

}  // namespace

int main() {
  int queries = 0, drafts = 0;
  for (unsigned seed = 0; seed < 400; ++seed) random_operations(seed, queries, drafts);
  CHECK(queries > 10000);
  CHECK(drafts > queries / 4);
  many_children();
  removed_text_is_let_go();
  wrong_arguments();
  return check_result();
}
