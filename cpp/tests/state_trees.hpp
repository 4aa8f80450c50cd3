// Walks over states of requests that are trees or chains, for tests.
#pragma once

#include <trtspec/state_walk.hpp>

#include <random>
#include <vector>

#include "trees.hpp"

namespace trtspec::test {

inline std::vector<float> noise(std::mt19937& rng, std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(rng);
  return values;
}

// What a StateWalk points to. Every other request is new; with `chains` every third is a chain, whose
// rows are all certain.
struct StateTrees {
  std::vector<std::vector<std::int32_t>> parents;  // of each request, of all rows but the first
  std::vector<std::int32_t> slots, starts{0}, contexts;
  std::vector<char> is_tree;
  std::vector<std::int64_t> masks;
  std::int64_t states;

  StateTrees(std::mt19937& rng, int requests, int most, bool chains = false)
      : states(requests + 1) {
    for (int b = 0; b < requests; ++b) {
      const Tree tree = random_tree(rng, most, 9);
      std::vector<std::vector<bool>> seen{{true}};
      parents.emplace_back();
      const bool is_chain = chains && b % 3 == 2;
      for (const std::int32_t parent : tree.parents) {
        const auto last = std::int32_t(seen.size() - 1);
        parents.back().push_back(is_chain ? last : parent + 1);  // the root is a row
        seen.push_back(seen[std::size_t(parents.back().back())]);
        seen.back().resize(seen.size());
        seen.back().back() = true;
      }
      for (const auto& own : seen) {
        std::uint64_t words[2] = {};
        for (std::size_t j = 0; j < own.size(); ++j) {
          words[j / 64] |= std::uint64_t(own[j]) << j % 64;
        }
        for (const std::uint64_t word : words) masks.push_back(std::int64_t(word));
      }
      slots.push_back(requests - b);
      starts.push_back(starts.back() + std::int32_t(seen.size()));
      contexts.push_back(b % 2);
      is_tree.push_back(!is_chain);
    }
  }

  std::int64_t rows() const { return starts.back(); }

  // The rows of the first request from its root to one of them.
  std::vector<std::int64_t> path_to(std::int64_t row) const {
    std::vector<std::int64_t> path;
    for (std::int64_t at = row; at > 0; at = parents[0][std::size_t(at - 1)]) {
      path.insert(path.begin(), at);
    }
    path.insert(path.begin(), 0);
    return path;
  }

  StateWalk walk() const {
    return {rows(),
            std::int64_t(slots.size()),
            states,
            rows(),
            2,
            slots.data(),
            starts.data(),
            contexts.data(),
            reinterpret_cast<const bool*>(is_tree.data()),
            masks.data()};
  }
};

}  // namespace trtspec::test
