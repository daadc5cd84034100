// RMSNorm of many rows of bfloat16, forward and backward: one pass over memory each, where torch's operators take ten.
//
// The weight's gradient is summed over blocks of rows, whose sums are added later in their order: it does not depend on the
// number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "pairs.h"

namespace arcforge {
namespace {

float rounded_once(float x) {
  BFloat16 y;
  narrow(x, &y);
  return float(y);
}

}  // namespace
}  // namespace arcforge

using arcforge::BFloat16;

// x and out [N, D], weight [D]; rstd [N] gets one over each row's root mean square.
extern "C" void arcforge_rms_norm_forward(const BFloat16* x, const float* weight, BFloat16* out, float* rstd, int64_t rows,
                                          int64_t width, double eps, int64_t threads) {
  std::vector<float> rounded(width);
  for (int64_t d = 0; d < width; d++) rounded[d] = arcforge::rounded_once(weight[d]);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const BFloat16* row = x + r * width;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t d = 0; d < width; d++) squares += float(row[d]) * float(row[d]);
    const float factor = rstd[r] = 1 / std::sqrt(squares / float(width) + float(eps));
#pragma omp simd
    for (int64_t d = 0; d < width; d++)
      arcforge::narrow(arcforge::rounded_once(float(row[d]) * factor) * rounded[d], out + r * width + d);
  }
}

// dx [N, D]; dweight [blocks of rows, D].
extern "C" void arcforge_rms_norm_backward(const BFloat16* grad, const BFloat16* x, const float* weight, const float* rstd,
                                           BFloat16* dx, float* dweight, int64_t rows, int64_t width, int64_t block,
                                           int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t first = 0; first < rows; first += block) {
    float* sums = dweight + first / block * width;
    std::fill_n(sums, width, 0.0f);
    for (int64_t r = first; r < std::min(first + block, rows); r++) {
      const BFloat16 *g = grad + r * width, *row = x + r * width;
      const float factor = rstd[r];
      float along = 0;
#pragma omp simd reduction(+ : along)
      for (int64_t d = 0; d < width; d++) along += float(g[d]) * weight[d] * float(row[d]);
      along *= factor * factor / float(width);
#pragma omp simd
      for (int64_t d = 0; d < width; d++) {
        sums[d] += float(g[d]) * float(row[d]) * factor;
        arcforge::narrow((float(g[d]) * weight[d] - float(row[d]) * along) * factor, dx + r * width + d);
      }
    }
  }
}
