// What options do to logits: values written by hand, and rows of a tree against the same text
// without drafts.
#include <cmath>
#include <limits>
#include <random>
#include <trtspec/logits_processor.hpp>
#include <vector>

#include "check.hpp"
#include "trees.hpp"

namespace {

using trtspec::LogitsOptions;
using trtspec::LogitsProcessor;
using trtspec::test::Tree;
using Tokens = std::vector<std::int64_t>;
using Logits = std::vector<float>;

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kVocab = 6;

Logits applied(const LogitsOptions& options, const Tokens& text, std::int64_t num_prompt_tokens,
               const Tokens& ends, Logits logits, const Tree& tree = {}) {
  LogitsProcessor processor(options, ends, num_prompt_tokens);
  processor.extend(text);
  processor.apply(tree, logits.data(), kVocab);
  return logits;
}

void penalties_by_hand() {
  const Tokens text = {0, 1, 2, 2, 3};  // two of the prompt
  const Logits logits = {1.0f, -1.0f, 3.0f, -3.0f, 0.5f, 0.0f};
  CHECK((applied({.repetition_penalty = 2.0}, text, 2, {}, logits) ==
         Logits{0.5f, -2.0f, 1.5f, -6.0f, 0.5f, 0.0f}));
  CHECK((applied({.presence_penalty = 0.5}, text, 2, {}, logits) ==
         Logits{1.0f, -1.0f, 2.5f, -3.5f, 0.5f, 0.0f}));
  CHECK((applied({.frequency_penalty = 0.25}, text, 2, {}, logits) ==
         Logits{1.0f, -1.0f, 2.5f, -3.25f, 0.5f, 0.0f}));
  // All of them, on a row behind drafts: token 4 is new there, 2 comes a third time.
  const Logits both = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const Logits found =
      applied({.repetition_penalty = 2.0, .presence_penalty = 0.5, .frequency_penalty = 0.25}, text,
              2, {}, both, Tree{{4, 2}, {-1, 0}});
  CHECK((found == Logits{0.5f, 0.5f, -0.5f, -0.25f, 1.0f, 1.0f,    //
                         0.5f, 0.5f, -0.5f, -0.25f, -0.25f, 1.0f,  //
                         0.5f, 0.5f, -0.75f, -0.25f, -0.25f, 1.0f}));
}

void biases_and_bans_by_hand() {
  const Logits logits = {1, 1, 1, 1, 1, 1};
  // Biases come before penalties; ids beyond the vocabulary are ignored.
  CHECK((applied({.repetition_penalty = 2.0, .logit_bias = {{0, 3.0}, {99, 1.0}}}, {0}, 1, {},
                 logits) == Logits{2, 1, 1, 1, 1, 1}));
  // A word that began in the prompt, one that is longer than the text, and a single token.
  CHECK((applied({.bad_words = {{1, 2, 3}, {5, 1, 2, 4}, {5}, {2}}}, {1, 2}, 1, {}, logits) ==
         Logits{1, 1, kNever, kNever, 1, kNever}));
  CHECK((applied({.bad_words = {{1, 2, 3}}}, {2, 2}, 1, {}, logits) == logits));
  // Two more tokens must come before 4 may end the text; one of them is drafted.
  const Logits two(12, 1.0f);
  const Tree tree{{0}, {-1}};
  CHECK((applied({.min_tokens = 3}, {1, 2}, 1, {4, 99}, two, tree) ==
         Logits{1, 1, 1, 1, kNever, 1, 1, 1, 1, 1, kNever, 1}));
  CHECK((applied({.min_tokens = 2}, {1, 2}, 1, {4}, two, tree) ==
         Logits{1, 1, 1, 1, kNever, 1, 1, 1, 1, 1, 1, 1}));
}

// Taking text in by pieces, and drafts along, gives the bits of the whole text at once.
void rows_are_those_of_their_text() {
  std::mt19937 random(5);
  const auto token = [&] { return std::int64_t(random() % kVocab); };
  const auto some = [&](std::size_t count) {
    Tokens tokens(count);
    for (std::int64_t& t : tokens) t = token();
    return tokens;
  };
  for (int round = 0; round < 300; ++round) {
    LogitsOptions options{.repetition_penalty = random() % 2 ? 1.0 : 1.37,
                          .presence_penalty = random() % 2 ? 0.0 : 0.61,
                          .frequency_penalty = random() % 2 ? 0.0 : -0.23,
                          .min_tokens = std::int64_t(random() % 6)};
    if (random() % 2) options.logit_bias = {{token(), 0.7}};
    for (std::size_t i = random() % 3; i > 0; --i) {
      options.bad_words.push_back(some(1 + random() % 3));
    }
    const Tokens ends = some(random() % 3);
    Tokens text = some(1 + random() % 6);
    const auto num_prompt_tokens = std::int64_t(1 + random() % text.size());
    Tokens nodes = some(random() % 5);
    std::vector<std::int32_t> parents;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      parents.push_back(std::int32_t(random() % (i + 1)) - 1);
    }
    const Tree tree{nodes, parents};
    Logits logits(std::size_t(1 + tree.view().size()) * kVocab);
    for (float& logit : logits) logit = std::uniform_real_distribution<float>(-4, 4)(random);

    LogitsProcessor processor(options, ends, num_prompt_tokens);
    processor.extend(std::span(text).first(std::size_t(num_prompt_tokens)));
    processor.extend(text);
    Logits found = logits;
    processor.apply(tree, found.data(), kVocab);
    for (std::int64_t row = 0; row <= tree.view().size(); ++row) {
      Tokens own = text;
      for (const std::int32_t node : tree.view().path(row - 1))
        own.push_back(nodes[std::size_t(node)]);
      const auto first = std::ptrdiff_t(row * kVocab);
      const Logits alone(logits.begin() + first, logits.begin() + first + kVocab);
      const Logits same(found.begin() + first, found.begin() + first + kVocab);
      CHECK(same == applied(options, own, num_prompt_tokens, ends, alone));
    }
  }
}

}  // namespace

int main() {
  penalties_by_hand();
  biases_and_bans_by_hand();
  rows_are_those_of_their_text();
  return check_result();
}
