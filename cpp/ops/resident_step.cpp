#include "trtspec/resident_step.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <trtspec/draft_batch.hpp>
#include <trtspec/emission.hpp>
#include <trtspec/row_group.hpp>
#include <vector>

namespace trtspec {
namespace {

std::span<const std::int64_t> ends_of(const ResidentRequests& all, std::int64_t place) {
  const std::span row(all.ends + place * all.num_ends, std::size_t(all.num_ends));
  return row.first(std::size_t(std::ranges::find(row, -1) - row.begin()));
}

// Up to the last block that there is: those that a window has passed are -1 as well.
std::span<const std::int32_t> blocks_of(const ResidentRequests& all, std::int64_t place) {
  std::span row(all.tables + place * all.table_width, std::size_t(all.table_width));
  while (!row.empty() && row.back() < 0) row = row.first(row.size() - 1);
  return row;
}

// The values of row `at`, which emits output token `output`.
void write_columns(const SamplingArrays& to, std::int64_t at, const ResidentRequests& all,
                   std::int64_t place, std::int64_t output) {
  const RequestState& state = all.states[place];
  const float* filters = all.filters + 3 * place;
  to.temperature[at] = filters[0];
  to.top_p[at] = filters[1];
  to.min_p[at] = filters[2];
  to.top_k[at] = std::int32_t(state.top_k);
  to.seed[at] = state.seed;
  to.sample_index[at] = state.sample_index;
  to.output_index[at] = output;
}

void clear_columns(const SamplingArrays& to, std::int64_t first, std::int64_t end) {
  for (std::int64_t at = first; at < end; ++at) {
    to.temperature[at] = to.top_p[at] = to.min_p[at] = 0;
    to.top_k[at] = 0;
    to.seed[at] = to.sample_index[at] = to.output_index[at] = 0;
  }
}

// Whether the rows of a group fit its blocks and the call, which has room for so many more.
bool fits(const RowGroup& group, const CacheLayout& layout, std::int64_t rows,
          std::int64_t logits) {
  try {
    RowWriter::check(group, layout);
  } catch (const std::logic_error&) {
    return false;
  }
  return group.num_rows() <= rows && (!group.last_logits || 1 + group.tree.size() <= logits);
}

// Where the pair of a position waits.
std::int64_t ring_row(const ResidentRequests& all, std::int64_t place, std::int64_t position) {
  return place * all.ring + (position % all.ring + all.ring) % all.ring;
}

}  // namespace

std::int64_t pack_verify(const PackVerifyParams& p) {
  const ResidentRequests& all = p.requests;
  RowWriter writer(p.rows, p.layout);
  p.row_start[0] = 0;
  for (std::int64_t i = 0; i < p.num_items; ++i) {
    const StepItem& item = p.items[i];
    const bool feeds = item.place >= 0 && all.states[item.place].goes_on();
    if (!feeds) {
      writer.add_none();
    } else {
      const RequestState& state = all.states[item.place];
      DraftBatch draft;
      if (p.num_nodes > 0 && item.rolls_out(state, p.behind)) {
        const std::int64_t first = i * p.num_nodes;
        const auto count = std::size_t(p.num_nodes);
        draft.append_best({{p.draft_tokens + first, count},
                           {p.draft_parents + first, count},
                           {p.draft_scores + first, count}},
                          {ends_of(all, item.place), state.depth(), item.max_nodes});
      } else {
        draft.append();
      }
      const TreeView tree = draft[0];
      const std::span<const std::int64_t> tokens =
          item.generates ? std::span(&state.newest, 1)
                         : std::span(p.chunk + item.first_token, std::size_t(item.num_rows));
      const RowGroup group{.tokens = tokens,
                           .context = item.generates ? state.length - 1 : item.start,
                           .blocks = blocks_of(all, item.place),
                           .tree = tree,
                           .last_logits = item.samples != 0,
                           .adapter = std::int32_t(state.adapter)};
      const std::int64_t logit = writer.logits();
      if (!fits(group, p.layout, p.num_rows - writer.rows(), p.num_logits - logit)) return i;
      writer.add(group);
      if (group.last_logits) {
        const std::int64_t output = state.length - state.num_prompt;
        write_columns(p.columns, logit, all, item.place, output);
        p.tokens[logit] = 0;
        p.parents[logit] = -1;
        const std::vector<std::int32_t> depths = tree.depths();
        for (std::int64_t node = 0; node < tree.size(); ++node) {
          const std::int64_t at = logit + 1 + node;
          write_columns(p.columns, at, all, item.place, output + depths[std::size_t(node)]);
          p.tokens[at] = tree.tokens[std::size_t(node)];
          p.parents[at] = tree.parents[std::size_t(node)] + 1;
        }
      }
    }
    p.row_start[i + 1] = std::int32_t(writer.logits());
  }
  const std::int64_t used = writer.logits();
  writer.pad(p.num_rows, p.num_logits);
  clear_columns(p.columns, used, p.num_logits);
  std::fill(p.tokens + used, p.tokens + p.num_logits, 0);
  std::fill(p.parents + used, p.parents + p.num_logits, 0);
  return -1;
}

std::int64_t pack_rollout(const PackRolloutParams& p) {
  const ResidentRequests& all = p.requests;
  RowWriter writer(p.rows, p.layout);
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < p.num_items; ++i) {
    const StepItem& item = p.items[i];
    p.last_rows[i] = 0;
    if (item.place < 0 || !item.rolls_out(all.states[item.place], p.behind)) {
      writer.add_none();
      clear_columns(p.columns, i, i + 1);
      continue;
    }
    const RequestState& state = all.states[item.place];
    const std::int64_t first = state.drafted - p.behind, rows = state.num_pairs(p.behind);
    if (rows > all.ring || rows > p.num_rows - writer.rows()) return i;
    tokens.clear();
    for (std::int64_t j = 0; j < rows; ++j) {
      const std::int64_t from = ring_row(all, item.place, first + j);
      tokens.push_back(all.pairs[from]);
      p.ring_rows[writer.rows() + j] = from;
    }
    const RowGroup group{.tokens = tokens,
                         .context = state.drafted - state.absent,
                         .blocks = blocks_of(all, item.place),
                         .last_logits = false};
    if (!fits(group, p.layout, p.num_rows - writer.rows(), 0)) return i;
    writer.add(group);
    p.last_rows[i] = writer.rows() - 1;
    write_columns(p.columns, i, all, item.place, state.length - state.num_prompt);
  }
  std::fill(p.ring_rows + writer.rows(), p.ring_rows + p.num_rows, 0);
  writer.pad(p.num_rows, 0);
  return -1;
}

namespace {

// Keeps the pair of a position, whose state is that of a row of the call, in the list of item i;
// `count` are in it.
void keep_pair(const AdvanceParams& p, std::int64_t i, std::int64_t count, std::int64_t position,
               std::int64_t token, std::int64_t row) {
  const std::int64_t to = ring_row(p.requests, p.items[i].place, position);
  p.requests.pairs[to] = token;
  p.kept_rows[i * p.requests.ring + count] = row;
  p.ring_rows[i * p.requests.ring + count] = to;
}

// The pairs of a request whose step is verified. root: position of its newest row, that of a prompt
// or of the root.
void keep_pairs(const AdvanceParams& p, std::int64_t i, std::int64_t root,
                std::span<const std::int64_t> emitted, const std::int32_t* rows, bool rolled) {
  const StepItem& item = p.items[i];
  RequestState& state = p.requests.states[item.place];
  const std::int64_t fed = p.query_start[i];
  if (rolled || !item.generates) {
    // The pairs before the newest row's were fed, by a rollout, or are behind this call.
    const std::int64_t final = root + p.rule.behind - p.rule.not_final;
    state.drafted = std::max(state.drafted, final);
  }
  const std::int64_t first = state.drafted - p.rule.behind;  // that waits
  const std::int64_t new_pairs = item.generates ? std::ssize(emitted) : 1;
  if (root + new_pairs - first > p.requests.ring) {
    state.max_depth = 0;  // there is no room for what its draft has to be fed
    return;
  }
  std::int64_t count = 0;
  if (!item.generates) {
    for (std::int64_t position = std::max(item.start, first); position < root; ++position) {
      const std::int64_t at = position - item.start;
      keep_pair(p, i, count++, position, p.chunk[item.first_token + at + 1], fed + at);
    }
    if (!item.samples) {
      const std::int64_t next = p.chunk[item.first_token + item.num_rows];
      keep_pair(p, i, count, root, next, fed + item.num_rows - 1);
    }
  }
  for (std::int64_t place = 0; place < std::ssize(emitted); ++place) {
    const std::int64_t row = fed + item.num_rows - 1 + rows[place];
    keep_pair(p, i, count++, root + place, emitted[std::size_t(place)], row);
  }
}

}  // namespace

void advance(const AdvanceParams& p) {
  const ResidentRequests& all = p.requests;
  const std::int64_t columns = 4 + 4 * p.width;
  std::fill_n(p.result, p.num_items * columns, 0);
  std::fill_n(p.src_slots, p.num_items * p.width, -1);
  std::fill_n(p.dst_slots, p.num_items * p.width, -1);
  std::fill_n(p.kept_rows, p.num_items * all.ring, 0);
  std::fill_n(p.ring_rows, p.num_items * all.ring, all.num_places * all.ring);
  std::vector<std::int64_t> emitted;
  for (std::int64_t i = 0; i < p.num_items; ++i) {
    const StepItem& item = p.items[i];
    if (item.place < 0) continue;
    RequestState& state = all.states[item.place];
    std::int64_t* const result = p.result + i * columns;
    result[2] = state.drafted;
    const std::int64_t first = p.row_start[i], rows = p.row_start[i + 1] - first;
    if (!state.goes_on()) continue;
    const std::int64_t root = item.generates ? state.length - 1 : item.start + item.num_rows - 1;
    const bool rolled = item.rolls_out(state, p.rule.behind);
    const std::int32_t* const path = p.accepted_rows + i * p.width;
    emitted.clear();
    TextEnd end{0, FinishReason::none};
    if (rows > 0) {
      const auto count = std::size_t(rows);
      const VerifiedRows verified{
          {p.tokens + first, count}, {p.parents + first, count}, {p.sampled + first, count}};
      end = emit(verified, {path, std::size_t(p.num_emitted[i])}, ends_of(all, item.place),
                 state.limit - state.length, emitted);
    }
    result[0] = std::int64_t(end.count);
    result[1] = std::int64_t(end.reason);
    result[3] = std::max<std::int64_t>(rows - 1, 0);
    const std::int32_t* const table = all.tables + item.place * all.table_width;
    const auto slot = [&](std::int64_t position) {
      return table[position / p.block_size] * p.block_size + position % p.block_size;
    };
    for (std::int64_t place = 0; place < std::int64_t(end.count); ++place) {
      result[4 + place] = emitted[std::size_t(place)];
      result[4 + p.width + place] = path[place];
      if (path[place] == place) continue;
      p.src_slots[i * p.width + place] = slot(root + path[place]);
      p.dst_slots[i * p.width + place] = slot(root + place);
    }
    for (std::int64_t node = 0; node + 1 < rows; ++node) {
      result[4 + 2 * p.width + node] = p.tokens[first + 1 + node];
      result[4 + 3 * p.width + node] = p.parents[first + 1 + node] - 1;
    }
    if (all.ring > 0 && state.max_depth > 0) keep_pairs(p, i, root, emitted, path, rolled);
    result[2] = state.drafted;
    if (!emitted.empty()) {
      state.length += std::ssize(emitted);
      state.newest = emitted.back();
    }
    state.end = std::int64_t(end.reason);
  }
}

}  // namespace trtspec
