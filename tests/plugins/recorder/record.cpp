// Calls the launchers as its input says, a line each, and ends what each launched with a dot.
// Pointers are numbers, and nothing follows them. See test_cuda_launch.py.
#include <kernels.hpp>

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace {

template <class T>
void take(T& value) {
  std::cin >> value;
}
template <class T>
void take(T*& pointer) {
  std::uintptr_t address = 0;
  std::cin >> address;
  pointer = reinterpret_cast<T*>(address);
}

}  // namespace

int main() {
  using namespace trtspec;
  const auto stream = reinterpret_cast<cudaStream_t>(std::uintptr_t{77});
  for (std::string call; std::cin >> call;) {
    cudaError_t error = cudaErrorInvalidValue;
    if (call == "accept") {
      cuda::AcceptParams p{};
      take(p.sampled), take(p.tokens), take(p.parents), take(p.row_start), take(p.requests);
      take(p.width), take(p.accepted_rows), take(p.num_emitted), take(p.emitted);
      take(p.src_slots), take(p.dst_slots), take(p.context_lens), take(p.block_tables);
      take(p.table_width), take(p.block_size), take(p.forced);
      error = cuda::accept(p, stream);
    } else if (call == "tree_mask") {
      cuda::TreeMaskParams p{};
      int kind = 0;
      take(p.out), take(kind), take(p.requests), take(p.rows), take(p.width), take(p.length);
      take(p.mask_words), take(p.positions), take(p.slot_mapping), take(p.query_start);
      take(p.context_lens), take(p.is_tree), take(p.tree_mask), take(p.sliding_window);
      p.kind = static_cast<cuda::MaskKind>(kind);
      error = cuda::tree_mask(p, stream);
    } else if (call == "kv_compact") {
      std::size_t count = 0;
      take(count);
      std::vector<void*> caches(count);
      for (void*& cache : caches) take(cache);
      std::int64_t row_bytes = 0, pairs = 0;
      const std::int64_t *src = nullptr, *dst = nullptr;
      take(row_bytes), take(src), take(dst), take(pairs);
      error = cuda::kv_compact(caches.data(), static_cast<std::int64_t>(count), row_bytes, src, dst,
                               pairs, stream);
    } else if (call == "mask_logits") {
      float* logits = nullptr;
      std::int64_t rows = 0, vocab = 0;
      LogitsMask p;
      take(logits), take(rows), take(vocab), take(p.allowed), take(p.words), take(p.bias_rows);
      take(p.bias_ids), take(p.bias_values), take(p.num_biases);
      error = cuda::mask_logits(logits, rows, vocab, p, stream);
    } else if (call == "sample") {
      const float* logits = nullptr;
      std::int64_t rows = 0, vocab = 0;
      SamplingRows p{};
      std::int64_t* ids = nullptr;
      void* workspace = nullptr;
      take(logits), take(rows), take(vocab), take(p.temperature), take(p.top_k), take(p.top_p);
      take(p.min_p), take(p.seed), take(p.sample_index), take(p.output_index), take(ids);
      take(workspace);
      std::printf("%zu\n", cuda::sample_workspace(rows, vocab));
      error = cuda::sample(logits, rows, vocab, p, ids, workspace, stream);
    } else if (call == "draft_candidates") {
      const float* logits = nullptr;
      std::int64_t rows = 0, vocab = 0, k = 0;
      SamplingRows p{};
      const std::int64_t* token_map = nullptr;
      std::int64_t* ids = nullptr;
      float* logprobs = nullptr;
      void* workspace = nullptr;
      take(logits), take(rows), take(vocab), take(p.temperature), take(p.top_k), take(p.top_p);
      take(p.min_p), take(p.seed), take(p.sample_index), take(p.output_index), take(token_map);
      take(k), take(ids), take(logprobs), take(workspace);
      std::printf("%zu\n", cuda::draft_candidates_workspace(rows, vocab, k));
      error = cuda::draft_candidates(logits, rows, vocab, p, token_map, k, ids, logprobs, workspace,
                                     stream);
    } else if (call == "expand_tree" || call == "keep_best") {
      TreePool pool{};
      TreeChildren children{};
      take(pool.tokens), take(pool.parents), take(pool.scores), take(pool.requests);
      take(pool.size), take(children.begin), take(children.lanes), take(children.branching);
      take(children.tokens), take(children.gains), take(children.above);
      if (call == "keep_best") {
        KeptTree tree{};
        take(tree.nodes), take(tree.chosen), take(tree.tokens), take(tree.parents);
        take(tree.scores);
        error = cuda::keep_best(pool, children, tree, stream);
      } else {
        TreeBeam beam{};
        take(beam.width), take(beam.chosen), take(beam.tokens), take(beam.index);
        take(beam.lanes), take(beam.first_bit), take(beam.words), take(beam.seen_above);
        take(beam.seen);
        error = cuda::expand_tree(pool, children, beam, stream);
      }
    } else if (call == "marginal_trees") {
      MarginalTrees p{};
      std::int64_t candidates = 0;
      void* workspace = nullptr;
      take(p.requests), take(p.depths), take(p.count), take(p.tokens), take(p.gains);
      take(p.starts), take(p.lanes), take(p.ranks), take(p.keep_all), take(p.nodes);
      take(p.out_tokens), take(p.out_parents), take(p.out_scores), take(candidates);
      take(workspace);
      std::printf("%zu\n", cuda::marginal_trees_workspace(p, candidates));
      error = cuda::marginal_trees(p, candidates, workspace, stream);
    }
    std::printf(error == cudaSuccess ? ".\n" : "error\n");
  }
}
