// Layers around attention for few decoded tokens: weights are read once, with little other work.
//
// T rows, K inputs, N outputs, E experts, f expert width. Widths of inputs are whole vectors.
#include <vector>

#include "few_rows.h"
#include "record.h"

namespace arcforge {
namespace {

template <typename T>
void linear(const T* x, const T* weight, const T* bias, T* out, int64_t rows, int64_t inputs, int64_t outputs,
            int64_t threads) {
#pragma omp parallel num_threads(threads_for(inputs * outputs, threads))
  product_part(x, weight, bias, out, outputs, rows, inputs, outputs);
}

template <typename T, typename A>
void rms_norm(const T* x, int64_t stride, const T* weight, T* out, int64_t rows, int64_t width, double eps,
              int64_t threads) {
#pragma omp parallel for num_threads(threads_for(rows * width, threads)) schedule(static)
  for (int64_t r = 0; r < rows; r++) norm_row(x + r * stride, weight, out + r * width, width, A(eps));
}

// x [T, H, R] with `row` and `head` values between rows and heads, cos and sin [T, R/2], out contiguous.
template <typename T, typename A>
void rope(const T* x, int64_t row, int64_t head, const A* cos, const A* sin, T* out, int64_t tokens,
          int64_t heads, int64_t width, double sign, int64_t threads) {
  const int64_t pairs = width / 2;
#pragma omp parallel for num_threads(threads_for(tokens * heads * width, threads)) schedule(static)
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t h = 0; h < heads; h++)
      turn_row(x + t * row + h * head, cos + t * pairs, sin + t * pairs, A(sign), out + (t * heads + h) * width, width);
}

template <typename T>
void experts(const T* x, const Experts<T>& e, T* out, int64_t tokens, int64_t threads) {
  const int64_t rows = tokens * e.chosen, width = e.width;
  Memory<T> inner(rows * 2 * width), gated(rows * width);
#pragma omp parallel num_threads(threads_for(rows * e.hidden * width, threads))
  {
    experts_up_part(x, e, tokens, inner.data());
#pragma omp for schedule(static)
    for (int64_t n = 0; n < tokens * e.hidden; n++) out[n] = T{};
    gate_experts_part(inner.data(), e, tokens, gated.data());
    experts_down_part(gated.data(), e, tokens, out);
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_ROWS(NAME, T, A)                                                                                    \
  extern "C" void arcforge_rms_norm_##NAME(const T* x, int64_t stride, const T* weight, T* out, int64_t rows,        \
                                           int64_t width, double eps, int64_t threads) {                            \
    arcforge::rms_norm<T, A>(x, stride, weight, out, rows, width, eps, threads);                                     \
  }                                                                                                                  \
  ARCFORGE_RECORDED(arcforge_rms_norm_##NAME)                                                                        \
  extern "C" void arcforge_rope_##NAME(const T* x, int64_t row, int64_t head, const A* cos, const A* sin,            \
                                       T* out, int64_t tokens, int64_t heads, int64_t width, double sign,            \
                                       int64_t threads) {                                                            \
    arcforge::rope<T, A>(x, row, head, cos, sin, out, tokens, heads, width, sign, threads);                          \
  }                                                                                                                  \
  ARCFORGE_RECORDED(arcforge_rope_##NAME)

#define ARCFORGE_LINEAR(NAME, T)                                                                                     \
  extern "C" void arcforge_linear_##NAME(const T* x, const T* weight, const T* bias, T* out, int64_t rows,           \
                                         int64_t inputs, int64_t outputs, int64_t threads) {                         \
    arcforge::linear<T>(x, weight, bias, out, rows, inputs, outputs, threads);                                       \
  }                                                                                                                  \
  ARCFORGE_RECORDED(arcforge_linear_##NAME)

#define ARCFORGE_EXPERTS(NAME, T)                                                                                    \
  extern "C" void arcforge_experts_##NAME(const T* x, const T* gate_up, const T* down, const int64_t* expert,        \
                                          const float* gate, T* out, int64_t tokens, int64_t chosen, int64_t hidden, \
                                          int64_t width, int64_t threads) {                                          \
    arcforge::experts<T>(x, {gate_up, down, expert, gate, chosen, hidden, width}, out, tokens, threads);             \
  }

ARCFORGE_ROWS(float32, float, float)
ARCFORGE_ROWS(bfloat16, arcforge::BFloat16, float)
ARCFORGE_ROWS(float64, double, double)
ARCFORGE_LINEAR(float32, float)
ARCFORGE_LINEAR(bfloat16, arcforge::BFloat16)
ARCFORGE_LINEAR(float64, double)
ARCFORGE_EXPERTS(float32, float)
ARCFORGE_EXPERTS(bfloat16, arcforge::BFloat16)
