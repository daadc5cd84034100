// Products of few rows with weights of 8 and 4 bits, which are unpacked in registers.
//
// Activations are laid out once for all rows of weights: rounded to int8 beside weights that have one scale per row, so
// that all sums are of integers and exact, or as they are. T rows, K inputs, N outputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "few_rows.h"

namespace arcforge {

constexpr int64_t INT8_STEP = 64;    // columns of a step of eight bits
constexpr int64_t INT4_STEP = 128;   // of four, which are as many bytes
constexpr int64_t GROUP_STEP = 32;   // columns that have one scale at least
constexpr int64_t ROWS_AHEAD = 12;   // of weights that are asked for in advance

// A matrix [outputs, inputs] of integers. `groups` scales a row; activations are rounded where `rounds`.
struct QuantWeight {
  const uint8_t* values;
  const float* scale;
  int64_t inputs, outputs, groups, bits;
  bool rounds;
  int64_t row_bytes() const { return inputs * bits / 8; }
  int64_t step() const { return bits == 8 ? INT8_STEP : INT4_STEP; }
  int64_t steps() const { return (inputs + step() - 1) / step(); }
  QuantWeight part(int64_t matrix) const {
    return {values + matrix * outputs * row_bytes(), scale + matrix * outputs * groups, inputs, outputs, groups, bits, rounds};
  }
};

// Rows of activations as the products want them; made for weights of one width and kind.
struct Activations {
  int64_t steps, step;
  bool rounds;
  std::vector<int8_t> integers;  // [T, steps * step], of four bits the even columns of a step before the odd ones
  std::vector<float> wide;       // [T, steps * step], ordered as `place` says
  std::vector<float> scale;
  std::vector<int32_t> sum;

  Activations(const QuantWeight& w, int64_t rows) : steps(w.steps()), step(w.step()), rounds(w.rounds) {
    if (rounds) {
      integers.resize(rows * width());
      scale.resize(rows);
      sum.resize(rows);
    } else {
      wide.resize(rows * width());
    }
  }
  int64_t width() const { return steps * step; }
};

inline int64_t place_of_integer(int64_t column, int64_t step) {
  if (step == INT8_STEP) return column;
  const int64_t first = column / INT4_STEP * INT4_STEP, within = column % INT4_STEP;
  return first + within % 2 * (INT4_STEP / 2) + within / 2;
}

// Where there are vectors of 16 the eight halves of a word belong to eight vectors; else evens and odds of a group.
inline int64_t place_of_wide(int64_t column) {
#ifdef __AVX512F__
  const int64_t first = column / INT4_STEP * INT4_STEP, within = column % INT4_STEP;
  return first + within % 8 * 16 + within / 8;
#else
  const int64_t first = column / GROUP_STEP * GROUP_STEP, within = column % GROUP_STEP;
  return first + within % 2 * (GROUP_STEP / 2) + within / 2;
#endif
}

// Row r as int8 times a scale, as `quant.quantise` rounds it; a row with a non-finite value has a non-finite scale.
template <typename T>
void lay_integers(const T* x, int64_t columns, Activations& a, int64_t r) {
  float largest = 0.0f, poison = 0.0f;
#pragma omp simd reduction(max : largest) reduction(+ : poison)
  for (int64_t k = 0; k < columns; k++) {
    const float value = float(x[k]), size = std::fabs(value);
    largest = size > largest ? size : largest;
    poison += value * 0.0f;
  }
  const float scale = std::max(largest / 127.0f, std::numeric_limits<float>::min()) + poison;
  int8_t* to = &a.integers[r * a.width()];
  int32_t sum = 0;
  std::fill_n(to, a.width(), int8_t(0));
  int8_t rounded[INT4_STEP];
  for (int64_t first = 0; first < columns; first += INT4_STEP) {
    const int64_t count = std::min(INT4_STEP, columns - first);
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < count; k++) {
      const float value = std::nearbyint(float(x[first + k]) / scale);
      const int32_t integer = std::fabs(value) <= 127.0f ? int32_t(value) : 0;
      rounded[k] = int8_t(integer);
      sum += integer;
    }
    if (a.step == INT8_STEP)
      std::memcpy(to + first, rounded, count);
    else
      for (int64_t k = 0; k < count; k++) to[place_of_integer(first + k, a.step)] = rounded[k];
  }
  a.scale[r] = scale;
  a.sum[r] = sum;
}

// Lays out row r; rows may be laid out by different threads.
template <typename T>
void lay_row(const T* x, int64_t columns, Activations& a, int64_t r) {
  if (a.rounds) return lay_integers(x, columns, a, r);
  float* to = &a.wide[r * a.width()];
  std::fill_n(to, a.width(), 0.0f);
  for (int64_t k = 0; k < columns; k++) to[place_of_wide(k)] = float(x[k]);
}

// ---- sums of a row of weights ----------------------------------------------------------------------------------------

#ifdef __AVX512F__

inline __m512i bytes_of(const uint8_t* from, int64_t left) {
  if (left >= 64) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi8((1ull << left) - 1, from);
}

// The scales of a step of 128 columns, one for each word of eight.
inline __m512 scales_of(const float* scale, int64_t groups, int64_t group, int64_t step) {
  if (group != GROUP_STEP) return _mm512_set1_ps(scale[std::min(step * INT4_STEP / group, groups - 1)]);
  const int64_t first = step * 4, left = std::min<int64_t>(groups - first, 4);
  const __m512i words = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(words, _mm512_maskz_loadu_ps((1 << left) - 1, scale + first));
}

// out[i][j] = x[i] . w[j] for M rows of activations and N of four-bit weights: a lookup by the low half of each word,
// eight times shifted.
template <int M, int N>
inline void wide_tile(const float* x, int64_t stride, const QuantWeight& w, int64_t first, int64_t steps, float* out,
                      int64_t out_stride) {
  const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  const int64_t bytes = w.row_bytes(), group = w.inputs / w.groups;
  __m512 sum[M][N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) sum[i][j] = _mm512_setzero_ps();
  for (int64_t s = 0; s < steps; s++) {
    __m512i words[N];
    __m512 part[M][N];
    for (int j = 0; j < N; j++) words[j] = bytes_of(w.values + (first + j) * bytes + s * 64, bytes - s * 64);
    for (int half = 0; half < 8; half++) {
      __m512 value[N];
      for (int j = 0; j < N; j++) {
        value[j] = _mm512_permutexvar_ps(words[j], table);
        words[j] = _mm512_srli_epi32(words[j], 4);
      }
      for (int i = 0; i < M; i++) {
        const __m512 row = _mm512_loadu_ps(x + i * stride + s * INT4_STEP + half * 16);
        for (int j = 0; j < N; j++)
          part[i][j] = half ? _mm512_fmadd_ps(value[j], row, part[i][j]) : _mm512_mul_ps(value[j], row);
      }
    }
    for (int j = 0; j < N; j++) {
      const __m512 scale = scales_of(w.scale + (first + j) * w.groups, w.groups, group, s);
      for (int i = 0; i < M; i++) sum[i][j] = _mm512_fmadd_ps(part[i][j], scale, sum[i][j]);
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) out[i * out_stride + j] = sum_lanes<float>((Vector<float>)sum[i][j]);
}

#else

template <int M, int N>
inline void wide_tile(const float* x, int64_t stride, const QuantWeight& w, int64_t first, int64_t, float* out,
                      int64_t out_stride) {
  const int64_t bytes = w.row_bytes(), group = w.inputs / w.groups;
  for (int j = 0; j < N; j++) {
    const uint8_t* from = w.values + (first + j) * bytes;
    Vector<float> sum[M] = {};
    for (int64_t k = 0; k < w.inputs; k += GROUP_STEP) {
      float value[GROUP_STEP];
      for (int64_t n = 0; n < GROUP_STEP / 2; n++) {
        value[n] = float(int32_t((from[k / 2 + n] & 15) ^ 8) - 8);
        value[GROUP_STEP / 2 + n] = float(int32_t((from[k / 2 + n] >> 4) ^ 8) - 8);
      }
      const Vector<float> scale = w.scale[(first + j) * w.groups + k / group] - Vector<float>{};
      for (int i = 0; i < M; i++) {
        Vector<float> part = {};
        for (int64_t n = 0; n < GROUP_STEP; n += LANES<float>)
          part = fused<float>(load(value + n), load(x + i * stride + k + n), part);
        sum[i] = fused<float>(part, scale, sum[i]);
      }
    }
    for (int i = 0; i < M; i++) out[i * out_stride + j] = sum_lanes<float>(sum[i]);
  }
}

#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

// Sums of products of bytes need the weights without a sign: 128 or 8 is added to them, and so often the sum of the
// activations taken away.
template <int M, int N, int BITS>
inline void integer_tile(const int8_t* x, int64_t stride, const int32_t* x_sum, const QuantWeight& w, int64_t first,
                         int64_t steps, int32_t (*out)[N]) {
  const int64_t bytes = w.row_bytes();
  __m512i sum[M][N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) sum[i][j] = _mm512_setzero_si512();
  for (int64_t s = 0; s < steps; s++) {
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
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) out[i][j] = _mm512_reduce_add_epi32(sum[i][j]) - (BITS == 8 ? 128 : 8) * x_sum[i];
}

#else

template <int M, int N, int BITS>
inline void integer_tile(const int8_t* x, int64_t stride, const int32_t*, const QuantWeight& w, int64_t first, int64_t,
                         int32_t (*out)[N]) {
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

// out [M, N] of rows from `row` on, for the outputs from `first` on.
template <int M, int N>
inline void quant_tile(const Activations& a, int64_t row, const QuantWeight& w, int64_t first, float* out,
                       int64_t stride) {
  if (!a.rounds) return wide_tile<M, N>(&a.wide[row * a.width()], a.width(), w, first, a.steps, out, stride);
  int32_t sum[M][N];
  const auto tile = w.bits == 8 ? integer_tile<M, N, 8> : integer_tile<M, N, 4>;
  tile(&a.integers[row * a.width()], a.width(), &a.sum[row], w, first, a.steps, sum);
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) out[i * stride + j] = float(sum[i][j]) * a.scale[row + i] * w.scale[first + j];
}

template <int N>
inline void quant_rows(const Activations& a, int64_t row, int64_t rows, const QuantWeight& w, int64_t first, float* out,
                       int64_t stride) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) quant_tile<4, N>(a, row + i, w, first, out + i * stride, stride);
  for (; i < rows; i++) quant_tile<1, N>(a, row + i, w, first, out + i * stride, stride);
}

// out [rows, outputs first to first + count] of the activations' rows from `row` on.
inline void quant_block(const Activations& a, int64_t row, int64_t rows, const QuantWeight& w, int64_t first,
                        int64_t count, float* out, int64_t stride) {
  const int64_t bytes = w.row_bytes();
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    fetch(w.values + (first + j + ROWS_AHEAD) * bytes, 4 * bytes);
    quant_rows<4>(a, row, rows, w, first + j, out + j, stride);
  }
  for (; j < count; j++) quant_rows<1>(a, row, rows, w, first + j, out + j, stride);
}

// out [rows, N] = activations times weights turned; shares the threads of the region that it is called in.
inline void quant_part(const Activations& a, const QuantWeight& w, float* out, int64_t rows) {
#pragma omp for schedule(static) nowait
  for (int64_t first = 0; first < w.outputs; first += OUTPUTS)
    quant_block(a, 0, rows, w, first, std::min(OUTPUTS, w.outputs - first), out + first, w.outputs);
}

}  // namespace arcforge
