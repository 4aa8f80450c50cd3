#include <trtspec/draft_batch.hpp>

#include <cmath>
#include <stdexcept>

#include "check.hpp"

namespace {

using trtspec::DraftBatch;
using trtspec::TreeView;
using Tokens = std::vector<std::int64_t>;
using Nodes = std::vector<std::int32_t>;
using Scores = std::vector<float>;

const Tokens kTokens = {10, 11, 12};
const Nodes kParents = {-1, 0, -1};
const Scores kScores = {-1, -3, -2};
const TreeView kTree = {kTokens, kParents, kScores};

Scores scores_of(TreeView tree) { return {tree.scores.begin(), tree.scores.end()}; }

void requests_keep_their_nodes() {
  DraftBatch drafts;
  CHECK_EQ(drafts.size(), 0u);
  drafts.append(kTree);
  drafts.append();
  drafts.append(kTree);
  CHECK_EQ(drafts.size(), 3u);
  CHECK(drafts[0] == kTree && drafts[1].empty() && drafts[2] == kTree);
  CHECK(scores_of(drafts[2]) == kScores);
}

void without_scores_nodes_are_as_likely_as_not() {
  DraftBatch drafts;
  drafts.append({kTokens, kParents, {}});
  const float half = std::log(0.5f);
  CHECK(scores_of(drafts[0]) == (Scores{half, 2 * half, half}));
}

void some_are_picked() {
  DraftBatch drafts;
  drafts.append(kTree);
  drafts.append();
  const Tokens places = {1, -1, 0};
  const DraftBatch picked = drafts.pick(places);
  CHECK_EQ(picked.size(), 3u);
  CHECK(picked[0].empty() && picked[1].empty() && picked[2] == kTree);
  CHECK(scores_of(picked[2]) == kScores);
  for (const std::int64_t place : {-2, 2}) CHECK_THROWS(drafts.pick(Tokens{place}));
}

}  // namespace

int main() {
  requests_keep_their_nodes();
  without_scores_nodes_are_as_likely_as_not();
  some_are_picked();
  return check_result();
}
