// The largest of a row of logits and the sum of exponentials relative to it: a row is read twice, the second time from the
// nearest cache, and nothing is written.
#include <algorithm>
#include <cmath>

#include "rows.h"

namespace arcforge {
namespace {

constexpr int64_t PIECE = 512;  // values whose sum is added to the row's at a time

template <typename T, typename A>
void argmax_logprob(const T* logits, int64_t* best, A* rest, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const T* row = logits + r * width;
    A top = -INFINITY, none = 0;
    int64_t piece = 0;
    for (int64_t first = 0; first < width; first += PIECE) {
      const int64_t count = std::min(PIECE, width - first);
      A most = -INFINITY;
#pragma omp simd reduction(max : most) reduction(+ : none)
      for (int64_t n = 0; n < count; n++) {
        const A x = A(row[first + n]);
        most = x > most ? x : most;
        none += x * A(0);  // NaN if a value is not finite
      }
      if (most > top) top = most, piece = first;
    }
    best[r] = piece;
    while (best[r] + 1 < std::min(width, piece + PIECE) && !(A(row[best[r]]) == top)) best[r]++;
    double sum = 0;
    for (int64_t first = 0; first < width; first += PIECE) {
      const int64_t count = std::min(PIECE, width - first);
      A part = 0;
#pragma omp simd reduction(+ : part)
      for (int64_t n = 0; n < count; n++) part += exp_of(A(row[first + n]) - top);
      sum += part;
    }
    rest[r] = A(std::log(sum)) + none;
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_ARGMAX_LOGPROB(NAME, T, A)                                                                                \
  extern "C" void arcforge_argmax_logprob_##NAME(const T* logits, int64_t* best, A* rest, int64_t rows, int64_t width,     \
                                            int64_t threads) {                                                        \
    arcforge::argmax_logprob<T, A>(logits, best, rest, rows, width, int(threads));                                         \
  }

ARCFORGE_ARGMAX_LOGPROB(float32, float, float)
ARCFORGE_ARGMAX_LOGPROB(bfloat16, arcforge::BFloat16, float)
ARCFORGE_ARGMAX_LOGPROB(float64, double, double)
