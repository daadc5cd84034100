// Products of activations as they are with weights of 4 bits in groups, which are unpacked in registers:
// out[i][j] = x[i] . w[j] for M rows of activations and N of weights. A row has the same bits for any number of rows.
#pragma once

#include "quant.h"

namespace arcforge {

#ifdef __AVX512F__

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
                      int64_t out_stride, const uint8_t* ahead) {
  const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  const int64_t bytes = w.row_bytes(), group = w.inputs / w.groups;
  __m512 sum[M][N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) sum[i][j] = _mm512_setzero_ps();
  for (int64_t s = 0; s < steps; s++) {
    if constexpr (M < 4) ask(ahead, s, N);  // four rows fill the registers
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

constexpr int64_t WIDENED_ROWS = 3;  // from which weights are widened in memory, once for all rows
constexpr int64_t PANEL = 12;        // rows of weights widened at a time

using SignedWords = VectorOf<int32_t, VECTOR_BYTES>;
static_assert(WORDS_STEP == 2 * GROUP_STEP);

// The halves of a step of 64 columns, eight in each word; zeros follow the last of a row.
inline SignedWords words_of(const uint8_t* from, int64_t left) {
  SignedWords words = {};
  if (left >= VECTOR_BYTES)
    std::memcpy(&words, from, VECTOR_BYTES);
  else
    std::memcpy(&words, from, VECTOR_BYTES / 2);
  return words;
}

// The scales of a step, one for each word.
inline Vector<float> scales_of(const float* scale, int64_t groups, int64_t group, int64_t column) {
  if (group != GROUP_STEP) return scale[column / group] - Vector<float>{};
  const int64_t first = column / GROUP_STEP;
  const float low = scale[first], high = scale[std::min(first + 1, groups - 1)];
  return Vector<float>{low, low, low, low, high, high, high, high};
}

// The weights of a step in the order of `lay_words`, one vector after another.
template <typename F>
inline void each_half(SignedWords words, Vector<float> scale, F use) {
  const auto half = [&](auto n) {
    use(n.value, __builtin_convertvector((words << (28 - 4 * n.value)) >> 28, Vector<float>) * scale);
  };
  half(std::integral_constant<int, 0>{});
  half(std::integral_constant<int, 1>{});
  half(std::integral_constant<int, 2>{});
  half(std::integral_constant<int, 3>{});
  half(std::integral_constant<int, 4>{});
  half(std::integral_constant<int, 5>{});
  half(std::integral_constant<int, 6>{});
  half(std::integral_constant<int, 7>{});
}

template <int M, int N>
inline void wide_tile(const float* x, int64_t stride, const QuantWeight& w, int64_t first, int64_t, float* out,
                      int64_t out_stride, const uint8_t* ahead) {
  const int64_t bytes = w.row_bytes(), group = w.inputs / w.groups;
  Vector<float> sum[M][N] = {};
  for (int64_t k = 0; k < w.inputs; k += WORDS_STEP) {
    ask(ahead, k / WORDS_STEP, (N * WORDS_STEP / 2 + 63) / 64);
    for (int j = 0; j < N; j++) {
      const Vector<float> scale = scales_of(w.scale + (first + j) * w.groups, w.groups, group, k);
      each_half(words_of(w.values + (first + j) * bytes + k / 2, bytes - k / 2), scale, [&](int half, Vector<float> value) {
        for (int i = 0; i < M; i++)
          sum[i][j] = fused<float>(load(x + i * stride + k + half * LANES<float>), value, sum[i][j]);
      });
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) out[i * out_stride + j] = sum_lanes<float>(sum[i][j]);
}

// The same of more rows, in the same order of sums: weights are widened once, to memory that the cache holds.
inline void widened_block(const float* x, int64_t stride, int64_t rows, const QuantWeight& w, int64_t first,
                          int64_t count, float* out, int64_t out_stride) {
  static thread_local Memory<float> panel;
  const int64_t bytes = w.row_bytes(), group = w.inputs / w.groups;
  const int64_t width = (w.inputs + WORDS_STEP - 1) / WORDS_STEP * WORDS_STEP;
  panel.resize(std::max<int64_t>(panel.size(), PANEL * width));
  for (int64_t part = 0; part < count; part += PANEL) {
    const int64_t some = std::min(PANEL, count - part);
    for (int64_t j = 0; j < some; j++) {
      const uint8_t* from = w.values + (first + part + j) * bytes;
      const float* scale = w.scale + (first + part + j) * w.groups;
      float* to = &panel[j * width];
      for (int64_t k = 0; k < w.inputs; k += WORDS_STEP)
        each_half(words_of(from + k / 2, bytes - k / 2), scales_of(scale, w.groups, group, k),
                  [&](int half, Vector<float> value) { store<float>(to + k + half * LANES<float>, value); });
    }
    dot_rows(x, stride, rows, panel.data(), width, some, width, out + part, out_stride);
  }
}

#endif

}  // namespace arcforge
