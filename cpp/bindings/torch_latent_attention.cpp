#include <ATen/ops/empty_like.h>
#include <torch/library.h>
#include <trtspec/latent_attention.hpp>

#include <utility>

#include "checks.hpp"
#include "cached_rows_call.hpp"
#include "shim.hpp"

namespace {

// Scales that are not defined: the caches have the dtype of q_latent.
at::Tensor attend(const at::Tensor& q_latent, const at::Tensor& q_rope, const at::Tensor& latent,
                  const at::Tensor& key, const at::Tensor& latent_cache,
                  const at::Tensor& key_cache, const at::Tensor& latent_scale,
                  const at::Tensor& key_scale, const at::Tensor& slot_mapping,
                  const at::Tensor& block_tables, const at::Tensor& query_start,
                  const at::Tensor& context_lens, const at::Tensor& is_tree,
                  const at::Tensor& tree_mask, double scale) {
  constexpr const char* op = "latent_tree_attention";
  trtspec::check_dim(op, "q_latent", q_latent, 3);
  trtspec::check_dim(op, "q_rope", q_rope, 3);
  trtspec::check_dim(op, "latent_cache", latent_cache, 4);
  const int64_t rows = q_latent.size(0);
  const int64_t heads = q_latent.size(1);
  const int64_t rank = q_latent.size(2);
  const int64_t rope_dim = q_rope.size(2);
  const int64_t num_blocks = latent_cache.size(0);
  const int64_t block_size = latent_cache.size(1);
  trtspec::check_shape(op, "q_rope", q_rope, {rows, heads, rope_dim});
  trtspec::check_shape(op, "latent", latent, {rows, rank});
  trtspec::check_shape(op, "key", key, {rows, rope_dim});
  trtspec::check_shape(op, "latent_cache", latent_cache, {num_blocks, block_size, 1, rank});
  trtspec::check_shape(op, "key_cache", key_cache, {num_blocks, block_size, 1, rope_dim});
  for (const auto& [name, tensor] : {std::pair<const char*, const at::Tensor&>{"q_rope", q_rope},
                                     {"latent", latent},
                                     {"key", key},
                                     {"latent_cache", latent_cache},
                                     {"key_cache", key_cache}}) {
    const bool is_scaled = latent_scale.defined() && tensor.dim() == 4;
    trtspec::check_dtype(op, name, tensor, is_scaled ? at::kChar : q_latent.scalar_type());
    trtspec::check_device(op, name, tensor, q_latent);
  }
  if (latent_scale.defined()) {
    for (const at::Tensor& each : {latent_scale, key_scale}) {
      trtspec::check_shape(op, "a scale", each, {num_blocks, block_size, 1, 1});
      trtspec::check_dtype(op, "a scale", each, at::kFloat);
      trtspec::check_device(op, "a scale", each, q_latent);
      TORCH_CHECK(each.is_contiguous(), op, ": scales must be contiguous");
    }
  }
  TORCH_CHECK(latent_cache.is_contiguous() && key_cache.is_contiguous(), op,
              ": latent_cache and key_cache must be contiguous");
  const trtspec::CachedRowsCall call(op, q_latent, rows, slot_mapping, block_tables, query_start,
                                     context_lens, is_tree, tree_mask);
  const at::Tensor packed[] = {q_latent.contiguous(), q_rope.contiguous(), latent.contiguous(),
                               key.contiguous()};
  at::Tensor out = at::empty_like(packed[0]);
  trtspec::latent_tree_attention({
      .q_latent = packed[0].const_data_ptr(),
      .q_rope = packed[1].const_data_ptr(),
      .latent = packed[2].const_data_ptr(),
      .key = packed[3].const_data_ptr(),
      .latent_cache = latent_cache.mutable_data_ptr(),
      .key_cache = key_cache.mutable_data_ptr(),
      .latent_scale = latent_scale.defined() ? latent_scale.mutable_data_ptr<float>() : nullptr,
      .key_scale = key_scale.defined() ? key_scale.mutable_data_ptr<float>() : nullptr,
      .out = out.mutable_data_ptr(),
      .dtype = trtspec::kernel_dtype(op, "q_latent", q_latent.scalar_type()),
      .heads = heads,
      .rank = rank,
      .rope_dim = rope_dim,
      .scale = float(scale),
      .rows = call.rows(num_blocks, block_size),
  });
  return out;
}

at::Tensor latent_tree_attention(const at::Tensor& q_latent, const at::Tensor& q_rope,
                                 const at::Tensor& latent, const at::Tensor& key,
                                 at::Tensor& latent_cache, at::Tensor& key_cache,
                                 const at::Tensor& slot_mapping, const at::Tensor& block_tables,
                                 const at::Tensor& query_start, const at::Tensor& context_lens,
                                 const at::Tensor& is_tree, const at::Tensor& tree_mask,
                                 double scale) {
  return attend(q_latent, q_rope, latent, key, latent_cache, key_cache, {}, {}, slot_mapping,
                block_tables, query_start, context_lens, is_tree, tree_mask, scale);
}

at::Tensor latent_tree_attention_8bit(const at::Tensor& q_latent, const at::Tensor& q_rope,
                                      const at::Tensor& latent, const at::Tensor& key,
                                      at::Tensor& latent_cache, at::Tensor& key_cache,
                                      at::Tensor& latent_scale, at::Tensor& key_scale,
                                      const at::Tensor& slot_mapping,
                                      const at::Tensor& block_tables, const at::Tensor& query_start,
                                      const at::Tensor& context_lens, const at::Tensor& is_tree,
                                      const at::Tensor& tree_mask, double scale) {
  return attend(q_latent, q_rope, latent, key, latent_cache, key_cache, latent_scale, key_scale,
                slot_mapping, block_tables, query_start, context_lens, is_tree, tree_mask, scale);
}

}  // namespace

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_latent_tree_attention(
    AtenTensorHandle q_latent, AtenTensorHandle q_rope, AtenTensorHandle latent,
    AtenTensorHandle key, AtenTensorHandle latent_cache, AtenTensorHandle key_cache,
    AtenTensorHandle slot_mapping, AtenTensorHandle block_tables, AtenTensorHandle query_start,
    AtenTensorHandle context_lens, AtenTensorHandle is_tree, AtenTensorHandle tree_mask,
    double scale, AtenTensorHandle* result) {
  using trtspec::tensor;
  return trtspec::run_shim(result, [&] {
    return latent_tree_attention(tensor(q_latent), tensor(q_rope), tensor(latent), tensor(key),
                                 tensor(latent_cache), tensor(key_cache), tensor(slot_mapping),
                                 tensor(block_tables), tensor(query_start), tensor(context_lens),
                                 tensor(is_tree), tensor(tree_mask), scale);
  });
}

extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_latent_tree_attention_8bit(
    AtenTensorHandle q_latent, AtenTensorHandle q_rope, AtenTensorHandle latent,
    AtenTensorHandle key, AtenTensorHandle latent_cache, AtenTensorHandle key_cache,
    AtenTensorHandle latent_scale, AtenTensorHandle key_scale, AtenTensorHandle slot_mapping,
    AtenTensorHandle block_tables, AtenTensorHandle query_start, AtenTensorHandle context_lens,
    AtenTensorHandle is_tree, AtenTensorHandle tree_mask, double scale, AtenTensorHandle* result) {
  using trtspec::tensor;
  return trtspec::run_shim(result, [&] {
    return latent_tree_attention_8bit(tensor(q_latent), tensor(q_rope), tensor(latent), tensor(key),
                                      tensor(latent_cache), tensor(key_cache), tensor(latent_scale),
                                      tensor(key_scale), tensor(slot_mapping), tensor(block_tables),
                                      tensor(query_start), tensor(context_lens), tensor(is_tree),
                                      tensor(tree_mask), scale);
  });
}

TORCH_LIBRARY_FRAGMENT(trtspec, m) {
  m.def(
      "latent_tree_attention(Tensor q_latent, Tensor q_rope, Tensor latent, Tensor key, "
      "Tensor(a!) latent_cache, Tensor(b!) key_cache, Tensor slot_mapping, Tensor block_tables, "
      "Tensor query_start, Tensor context_lens, Tensor is_tree, Tensor tree_mask, float scale) "
      "-> Tensor");
  m.def(
      "latent_tree_attention_8bit(Tensor q_latent, Tensor q_rope, Tensor latent, Tensor key, "
      "Tensor(a!) latent_cache, Tensor(b!) key_cache, Tensor(c!) latent_scale, "
      "Tensor(d!) key_scale, Tensor slot_mapping, Tensor block_tables, Tensor query_start, "
      "Tensor context_lens, Tensor is_tree, Tensor tree_mask, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(trtspec, CPU, m) {
  m.impl("latent_tree_attention", &latent_tree_attention);
  m.impl("latent_tree_attention_8bit", &latent_tree_attention_8bit);
}
