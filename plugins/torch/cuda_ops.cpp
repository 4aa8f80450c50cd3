// The CUDA kernels as the ops of torch.ops.trtspec (contracts: trtspec/ops). Schemas are those of
// libtrtspec_ops.so, which is loaded first.
//
// Nothing here waits for the device: what the CPU ops check of the values in a tensor (slots,
// tables, lengths, parents) is not checked.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "../../cpp/bindings/acceptance_call.hpp"
#include "../../cpp/bindings/attention_call.hpp"
#include "../../cpp/bindings/build_tree_call.hpp"
#include "../../cpp/bindings/causal_conv_call.hpp"
#include "../../cpp/bindings/gated_delta_call.hpp"
#include "../../cpp/bindings/kv_compact_call.hpp"
#include "../../cpp/bindings/logits_mask_call.hpp"
#include "../../cpp/bindings/mamba2_call.hpp"
#include "../../cpp/bindings/resident_step_call.hpp"
#include "../../cpp/bindings/sampling_call.hpp"
#include "../kernels.hpp"

namespace {

using at::Tensor;

cudaStream_t stream_of(const Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.get_device()).stream();
}

// Memory of torch's allocator on the device of `like`: it may be handed on before the kernels have
// run, but only to work behind them on the stream.
Tensor workspace(std::size_t bytes, const Tensor& like) {
  return at::empty({int64_t(bytes)}, like.options().dtype(at::kByte));
}

Tensor attend(const trtspec::AttentionCall& call, const Tensor& q,
              const trtspec::cuda::RotationParams* rotation = nullptr) {
  const trtspec::AttentionParams params = call.params();
  TORCH_CHECK(params.sinks == nullptr,
              "paged_tree_attention: sinks are for CPUs alone, got a tensor on ", q.device());
  TORCH_CHECK(params.head_dim <= 256, "paged_tree_attention: head_dim must be at most 256 on CUDA,",
              " got ", params.head_dim);
  const Tensor scratch =
      workspace(rotation == nullptr ? trtspec::cuda::paged_tree_attention_workspace(params)
                                    : trtspec::cuda::rotated_tree_attention_workspace(params),
                q);
  void* const memory = scratch.mutable_data_ptr();
  C10_CUDA_CHECK(
      rotation == nullptr
          ? trtspec::cuda::paged_tree_attention(params, memory, stream_of(q))
          : trtspec::cuda::rotated_tree_attention(params, *rotation, memory, stream_of(q)));
  return call.out();
}

Tensor paged_tree_attention(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& k_cache,
                            Tensor& v_cache, const Tensor& positions, const Tensor& slot_mapping,
                            const Tensor& block_tables, const Tensor& query_start,
                            const Tensor& context_lens, const Tensor& is_tree,
                            const Tensor& tree_mask, double scale, int64_t sliding_window,
                            double soft_cap, const std::optional<Tensor>& sinks) {
  const c10::cuda::CUDAGuard guard(q.device());
  return attend(trtspec::AttentionCall(q, k, v, k_cache, v_cache, positions, slot_mapping,
                                       block_tables, query_start, context_lens, is_tree, tree_mask,
                                       scale, sliding_window, soft_cap, sinks),
                q);
}

Tensor paged_tree_attention_8bit(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& k_cache,
                                 Tensor& v_cache, Tensor& k_scale, Tensor& v_scale,
                                 const Tensor& positions, const Tensor& slot_mapping,
                                 const Tensor& block_tables, const Tensor& query_start,
                                 const Tensor& context_lens, const Tensor& is_tree,
                                 const Tensor& tree_mask, double scale, int64_t sliding_window,
                                 double soft_cap, const std::optional<Tensor>& sinks) {
  const c10::cuda::CUDAGuard guard(q.device());
  return attend(trtspec::AttentionCall(q, k, v, k_cache, v_cache, positions, slot_mapping,
                                       block_tables, query_start, context_lens, is_tree, tree_mask,
                                       scale, sliding_window, soft_cap, sinks, k_scale, v_scale),
                q);
}

// cos, sin: [T, 1, n / 2] f32, as trtspec/models/rope.py has them.
Tensor rotated_tree_attention(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& k_cache,
                              Tensor& v_cache, const Tensor& positions, const Tensor& slot_mapping,
                              const Tensor& block_tables, const Tensor& query_start,
                              const Tensor& context_lens, const Tensor& is_tree,
                              const Tensor& tree_mask, double scale, int64_t sliding_window,
                              const Tensor& cos, const Tensor& sin, bool interleaved) {
  const c10::cuda::CUDAGuard guard(q.device());
  const char* const op = "rotated_tree_attention";
  trtspec::check_dim(op, "cos", cos, 3);
  trtspec::check_shape(op, "cos", cos, {q.size(0), 1, cos.size(2)});
  trtspec::check_shape(op, "sin", sin, cos.sizes());
  TORCH_CHECK(2 * cos.size(2) <= q.size(2), op, ": at most ", q.size(2),
              " elements of a head can turn, got cos of ", cos.size(2), " pairs");
  for (const Tensor& factors : {cos, sin}) {
    trtspec::check_dtype(op, "cos or sin", factors, at::kFloat);
    trtspec::check_device(op, "cos or sin", factors, q);
    TORCH_CHECK(factors.is_contiguous(), op, ": cos and sin must be contiguous");
  }
  const trtspec::cuda::RotationParams rotation{
      cos.const_data_ptr<float>(), sin.const_data_ptr<float>(), 2 * cos.size(2), interleaved};
  return attend(trtspec::AttentionCall(q, k, v, k_cache, v_cache, positions, slot_mapping,
                                       block_tables, query_start, context_lens, is_tree, tree_mask,
                                       scale, sliding_window, 0.0, std::nullopt),
                q, &rotation);
}

Tensor causal_conv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                   Tensor& tail, Tensor& kept, const Tensor& state_slots, const Tensor& query_start,
                   const Tensor& context_lens, const Tensor& is_tree, const Tensor& tree_mask) {
  const c10::cuda::CUDAGuard guard(x.device());
  const trtspec::CausalConvCall call(x, weight, bias, tail, kept, state_slots, query_start,
                                     context_lens, is_tree, tree_mask);
  C10_CUDA_CHECK(trtspec::cuda::causal_conv(call.params(), stream_of(x)));
  return call.out();
}

Tensor gated_delta(const Tensor& qkv, const Tensor& gates, const Tensor& a_log,
                   const Tensor& dt_bias, Tensor& state, Tensor& kept, const Tensor& state_slots,
                   const Tensor& query_start, const Tensor& context_lens, const Tensor& is_tree,
                   const Tensor& tree_mask, int64_t key_dim, bool tiled) {
  const c10::cuda::CUDAGuard guard(qkv.device());
  const trtspec::GatedDeltaCall call(qkv, gates, a_log, dt_bias, state, kept, state_slots,
                                     query_start, context_lens, is_tree, tree_mask, key_dim, tiled);
  C10_CUDA_CHECK(trtspec::cuda::gated_delta(call.params(), stream_of(qkv)));
  return call.out();
}

Tensor mamba2(const Tensor& xbc, const Tensor& dt, const Tensor& gate, const Tensor& a_log,
              const Tensor& dt_bias, const Tensor& skip, Tensor& state, Tensor& kept,
              const Tensor& state_slots, const Tensor& query_start, const Tensor& context_lens,
              const Tensor& is_tree, const Tensor& tree_mask, int64_t groups, double dt_min,
              double dt_max) {
  const c10::cuda::CUDAGuard guard(xbc.device());
  const trtspec::Mamba2Call call(xbc, dt, gate, a_log, dt_bias, skip, state, kept, state_slots,
                                 query_start, context_lens, is_tree, tree_mask, groups, dt_min,
                                 dt_max);
  C10_CUDA_CHECK(trtspec::cuda::mamba2(call.params(), stream_of(xbc)));
  return call.out();
}

Tensor sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
              const Tensor& top_p, const Tensor& min_p, const Tensor& seed,
              const Tensor& sample_index, const Tensor& output_index) {
  const c10::cuda::CUDAGuard guard(logits.device());
  const trtspec::SamplingCall call("sample", logits, temperature, top_k, top_p, min_p, seed,
                                   sample_index, output_index);
  Tensor ids = at::empty({call.rows()}, logits.options().dtype(at::kLong));
  const Tensor scratch =
      workspace(trtspec::cuda::sample_workspace(call.rows(), call.vocab()), logits);
  C10_CUDA_CHECK(trtspec::cuda::sample(call.logits(), call.rows(), call.vocab(), call.params(),
                                       ids.mutable_data_ptr<int64_t>(), scratch.mutable_data_ptr(),
                                       stream_of(logits)));
  return ids;
}

void mask_logits(Tensor& logits, const std::optional<Tensor>& allowed,
                 const std::optional<Tensor>& bias_rows, const std::optional<Tensor>& bias_ids,
                 const std::optional<Tensor>& bias_values) {
  const c10::cuda::CUDAGuard guard(logits.device());
  trtspec::check_masked(logits);
  const trtspec::LogitsMaskCall call(logits, logits.size(0), allowed, bias_rows, bias_ids,
                                     bias_values);
  C10_CUDA_CHECK(trtspec::cuda::mask_logits(logits.mutable_data_ptr<float>(), logits.size(0),
                                            logits.size(1), call.mask(), stream_of(logits)));
}

std::tuple<Tensor, Tensor> draft_candidates(const Tensor& logits, const Tensor& temperature,
                                            const Tensor& top_k, const Tensor& top_p,
                                            const Tensor& min_p, const Tensor& seed,
                                            const Tensor& sample_index, const Tensor& output_index,
                                            const std::optional<Tensor>& token_map, int64_t k) {
  const c10::cuda::CUDAGuard guard(logits.device());
  const trtspec::SamplingCall call("draft_candidates", logits, temperature, top_k, top_p, min_p,
                                   seed, sample_index, output_index);
  TORCH_CHECK(k >= 1 && k <= trtspec::cuda::kMaxCandidates, "draft_candidates: k must be 1 to ",
              trtspec::cuda::kMaxCandidates, " on CUDA, got ", k);
  const Tensor map = trtspec::checked_token_map(token_map, logits);
  Tensor ids = at::empty({call.rows(), k}, logits.options().dtype(at::kLong));
  Tensor logprobs = at::empty({call.rows(), k}, logits.options());
  const Tensor scratch =
      workspace(trtspec::cuda::draft_candidates_workspace(call.rows(), call.vocab(), k), logits);
  C10_CUDA_CHECK(trtspec::cuda::draft_candidates(
      call.logits(), call.rows(), call.vocab(), call.params(),
      map.defined() ? map.const_data_ptr<int64_t>() : nullptr, k, ids.mutable_data_ptr<int64_t>(),
      logprobs.mutable_data_ptr<float>(), scratch.mutable_data_ptr(), stream_of(logits)));
  return {ids, logprobs};
}

// P of accepted_rows is R, the rows of all requests: how many one has is known to the device only.
// A malformed request has num_emitted 0.
std::tuple<Tensor, Tensor> accept(const Tensor& sampled, const Tensor& tokens,
                                  const Tensor& parents, const Tensor& row_start,
                                  const std::optional<Tensor>& forced) {
  const c10::cuda::CUDAGuard guard(sampled.device());
  const trtspec::AcceptanceCall call(sampled, tokens, parents, row_start, forced);
  const auto options = sampled.options().dtype(at::kInt);
  Tensor accepted_rows = at::empty({call.requests(), call.rows()}, options);
  Tensor num_emitted = at::empty({call.requests()}, options);
  trtspec::cuda::AcceptParams params{};
  params.sampled = call.sampled.const_data_ptr<int64_t>();
  params.tokens = call.tokens.const_data_ptr<int64_t>();
  params.parents = call.parents.const_data_ptr<int32_t>();
  params.row_start = call.row_start.const_data_ptr<int32_t>();
  params.requests = call.requests();
  params.width = call.rows();
  params.accepted_rows = accepted_rows.mutable_data_ptr<int32_t>();
  params.num_emitted = num_emitted.mutable_data_ptr<int32_t>();
  params.forced = call.forced_data();
  C10_CUDA_CHECK(trtspec::cuda::accept(params, stream_of(sampled)));
  return {accepted_rows, num_emitted};
}

void kv_compact(at::TensorList caches, const Tensor& src_slots, const Tensor& dst_slots) {
  const c10::cuda::CUDAGuard guard(src_slots.device());
  const trtspec::KvCompactCall call(caches, src_slots, dst_slots);
  TORCH_CHECK(call.src.size(0) <= trtspec::cuda::kMaxCompactPairs,
              "kv_compact: one call moves at most ", trtspec::cuda::kMaxCompactPairs,
              " rows on CUDA, got ", call.src.size(0),
              "; pairs of different requests may go in calls of their own");
  for (const trtspec::CacheGroup& group : call.groups) {
    C10_CUDA_CHECK(trtspec::cuda::kv_compact(group.data.data(), int64_t(group.data.size()),
                                             group.row_bytes, call.src.const_data_ptr<int64_t>(),
                                             call.dst.const_data_ptr<int64_t>(), call.src.size(0),
                                             stream_of(src_slots)));
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor> expand_tree(
    Tensor& pool_tokens, Tensor& pool_parents, Tensor& pool_scores, int64_t begin,
    const Tensor& tokens, const Tensor& gains, const std::optional<Tensor>& above, int64_t width,
    const std::optional<Tensor>& chosen, int64_t first_bit, int64_t words,
    const std::optional<Tensor>& seen_above) {
  const c10::cuda::CUDAGuard guard(tokens.device());
  const trtspec::TreeCall call("expand_tree", pool_tokens, pool_parents, pool_scores, begin, tokens,
                               gains, above);
  return trtspec::call_expand_tree(
      call, width, chosen, first_bit, words, seen_above,
      [&](const auto& pool, const auto& children, const auto& beam) {
        C10_CUDA_CHECK(trtspec::cuda::expand_tree(pool, children, beam, stream_of(tokens)));
      });
}

trtspec::Trees keep_best(Tensor& pool_tokens, Tensor& pool_parents, Tensor& pool_scores,
                         int64_t begin, const Tensor& tokens, const Tensor& gains,
                         const std::optional<Tensor>& above, int64_t nodes,
                         const std::optional<Tensor>& chosen) {
  const c10::cuda::CUDAGuard guard(tokens.device());
  const trtspec::TreeCall call("keep_best", pool_tokens, pool_parents, pool_scores, begin, tokens,
                               gains, above);
  return trtspec::call_keep_best(
      call, nodes, chosen, [&](const auto& pool, const auto& children, const auto& tree) {
        C10_CUDA_CHECK(trtspec::cuda::keep_best(pool, children, tree, stream_of(tokens)));
      });
}

trtspec::Trees marginal_trees(const Tensor& tokens, const Tensor& gains, const Tensor& starts,
                              const Tensor& lanes, const Tensor& ranks, int64_t nodes,
                              bool keep_all) {
  const c10::cuda::CUDAGuard guard(tokens.device());
  return trtspec::call_marginal_trees(
      tokens, gains, starts, lanes, ranks, nodes, keep_all, [&](const auto& params) {
        const int64_t candidates = lanes.size(0);
        const Tensor scratch =
            workspace(trtspec::cuda::marginal_trees_workspace(params, candidates), tokens);
        C10_CUDA_CHECK(trtspec::cuda::marginal_trees(params, candidates, scratch.mutable_data_ptr(),
                                                     stream_of(tokens)));
      });
}

std::vector<Tensor> pack_verify(const Tensor& state, const Tensor& filters, const Tensor& ends,
                                const Tensor& tables, const Tensor& items, const Tensor& chunk,
                                const Tensor& draft_tokens, const Tensor& draft_parents,
                                const Tensor& draft_scores, int64_t behind, int64_t rows,
                                int64_t logits, int64_t tokens_per_block, int64_t mask_words) {
  const c10::cuda::CUDAGuard guard(state.device());
  const trtspec::PackVerifyCall call(state, filters, ends, tables, items, chunk, draft_tokens,
                                     draft_parents, draft_scores, behind, rows, logits,
                                     tokens_per_block, mask_words);
  C10_CUDA_CHECK(trtspec::cuda::pack_verify(call.params, stream_of(state)));
  return call.outputs;
}

std::vector<Tensor> pack_rollout(const Tensor& state, const Tensor& filters, const Tensor& tables,
                                 const Tensor& pairs, const Tensor& items, int64_t behind,
                                 int64_t rows, int64_t tokens_per_block, int64_t mask_words) {
  const c10::cuda::CUDAGuard guard(state.device());
  const trtspec::PackRolloutCall call(state, filters, tables, pairs, items, behind, rows,
                                      tokens_per_block, mask_words);
  C10_CUDA_CHECK(trtspec::cuda::pack_rollout(call.params, stream_of(state)));
  return call.outputs;
}

std::vector<Tensor> advance(const Tensor& state, const Tensor& pairs, const Tensor& ends,
                            const Tensor& tables, const Tensor& items, const Tensor& chunk,
                            const Tensor& query_start, const Tensor& row_start,
                            const Tensor& tokens, const Tensor& parents, const Tensor& sampled,
                            const Tensor& accepted_rows, const Tensor& num_emitted,
                            int64_t tokens_per_block, int64_t behind, int64_t not_final) {
  const c10::cuda::CUDAGuard guard(state.device());
  const trtspec::AdvanceCall call(state, pairs, ends, tables, items, chunk, query_start, row_start,
                                  tokens, parents, sampled, accepted_rows, num_emitted,
                                  tokens_per_block, behind, not_final);
  C10_CUDA_CHECK(trtspec::cuda::advance(call.params, stream_of(state)));
  return call.outputs;
}

void force_attention_tiles(int64_t tiles) {
  TORCH_CHECK(tiles >= 0 && tiles <= 3,
              "tiles must be 0 (chosen), 1 (narrow), 2 (wide) or 3 (prefix), got ", tiles);
  trtspec::cuda::force_attention_tiles(trtspec::cuda::AttentionTiles(tiles));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "_rotated_tree_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, "
      "Tensor(b!) v_cache, Tensor positions, Tensor slot_mapping, Tensor block_tables, "
      "Tensor query_start, Tensor context_lens, Tensor is_tree, Tensor tree_mask, float scale, "
      "int sliding_window, Tensor cos, Tensor sin, bool interleaved) -> Tensor");
  m.def("_force_attention_tiles(int tiles) -> ()", &force_attention_tiles);
}

TORCH_LIBRARY_IMPL(trtspec, CUDA, m) {
  m.impl("paged_tree_attention", &paged_tree_attention);
  m.impl("paged_tree_attention_8bit", &paged_tree_attention_8bit);
  m.impl("_rotated_tree_attention", &rotated_tree_attention);
  m.impl("sample", &sample);
  m.impl("causal_conv", &causal_conv);
  m.impl("gated_delta", &gated_delta);
  m.impl("mamba2", &mamba2);
  m.impl("mask_logits", &mask_logits);
  m.impl("draft_candidates", &draft_candidates);
  m.impl("accept", &accept);
  m.impl("kv_compact", &kv_compact);
  m.impl("expand_tree", &expand_tree);
  m.impl("keep_best", &keep_best);
  m.impl("marginal_trees", &marginal_trees);
  m.impl("pack_verify", &pack_verify);
  m.impl("pack_rollout", &pack_rollout);
  m.impl("advance", &advance);
}
