// What surrounds attention when few tokens are decoded: weights are read once, and little else is done.
//
// T rows, K inputs, N outputs, E experts, f expert width. Widths of inputs are whole vectors.
#include <algorithm>
#include <cmath>
#include <vector>

#include "rows.h"

namespace arcforge {
namespace {

constexpr int64_t OUTPUTS = 48;                // of a product that a thread computes at a time
constexpr int64_t WORTH_THREADS = 1 << 15;     // values read, below which a second thread comes too late

int threads_for(int64_t values, int64_t threads) { return values < WORTH_THREADS ? 1 : int(threads); }

template <typename A>
A silu(A x) {
  return x / (A(1) + std::exp(-x));
}

template <typename A>
void linear(const A* x, const A* weight, const A* bias, A* out, int64_t rows, int64_t inputs, int64_t outputs,
            int64_t threads) {
#pragma omp parallel for num_threads(threads_for(inputs * outputs, threads)) schedule(static)
  for (int64_t first = 0; first < outputs; first += OUTPUTS) {
    const int64_t count = std::min(OUTPUTS, outputs - first);
    dot_rows(x, inputs, rows, weight + first * inputs, inputs, count, inputs, out + first, outputs);
    if (bias)
      for (int64_t r = 0; r < rows; r++)
        for (int64_t n = first; n < first + count; n++) out[r * outputs + n] += bias[n];
  }
}

template <typename T, typename A>
void rms_norm(const T* x, int64_t stride, const T* weight, T* out, int64_t rows, int64_t width, double eps,
              int64_t threads) {
#pragma omp parallel for num_threads(threads_for(rows * width, threads)) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const T* from = x + r * stride;
    A squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t n = 0; n < width; n++) squares += A(from[n]) * A(from[n]);
    const A scale = A(1) / std::sqrt(squares / A(width) + A(eps));
    for (int64_t n = 0; n < width; n++) {
      T normed;
      narrow(A(from[n]) * scale, &normed);
      narrow(A(normed) * A(weight[n]), out + r * width + n);
    }
  }
}

// x [T, H, R] with `row` and `head` values between rows and heads, cos and sin [T, R/2], out contiguous. `sign` -1
// turns back.
template <typename T, typename A>
void rope(const T* x, int64_t row, int64_t head, const A* cos, const A* sin, T* out, int64_t tokens,
          int64_t heads, int64_t width, double sign, int64_t threads) {
#pragma omp parallel for num_threads(threads_for(tokens * heads * width, threads)) schedule(static)
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t h = 0; h < heads; h++) {
      const T* from = x + t * row + h * head;
      T* to = out + (t * heads + h) * width;
      for (int64_t f = 0; f < width / 2; f++) {
        const A even = A(from[2 * f]), odd = A(from[2 * f + 1]);
        const A c = cos[t * (width / 2) + f], s = A(sign) * sin[t * (width / 2) + f];
        narrow(even * c - odd * s, to + 2 * f);
        narrow(even * s + odd * c, to + 2 * f + 1);
      }
    }
}

// gate_up [E, 2f, D], down [E, D, f]; a token's chosen experts are summed in the order of its choices.
template <typename A>
void experts(const A* x, const A* gate_up, const A* down, const int64_t* expert, const A* gate, A* out, int64_t tokens,
             int64_t chosen, int64_t hidden, int64_t width, int64_t threads) {
  const int64_t rows = tokens * chosen, twice = 2 * width;
  const int64_t up_parts = (twice + OUTPUTS - 1) / OUTPUTS, down_parts = (hidden + OUTPUTS - 1) / OUTPUTS;
  std::vector<A> inner(rows * twice), gated(rows * width);
#pragma omp parallel num_threads(threads_for(rows * hidden * width, threads))
  {
#pragma omp for schedule(static)
    for (int64_t part = 0; part < rows * up_parts; part++) {
      const int64_t r = part / up_parts, first = part % up_parts * OUTPUTS, count = std::min(OUTPUTS, twice - first);
      dot_rows(x + r / chosen * hidden, hidden, 1, gate_up + (expert[r] * twice + first) * hidden, hidden, count,
               hidden, &inner[r * twice + first], twice);
    }
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      const A *gates = &inner[r * twice], *ups = gates + width;
      for (int64_t n = 0; n < width; n++) gated[r * width + n] = silu(gates[n]) * ups[n] * gate[r];
    }
#pragma omp for schedule(static)
    for (int64_t part = 0; part < tokens * down_parts; part++) {
      const int64_t t = part / down_parts, first = part % down_parts * OUTPUTS, count = std::min(OUTPUTS, hidden - first);
      A* to = out + t * hidden + first;
      A one[OUTPUTS];
      std::fill_n(to, count, A(0));
      for (int64_t r = t * chosen; r < (t + 1) * chosen; r++) {
        dot_rows(&gated[r * width], width, 1, down + (expert[r] * hidden + first) * width, width, count, width, one,
                 OUTPUTS);
        for (int64_t n = 0; n < count; n++) to[n] += one[n];
      }
    }
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_ROWS(NAME, T, A)                                                                                    \
  extern "C" void arcforge_rms_norm_##NAME(const T* x, int64_t stride, const T* weight, T* out, int64_t rows,        \
                                           int64_t width, double eps, int64_t threads) {                            \
    arcforge::rms_norm<T, A>(x, stride, weight, out, rows, width, eps, threads);                                     \
  }                                                                                                                  \
  extern "C" void arcforge_rope_##NAME(const T* x, int64_t row, int64_t head, const A* cos, const A* sin,            \
                                       T* out, int64_t tokens, int64_t heads, int64_t width, double sign,            \
                                       int64_t threads) {                                                            \
    arcforge::rope<T, A>(x, row, head, cos, sin, out, tokens, heads, width, sign, threads);                          \
  }

#define ARCFORGE_LINEAR(NAME, A)                                                                                     \
  extern "C" void arcforge_linear_##NAME(const A* x, const A* weight, const A* bias, A* out, int64_t rows,           \
                                         int64_t inputs, int64_t outputs, int64_t threads) {                         \
    arcforge::linear<A>(x, weight, bias, out, rows, inputs, outputs, threads);                                       \
  }

ARCFORGE_ROWS(float32, float, float)
ARCFORGE_ROWS(bfloat16, arcforge::BFloat16, float)
ARCFORGE_ROWS(float64, double, double)
ARCFORGE_LINEAR(float32, float)
ARCFORGE_LINEAR(float64, double)

extern "C" void arcforge_experts_float32(const float* x, const float* gate_up, const float* down, const int64_t* expert,
                                         const float* gate, float* out, int64_t tokens, int64_t chosen, int64_t hidden,
                                         int64_t width, int64_t threads) {
  arcforge::experts<float>(x, gate_up, down, expert, gate, out, tokens, chosen, hidden, width, threads);
}
