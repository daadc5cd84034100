// Products of small sets of rows, which is all that attention to gathered keys needs; computed in registers.
//
// Rows lie `stride` values apart and are padded with zeros to whole vectors, so that no loop has a tail. An element is
// summed in the same order whatever the number of rows, so results do not depend on how work is cut.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace arcforge {

#ifdef __AVX512F__
constexpr int64_t VECTOR_BYTES = 64;
#else
constexpr int64_t VECTOR_BYTES = 32;  // the compiler makes two of it where vectors have 16
#endif
constexpr int IN_A_LINE = 64 / VECTOR_BYTES;  // vectors that the cache reads together

template <typename A>
using Vector __attribute__((vector_size(VECTOR_BYTES))) = A;

template <typename A>
constexpr int64_t LANES = VECTOR_BYTES / sizeof(A);

template <typename A>
inline Vector<A> load(const A* from) {
  Vector<A> x;
  std::memcpy(&x, from, VECTOR_BYTES);
  return x;
}

template <typename A>
inline void store(A* to, Vector<A> x) {
  std::memcpy(to, &x, VECTOR_BYTES);
}

// a * b + c, rounded once in every tile: left to itself the compiler fuses in some and not in others.
template <typename A>
inline Vector<A> fused(Vector<A> a, Vector<A> b, Vector<A> c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(A) == 4) return (Vector<A>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  if constexpr (sizeof(A) == 8) return (Vector<A>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
  if constexpr (sizeof(A) == 4) return (Vector<A>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  if constexpr (sizeof(A) == 8) return (Vector<A>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#endif
  return a * b + c;
}

// Has a vector stay in its register: the compiler would read it again for each product, and a core multiplies as many
// vectors at a time as it reads.
template <typename A>
inline void keep(Vector<A>& x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__AVX__)
  asm("" : "+x"(x));
#endif
}

// max(x, 0), and zero for NaN.
inline Vector<float> positive(Vector<float> x) {
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_max_ps((__m512)x, _mm512_setzero_ps());
#elif defined(__FMA__)
  return (Vector<float>)_mm256_max_ps((__m256)x, _mm256_setzero_ps());
#else
  return x > 0.0f ? x : Vector<float>{};
#endif
}

template <typename A>
constexpr int64_t padded(int64_t n) {
  return (n + LANES<A> - 1) / LANES<A> * LANES<A>;
}

// A 16-bit float with fp32's exponent, as torch.bfloat16 stores it.
struct BFloat16 {
  uint16_t bits;
  explicit operator float() const {
    const uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
};

inline void narrow(float x, float* to) { *to = x; }
inline void narrow(double x, double* to) { *to = x; }
inline void narrow(float x, BFloat16* to) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  to->bits = std::isnan(x) ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline Vector<float> load_wide(const float* from) { return load(from); }
inline Vector<double> load_wide(const double* from) { return load(from); }
inline Vector<float> load_wide(const BFloat16* from) {
  uint16_t __attribute__((vector_size(VECTOR_BYTES / 2))) bits;
  uint32_t __attribute__((vector_size(VECTOR_BYTES))) wide;
  std::memcpy(&bits, from, VECTOR_BYTES / 2);
  wide = __builtin_convertvector(bits, decltype(wide)) << 16;
  return (Vector<float>)wide;
}

template <typename T, typename A>
inline void widen_row(const T* from, int64_t width, A scale, A* to) {
  for (int64_t n = 0; n < width; n++) to[n] = scale * static_cast<A>(from[n]);
  for (int64_t n = width; n < padded<A>(width); n++) to[n] = A(0);
}

template <typename T, typename A>
inline void narrow_row(const A* from, int64_t width, T* to) {
  for (int64_t n = 0; n < width; n++) narrow(from[n], to + n);
}

// Rows of a segment's keys: one after another, or in pages of `size` rows, whose numbers are listed.
template <typename T>
struct Keys {
  const T* rows;
  int64_t first, width;  // row of the first key where there are no pages, values of a row
  const int64_t* pages;  // nullptr where there are none
  int64_t size;
  int64_t row(int64_t key) const { return pages ? pages[key / size] * size + key % size : first + key; }
  const T* at(int64_t key) const { return rows + row(key) * width; }
  // How many of the `most` keys from this one on lie one after another.
  int64_t run(int64_t key, int64_t most) const { return pages ? std::min(most, size - key % size) : most; }
};

// The page tables of all segments [N, each], of none when `pages` is nullptr.
struct Pages {
  const int64_t* pages;
  int64_t each, size;
  template <typename T>
  Keys<T> keys_of(int64_t segment, const T* rows, int64_t first, int64_t width) const {
    return {rows, first, width, pages ? pages + segment * each : nullptr, size};
  }
};

// e to the x for x <= 0, within 2 units in the last place.
inline float exp_of(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float turns = std::nearbyint(x * 1.44269504f);
  const float r = (x - turns * 0.693359375f) + turns * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (int32_t(turns) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return p * power;
}
inline double exp_of(double x) { return std::exp(x); }

template <typename A, int BYTES>
using VectorOf __attribute__((vector_size(BYTES))) = A;

// The lower and the upper half of a vector, added. By instructions where there are some: halves that are read from
// memory would keep the whole vector there, with a store after each product.
template <typename A, int BYTES>
inline VectorOf<A, BYTES / 2> fold(VectorOf<A, BYTES> x) {
  using Half = VectorOf<A, BYTES / 2>;
#ifdef __AVX512F__
  if constexpr (BYTES == 64) {
    const __m512d all = (__m512d)x;
    return (Half)_mm512_castpd512_pd256(all) + (Half)_mm512_extractf64x4_pd(all, 1);
  }
#endif
#ifdef __AVX__
  if constexpr (BYTES == 32) {
    const __m256d all = (__m256d)x;
    return (Half)_mm256_castpd256_pd128(all) + (Half)_mm256_extractf128_pd(all, 1);
  }
#endif
  Half low, high;
  std::memcpy(&low, &x, BYTES / 2);
  std::memcpy(&high, reinterpret_cast<const char*>(&x) + BYTES / 2, BYTES / 2);
  return low + high;
}

inline float sum_of(VectorOf<float, 16> x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline double sum_of(VectorOf<double, 16> x) { return x[0] + x[1]; }

template <typename A>
inline A sum_lanes(Vector<A> x) {
#ifdef __AVX512F__
  return sum_of(fold<A, 32>(fold<A, 64>(x)));
#else
  return sum_of(fold<A, 32>(x));
#endif
}

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
inline void put_four_rows(const Vector<float> (&sum)[M][N], float* out, int64_t stride) {
  __m512 column[N];
  for (int j = 0; j < N; j++)
    column[j] = fold_four((__m512)sum[0][j], (__m512)sum[1][j], (__m512)sum[2][j], (__m512)sum[3][j]);
  const auto pair = [&](int j) {
    return _mm512_unpacklo_ps(column[j], column[j + 1]) + _mm512_unpackhi_ps(column[j], column[j + 1]);
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
#endif

// out[i][j] = the sum of sum[i][j], in the order of `sum_lanes`.
template <typename A, int M, int N>
inline void put_sums(const Vector<A> (&sum)[M][N], A* out, int64_t stride) {
  int row = 0;
#ifdef __AVX512F__
  if constexpr (std::is_same_v<A, float> && (N == 4 || N == 6)) {
    if constexpr (M >= 4) {
      put_four_rows<M, N>(sum, out, stride);
      row = 4;
    }
    for (; row < M; row++) {
      const auto at = [&](int j) { return (__m512)sum[row][j]; };
      const __m512 four = fold_four(at(0), at(1), at(2), at(3));
      const __m512 two = four + _mm512_permute_ps(four, 0x4e), one = two + _mm512_permute_ps(two, 0xb1);
      _mm_storeu_ps(out + row * stride, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)));
      for (int j = 4; j < N; j++) out[row * stride + j] = sum_lanes<A>(sum[row][j]);
    }
  }
#endif
  for (; row < M; row++)
    for (int j = 0; j < N; j++) out[row * stride + j] = sum_lanes<A>(sum[row][j]);
}

constexpr int64_t BYTES_AHEAD = 16384;  // how far from what is computed with memory is asked for

// The same in rows.
template <typename A>
constexpr int64_t rows_ahead(int64_t width) {
  return std::max<int64_t>(4, BYTES_AHEAD / (width * int64_t(sizeof(A))));
}

template <typename A>
inline void fetch(const A* from, int64_t values) {
  for (int64_t n = 0; n < values; n += 64 / sizeof(A)) __builtin_prefetch(from + n);
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
    for (int j = 0; j < N; j++) keep<A>(right[j] = load(b + j * b_stride + d));
    for (int i = 0; i < M; i++) {
      const Vector<A> left = load(a + i * a_stride + d);
      for (int j = 0; j < N; j++) sum[i][j] = fused<A>(left, right[j], sum[i][j]);
    }
  }
  put_sums<A, M, N>(sum, out, stride);
}

// Rows of a, times rows of b as columns; rows of out lie `stride` apart. With `ahead`, b's rows lie one after another, and
// as many are asked for from there on.
template <typename T, typename O>
struct Product {
  const T* a;
  int64_t a_stride, rows;
  const T* b;
  int64_t b_stride, columns, width;
  O* out;
  int64_t stride;
  const T* ahead;
};

// N columns from j on, their rows in tiles of M, each as often as it fits; the first tiles ask for EACH rows in advance.
template <int N, int EACH, int... M, typename T, typename O>
inline void dot_panel(const Product<T, O>& p, int64_t j) {
  const T *b = p.b + j * p.b_stride, *ahead = EACH ? p.ahead + j * p.b_stride : nullptr;
  int64_t i = 0;
  int asked = EACH ? 0 : N;
  const auto tiles = [&](auto m) {
    constexpr int rows = decltype(m)::value;
    for (; i + rows <= p.rows; i += rows) {
      const T* a = p.a + i * p.a_stride;
      O* out = p.out + i * p.stride + j;
      if (asked < N) {
        dot_tile<rows, N, EACH>(a, p.a_stride, b, p.b_stride, p.width, out, p.stride, ahead);
        asked += EACH;
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
  else if (p.rows < 2 * M)
    panels(std::integral_constant<int, N>{});
  else if (p.rows < 4 * M)
    panels(std::integral_constant<int, (N + 1) / 2>{});
  else
    panels(std::integral_constant<int, (N + 3) / 4>{});
  return j;
}

// Six rows are one tile of as many sums as the usual two of four and two, and wait less for each other.
inline bool in_sixes(int64_t rows) { return rows % 6 == 0 && rows % 4 != 0; }

// out[i][j] = a[i] . b[j] for `rows` rows of a and `columns` rows of b; width is a whole number of vectors. Where b comes
// from memory, `ahead` is where the rows lie that are needed next.
template <typename A>
inline void dot_rows(const A* a, int64_t a_stride, int64_t rows, const A* b, int64_t b_stride, int64_t columns,
                     int64_t width, A* out, int64_t stride, const A* ahead = nullptr) {
  const Product<A, A> p{a, a_stride, rows, b, b_stride, columns, width, out, stride, ahead};
  if (in_sixes(rows)) {
    dot_columns<1, 6>(p, dot_columns<SUMS / 6, 6>(p, 0));
    return;
  }
  int64_t j = dot_columns<SUMS / 4, 4, 2, 1>(p, 0);
  if constexpr (SUMS / 4 > 3) j = dot_columns<3, 4, 2, 1>(p, j);
  dot_columns<1, 4, 2, 1>(p, j);
}

template <typename A, int M, int N, typename T>
[[gnu::noinline]] void add_tile(const A* weight, int64_t weight_stride, int64_t step, const T* b, int64_t b_stride,
                                int64_t count, A* const* out) {
  Vector<A> sum[M][N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) sum[i][j] = load(out[i] + j * LANES<A>);
  for (int64_t k = 0; k < count; k++) {
    Vector<A> right[N];
    for (int j = 0; j < N; j++) keep<A>(right[j] = load_wide(b + k * b_stride + j * LANES<A>));
    for (int i = 0; i < M; i++) {
      const Vector<A> w = weight[i * weight_stride + k * step] - Vector<A>{};
      for (int j = 0; j < N; j++) sum[i][j] = fused<A>(w, right[j], sum[i][j]);
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) store<A>(out[i] + j * LANES<A>, sum[i][j]);
}

// out[i] += sum over k of weight[i * weight_stride + k * step] * b[k] for M rows whose places are given.
template <typename A, int M, typename T>
inline void add_panel(const A* weight, int64_t weight_stride, int64_t step, const T* b, int64_t b_stride, int64_t count,
                      int64_t width, A* const* out) {
  const auto tile = [&](auto n, int64_t d) {
    A* at[M];
    for (int i = 0; i < M; i++) at[i] = out[i] + d;
    add_tile<A, M, decltype(n)::value>(weight, weight_stride, step, b + d, b_stride, count, at);
  };
  int64_t d = 0;
  if constexpr (M <= 4)
    for (; d + 3 * LANES<A> <= width && d + 4 * LANES<A> != width; d += 3 * LANES<A>)
      tile(std::integral_constant<int, 3>{}, d);
  for (; d + 2 * LANES<A> <= width; d += 2 * LANES<A>) tile(std::integral_constant<int, 2>{}, d);
  for (; d < width; d += LANES<A>) tile(std::integral_constant<int, 1>{}, d);
}

template <typename A, typename T>
inline void add_rows(const A* weight, int64_t weight_stride, int64_t step, const T* b, int64_t b_stride, int64_t count,
                     int64_t width, A* const* out, int64_t rows) {
  int64_t i = 0;
  const auto panels = [&](auto m) {
    for (constexpr int M = decltype(m)::value; i + M <= rows; i += M)
      add_panel<A, M>(weight + i * weight_stride, weight_stride, step, b, b_stride, count, width, out + i);
  };
  if (in_sixes(rows)) panels(std::integral_constant<int, 6>{});
  panels(std::integral_constant<int, 4>{});
  panels(std::integral_constant<int, 2>{});
  panels(std::integral_constant<int, 1>{});
}

}  // namespace arcforge
