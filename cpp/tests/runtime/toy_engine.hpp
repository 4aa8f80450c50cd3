// ToyEngine: a target, draft model or feature network of integer hashes, the same as
// tests/conformance/toy_engine.py. Every cache slot holds a number made of the row that was written
// there and of all rows that it saw, read back through the block tables; so a wrong slot, a stale
// row, a missing compaction or a wrong mask changes the tokens.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <trtspec/kv_compact.hpp>
#include <trtspec/runtime/model_engine.hpp>
#include <trtspec/runtime/packing.hpp>
#include <trtspec/sampling.hpp>
#include <utility>
#include <vector>

namespace toy {

using Word = std::uint64_t;

// An invertible scramble of `a` by `b`.
inline Word mix(Word a, Word b) {
  Word x = a ^ (b * 0x9E3779B97F4A7C15u);
  for (int round = 0; round < 2; ++round) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
  }
  return x ^ (x >> 32);
}

enum class Kind { target, draft_model, eagle };

struct Model {
  std::int64_t vocab;       // columns of the logits
  std::int64_t text_vocab;  // of the target; a draft's may be smaller
  Word salt;
  std::int64_t period;      // the favoured tokens repeat after so many positions
  std::int64_t regularity;  // percent of the rows where the favoured token stands out
  std::int64_t skill;       // percent of the rows in which a draft says what the target says
  Word nan_every;           // about one row in so many has NaN logits; 0: none
  std::int64_t topk, num_steps, num_nodes;  // of the rollout
};

class ToyEngine final : public trtspec::ModelEngine {
 public:
  static constexpr int kStateWords = 4;  // floats of a hidden state, 16 bits each

  ToyEngine(Kind kind, const Model& model, trtspec::CacheLayout layout, std::int64_t num_blocks,
            std::set<std::int64_t> failing_calls = {})
      : kind_(kind),
        model_(model),
        layout_(layout),
        failing_calls_(std::move(failing_calls)),
        cache_(static_cast<std::size_t>(num_blocks * layout.tokens_per_block), 0) {}

  const trtspec::CacheLayout& layout() const override { return layout_; }
  std::int64_t vocab_size() const override { return model_.vocab; }
  trtspec::Device& device() override { return device_; }
  std::int64_t num_calls() const override { return num_calls_; }
  double seconds() const override { return 0.0; }

  Output forward(std::span<const trtspec::RowGroup> groups) override {
    const trtspec::PackedRows packed = trtspec::pack(groups, layout_);
    const std::vector<Seen> seen = feed_rows(packed, {});
    Output output;
    output.logits = at::empty({packed.logits_rows.size(0), model_.vocab}, at::kFloat);
    float* logits = output.logits.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < packed.logits_rows.size(0); ++i) {
      const std::int64_t row = packed.logits_rows.const_data_ptr<std::int64_t>()[i];
      write_logits(seen[std::size_t(row)], logits + i * model_.vocab);
    }
    if (kind_ == Kind::target) {
      output.hidden = at::empty({std::int64_t(seen.size()), kStateWords}, at::kFloat);
      float* hidden = output.hidden.mutable_data_ptr<float>();
      for (const Seen& row : seen) {
        for (int i = 0; i < kStateWords; ++i) *hidden++ = float((row.state >> (16 * i)) & 0xFFFF);
      }
    }
    return end_call(std::move(output));
  }

  void feed(std::span<const trtspec::RowGroup> groups, const at::Tensor& hidden) override {
    feed_rows(trtspec::pack(groups, layout_), hidden);
    end_call(0);
  }

  Rollout rollout(std::span<const trtspec::RowGroup> groups,
                  const trtspec::SamplingColumns& sampling, const at::Tensor& hidden,
                  const trtspec::StopRule& rule) override;

  void compact(std::span<const std::int64_t> src, std::span<const std::int64_t> dst) override {
    void* cache = cache_.data();
    trtspec::kv_compact(&cache, 1, sizeof(Word), std::int64_t(cache_.size()), src.data(),
                        dst.data(), std::int64_t(src.size()));
  }

 private:
  // What a row comes to: its summary, where the token after it stands, and what decides whether a
  // draft is right about it.
  struct Seen {
    Word state;
    std::int64_t next_position;
    Word luck;
  };
  // One row to be fed. state: of the row before it, for a feature network.
  struct Row {
    Word token;
    std::int64_t position;
    Word state;
  };
  struct Node {
    std::int64_t token, parent;
    float score;
  };

  template <class T>
  T end_call(T result) {
    if (failing_calls_.contains(num_calls_++)) throw std::runtime_error("a call fails on purpose");
    return result;
  }

  // Writes one row to `slot` and reads it back, with the others that it sees, through `visible`.
  Seen feed_row(const Row& row, std::int64_t slot, std::span<const std::int64_t> visible,
                std::int64_t own) {
    Word sum = 0;
    for (const std::int64_t s : visible) sum += cache_.at(std::size_t(s));
    Word made = mix(mix(model_.salt ^ row.token, Word(row.position)), sum);
    if (kind_ == Kind::eagle) made = mix(made, row.state);
    cache_.at(std::size_t(slot)) = made;
    sum += cache_.at(std::size_t(own));
    if (kind_ != Kind::eagle) return {sum, row.position + 1, sum};
    // The row of the token after position p says what the target's row p + 1 would.
    const Word next = mix(mix(model_.salt ^ row.token, Word(row.position + 1)), row.state);
    return {row.state + next, row.position + 2, sum};
  }

  std::vector<Seen> feed_rows(const trtspec::PackedRows& packed, const at::Tensor& hidden);

  void write_logits(const Seen& row, float* logits) const {
    Word state = row.state;
    if (kind_ != Kind::target && std::int64_t(mix(row.luck, 77) % 100) >= model_.skill) {
      state = ~state;
    }
    if (model_.nan_every != 0 && mix(state, 99) % model_.nan_every == 0) {
      std::fill_n(logits, model_.vocab, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    for (std::int64_t v = 0; v < model_.vocab; ++v) {
      logits[v] = float((mix(state, Word(v + 1)) >> 44) & 0x3FF) / 128.0f;
    }
    const Word phase = Word(row.next_position % model_.period);
    const auto favoured = std::int64_t(mix(model_.salt, phase) % Word(model_.text_vocab));
    if (std::int64_t(mix(state, 55) % 100) < model_.regularity && favoured < model_.vocab) {
      logits[favoured] += 12.0f;
    }
  }

  Kind kind_;
  Model model_;
  trtspec::HostDevice device_;
  trtspec::CacheLayout layout_;
  std::set<std::int64_t> failing_calls_;
  std::int64_t num_calls_ = 0;
  std::vector<Word> cache_;
};

inline std::vector<ToyEngine::Seen> ToyEngine::feed_rows(const trtspec::PackedRows& packed,
                                                         const at::Tensor& hidden) {
  const auto* ids = packed.rows[0].const_data_ptr<std::int64_t>();
  const auto* positions = packed.rows[1].const_data_ptr<std::int64_t>();
  const auto* slots = packed.rows[2].const_data_ptr<std::int64_t>();
  const auto* tables = packed.rows[3].const_data_ptr<std::int32_t>();
  const auto* starts = packed.rows[4].const_data_ptr<std::int32_t>();
  const auto* context = packed.rows[5].const_data_ptr<std::int32_t>();
  const auto* is_tree = packed.rows[6].const_data_ptr<bool>();
  const auto* masks = packed.rows[7].const_data_ptr<std::int64_t>();
  const float* states = hidden.defined() ? hidden.const_data_ptr<float>() : nullptr;
  if (hidden.defined() && hidden.size(0) != packed.rows[0].size(0)) {
    throw std::runtime_error("a state a row");
  }
  std::vector<Seen> seen;
  for (std::int64_t b = 0; b + 1 < packed.rows[4].size(0); ++b) {
    const auto slot = [&, table = tables + b * layout_.blocks_per_sequence](std::int64_t at) {
      return table[at / layout_.tokens_per_block] * layout_.tokens_per_block +
             at % layout_.tokens_per_block;
    };
    for (std::int64_t row = starts[b]; row < starts[b + 1]; ++row) {
      const std::int64_t index = row - starts[b];
      std::vector<std::int64_t> visible;
      for (std::int64_t at = 0; at < context[b]; ++at) visible.push_back(slot(at));
      for (std::int64_t j = 0; j < index; ++j) {
        const std::int64_t word = is_tree[b] ? masks[row * layout_.mask_words + j / 64] : -1;
        if ((Word(word) >> (j % 64)) & 1) visible.push_back(slot(context[b] + j));
      }
      Word state = 0;
      for (int i = 0; states && i < kStateWords; ++i) {
        state |= Word(states[row * kStateWords + i]) << (16 * i);
      }
      seen.push_back(feed_row({Word(ids[row]), positions[row], state}, slots[row], visible,
                              slot(context[b] + index)));
    }
  }
  return seen;
}

inline trtspec::ModelEngine::Rollout ToyEngine::rollout(std::span<const trtspec::RowGroup> groups,
                                                        const trtspec::SamplingColumns& sampling,
                                                        const at::Tensor& hidden,
                                                        const trtspec::StopRule&) {
  const std::vector<Seen> seen = feed_rows(trtspec::pack(groups, layout_), hidden);
  const auto k = std::size_t(model_.topk);
  const auto requests = std::int64_t(groups.size());
  Rollout rollout{at::empty({requests, model_.num_nodes}, at::kLong),
                  at::empty({requests, model_.num_nodes}, at::kInt),
                  at::empty({requests, model_.num_nodes}, at::kFloat)};
  std::size_t last = 0;
  for (std::int64_t b = 0; b < requests; ++b) {
    const trtspec::RowGroup& group = groups[std::size_t(b)];
    last += group.tokens.size();
    const std::int64_t end = group.context + std::int64_t(group.tokens.size());
    const auto slot = [&](std::int64_t at) {
      return group.blocks[std::size_t(at / layout_.tokens_per_block)] * layout_.tokens_per_block +
             at % layout_.tokens_per_block;
    };
    std::vector<Node> nodes;
    std::vector<float> logits(std::size_t(model_.vocab));
    std::vector<std::int64_t> ids(k);
    std::vector<float> logprobs(k);
    const auto expand = [&](const Seen& row, std::int64_t parent, std::int64_t depth) {
      write_logits(row, logits.data());
      const std::int64_t index = sampling[6].const_data_ptr<std::int64_t>()[b] + depth;
      const trtspec::SamplingRows params{sampling[0].const_data_ptr<float>() + b,
                                         sampling[1].const_data_ptr<std::int32_t>() + b,
                                         sampling[2].const_data_ptr<float>() + b,
                                         sampling[3].const_data_ptr<float>() + b,
                                         sampling[4].const_data_ptr<std::int64_t>() + b,
                                         sampling[5].const_data_ptr<std::int64_t>() + b,
                                         &index};
      trtspec::draft_candidates(logits.data(), 1, model_.vocab, params, nullptr, model_.topk,
                                ids.data(), logprobs.data());
      const float above = parent < 0 ? 0.0f : nodes[std::size_t(parent)].score;
      for (std::size_t i = 0; i < k; ++i) {
        nodes.push_back({ids[i], parent, above + std::min(logprobs[i], 0.0f)});
      }
    };
    const auto best = [&](std::vector<std::int64_t> from, std::size_t count) {
      std::stable_sort(from.begin(), from.end(), [&](std::int64_t a, std::int64_t c) {
        return nodes[std::size_t(a)].score > nodes[std::size_t(c)].score;
      });
      from.resize(std::min(count, from.size()));
      return from;
    };
    const auto range = [](std::size_t from, std::size_t to) {
      std::vector<std::int64_t> all(to - from);
      std::iota(all.begin(), all.end(), std::int64_t(from));
      return all;
    };

    // Depth by depth: the best k candidates are fed, each seeing the ones above it.
    expand(seen[last - 1], -1, 0);
    std::vector<std::int64_t> beam = range(0, nodes.size());
    std::vector<std::pair<Seen, std::vector<std::int64_t>>> fed(nodes.size());
    std::int64_t cache = end;
    for (std::int64_t depth = 1; depth < model_.num_steps; ++depth) {
      const std::size_t first = nodes.size();
      for (const std::int64_t node : beam) {
        const Node here = nodes[std::size_t(node)];
        Row row{Word(here.token), end - 1 + depth, seen[last - 1].state};
        std::vector<std::int64_t> visible;
        if (here.parent >= 0) {
          row.state = fed[std::size_t(here.parent)].first.state;
          visible = fed[std::size_t(here.parent)].second;
        } else {
          for (std::int64_t at = 0; at < end; ++at) visible.push_back(slot(at));
        }
        const Seen reached = feed_row(row, slot(cache), visible, slot(cache));
        visible.push_back(slot(cache++));
        expand(reached, node, depth);
        fed.resize(nodes.size());
        fed[std::size_t(node)] = {reached, visible};
      }
      beam = best(range(first, nodes.size()), k);
    }
    std::vector<std::int64_t> kept = best(range(0, nodes.size()), std::size_t(model_.num_nodes));
    std::sort(kept.begin(), kept.end());
    for (std::int64_t i = 0; i < model_.num_nodes; ++i) {
      const Node& node = nodes[std::size_t(kept[std::size_t(i)])];
      const auto parent = std::find(kept.begin(), kept.end(), node.parent);
      const std::int64_t at = b * model_.num_nodes + i;
      rollout.tokens.mutable_data_ptr<std::int64_t>()[at] = node.token;
      rollout.parents.mutable_data_ptr<std::int32_t>()[at] =
          node.parent < 0 ? -1 : std::int32_t(parent - kept.begin());
      rollout.scores.mutable_data_ptr<float>()[at] = node.score;
    }
  }
  return end_call(std::move(rollout));
}

}  // namespace toy
