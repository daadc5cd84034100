// Products of bfloat16 numbers with sums in fp32, two numbers at a time: what AVX512_BF16 multiplies in one instruction,
// on some processors at twice the rate of fp32. Elsewhere numbers are widened when they are packed (packed.h).
//
// A pair is two numbers that meet two others in a product: of a row's neighbours, or of two neighbouring rows.
#pragma once

#include "rows.h"

namespace arcforge {

using Pair = uint32_t;  // the first number in the lower half

#ifdef ARCFORGE_PAIRS
// sum + a.first * b.first + a.second * b.second
inline Vector<float> dot(Vector<Pair> a, Vector<Pair> b, Vector<float> sum) {
  return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#endif

// `dot` of numbers that are not paired.
inline Vector<float> dot(Vector<float> a, Vector<float> b, Vector<float> sum) { return fused<float>(a, b, sum); }

using Halves = VectorOf<uint16_t, VECTOR_BYTES / 2>;

// The bits of bfloat16, rounded to nearest, ties to even; NaN stays NaN.
inline Halves rounded(Vector<float> x) {
#ifdef __AVX512BF16__
  return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
  const Vector<Pair> bits = (Vector<Pair>)x;
  const Vector<Pair> near = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return __builtin_convertvector(x == x ? near : Vector<Pair>{} + 0x7fc0, Halves);
#endif
}

inline Vector<Pair> in_lower_half(Halves x) { return __builtin_convertvector(x, Vector<Pair>); }

// Whole vectors of two rows as pairs of them.
inline void pair_rows(const float* even, const float* odd, int64_t width, Pair* to) {
  for (int64_t n = 0; n < width; n += LANES<float>)
    store<Pair>(to + n, in_lower_half(rounded(load(even + n))) | in_lower_half(rounded(load(odd + n))) << 16);
}

// Whole vectors of a row as pairs of neighbours.
inline void pair_neighbours(const float* row, int64_t width, Pair* to) {
  for (int64_t n = 0; n < width; n += LANES<float>) {
    const Halves values = rounded(load(row + n));
    std::memcpy(to + n / 2, &values, sizeof values);
  }
}

// scale * row, which may end inside a vector.
inline void put(const float* row, int64_t width, float scale, BFloat16* to) {
  for (int64_t n = 0; n < width; n += LANES<float>) {
    const Halves values = rounded(scale * load(row + n));
    if (n + LANES<float> <= width)
      std::memcpy(to + n, &values, sizeof values);
    else
      for (int64_t j = 0; n + j < width; j++) to[n + j].bits = values[j];
  }
}

template <int M, int N, typename U>
inline void pair_tile(const U* a, int64_t a_stride, int64_t step, const U* b, int64_t b_stride, int64_t count, float* out,
                      int64_t stride, bool add) {
  Vector<float> sum[M][N] = {};
  if (add)
    each<0, M>([&](auto i) { each<0, N>([&](auto j) { sum[i][j] = load(out + i * stride + j * LANES<float>); }); });
  for (int64_t k = 0; k < count; k++) {
    Vector<U> right[N];
    each<0, N>([&](auto j) { right[j] = keep<U>(load(b + k * b_stride + j * LANES<U>)); });
    each<0, M>([&](auto i) {
      const Vector<U> left = a[i * a_stride + k * step] - Vector<U>{};
      each<0, N>([&](auto j) { sum[i][j] = dot(left, right[j], sum[i][j]); });
    });
  }
  each<0, M>([&](auto i) { each<0, N>([&](auto j) { store<float>(out + i * stride + j * LANES<float>, sum[i][j]); }); });
}

// out[i] (+)= sum over k < count of the products of the pair a[i * a_stride + k * step] with the row of pairs b[k]; `width`
// is a whole number of vectors. An element is summed in the same order whatever the number of rows. Instead of pairs both
// sides may be fp32.
template <typename U>
inline void pair_product(const U* a, int64_t a_stride, int64_t step, int64_t rows, const U* b, int64_t b_stride,
                         int64_t width, int64_t count, float* out, int64_t stride, bool add) {
  int64_t d = 0;
  const auto columns = [&](auto n) {
    constexpr int N = decltype(n)::value;
    for (; d + N * LANES<float> <= width && (N != 3 || d + 4 * LANES<float> != width); d += N * LANES<float>) {
      int64_t i = 0;
      const auto tiles = [&](auto m) {
        for (constexpr int M = decltype(m)::value; i + M <= rows; i += M)
          pair_tile<M, N>(a + i * a_stride, a_stride, step, b + d, b_stride, count, out + i * stride + d, stride, add);
      };
      tiles(std::integral_constant<int, 4>{});
      tiles(std::integral_constant<int, 2>{});
      tiles(std::integral_constant<int, 1>{});
    }
  };
  columns(std::integral_constant<int, VECTOR_BYTES == 64 ? 4 : 3>{});  // there are half as many registers of 32 bytes
  columns(std::integral_constant<int, 2>{});
  columns(std::integral_constant<int, 1>{});
}

}  // namespace arcforge
