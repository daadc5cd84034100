// Attention of few queries to some keys of bfloat16, wherever these lie: scores, their softmax and the weighted sum, while
// the keys that come next are asked for in the order of memory. Products are exact, and summed in fp32.
//
// A row of values is kept as `halves`: of each vector's pairs the first ones, then the second ones, as they are widened.
#pragma once

#include "rows16.h"

namespace arcforge {

constexpr int64_t BLOCK = 32;  // keys that stay in the first cache from their scores to their weighted sum
constexpr int64_t SUMMED = 8;  // keys of a weighted sum between two requests
#ifdef __AVX512F__
constexpr int VALUES = 2;  // vectors of bfloat16 that a tile sums
#else
constexpr int VALUES = 1;
#endif

// Where the rows of up to BLOCK keys and values begin; after the last one they repeat it.
struct Places {
  const BFloat16 *key[BLOCK], *value[BLOCK];
  int64_t count = 0;

  void find(const Keys<BFloat16>& keys, const Keys<BFloat16>& values, int64_t begin, int64_t end) {
    count = end - begin;
    for (int64_t k = 0, run; k < count; k += run) {
      run = keys.run(begin + k, count - k);
      const BFloat16 *first_key = keys.at(begin + k), *first_value = values.at(begin + k);
      for (int64_t n = 0; n < run; n++) {
        key[k + n] = first_key + n * keys.width;
        value[k + n] = first_value + n * values.width;
      }
    }
    std::fill(key + count, key + BLOCK, key[count - 1]);
  }
};

// Asks for rows piece by piece: `each` of them for every `of` shares. Into the second cache, for which more requests can
// wait than for the first.
struct Ahead {
  const BFloat16* const* rows;
  int64_t count, offset, width, of, share = 0, next = 0;
  void ask(int64_t each) {
    for (share += each; share >= of && next < count; share -= of) {
      const BFloat16* row = rows[next++] + offset;
      for (int64_t n = 0; n < width; n += PAIRED) __builtin_prefetch(row + n, 0, 2);
    }
  }
};

// out[i][j] = a[i] . b[j] for M rows and COLUMNS keys.
template <int M>
inline void score_tile(const BFloat16* a, const BFloat16* const* b, int64_t offset, int64_t width, float* out) {
  Vector<float> sum[M][COLUMNS] = {};
  const BFloat16* right_at[COLUMNS];
  for (int j = 0; j < COLUMNS; j++) right_at[j] = b[j] + offset;
  for (int64_t d = 0; d < width; d += PAIRED) {
    Paired right[COLUMNS];
    each<0, COLUMNS>([&](auto j) { right[j] = load_pairs(right_at[j] + d); });
    each<0, M>([&](auto i) {
      const Paired left = load_pairs(a + i * width + d);
      each<0, COLUMNS>([&](auto j) { sum[i][j] = dot_pairs(left, right[j], sum[i][j]); });
    });
  }
  put_sums<float, M, COLUMNS>(sum, out, BLOCK);
}

// out[i] += the sum of weight[i][k] * b[k] for M rows of N vectors of bfloat16.
template <int M, int N>
inline void value_tile(const float* weight, const BFloat16* const* b, int64_t offset, int64_t count, float* out,
                       int64_t stride) {
  Vector<float> sum[M][2 * N];
  each<0, M>([&](auto i) {
    each<0, 2 * N>([&](auto j) { sum[i][j] = load(out + i * stride + j * LANES<float>); });
  });
  for (int64_t k = 0; k < count; k++) {
    Vector<float> right[2 * N];
    each<0, N>([&](auto j) { widen_halves(b[k] + offset + j * PAIRED, right[2 * j], right[2 * j + 1]); });
    each<0, M>([&](auto i) {
      const Vector<float> w = weight[i * BLOCK + k] - Vector<float>{};
      each<0, 2 * N>([&](auto j) { sum[i][j] = fused<float>(w, right[j], sum[i][j]); });
    });
  }
  each<0, M>([&](auto i) {
    each<0, 2 * N>([&](auto j) { store<float>(out + i * stride + j * LANES<float>, sum[i][j]); });
  });
}

// Makes weights of the first `seen` of a row's BLOCK scores, zeros of the rest; as `weigh`.
inline void weigh_block(float* row, int64_t seen, float scale, float* out, int64_t width, float& top, float& total) {
  float highest = top, sum = 0;
#pragma omp simd reduction(max : highest)
  for (int64_t k = 0; k < BLOCK; k++) {
    row[k] = k < seen ? row[k] * scale : -INFINITY;
    highest = row[k] > highest ? row[k] : highest;
  }
  if (highest > top) {
    const float share = total > 0 ? exp_of(top - highest) : 0.0f;
    for (int64_t n = 0; n < width; n++) out[n] *= share;
    total *= share;
    top = highest;
  }
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < BLOCK; k++) sum += row[k] = k < seen ? exp_of(row[k] - highest) : 0.0f;
  total += sum;
}

// Calls with M, how many rows a tile has, and the first of them: fours, then the rest.
template <typename Use>
inline void in_tiles(int64_t rows, Use&& use) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) use(std::integral_constant<int, 4>{}, r);
  if (rows - r == 3) use(std::integral_constant<int, 3>{}, r);
  if (rows - r == 2) use(std::integral_constant<int, 2>{}, r);
  if (rows - r == 1) use(std::integral_constant<int, 1>{}, r);
}

}  // namespace arcforge
