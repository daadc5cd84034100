// Products of small sets of rows, which is all that attention to gathered keys needs; computed in registers.
//
// Rows lie `stride` values apart and are padded with zeros to whole vectors, so that no loop has a tail. An element is
// summed in the same order whatever the number of rows, so results do not depend on how work is cut.
#pragma once

#include <algorithm>
#include <type_traits>

#include "rows.h"

namespace arcforge {

// Sums of a tile that fit the registers beside one side's values.
#ifdef __AVX512F__
constexpr int SUMS = 24;
#else
constexpr int SUMS = 12;
#endif

#ifdef __AVX512F__
// The lanes of four vectors, added as far as four of each are left; one vector's after another's.
inline __m512 fold_four(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
  const __m512 cd = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xee);
  return _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
}

// The first four rows' sums of N columns, in the order of `sum_lanes`; sixteen take as many operations as four one by one.
template <int M, int N>
[[gnu::always_inline]] inline void put_four_rows(const Vector<float> (&sum)[M][N], float* out, int64_t stride) {
  const auto column = [&](int j) __attribute__((always_inline)) {
    return fold_four((__m512)sum[0][j], (__m512)sum[1][j], (__m512)sum[2][j], (__m512)sum[3][j]);
  };
  const auto pair = [&](int j) __attribute__((always_inline)) {
    const __m512 a = column(j), b = column(j + 1);
    return _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
  };
  const __m512 left = pair(0), right = pair(2);
  const __m512 rows = _mm512_shuffle_ps(left, right, 0x44) + _mm512_shuffle_ps(left, right, 0xee);
  _mm_storeu_ps(out, _mm512_extractf32x4_ps(rows, 0));
  _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(rows, 1));
  _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(rows, 2));
  _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(rows, 3));
  if constexpr (N == 6) {
    const __m512 last = pair(4), both = last + _mm512_permute_ps(last, 0x4e);
    const auto put = [&](__m128 of_row, int i) { _mm_storel_pi(reinterpret_cast<__m64*>(out + i * stride + 4), of_row); };
    put(_mm512_extractf32x4_ps(both, 0), 0);
    put(_mm512_extractf32x4_ps(both, 1), 1);
    put(_mm512_extractf32x4_ps(both, 2), 2);
    put(_mm512_extractf32x4_ps(both, 3), 3);
  }
}
#elif defined(__AVX2__)
// The sums of four vectors' lanes, in the order of `sum_lanes`; four take fewer operations than two one by one.
inline __m128 sum_four(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
  const __m256 cd = _mm256_permute2f128_ps(c, d, 0x20) + _mm256_permute2f128_ps(c, d, 0x31);
  const __m256 two = _mm256_unpacklo_ps(ab, cd) + _mm256_unpackhi_ps(ab, cd);
  const __m256 one = two + _mm256_permute_ps(two, 0x4e);
  return _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
}

// Vector n of a tile's sums, counted row by row.
template <int n, int M, int N>
[[gnu::always_inline]] inline __m256 nth(const Vector<float> (&sum)[M][N]) {
  return (__m256)sum[n / N][n % N];
}
#endif

// out[i][j] = the sum of sum[i][j], in the order of `sum_lanes`.
template <typename A, int M, int N>
[[gnu::always_inline]] inline void put_sums(const Vector<A> (&sum)[M][N], A* out, int64_t stride) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<A, float> && (N == 4 || N == 6 || N == 8)) {
    constexpr int TURNED = M >= 4 && N < 8 ? 4 : 0, FOURS = N / 4;
    if constexpr (TURNED != 0) put_four_rows<M, N>(sum, out, stride);
    each<TURNED, M>([&](auto i) {
      each<0, FOURS>([&](auto f) {
        constexpr int j = 4 * decltype(f)::value;
        const __m512 four = fold_four((__m512)sum[i][j], (__m512)sum[i][j + 1], (__m512)sum[i][j + 2], (__m512)sum[i][j + 3]);
        const __m512 two = four + _mm512_permute_ps(four, 0x4e), one = two + _mm512_permute_ps(two, 0xb1);
        _mm_storeu_ps(out + i * stride + j, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)));
      });
      each<4 * FOURS, N>([&](auto j) { out[i * stride + j] = sum_lanes<A>(sum[i][j]); });
    });
    return;
  }
#elif defined(__AVX2__)
  if constexpr (std::is_same_v<A, float>) {
    constexpr int FOURS = M * N / 4;
    each<0, FOURS>([&](auto n) {
      constexpr int f = 4 * decltype(n)::value;
      const __m128 four = sum_four(nth<f>(sum), nth<f + 1>(sum), nth<f + 2>(sum), nth<f + 3>(sum));
      each<0, 4>([&](auto m) { out[(f + m) / N * stride + (f + m) % N] = four[int(m)]; });
    });
    each<4 * FOURS, M * N>([&](auto f) { out[f / N * stride + f % N] = sum_lanes<A>(sum[f / N][f % N]); });
    return;
  }
#endif
  each<0, M>([&](auto i) { each<0, N>([&](auto j) { out[i * stride + j] = sum_lanes<A>(sum[i][j]); }); });
}

constexpr int64_t BYTES_AHEAD = 16384;  // how far from what is computed with memory is asked for

// The same in rows.
template <typename A>
constexpr int64_t rows_ahead(int64_t width) {
  return std::max<int64_t>(4, BYTES_AHEAD / (width * int64_t(sizeof(A))));
}

// FETCH times as many values as a row has are asked for meanwhile, from `ahead` on: piece by piece, because many parallel
// requests stall the processor, and in the order of memory, which its own prefetcher recognises. Into the second cache,
// for which more requests can wait than for the first.
//
// A function of its own: inlined into loops over tiles, GCC 12 keeps the sums in memory, at a third of the speed.
template <int M, int N, int FETCH, typename A>
[[gnu::noinline]] void dot_tile(const A* a, int64_t a_stride, const A* b, int64_t b_stride, int64_t width, A* out,
                                int64_t stride, const A* ahead) {
  Vector<A> sum[M][N] = {};
  for (int64_t d = 0; d < width; d += LANES<A>) {
    for (int f = 0; f < FETCH; f += IN_A_LINE) __builtin_prefetch(ahead + FETCH * d + f * LANES<A>, 0, 2);
    Vector<A> right[N];
    each<0, N>([&](auto j) { right[j] = keep<A>(load(b + j * b_stride + d)); });
    each<0, M>([&](auto i) {
      const Vector<A> left = keep<A>(load(a + i * a_stride + d));
      each<0, N>([&](auto j) { sum[i][j] = fused<A>(left, right[j], sum[i][j]); });
    });
  }
  put_sums<A, M, N>(sum, out, stride);
}

// Rows of a, times rows of b as columns; rows of out lie `stride` apart. From `ahead` on
// as many values are asked for as b's rows have, which lie one after another there, or with `half` the first half of them.
template <typename T, typename O>
struct Product {
  const T* a;
  int64_t a_stride, rows;
  const T* b;
  int64_t b_stride, columns, width;
  O* out;
  int64_t stride;
  const T* ahead;
  bool half = false;
  int64_t asked(int64_t columns) const { return half ? (columns + 1) / 2 : columns; }
};

// N columns from j on, their rows in tiles of M, each as often as it fits; the first tiles ask for EACH rows in advance.
template <int N, int EACH, int... M, typename T, typename O>
inline void dot_panel(const Product<T, O>& p, int64_t j) {
  const T *b = p.b + j * p.b_stride, *ahead = EACH ? p.ahead + p.asked(j) * p.width : nullptr;
  int64_t i = 0, missing = EACH ? p.asked(j + N) - p.asked(j) : 0;
  const auto tiles = [&](auto m) {
    constexpr int rows = decltype(m)::value;
    for (; i + rows <= p.rows; i += rows) {
      const T* a = p.a + i * p.a_stride;
      O* out = p.out + i * p.stride + j;
      if (missing > 0) {
        dot_tile<rows, N, EACH>(a, p.a_stride, b, p.b_stride, p.width, out, p.stride, ahead);
        missing -= EACH;
        ahead += EACH * p.width;
      } else {
        dot_tile<rows, N, 0>(a, p.a_stride, b, p.b_stride, p.width, out, p.stride, ahead);
      }
    }
  };
  (tiles(std::integral_constant<int, M>{}), ...);
}

// As many columns from j on as there are in whole panels of N; returns the first of the others.
template <int N, int M, int... LESS, typename T, typename O>
inline int64_t dot_columns(const Product<T, O>& p, int64_t j) {
  const auto panels = [&](auto each) {
    for (; j + N <= p.columns; j += N) dot_panel<N, decltype(each)::value, M, LESS...>(p, j);
  };
  if (!p.ahead)
    panels(std::integral_constant<int, 0>{});
  else if (p.rows < 2 * M && !p.half)
    panels(std::integral_constant<int, N>{});
  else if (p.rows < 4 * M)
    panels(std::integral_constant<int, (N + 1) / 2>{});
  else
    panels(std::integral_constant<int, (N + 3) / 4>{});
  return j;
}

// Six rows are one tile of as many sums as the usual two of four and two, and wait less for each other; likewise three.
inline bool in_sixes(int64_t rows) { return rows % 6 == 0 && rows % 4 != 0; }
inline bool in_threes(int64_t rows) { return rows == 3 || rows == 9; }

// out[i][j] = a[i] . b[j] for `rows` rows of a and `columns` rows of b; width is a whole number of vectors. Where b comes
// from memory, `ahead` is where rows lie that are needed next, of which with `half` only the first half is asked for.
template <typename A>
inline void dot_rows(const A* a, int64_t a_stride, int64_t rows, const A* b, int64_t b_stride, int64_t columns,
                     int64_t width, A* out, int64_t stride, const A* ahead = nullptr, bool half = false) {
  const Product<A, A> p{a, a_stride, rows, b, b_stride, columns, width, out, stride, ahead, half};
  if (in_sixes(rows)) {
    dot_columns<1, 6>(p, dot_columns<SUMS / 6, 6>(p, 0));
    return;
  }
  if (in_threes(rows)) {
    dot_columns<1, 3>(p, dot_columns<SUMS / 6, 3>(p, dot_columns<SUMS / 3, 3>(p, 0)));
    return;
  }
  int64_t j = dot_columns<SUMS / 4, 4, 2, 1>(p, 0);
  if constexpr (SUMS / 4 > 3) j = dot_columns<3, 4, 2, 1>(p, j);
  dot_columns<1, 4, 2, 1>(p, j);
}

// Memory that sums ask for meanwhile, piece by piece.
struct Meanwhile {
  const char* from = nullptr;
  int64_t bytes = 0;
};

// With FETCH `share` bytes from `ahead` on are asked for, evenly over the steps.
template <typename A, int M, int N, bool FETCH, typename T>
[[gnu::noinline]] void add_tile(const A* weight, int64_t weight_stride, int64_t step, const T* b, int64_t b_stride,
                                int64_t count, A* const* out, bool add, const char* ahead, int64_t share) {
  Vector<A> sum[M][N] = {};
  if (add) each<0, M>([&](auto i) { each<0, N>([&](auto j) { sum[i][j] = load(out[i] + j * LANES<A>); }); });
  int64_t asked = 0;
  for (int64_t k = 0; k < count; k++) {
    if constexpr (FETCH)
      for (; asked * count < share * (k + 1); asked += 64) __builtin_prefetch(ahead + asked, 0, 2);
    Vector<A> right[N];
    each<0, N>([&](auto j) { right[j] = keep<A>(load_wide(b + k * b_stride + j * LANES<A>)); });
    each<0, M>([&](auto i) {
      const Vector<A> w = weight[i * weight_stride + k * step] - Vector<A>{};
      each<0, N>([&](auto j) { sum[i][j] = fused<A>(w, right[j], sum[i][j]); });
    });
  }
  each<0, M>([&](auto i) { each<0, N>([&](auto j) { store<A>(out[i] + j * LANES<A>, sum[i][j]); }); });
}

// out[i] (+)= sum over k of weight[i * weight_stride + k * step] * b[k] for M rows whose places are given.
template <typename A, int M, bool FETCH, typename T>
inline void add_panel(const A* weight, int64_t weight_stride, int64_t step, const T* b, int64_t b_stride, int64_t count,
                      int64_t width, A* const* out, bool add, Meanwhile next) {
  const auto tile = [&](auto n, int64_t d) {
    constexpr int N = decltype(n)::value;
    const int64_t share = FETCH ? next.bytes * N * LANES<A> / width : 0;
    A* at[M];
    for (int i = 0; i < M; i++) at[i] = out[i] + d;
    add_tile<A, M, N, FETCH>(weight, weight_stride, step, b + d, b_stride, count, at, add, next.from, share);
    next.from += share;
  };
  int64_t d = 0;
  if constexpr (M <= 4 && 4 * M + 4 < SUMS)
    for (; d + 4 * LANES<A> <= width && d + 5 * LANES<A> != width; d += 4 * LANES<A>)
      tile(std::integral_constant<int, 4>{}, d);
  if constexpr (M <= 4)
    for (; d + 3 * LANES<A> <= width && d + 4 * LANES<A> != width; d += 3 * LANES<A>)
      tile(std::integral_constant<int, 3>{}, d);
  for (; d + 2 * LANES<A> <= width; d += 2 * LANES<A>) tile(std::integral_constant<int, 2>{}, d);
  for (; d < width; d += LANES<A>) tile(std::integral_constant<int, 1>{}, d);
}

template <typename A, typename T>
inline void add_rows(const A* weight, int64_t weight_stride, int64_t step, const T* b, int64_t b_stride, int64_t count,
                     int64_t width, A* const* out, int64_t rows, bool add = true, Meanwhile next = {}) {
  int64_t i = 0;
  const auto panels = [&](auto m) {
    for (constexpr int M = decltype(m)::value; i + M <= rows; i += M) {
      const A* w = weight + i * weight_stride;
      if (next.bytes)
        add_panel<A, M, true>(w, weight_stride, step, b, b_stride, count, width, out + i, add,
                              {next.from + next.bytes * i / rows, next.bytes * M / rows});
      else
        add_panel<A, M, false>(w, weight_stride, step, b, b_stride, count, width, out + i, add, {});
    }
  };
  if (in_sixes(rows)) panels(std::integral_constant<int, 6>{});
  if (in_threes(rows)) panels(std::integral_constant<int, 3>{});
  panels(std::integral_constant<int, 4>{});
  panels(std::integral_constant<int, 2>{});
  panels(std::integral_constant<int, 1>{});
}

}  // namespace arcforge
