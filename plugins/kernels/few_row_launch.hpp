// few_row_linear's kernels, by the kind of weights.
#pragma once

#include "few_row_dequantise.cuh"
#include "few_row_linear.cuh"
#include "launch.hpp"

namespace trtspec::cuda {

template <class T, class Weights>
cudaError_t launch_few_rows(const FewRowArgs& args, cudaStream_t stream) {
  const auto launch_tiles = [&](auto row_tiles) {
    constexpr int kRowTiles = decltype(row_tiles)::value;
    const dim3 grid(static_cast<unsigned>(divide_up(args.pairs, kFewRowWarps)),
                    static_cast<unsigned>(args.splits),
                    static_cast<unsigned>(divide_up(args.row_tiles, kRowTiles)));
    return launch(few_row_product<T, Weights, kRowTiles>, grid, kFewRowThreads,
                  FewRowStage<T, Weights, kRowTiles>::kSharedBytes, stream, args);
  };
  if (args.row_tiles == 1) return launch_tiles(std::integral_constant<int, 1>());
  if (args.row_tiles == 2) return launch_tiles(std::integral_constant<int, 2>());
  if constexpr (Weights::kMostRowTiles > 4) {
    if (args.row_tiles > 4) {
      return launch_tiles(std::integral_constant<int, Weights::kMostRowTiles>());
    }
  }
  return launch_tiles(std::integral_constant<int, 4>());
}

template <template <class> class Weights>
cudaError_t launch_few_rows(const FewRowArgs& args, cudaStream_t stream) {
  return args.p.dtype == DType::bf16 ? launch_few_rows<bf16, Weights<bf16>>(args, stream)
                                     : launch_few_rows<f16, Weights<f16>>(args, stream);
}

template <class T, class Weights>
cudaError_t launch_dequantise(const FewRowParams& p, cudaStream_t stream) {
  const std::int64_t pairs = divide_up(p.out_features, kWarpTiles * kTileOutputs);
  const dim3 grid(static_cast<unsigned>(divide_up(pairs, kDequantiseWarps)),
                  static_cast<unsigned>(divide_up(p.in_features, kStageInputs)));
  return launch(dequantise_weights<T, Weights>, grid, kDequantiseWarps * kLanes,
                kDequantiseWarps * Weights::kWarpBytes, stream, p);
}

template <template <class> class Weights>
cudaError_t launch_dequantise(const FewRowParams& p, cudaStream_t stream) {
  return p.dtype == DType::bf16 ? launch_dequantise<bf16, Weights<bf16>>(p, stream)
                                : launch_dequantise<f16, Weights<f16>>(p, stream);
}

// In several sources, as they take long to compile.
cudaError_t launch_row_weights(const FewRowArgs& args, cudaStream_t stream);
cudaError_t launch_int8_weights(const FewRowArgs& args, cudaStream_t stream);
cudaError_t launch_int4_weights(const FewRowArgs& args, cudaStream_t stream);
cudaError_t launch_e4m3_weights(const FewRowArgs& args, cudaStream_t stream);
cudaError_t launch_e2m1_weights(const FewRowArgs& args, cudaStream_t stream);

cudaError_t dequantise_int8(const FewRowParams& p, cudaStream_t stream);
cudaError_t dequantise_int4(const FewRowParams& p, cudaStream_t stream);
cudaError_t dequantise_e4m3(const FewRowParams& p, cudaStream_t stream);
cudaError_t dequantise_e2m1(const FewRowParams& p, cudaStream_t stream);

}  // namespace trtspec::cuda
