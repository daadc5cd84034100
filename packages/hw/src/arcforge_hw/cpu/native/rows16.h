// Products of rows in bfloat16, summed in fp32: two products of neighbouring values at a time (ARCFORGE_PAIRS), or
// else both sides widened in registers. As in rows.h an element is summed in the same order whatever the number of rows.
#pragma once

#include "products.h"

namespace arcforge {

constexpr int64_t PAIRED = 2 * LANES<float>;  // values of a vector in bfloat16

using Words __attribute__((vector_size(VECTOR_BYTES))) = uint32_t;

// The first and the second ones of a vector's pairs, widened.
inline void widen_halves(const BFloat16* from, Vector<float>& first, Vector<float>& second) {
  Words x;
  std::memcpy(&x, from, VECTOR_BYTES);
  first = (Vector<float>)(x << 16);
  second = (Vector<float>)(x & 0xffff0000u);
}

// The opposite, rounded as `narrow` does.
inline void narrow_halves(Vector<float> first, Vector<float> second, BFloat16* to) {
  const auto rounded = [](Vector<float> x) {
    const Words bits = (Words)x;
    return x == x ? bits + 0x7fff + ((bits >> 16) & 1) : (bits & 0) + 0x7fc00000u;
  };
  const Words pairs = (rounded(first) >> 16) | (rounded(second) & 0xffff0000u);
  std::memcpy(to, &pairs, VECTOR_BYTES);
}

#ifdef ARCFORGE_PAIRS
using Paired = __m512bh;
inline Paired load_pairs(const BFloat16* from) {
  Paired x;
  std::memcpy(&x, from, VECTOR_BYTES);
  asm("" : "+v"(x));  // as `keep`
  return x;
}
inline Vector<float> dot_pairs(Paired a, Paired b, Vector<float> sum) {
  return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, a, b);
}
#else
struct Paired {
  Vector<float> even, odd;
};
inline Paired load_pairs(const BFloat16* from) {
  Paired x;
  widen_halves(from, x.even, x.odd);
  return x;
}
inline Vector<float> dot_pairs(const Paired& a, const Paired& b, Vector<float> sum) {
  return fused<float>(a.even, b.even, fused<float>(a.odd, b.odd, sum));
}
#endif

// A row in the order in which `dot_pairs` adds: of each vector's pairs the second ones, then the first.
inline void widen_pairs(const BFloat16* from, int64_t width, float* to) {
  for (int64_t d = 0; d < width; d += PAIRED) {
    Vector<float> first, second;
    widen_halves(from + d, first, second);
    store<float>(to + d, second);
    store<float>(to + d + LANES<float>, first);
  }
}

#ifdef __AVX512F__
constexpr int COLUMNS = 4;
#else
constexpr int COLUMNS = 2;  // half as many registers
#endif

// As for floats in products.h.
template <int M, int N, int FETCH>
[[gnu::noinline]] void dot_tile(const BFloat16* a, int64_t a_stride, const BFloat16* b, int64_t b_stride, int64_t width,
                                float* out, int64_t stride, const BFloat16* ahead) {
  Vector<float> sum[M][N] = {};
  for (int64_t d = 0; d < width; d += PAIRED) {
    for (int f = 0; f < FETCH; f += IN_A_LINE) __builtin_prefetch(ahead + FETCH * d + f * PAIRED, 0, 2);
    Paired right[N];
    each<0, N>([&](auto j) { right[j] = load_pairs(b + j * b_stride + d); });
    each<0, M>([&](auto i) {
      const Paired left = load_pairs(a + i * a_stride + d);
      each<0, N>([&](auto j) { sum[i][j] = dot_pairs(left, right[j], sum[i][j]); });
    });
  }
  put_sums<float, M, N>(sum, out, stride);
}

// As for floats in products.h; width is a whole number of vectors of bfloat16.
inline void dot_rows(const BFloat16* a, int64_t a_stride, int64_t rows, const BFloat16* b, int64_t b_stride,
                     int64_t columns, int64_t width, float* out, int64_t stride, const BFloat16* ahead = nullptr) {
  const Product<BFloat16, float> p{a, a_stride, rows, b, b_stride, columns, width, out, stride, ahead};
  dot_columns<1, 4, 2, 1>(p, dot_columns<COLUMNS, 4, 2, 1>(p, 0));
}

#ifdef ARCFORGE_PAIRS
constexpr int64_t ROWS_TO_WIDEN_FOR = INT64_MAX;
#else
constexpr int64_t ROWS_TO_WIDEN_FOR = 24;  // fewer do not pay for writing b once more
#endif

// The same sums for so many rows of a, which are `widen_pairs` of bfloat16: b is widened once for all of them.
inline void dot_wide_rows(const float* a, int64_t a_stride, int64_t rows, const BFloat16* b, int64_t b_stride,
                          int64_t columns, int64_t width, float* out, int64_t stride, const BFloat16* ahead,
                          Room<float>& panel) {
  const int64_t apart_by = apart<float>(width), most = in_sixes(rows) ? SUMS / 2 : SUMS / 4;  // whole tiles
  panel.resize(most * apart_by);
  for (int64_t j = 0; j < columns; j += most) {
    const int64_t count = std::min(most, columns - j);
    for (int64_t n = 0; n < count; n++) widen_pairs(b + (j + n) * b_stride, width, &panel[n * apart_by]);
    const auto* next = ahead ? reinterpret_cast<const float*>(ahead + j * width) : nullptr;  // half as many bytes as of floats
    dot_rows(a, a_stride, rows, panel.data(), apart_by, count, width, out + j, stride, next, true);
  }
}

}  // namespace arcforge
