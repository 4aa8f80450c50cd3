// pack_verify, pack_rollout and advance in the emulator against the CPU kernels, step after step of
// requests that come and go.
#include <kernels.hpp>
#include <trtspec/acceptance.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "seeds.hpp"

namespace {

using trtspec::RequestState;
using trtspec::StepItem;

constexpr std::int64_t kVocab = 9;  // few tokens, so that walks go deep and texts end

std::mt19937 random_bits(17);

std::int64_t below(std::int64_t limit) {
  return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random_bits);
}
std::int64_t between(std::int64_t least, std::int64_t most) {
  return least + below(most - least + 1);
}

// What a device keeps, and a step of it.
struct World {
  std::int64_t places, block_size, table_width, ring, num_ends = 3;
  trtspec::PairRule rule;
  std::vector<RequestState> states;
  std::vector<float> filters;
  std::vector<std::int64_t> ends, pairs, chunk;
  std::vector<std::int32_t> tables;
  std::vector<StepItem> items;
  std::int64_t num_nodes, num_rows = 0, words;
  std::vector<std::int64_t> draft_tokens;
  std::vector<std::int32_t> draft_parents;
  std::vector<float> draft_scores;

  trtspec::ResidentRequests requests() {
    return {places,        states.data(), filters.data(), ends.data(), num_ends,
            tables.data(), table_width,   pairs.data(),   ring};
  }
  trtspec::CacheLayout layout() const { return {block_size, table_width, words}; }
  std::int64_t num_items() const { return std::ssize(items); }
};

// A place with a request somewhere in its text, and its item.
void add_request(World& w, std::int64_t place, bool chunks) {
  const std::int64_t prompt = between(1, 12), length = prompt + below(6);
  const bool generates = !chunks && below(4) > 0;
  const std::int64_t start = generates ? 0 : below(length);
  const std::int64_t fed = generates ? 1 : between(1, length - start);
  const std::int64_t begin = generates ? length - 1 : start;
  const std::int64_t drafted = std::max<std::int64_t>(begin + w.rule.behind - below(w.ring + 1), 0);
  constexpr std::int64_t kDepths[] = {8, 3, 0, 1};
  w.states[std::size_t(place)] = {.length = length,
                                  .num_prompt = prompt,
                                  .limit = length + between(1, 9),
                                  .reach = length + between(-1, 9),
                                  .newest = below(kVocab),
                                  .max_depth = kDepths[below(below(2) == 0 ? 2 : 4)],
                                  .drafted = drafted,
                                  .absent = below(std::min<std::int64_t>(drafted, 3) + 1),
                                  .end = std::max<std::int64_t>(below(10) - 7, 0),
                                  .adapter = below(4) - 1,
                                  .top_k = below(9),
                                  .seed = std::int64_t(random_bits()) << 31,
                                  .sample_index = below(3)};
  const std::int64_t nodes = below(2) == 0 ? w.num_nodes : std::min<std::int64_t>(w.num_nodes, 2);
  w.items.push_back({place, start, fed, generates, generates ? nodes : 0,
                     generates || start + fed == length, std::ssize(w.chunk)});
  for (std::int64_t i = 0; !generates && i <= fed; ++i) w.chunk.push_back(below(kVocab));
  w.num_rows += std::max(fed + w.items.back().max_nodes, w.ring);
}

// Trees whose scores fall along their paths, with equal ones and nodes that are left out.
void add_drafts(World& w) {
  constexpr float kGains[] = {0.0f, -0.5f, -1.0f, -0.5f, -1.0f, -HUGE_VALF};
  for (std::int64_t i = 0; i < w.num_items(); ++i) {
    const std::size_t first = w.draft_scores.size();
    const bool is_chain = below(3) == 0;
    for (std::int64_t node = 0; node < w.num_nodes; ++node) {
      const std::int64_t parent = is_chain ? node - 1 : below(node + 1) - 1;
      const float above = parent < 0 ? 0.0f : w.draft_scores[first + std::size_t(parent)];
      w.draft_tokens.push_back(below(kVocab));
      w.draft_parents.push_back(std::int32_t(parent));
      w.draft_scores.push_back(above + kGains[below(6)]);
    }
  }
}

World draw(int round) {
  constexpr std::int64_t kNodes[] = {0, 4, 1, 70, 15, 130};
  World w;
  w.places = between(1, 7);
  w.block_size = between(1, 4);
  w.ring = round % 5 == 4 ? 0 : between(3, 9);
  w.rule.behind = below(2);
  w.rule.not_final = w.rule.behind == 0 ? below(3) : 0;
  w.num_nodes = kNodes[round % 6];
  w.words = w.num_nodes / 64 + 1;
  w.states.resize(std::size_t(w.places));
  w.table_width = 170 / w.block_size + 2;
  for (std::int64_t i = 0; i < w.places * w.table_width; ++i) {
    w.tables.push_back(i % w.table_width == w.table_width - 1 ? -1 : std::int32_t(below(1000)));
  }
  for (std::int64_t i = 0; i < w.places * 3; ++i) w.filters.push_back(float(below(100)) / 100);
  for (std::int64_t i = 0; i < w.places * w.ring; ++i) w.pairs.push_back(below(kVocab));
  for (std::int64_t i = 0; i < w.places; ++i) {
    const std::int64_t count = below(3);
    for (std::int64_t j = 0; j < w.num_ends; ++j) w.ends.push_back(j < count ? below(kVocab) : -1);
  }
  std::vector<std::int64_t> order(std::size_t(w.places));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_bits);
  order.resize(std::size_t(between(1, w.places)));
  for (std::int64_t i = below(3); i > 0; --i) {
    order.insert(order.begin() + below(std::ssize(order) + 1), -1);
  }
  for (const std::int64_t place : order) {
    if (place < 0) {
      w.items.push_back({.place = -1});
    } else {
      add_request(w, place, round % 4 == 3);
    }
  }
  w.num_rows += below(2) * below(1500);  // several turns of padding
  add_drafts(w);
  return w;
}

// Outputs of a call, which hold other values before it.
struct Rows {
  std::vector<std::int64_t> ids, positions, slots, masks, wanted;
  std::vector<std::int32_t> tables, starts, contexts, adapters;
  std::vector<std::uint8_t> trees;

  Rows(const World& w, std::int64_t logits)
      : ids(std::size_t(w.num_rows), -7),
        positions(ids),
        slots(ids),
        masks(std::size_t(w.num_rows * w.words), -7),
        wanted(std::size_t(logits), -7),
        tables(std::size_t(w.num_items() * w.table_width), -7),
        starts(w.items.size() + 1, -7),
        contexts(w.items.size(), -7),
        adapters(ids.size(), -7),
        trees(w.items.size(), 1) {}

  trtspec::RowArrays arrays(bool of_target) {
    return {ids.data(),
            positions.data(),
            slots.data(),
            tables.data(),
            starts.data(),
            contexts.data(),
            reinterpret_cast<bool*>(trees.data()),
            masks.data(),
            of_target ? wanted.data() : nullptr,
            of_target ? adapters.data() : nullptr};
  }
  bool operator==(const Rows&) const = default;
};

struct Columns {
  std::vector<float> temperature, top_p, min_p;
  std::vector<std::int32_t> top_k;
  std::vector<std::int64_t> seed, sample_index, output_index;

  explicit Columns(std::int64_t rows)
      : temperature(std::size_t(rows), -7),
        top_p(temperature),
        min_p(temperature),
        top_k(std::size_t(rows), -7),
        seed(std::size_t(rows), -7),
        sample_index(seed),
        output_index(seed) {}

  trtspec::SamplingArrays arrays() {
    return {temperature.data(), top_k.data(),        top_p.data(),       min_p.data(),
            seed.data(),        sample_index.data(), output_index.data()};
  }
  bool operator==(const Columns&) const = default;
};

struct VerifyCall {
  Rows rows;
  Columns columns;
  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> parents, starts;

  explicit VerifyCall(const World& w)
      : rows(w, w.num_rows),
        columns(w.num_rows),
        tokens(std::size_t(w.num_rows), -7),
        parents(tokens.size(), -7),
        starts(w.items.size() + 1, -7) {}

  trtspec::PackVerifyParams params(World& w) {
    return {w.requests(),
            w.items.data(),
            w.num_items(),
            w.chunk.data(),
            w.draft_tokens.data(),
            w.draft_parents.data(),
            w.draft_scores.data(),
            w.num_nodes,
            w.rule.behind,
            w.layout(),
            rows.arrays(true),
            w.num_rows,
            w.num_rows,
            columns.arrays(),
            tokens.data(),
            parents.data(),
            starts.data()};
  }
  bool operator==(const VerifyCall&) const = default;
};

struct RolloutCall {
  Rows rows;
  Columns columns;
  std::vector<std::int64_t> last, ring_rows;

  explicit RolloutCall(const World& w)
      : rows(w, 0),
        columns(w.num_items()),
        last(w.items.size(), -7),
        ring_rows(std::size_t(w.num_rows), -7) {}

  trtspec::PackRolloutParams params(World& w) {
    return {w.requests(),       w.items.data(), w.num_items(), w.rule.behind,    w.layout(),
            rows.arrays(false), w.num_rows,     last.data(),   columns.arrays(), ring_rows.data()};
  }
  bool operator==(const RolloutCall&) const = default;
};

// What is verified, and what becomes of it.
struct Walk {
  std::vector<std::int64_t> sampled;
  std::int64_t width = 0;
  std::vector<std::int32_t> accepted, emitted;

  Walk(const VerifyCall& call, std::int64_t requests) : emitted(std::size_t(requests)) {
    for (std::size_t i = 0; i < call.tokens.size(); ++i) {
      sampled.push_back(below(30) == 0 ? -1 : below(kVocab));
    }
    for (std::size_t i = 0; i + 1 < call.starts.size(); ++i) {
      const auto first = std::size_t(call.starts[i]), end = std::size_t(call.starts[i + 1]);
      for (std::size_t row = first + 1; row < end; ++row) {  // mostly what some child carries
        if (below(3) > 0) sampled[first + std::size_t(call.parents[row])] = call.tokens[row];
      }
    }
    for (std::size_t i = 0; i + 1 < call.starts.size(); ++i) {
      width = std::max<std::int64_t>(width, call.starts[i + 1] - call.starts[i]);
    }
    width += below(3);
    accepted.resize(std::size_t(requests * width));
    CHECK_EQ(trtspec::accept(sampled.data(), call.tokens.data(), call.parents.data(),
                             call.starts.data(), requests, width, accepted.data(), emitted.data()),
             -1);
  }
};

struct Advance {
  std::vector<std::int64_t> result, src, dst, kept, ring_rows;

  Advance(const World& w, const Walk& walk)
      : result(w.items.size() * std::size_t(4 + 4 * walk.width), -7),
        src(w.items.size() * std::size_t(walk.width), -7),
        dst(src),
        kept(w.items.size() * std::size_t(w.ring), -7),
        ring_rows(kept) {}

  trtspec::AdvanceParams params(World& w, const VerifyCall& call, const Walk& walk) {
    return {w.requests(),
            w.items.data(),
            w.num_items(),
            w.chunk.data(),
            call.rows.starts.data(),
            call.starts.data(),
            call.tokens.data(),
            call.parents.data(),
            walk.sampled.data(),
            walk.accepted.data(),
            walk.emitted.data(),
            walk.width,
            w.block_size,
            w.rule,
            result.data(),
            src.data(),
            dst.data(),
            kept.data(),
            ring_rows.data()};
  }
  bool operator==(const Advance&) const = default;
};

bool same(const World& a, const World& b) {
  const auto fields = [](const RequestState& s) {
    return std::tuple(s.length, s.num_prompt, s.limit, s.reach, s.newest, s.max_depth, s.drafted,
                      s.absent, s.end, s.adapter, s.top_k, s.seed, s.sample_index);
  };
  return a.pairs == b.pairs && std::ranges::equal(a.states, b.states, {}, fields, fields);
}

// What rounds had, so that they say something.
struct Seen {
  std::int64_t trees = 0, deep = 0, rollouts = 0, ends = 0, moves = 0, pairs = 0;
};

void step(int round, Seen& seen) {
  World want = draw(round);
  World got = want;

  RolloutCall rollout_want(want), rollout_got(want);
  if (want.ring > 0) {
    CHECK_EQ(trtspec::pack_rollout(rollout_want.params(want)), -1);
    CHECK_EQ(trtspec::cuda::pack_rollout(rollout_got.params(got), nullptr), cudaSuccess);
    CHECK(rollout_got == rollout_want);
    seen.rollouts += rollout_want.rows.starts.back() > 0;
  }

  VerifyCall verify_want(want), verify_got(want);
  CHECK_EQ(trtspec::pack_verify(verify_want.params(want)), -1);
  CHECK_EQ(trtspec::cuda::pack_verify(verify_got.params(got), nullptr), cudaSuccess);
  CHECK(verify_got == verify_want);
  seen.trees += std::ranges::count(verify_want.rows.trees, 1);

  const Walk walk(verify_want, want.num_items());
  Advance advance_want(want, walk), advance_got(want, walk);
  trtspec::advance(advance_want.params(want, verify_want, walk));
  CHECK_EQ(trtspec::cuda::advance(advance_got.params(got, verify_want, walk), nullptr),
           cudaSuccess);
  CHECK(advance_got == advance_want);
  CHECK(same(got, want));
  seen.deep += std::ranges::count_if(walk.emitted, [](int count) { return count > 2; });
  seen.ends += std::ranges::count_if(want.states, [](const auto& state) { return state.end > 0; });
  seen.moves += std::ranges::count_if(advance_want.src, [](auto slot) { return slot >= 0; });
  seen.pairs += std::ranges::count_if(advance_want.kept, [](auto row) { return row > 0; });
}

}  // namespace

int main() {
  for_seeds([](unsigned) {
    Seen seen;
    for (int round = 0; round < 100; ++round) step(round, seen);
    CHECK(seen.trees > 20 && seen.deep > 3 && seen.rollouts > 15);
    CHECK(seen.ends > 20 && seen.moves > 5 && seen.pairs > 50);
  });
  return check_result();
}
