// Products of rows in bfloat16, summed in fp32: two products of neighbouring values at a time where the processor has that,
// else both sides widened in registers. As in rows.h an element is summed in the same order whatever the number of rows.
#pragma once

#include "rows.h"

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

#ifdef __AVX512BF16__
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

#ifdef __AVX512F__
constexpr int COLUMNS = 4;

// The lanes of four vectors, added as far as four of each are left; one vector's after another's.
inline __m512 fold_four(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
  const __m512 cd = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xee);
  return _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
}

// out[i][j] = the sum of sum[i][j], in the order of `sum_lanes`; sixteen sums take as many operations as four one by one.
template <int M>
inline void put_sums(const Vector<float> (&sum)[M][COLUMNS], float* out, int64_t stride) {
  const auto at = [&](int i, int j) { return (__m512)sum[i][j]; };
  if constexpr (M == 4) {
    __m512 column[4];
    for (int j = 0; j < 4; j++) column[j] = fold_four(at(0, j), at(1, j), at(2, j), at(3, j));
    const __m512 left = _mm512_unpacklo_ps(column[0], column[1]) + _mm512_unpackhi_ps(column[0], column[1]);
    const __m512 right = _mm512_unpacklo_ps(column[2], column[3]) + _mm512_unpackhi_ps(column[2], column[3]);
    const __m512 rows = _mm512_shuffle_ps(left, right, 0x44) + _mm512_shuffle_ps(left, right, 0xee);
    _mm_storeu_ps(out, _mm512_extractf32x4_ps(rows, 0));
    _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(rows, 1));
    _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(rows, 2));
    _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(rows, 3));
  } else {
    for (int i = 0; i < M; i++) {
      const __m512 four = fold_four(at(i, 0), at(i, 1), at(i, 2), at(i, 3));
      const __m512 two = four + _mm512_permute_ps(four, 0x4e), one = two + _mm512_permute_ps(two, 0xb1);
      _mm_storeu_ps(out + i * stride, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)));
    }
  }
}
#else
constexpr int COLUMNS = 2;  // half as many registers
#endif

// FETCH times as many values as a row has are prefetched meanwhile, from `ahead` on: piece by piece, because many parallel
// requests stall the processor, and in the order of memory, which its own prefetcher recognises. Into the second cache, for
// which more requests can wait than for the first.
template <int M, int N, int FETCH>
[[gnu::noinline]] void dot_pairs_tile(const BFloat16* a, int64_t a_stride, const BFloat16* b, int64_t b_stride,
                                      int64_t width, float* out, int64_t stride, const BFloat16* ahead) {
  Vector<float> sum[M][N] = {};
  for (int64_t d = 0; d < width; d += PAIRED) {
    for (int f = 0; f < FETCH; f++) __builtin_prefetch(ahead + FETCH * d + f * PAIRED, 0, 2);
    Paired right[N];
    for (int j = 0; j < N; j++) right[j] = load_pairs(b + j * b_stride + d);
    for (int i = 0; i < M; i++) {
      const Paired left = load_pairs(a + i * a_stride + d);
      for (int j = 0; j < N; j++) sum[i][j] = dot_pairs(left, right[j], sum[i][j]);
    }
  }
#ifdef __AVX512F__
  if constexpr (N == COLUMNS) return put_sums(sum, out, stride);
#endif
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) out[i * stride + j] = sum_lanes<float>(sum[i][j]);
}

// N columns of the product below; with EACH, tiles of four rows prefetch this many rows of the next columns.
template <int N, int EACH>
inline void dot_pairs_panel(const BFloat16* a, int64_t a_stride, int64_t rows, const BFloat16* b, int64_t b_stride,
                            int64_t width, float* out, int64_t stride) {
  const BFloat16* ahead = b + N * b_stride;
  int64_t i = 0;
  const auto tile = [&](auto m, auto fetch) {
    constexpr int M = decltype(m)::value, FETCH = decltype(fetch)::value;
    dot_pairs_tile<M, N, FETCH>(a + i * a_stride, a_stride, b, b_stride, width, out + i * stride, stride, ahead);
    i += M;
    ahead += FETCH * width;
  };
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, 4> four;
  constexpr std::integral_constant<int, 0> none;
  if constexpr (EACH > 0)
    for (int n = 0; n < N / EACH && i + 4 <= rows; n++) tile(four, std::integral_constant<int, EACH>{});
  while (i + 4 <= rows) tile(four, none);
  constexpr std::integral_constant<int, EACH ? N : 0> rest;
  if (i + 2 <= rows) i ? tile(two, none) : tile(two, rest);
  if (i < rows) i ? tile(one, none) : tile(one, rest);
}

// As for floats in rows.h; width is a whole number of vectors of bfloat16. With `ahead`, b's rows lie one after another.
inline void dot_rows(const BFloat16* a, int64_t a_stride, int64_t rows, const BFloat16* b, int64_t b_stride,
                     int64_t columns, int64_t width, float* out, int64_t stride, int64_t ahead = 0) {
  constexpr int N = COLUMNS;
  const auto panel = !ahead       ? dot_pairs_panel<N, 0>
                     : rows < 8   ? dot_pairs_panel<N, N>
                     : rows < 16  ? dot_pairs_panel<N, N / 2>
                                  : dot_pairs_panel<N, (N + 3) / 4>;
  int64_t j = 0;
  for (; j + N <= columns; j += N) panel(a, a_stride, rows, b + j * b_stride, b_stride, width, out + j, stride);
  for (; j < columns; j++)
    dot_pairs_panel<1, 0>(a, a_stride, rows, b + j * b_stride, b_stride, width, out + j, stride);
}

}  // namespace arcforge
