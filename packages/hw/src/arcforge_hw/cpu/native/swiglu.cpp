// silu(gate) * up of many values, and its gradients: one pass over memory each, where torch's operators take five.
#include <algorithm>

#include "few_rows.h"

namespace arcforge {
namespace {

constexpr int64_t SOME = 4096;  // values that a thread takes at a time

// f(first, last) for some of the values at a time.
template <typename F>
void in_parts(int64_t count, int64_t threads, F f) {
#pragma omp parallel for num_threads(threads_for(count, threads)) schedule(static)
  for (int64_t first = 0; first < count; first += SOME) f(first, std::min(first + SOME, count));
}

// Rounded as values in T are; A is T, or fp32 that products of T are kept in. `out` may be the place of the gates.
template <typename T, typename A>
void forward_part(const A* gate, const A* up, A* out, int64_t first, int64_t last) {
#pragma omp simd
  for (int64_t n = first; n < last; n++)
    if constexpr (std::is_same_v<T, A>)
      out[n] = gated(gate[n], up[n]);
    else
      out[n] = gated16(near16(gate[n]), near16(up[n]));
}

inline float near(float x, const float*) { return x; }
inline float near(float x, const BFloat16*) { return near16(x); }

template <typename T>
void backward_part(const T* grad, const T* gate, const T* up, T* of_gate, T* of_up, int64_t first, int64_t last) {
#pragma omp simd
  for (int64_t n = first; n < last; n++) {
    const float g = float(gate[n]), from = float(grad[n]), share = sigmoid(g), value = near(g * share, gate);
    narrow(near(from * float(up[n]) * (share + g * share * (1.0f - share)), gate), of_gate + n);
    narrow(near(from * value, gate), of_up + n);
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_FORWARD(NAME, T, A)                                                                                    \
  extern "C" void arcforge_swiglu_##NAME(const A* gate, const A* up, A* out, int64_t count, int64_t threads) {          \
    arcforge::in_parts(count, threads, [=](int64_t first, int64_t last) {                                               \
      arcforge::forward_part<T, A>(gate, up, out, first, last);                                                         \
    });                                                                                                                 \
  }

#define ARCFORGE_BACKWARD(NAME, T)                                                                                      \
  extern "C" void arcforge_swiglu_backward_##NAME(const T* grad, const T* gate, const T* up, T* of_gate, T* of_up,      \
                                                  int64_t count, int64_t threads) {                                    \
    arcforge::in_parts(count, threads, [=](int64_t first, int64_t last) {                                               \
      arcforge::backward_part(grad, gate, up, of_gate, of_up, first, last);                                             \
    });                                                                                                                 \
  }

ARCFORGE_FORWARD(float32, float, float)
ARCFORGE_FORWARD(bfloat16, arcforge::BFloat16, arcforge::BFloat16)
ARCFORGE_FORWARD(widened, arcforge::BFloat16, float)
ARCFORGE_FORWARD(float64, double, double)
ARCFORGE_BACKWARD(float32, float)
ARCFORGE_BACKWARD(bfloat16, arcforge::BFloat16)
