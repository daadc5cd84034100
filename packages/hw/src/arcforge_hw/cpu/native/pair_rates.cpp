// How many products of pairs of bfloat16 numbers a core makes in a second: by the instruction for them, and of both numbers
// in fp32. Processors have the instruction at twice the rate of fp32 and at half of it.
#include <chrono>

#include "rows.h"

namespace arcforge {
namespace {

constexpr int SUMS = 12;  // enough that none waits for another
constexpr int64_t COUNT = 1 << 15;

// The most products a second in ten rounds of f, which adds one to each sum.
template <typename F>
double rate_of(F f) {
  static volatile float result;  // somebody might read it
  double shortest = 1e9;
  Vector<float> sum[SUMS] = {};
  for (int round = 0; round < 10; round++) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t n = 0; n < COUNT; n++) each<0, SUMS>([&](auto i) { sum[i] = keep<float>(f(sum[i])); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    shortest = seconds < shortest ? seconds : shortest;
    for (const auto& x : sum) result = x[0];
  }
  return SUMS * COUNT * LANES<float> / shortest;
}

}  // namespace
}  // namespace arcforge

extern "C" void arcforge_pair_rates(double* pairs, double* wide) {
  using namespace arcforge;
  const Vector<float> x = keep<float>(Vector<float>{} + 0x1p-60f);
#ifdef __AVX512BF16__
  *pairs = rate_of([&](Vector<float> sum) { return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)x); });
#else
  *pairs = 0;
#endif
  *wide = rate_of([&](Vector<float> sum) { return fused<float>(x, x, keep<float>(fused<float>(x, x, sum))); });
}
