// The order of scores.
#pragma once

#include "device.cuh"

namespace trtspec::cuda {

// How many of `count` scores come before the i-th: higher ones, and equal ones of lower index.
__device__ __forceinline__ int place_among(const float* scores, int count, int i) {
  const float mine = scores[i];
  int place = 0;
  for (int j = 0; j < i; ++j) place += scores[j] >= mine;
  for (int j = i + 1; j < count; ++j) place += scores[j] > mine;
  return place;
}

}  // namespace trtspec::cuda
