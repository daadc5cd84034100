// Weights of 8 and 4 bits, and activations laid out for products of few rows with them.
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

// Asks for the next `lines` of memory, one step of a loop after another; of none where `ahead` is nullptr.
inline void ask(const uint8_t* ahead, int64_t step, int64_t lines) {
  if (ahead)
    for (int64_t n = step * lines; n < (step + 1) * lines; n++) __builtin_prefetch(ahead + 64 * n, 0, 2);
}

// Rows of activations as the products want them; made for weights of one width and kind.
struct Activations {
  int64_t steps, step;
  bool rounds;
  Memory<int8_t> integers;  // [T, steps * step], of four bits the even columns of a step before the odd ones
  Memory<float> wide;       // [T, steps * step], ordered as `lay_words` does
  Memory<float> scale;
  Memory<int32_t> sum;

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

// The even columns of a step of four bits [128] before the odd ones, as shifts and masks unpack bytes.
inline void lay_halves(const int8_t* from, int8_t* to) {
  for (int64_t n = 0; n < INT4_STEP / 2; n++) to[n] = from[2 * n];
  for (int64_t n = 0; n < INT4_STEP / 2; n++) to[INT4_STEP / 2 + n] = from[2 * n + 1];
}

// Columns of which a vector of words has the halves of bytes; the eight halves of a word belong to eight vectors.
constexpr int64_t WORDS_STEP = 8 * LANES<float>;

template <typename T>
inline void lay_words(const T* from, float* to) {
  for (int64_t half = 0; half < 8; half++)
    for (int64_t n = 0; n < LANES<float>; n++) to[half * LANES<float> + n] = float(from[8 * n + half]);
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
    if (a.step == INT8_STEP) {
      std::memcpy(to + first, rounded, count);
    } else {
      std::fill_n(rounded + count, INT4_STEP - count, int8_t(0));
      lay_halves(rounded, to + first);
    }
  }
  a.scale[r] = scale;
  a.sum[r] = sum;
}

// Lays out row r; rows may be laid out by different threads.
template <typename T>
void lay_row(const T* x, int64_t columns, Activations& a, int64_t r) {
  if (a.rounds) return lay_integers(x, columns, a, r);
  float* to = &a.wide[r * a.width()];
  int64_t k = 0;
  for (; k + WORDS_STEP <= columns; k += WORDS_STEP) lay_words(x + k, to + k);
  for (; k < a.width(); k += WORDS_STEP) {
    float rest[WORDS_STEP] = {};
    for (int64_t n = k; n < columns; n++) rest[n - k] = float(x[n]);
    lay_words(rest, to + k);
  }
}

// Lays out all rows, by the threads of the region that it is called in, which wait for each other.
template <typename T>
void lay_part(const T* x, int64_t columns, Activations& a, int64_t rows) {
#pragma omp for schedule(static)
  for (int64_t r = 0; r < rows; r++) lay_row(x + r * columns, columns, a, r);
}

#ifdef __AVX512F__
inline __m512i bytes_of(const uint8_t* from, int64_t left) {
  if (left >= 64) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi8((1ull << left) - 1, from);
}
#endif

}  // namespace arcforge
