// RMSNorm of many rows, forward and backward: one pass over memory each, where torch's operators take ten.
//
// The weight's gradient is summed over blocks of rows, whose sums are added later in their order: it does not depend on the
// number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "pairs.h"

namespace arcforge {
namespace {

// f(d) for each whole vector of a row, and g(d) for each value after the last.
template <typename F, typename G>
[[gnu::always_inline]] inline void along(int64_t width, F vectors, G values) {
  int64_t d = 0;
  for (; d + LANES<float> <= width; d += LANES<float>) vectors(d);
  for (; d < width; d++) values(d);
}

void store_rounded(Vector<float> x, float* to) { store<float>(to, x); }
void store_rounded(Vector<float> x, BFloat16* to) {
  const Halves halves = rounded(x);
  std::memcpy(to, &halves, sizeof halves);
}

// x with the precision of T.
template <typename T>
Vector<float> rounded_once(Vector<float> x) {
  if constexpr (std::is_same_v<T, BFloat16>) return (Vector<float>)(in_lower_half(rounded(x)) << 16);
  return x;
}
template <typename T>
float rounded_once(float x) {
  T y;
  narrow(x, &y);
  return float(y);
}

// x and out [N, D], weight [D]; rstd [N] gets one over each row's root mean square.
template <typename T>
void forward(const T* x, const float* weight, T* out, float* rstd, int64_t rows, int64_t width, double eps, int64_t threads) {
  Memory<float> rounded_weight(width);
  for (int64_t d = 0; d < width; d++) rounded_weight[d] = rounded_once<T>(weight[d]);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const T* row = x + r * width;
    T* to = out + r * width;
    Vector<float> squares{};
    float rest = 0;
    along(width, [&](int64_t d) { squares = fused<float>(load_wide(row + d), load_wide(row + d), squares); },
          [&](int64_t d) { rest += float(row[d]) * float(row[d]); });
    const float factor = rstd[r] = 1 / std::sqrt((sum_lanes<float>(squares) + rest) / float(width) + float(eps));
    along(width,
          [&](int64_t d) { store_rounded(rounded_once<T>(load_wide(row + d) * factor) * load(&rounded_weight[d]), to + d); },
          [&](int64_t d) { narrow(rounded_once<T>(float(row[d]) * factor) * rounded_weight[d], to + d); });
  }
}

// dx [N, D]; dweight [blocks of rows, D].
template <typename T>
void backward(const T* grad, const T* x, const float* weight, const float* rstd, T* dx, float* dweight, int64_t rows,
              int64_t width, int64_t block, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t first = 0; first < rows; first += block) {
    float* sums = dweight + first / block * width;
    std::fill_n(sums, width, 0.0f);
    for (int64_t r = first; r < std::min(first + block, rows); r++) {
      const T *g = grad + r * width, *row = x + r * width;
      T* to = dx + r * width;
      const float factor = rstd[r];
      Vector<float> products{};
      float rest = 0;
      along(width,
            [&](int64_t d) {
              products = fused<float>(load_wide(g + d) * load(weight + d), load_wide(row + d), products);
            },
            [&](int64_t d) { rest += float(g[d]) * weight[d] * float(row[d]); });
      const float common = (sum_lanes<float>(products) + rest) * factor * factor / float(width);
      along(width,
            [&](int64_t d) {
              const Vector<float> own = load_wide(g + d), value = load_wide(row + d);
              store<float>(sums + d, fused<float>(own * value, factor - Vector<float>{}, load(sums + d)));
              store_rounded((own * load(weight + d) - value * common) * factor, to + d);
            },
            [&](int64_t d) {
              sums[d] += float(g[d]) * float(row[d]) * factor;
              narrow((float(g[d]) * weight[d] - float(row[d]) * common) * factor, to + d);
            });
    }
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_RMS_NORM(NAME, T)                                                                                      \
  extern "C" void arcforge_rms_norm_forward_##NAME(const T* x, const float* weight, T* out, float* rstd, int64_t rows, \
                                                   int64_t width, double eps, int64_t threads) {                       \
    arcforge::forward(x, weight, out, rstd, rows, width, eps, threads);                                                \
  }                                                                                                                    \
  extern "C" void arcforge_rms_norm_backward_##NAME(const T* grad, const T* x, const float* weight, const float* rstd, \
                                                    T* dx, float* dweight, int64_t rows, int64_t width, int64_t block, \
                                                    int64_t threads) {                                                 \
    arcforge::backward(grad, x, weight, rstd, dx, dweight, rows, width, block, threads);                               \
  }

ARCFORGE_RMS_NORM(float32, float)
ARCFORGE_RMS_NORM(bfloat16, arcforge::BFloat16)
