// few_row_linear: how its inputs are split, and the sums of the splits; and what its weights are.
#include <kernels.hpp>

#include "few_row_launch.hpp"

namespace trtspec::cuda {
namespace {

// Two for each of the 132 multiprocessors of an H200: with fewer blocks some have nothing to read,
// more of them write more sums.
constexpr std::int64_t kWantedBlocks = 264;
// Of a split: with fewer, filling the stages takes as long as what follows.
constexpr std::int64_t kLeastStages = 8;

std::int64_t pairs_of(const FewRowParams& p) { return divide_up(p.out_features, kPairOutputs); }

// Of the inputs; never by the rows or the device, whose bits are the same so.
int splits_of(const FewRowParams& p) {
  const std::int64_t blocks = divide_up(pairs_of(p), kFewRowWarps);
  const std::int64_t most = divide_up(p.in_features, kStageInputs) / kLeastStages;
  return static_cast<int>(
      larger<std::int64_t>(1, smaller(kWantedBlocks / larger<std::int64_t>(1, blocks), most)));
}

int row_tiles_of(const FewRowParams& p) { return static_cast<int>(divide_up(p.rows, 8)); }

bool has_valid_weights(const FewRowParams& p) {
  const std::int64_t group = p.group_size;
  const bool is_group = group == 0 || (group >= 16 && group <= 256 && (group & (group - 1)) == 0);
  return p.in_features > 0 && p.dtype != DType::f32 && is_group &&
         !(p.zeros != nullptr && p.offsets != nullptr);
}

bool is_valid(const FewRowParams& p) {
  return has_valid_weights(p) && p.rows <= kFewRows && p.in_features % 8 == 0 &&
         !(p.swiglu && p.out_features % kPairOutputs != 0);
}

// A warp adds the sums of a pair of tiles and a tile of rows.
__global__ void __launch_bounds__(kFewRowThreads)
    add_splits(const __grid_constant__ FewRowArgs args) {
  const std::int64_t place =
      std::int64_t{blockIdx.x} * kFewRowWarps + static_cast<int>(threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  const std::int64_t places = args.pairs * args.row_tiles;
  if (place >= places) return;
  float sums[kWarpTiles][4] = {};
#pragma unroll 4
  for (int split = 0; split < args.splits; ++split) {
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; ++tile) {
      const float4 part = args.sums[((split * places + place) * kWarpTiles + tile) * kLanes + lane];
      sums[tile][0] += part.x, sums[tile][1] += part.y;
      sums[tile][2] += part.z, sums[tile][3] += part.w;
    }
  }
  store_sums(args.p, place / args.row_tiles, static_cast<int>(place % args.row_tiles), lane, sums);
}

cudaError_t launch_product(const FewRowArgs& args, cudaStream_t stream) {
  switch (args.p.values) {
    case WeightValues::rows: return launch_row_weights(args, stream);
    case WeightValues::int8: return launch_int8_weights(args, stream);
    case WeightValues::int4: return launch_int4_weights(args, stream);
    case WeightValues::e4m3: return launch_e4m3_weights(args, stream);
    case WeightValues::e2m1: return launch_e2m1_weights(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

std::size_t few_row_linear_workspace(const FewRowParams& params) {
  const int splits = splits_of(params);
  const std::int64_t sums = splits * pairs_of(params) * row_tiles_of(params) * kWarpTiles * kLanes;
  return splits == 1 ? 0 : static_cast<std::size_t>(sums) * sizeof(float4);
}

cudaError_t few_row_linear(const FewRowParams& params, void* workspace, cudaStream_t stream) {
  if (!is_valid(params)) return cudaErrorInvalidValue;
  if (params.rows <= 0 || params.out_features <= 0) return cudaSuccess;
  const FewRowArgs args{params,
                        static_cast<float4*>(workspace),
                        pairs_of(params),
                        row_tiles_of(params),
                        splits_of(params),
                        static_cast<int>(divide_up(params.in_features, kStageInputs))};
  const cudaError_t error = launch_product(args, stream);
  if (error != cudaSuccess || args.splits == 1) return error;
  const auto blocks = static_cast<unsigned>(divide_up(args.pairs * args.row_tiles, kFewRowWarps));
  return launch(add_splits, blocks, kFewRowThreads, 0, stream, args);
}

cudaError_t few_row_dequantise(const FewRowParams& params, cudaStream_t stream) {
  if (!has_valid_weights(params)) return cudaErrorInvalidValue;
  if (params.out_features <= 0) return cudaSuccess;
  switch (params.values) {
    case WeightValues::rows: break;  // they are what this makes
    case WeightValues::int8: return dequantise_int8(params, stream);
    case WeightValues::int4: return dequantise_int4(params, stream);
    case WeightValues::e4m3: return dequantise_e4m3(params, stream);
    case WeightValues::e2m1: return dequantise_e2m1(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace trtspec::cuda
