// Exact sums of products of bytes: out[i][j] = x[i] . w[j] for M rows of activations, rounded to int8, and N of weights
// of 8 or 4 bits that are unpacked in registers.
#pragma once

#include "quant.h"

namespace arcforge {

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

// Sums of products of bytes need the weights without a sign: 128 or 8 is added to them, and so often the sum of the
// activations taken away.
template <int M, int N, int BITS>
inline void integer_tile(const int8_t* x, int64_t stride, const int32_t* x_sum, const QuantWeight& w, int64_t first,
                         int64_t steps, int32_t (*out)[N], const uint8_t* ahead) {
  const int64_t bytes = w.row_bytes();
  __m512i sum[M][N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) sum[i][j] = _mm512_setzero_si512();
  for (int64_t s = 0; s < steps; s++) {
    ask(ahead, s, N);
    __m512i words[N];
    for (int j = 0; j < N; j++)
      words[j] = _mm512_xor_si512(bytes_of(w.values + (first + j) * bytes + s * 64, bytes - s * 64),
                                  _mm512_set1_epi8(BITS == 8 ? char(0x80) : char(0x88)));
    for (int i = 0; i < M; i++) {
      const int8_t* row = x + i * stride + s * (BITS == 8 ? INT8_STEP : INT4_STEP);
      const __m512i low = _mm512_loadu_si512(row);
      if constexpr (BITS == 8) {
        for (int j = 0; j < N; j++) sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], words[j], low);
      } else {
        const __m512i high = _mm512_loadu_si512(row + 64), mask = _mm512_set1_epi8(15);
        for (int j = 0; j < N; j++) {
          sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], _mm512_and_si512(words[j], mask), low);
          sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], _mm512_and_si512(_mm512_srli_epi16(words[j], 4), mask), high);
        }
      }
    }
  }
  each<0, M>([&](auto i) {
    each<0, N>([&](auto j) {
      out[i][j] = _mm512_reduce_add_epi32(sum[i][j]) - (BITS == 8 ? 128 : 8) * x_sum[i];
    });
  });
}

#elif defined(__AVX2__)

// Instructions multiply bytes without a sign by bytes with one and add pairs of products in 16 bits. Of eight bits the
// sign of the weight moves to the activation: 2 * 128 * 127 fits. Of four bits 8 is added to the weights, as above, and
// eight products of at most 15 * 127 fit.

inline __m256i vector_of(const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// 32 bytes of weights, of which `left` are in the row; zeros follow.
inline __m256i weights_of(const uint8_t* from, int64_t left) {
  int8_t part[32] = {};
  if (left >= 32) return vector_of(reinterpret_cast<const int8_t*>(from));
  if (left > 0) std::memcpy(part, from, left);
  return vector_of(part);
}

// The lanes of each of four vectors, added.
inline __m128i sums_of(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

// What one vector of weights adds to M rows of sums; x from its first column on.
template <int M, int N>
inline void add_int8(const int8_t* x, int64_t stride, const __m256i (&weight)[N], __m256i (&sum)[M][N]) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i size[N];
  for (int j = 0; j < N; j++) size[j] = _mm256_abs_epi8(weight[j]);
  for (int i = 0; i < M; i++) {
    const __m256i row = vector_of(x + i * stride);
    for (int j = 0; j < N; j++) {
      const __m256i pairs = _mm256_maddubs_epi16(size[j], _mm256_sign_epi8(row, weight[j]));
      sum[i][j] = _mm256_add_epi32(sum[i][j], _mm256_madd_epi16(pairs, ones));
    }
  }
}

// The same of the two vectors of a step of four bits.
template <int M, int N>
inline void add_int4(const int8_t* x, int64_t stride, const __m256i (&left)[N], const __m256i (&right)[N],
                     __m256i (&sum)[M][N]) {
  const __m256i ones = _mm256_set1_epi16(1), mask = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(char(0x88));
  for (int j = 0; j < N; j++) {
    const __m256i a = _mm256_xor_si256(left[j], eight), b = _mm256_xor_si256(right[j], eight);
    const __m256i low[2] = {_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)};
    const __m256i high[2] = {_mm256_and_si256(_mm256_srli_epi16(a, 4), mask),
                             _mm256_and_si256(_mm256_srli_epi16(b, 4), mask)};
    for (int i = 0; i < M; i++) {
      const int8_t* row = x + i * stride;
      const __m256i even = _mm256_add_epi16(_mm256_maddubs_epi16(low[0], vector_of(row)),
                                            _mm256_maddubs_epi16(low[1], vector_of(row + 32)));
      const __m256i odd = _mm256_add_epi16(_mm256_maddubs_epi16(high[0], vector_of(row + 64)),
                                           _mm256_maddubs_epi16(high[1], vector_of(row + 96)));
      sum[i][j] = _mm256_add_epi32(sum[i][j], _mm256_madd_epi16(_mm256_add_epi16(even, odd), ones));
    }
  }
}

// out[i * out_stride + j] for N rows of weights, as many as registers have room for.
template <int M, int N, int BITS>
inline void integer_sums(const int8_t* x, int64_t stride, const int32_t* x_sum, const uint8_t* weight, int64_t bytes,
                         int32_t* out, int64_t out_stride, const uint8_t* ahead) {
  static_assert(M * N % 4 == 0 || M * N < 4);
  __m256i sum[M][N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) sum[i][j] = _mm256_setzero_si256();
  constexpr int64_t STEP = BITS == 8 ? 32 : 64;
  const auto step = [&](int64_t k, auto load) {
    ask(ahead, k / STEP, (N * STEP + 63) / 64);
    __m256i first[N], second[N];
    for (int j = 0; j < N; j++) first[j] = load(weight + j * bytes + k, bytes - k);
    if constexpr (BITS == 8) {
      add_int8<M, N>(x + k, stride, first, sum);
    } else {
      for (int j = 0; j < N; j++) second[j] = load(weight + j * bytes + k + 32, bytes - k - 32);
      add_int4<M, N>(x + 2 * k, stride, first, second, sum);
    }
  };
  int64_t k = 0;
  for (; k + STEP <= bytes; k += STEP)
    step(k, [](const uint8_t* from, int64_t) { return vector_of(reinterpret_cast<const int8_t*>(from)); });
  if (k < bytes) step(k, weights_of);
  constexpr int COUNT = M * N;
  const __m256i* all = &sum[0][0];
  int32_t total[(COUNT + 3) / 4 * 4];
  for (int n = 0; n < COUNT; n += 4) {
    const auto at = [&](int m) { return m < COUNT ? all[m] : _mm256_setzero_si256(); };
    _mm_storeu_si128(reinterpret_cast<__m128i*>(total + n), sums_of(at(n), at(n + 1), at(n + 2), at(n + 3)));
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) out[i * out_stride + j] = total[i * N + j] - (BITS == 8 ? 0 : 8 * x_sum[i]);
}

template <int M, int N, int BITS>
inline void integer_tile(const int8_t* x, int64_t stride, const int32_t* x_sum, const QuantWeight& w, int64_t first,
                         int64_t, int32_t (*out)[N], const uint8_t* ahead) {
  constexpr int PART = std::min(N, M == 1 ? 4 : BITS == 8 ? 2 : 1);
  const int64_t bytes = w.row_bytes();
  for (int j = 0; j < N; j += PART)
    integer_sums<M, PART, BITS>(x, stride, x_sum, w.values + (first + j) * bytes, bytes, &out[0][j], N,
                                ahead ? ahead + j * bytes : nullptr);
}

#else

template <int M, int N, int BITS>
inline void integer_tile(const int8_t* x, int64_t stride, const int32_t*, const QuantWeight& w, int64_t first, int64_t,
                         int32_t (*out)[N], const uint8_t*) {
  for (int j = 0; j < N; j++) {
    const uint8_t* from = w.values + (first + j) * w.row_bytes();
    for (int i = 0; i < M; i++) {
      const int8_t* row = x + i * stride;
      int32_t sum = 0;
      if constexpr (BITS == 8) {
        const int8_t* value = reinterpret_cast<const int8_t*>(from);
        for (int64_t k = 0; k < w.inputs; k++) sum += int32_t(value[k]) * int32_t(row[k]);
      } else {
        for (int64_t k = 0; k < w.inputs; k += INT4_STEP) {
          const int64_t count = std::min(INT4_STEP, w.inputs - k) / 2;
          for (int64_t n = 0; n < count; n++) {
            const uint8_t pair = from[k / 2 + n];
            sum += (int32_t((pair & 15) ^ 8) - 8) * int32_t(row[k + n]);
            sum += (int32_t((pair >> 4) ^ 8) - 8) * int32_t(row[k + INT4_STEP / 2 + n]);
          }
        }
      }
      out[i][j] = sum;
    }
  }
}

#endif

}  // namespace arcforge
