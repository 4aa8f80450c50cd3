// Padded calls of a slot cache see and write what the packed rows do, and a graph over them
// returns what a graph over packed rows would.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <trtspec/runtime/slot_graph.hpp>
#include <trtspec/runtime/padding.hpp>
#include <utility>
#include <vector>

#include "check.hpp"

namespace {

using trtspec::PaddedCall;
using trtspec::RowPlaces;
using trtspec::View;
using Ints = std::vector<std::int64_t>;

constexpr std::int64_t kLength = 128;
constexpr std::int64_t kWidest = 8;
constexpr std::int64_t kWords = 2;
constexpr std::int64_t kSlots = 6;

template <class T>
at::Tensor tensor(const std::vector<T>& values, at::IntArrayRef sizes) {
  at::Tensor made = at::empty(sizes, at::dtype(c10::CppTypeToScalarType<T>::value));
  std::copy(values.begin(), values.end(), made.template mutable_data_ptr<T>());
  return made;
}

std::int64_t value(const at::Tensor& x, std::int64_t index) {
  return x.const_data_ptr<std::int64_t>()[index];
}

// Requests in scattered slots, as they were made: prompts, chunks, trees, and one without rows.
struct Scene {
  struct Row {
    std::int64_t slot, place, position;
    std::set<std::int64_t> seen;  // cache positions, without a window
    bool tree;
    std::int64_t context;
  };
  std::vector<Row> rows;
  std::set<std::pair<std::int64_t, std::int64_t>> committed;  // slot and position
  RowPlaces places;
};

Scene random_scene(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t n) { return std::int64_t(random() % std::uint64_t(n)); };
  Ints all(kSlots);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(std::size_t(1 + below(5)));
  Scene scene;
  Ints positions, slots, masks;
  std::vector<std::int32_t> starts = {0}, contexts;
  std::vector<bool> trees;
  for (const std::int64_t slot : all) {
    const bool is_tree = below(2) == 0;
    const Ints counts = is_tree ? Ints{1, 4, kWidest} : Ints{0, 1, 3, kWidest, 2 * kWidest};
    const std::int64_t count = counts[std::size_t(below(std::ssize(counts)))];
    const std::int64_t context = below(41), offset = is_tree ? below(67) : 0;
    for (std::int64_t row = 0; row < count; ++row) {
      Scene::Row made{slot, context + offset + row, context + row, {}, is_tree, context};
      for (std::int64_t p = 0; p < context; ++p) made.seen.insert(p);
      std::uint64_t bits[kWords] = {0, 0};
      if (is_tree) made.position = context + below(offset + row + 1);
      for (std::int64_t j = 0; j <= offset + row; ++j) {
        if (is_tree && j < offset + row && below(2) == 0) continue;
        made.seen.insert(context + j);
        if (is_tree) bits[j / 64] |= std::uint64_t{1} << (j % 64);
      }
      for (const std::uint64_t word : bits) masks.push_back(std::int64_t(word));
      positions.push_back(made.position);
      slots.push_back(slot * kLength + made.place);
      scene.rows.push_back(std::move(made));
    }
    for (std::int64_t p = 0; count > 0 && p < context; ++p) scene.committed.insert({slot, p});
    starts.push_back(std::int32_t(slots.size()));
    contexts.push_back(std::int32_t(context));
    trees.push_back(is_tree);
  }
  const auto rows = std::ssize(slots), requests = std::ssize(contexts);
  at::Tensor is_tree = at::empty({requests}, at::kBool);
  std::copy(trees.begin(), trees.end(), is_tree.mutable_data_ptr<bool>());
  scene.places = {tensor(positions, {rows}),          tensor(slots, {rows}),
                  at::zeros({requests, 1}, at::kInt), tensor(starts, {requests + 1}),
                  tensor(contexts, {requests}),       is_tree,
                  tensor(masks, {rows, kWords})};
  return scene;
}

void test_rows_see_and_write_what_they_should(unsigned seed, std::int64_t window, View view) {
  const Scene scene = random_scene(seed);
  Ints windows = {window};
  if (window > 0) windows = {0, window};
  std::multiset<std::int64_t> served;
  for (const PaddedCall& call :
       trtspec::padded_calls(scene.places, {kLength, kWidest, windows, view})) {
    CHECK(call.num_rows <= kWidest || call.num_slots == 1);
    const std::int64_t length = call.masks.back().size(3);
    CHECK(length == kLength || (view == View::kSteps && length % trtspec::kMaskStep == 0));
    const bool* mask = call.masks.back().const_data_ptr<bool>();
    std::set<std::int64_t> own;
    const auto place_of = [&](std::int64_t index) {
      return value(call.write_indices, index / call.num_rows) + index % call.num_rows;
    };
    for (std::int64_t i = 0; i < call.packed.size(0); ++i) {
      const Scene::Row& row = scene.rows[std::size_t(value(call.packed, i))];
      const std::int64_t index = value(call.places, i);
      served.insert(value(call.packed, i));
      own.insert(index);
      CHECK_EQ(call.first_slot + index / call.num_rows, row.slot);
      CHECK_EQ(place_of(index), row.place);
      CHECK_EQ(value(call.positions, index), row.position);
      for (std::int64_t key = 0; key < kLength; ++key) {
        bool seen = row.seen.contains(key);
        // A window cuts what is committed, and of causal rows what they see of one another.
        const bool is_cut = window > 0 && row.position - key >= window;
        if (is_cut && (key < row.context || !row.tree)) seen = false;
        CHECK_EQ(key < length && mask[index * length + key], seen);
      }
    }
    // A row of padding sees itself alone, or what is nearest, and overwrites nothing committed.
    for (std::int64_t index = 0; index < call.num_slots * call.num_rows; ++index) {
      if (own.contains(index)) continue;
      const bool* seen = mask + index * length;
      CHECK(place_of(index) < kLength);
      CHECK_EQ(std::count(seen, seen + length, true), 1);
      CHECK(seen[std::min(place_of(index), length - 1)]);
      CHECK(!scene.committed.contains({call.first_slot + index / call.num_rows, place_of(index)}));
    }
    for (const std::int64_t slot : call.begins) {
      CHECK(std::any_of(scene.rows.begin(), scene.rows.end(),
                        [&](const auto& row) { return row.slot == slot && row.place == 0; }));
    }
  }
  CHECK_EQ(served.size(), scene.rows.size());
  CHECK_EQ(std::set(served.begin(), served.end()).size(), scene.rows.size());
}

// Returns its rows' ids, of the wanted ones [R, 1] and of all, and adds them to its cache.
class Echo final : public trtspec::Session {
 public:
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    const at::Tensor ids = inputs[0].flatten(), wanted = inputs[inputs.size() - 2];
    inputs.back().add_(ids.max());
    return {ids.index_select(0, wanted).unsqueeze(1), ids};
  }
};

void test_a_graph_takes_packed_rows(unsigned seed) {
  const Scene scene = random_scene(seed);
  const auto rows = std::ssize(scene.rows);
  if (rows == 0) return;
  const at::Tensor ids = at::arange(100, 100 + rows, at::kLong);
  Ints wanted;
  for (std::int64_t row = rows - 1; row >= 0; row -= 3) wanted.push_back(row);
  const at::Tensor cache = at::zeros({kSlots, 1, kLength, 1}, at::kLong);
  cache.fill_(-1);
  trtspec::SlotGraph graph(std::make_unique<Echo>(), {kLength, kWidest, {0}},
                           std::make_shared<trtspec::HostDevice>());
  const std::vector<at::Tensor> outputs =
      graph.run(ids, scene.places, {&cache, 1},
                {.features = {}, .logits_rows = tensor(wanted, {std::ssize(wanted)})});
  CHECK_EQ(outputs.size(), 2u);
  for (std::int64_t i = 0; i < std::ssize(wanted); ++i) {
    CHECK_EQ(value(outputs[0], i), 100 + wanted[std::size_t(i)]);
  }
  for (std::int64_t row = 0; row < rows; ++row) CHECK_EQ(value(outputs[1], row), 100 + row);
  // A slot whose sequence begins was cleared; one that has rows was written; others are untouched.
  for (std::int64_t slot = 0; slot < kSlots; ++slot) {
    const auto held = [&](const auto& row) { return row.slot == slot; };
    const auto first = std::find_if(scene.rows.begin(), scene.rows.end(), held);
    if (first == scene.rows.end()) continue;
    const std::int64_t found = value(cache, slot * kLength);
    CHECK(first->place == 0 ? found >= 100 : found >= 99);
  }
}

// As in tests/backends/test_padding.py.
void test_views_end_behind_what_is_needed() {
  struct Case {
    std::int64_t needed, steps, powers;
  };
  for (const auto& [needed, steps, powers] :
       {Case{1, 64, 256}, Case{64, 64, 256}, Case{65, 128, 256}, Case{257, 320, 512},
        Case{1000, 1000, 1000}}) {
    CHECK_EQ(trtspec::view_end(View::kWhole, needed, 1000), 1000);
    CHECK_EQ(trtspec::view_end(View::kSteps, needed, 1000), steps);
    CHECK_EQ(trtspec::view_end(View::kPowers, needed, 1000), powers);
  }
}

}  // namespace

int main() {
  test_views_end_behind_what_is_needed();
  for (unsigned seed = 0; seed < 40; ++seed) {
    for (const View view : {View::kWhole, View::kSteps, View::kPowers}) {
      test_rows_see_and_write_what_they_should(seed, 0, view);
      test_rows_see_and_write_what_they_should(seed, 5, view);
    }
    test_a_graph_takes_packed_rows(seed);
  }
  return check_result();
}
