// Matrices in the forms that products of pairs.h read: units are pairs of bfloat16 numbers, or fp32 numbers as they are.
#pragma once

#include <algorithm>
#include <vector>

#include "pairs.h"

namespace arcforge {

template <typename V>
struct Matrix {  // rows of whole vectors
  std::vector<V> values;
  int64_t stride;
  Matrix(int64_t rows, int64_t width) : values(rows * padded<float>(width)), stride(padded<float>(width)) {}
  V* row(int64_t r) { return values.data() + r * stride; }
  void clear(int64_t rows) { std::fill_n(values.data(), rows * stride, V(0)); }
};

inline int64_t halves(int64_t n) { return (n + 1) / 2; }

inline Pair pair_of(BFloat16 first, BFloat16 second) { return first.bits | Pair(second.bits) << 16; }

// Pair d of a row of `width` values, zero past its end.
inline Pair neighbours(const BFloat16* row, int64_t d, int64_t width) {
  return pair_of(row[2 * d], 2 * d + 1 < width ? row[2 * d + 1] : BFloat16{0});
}
inline float neighbours(const float* row, int64_t d, int64_t) { return row[d]; }

template <typename T>
using Unit = std::conditional_t<std::is_same_v<T, BFloat16>, Pair, float>;

// Units of `n` values, one after another.
template <typename T>
constexpr int64_t units(int64_t n) {
  return std::is_same_v<T, BFloat16> ? (n + 1) / 2 : n;
}

// x, rows `step` apart, as units<T>(width) rows of units of neighbours, one of each row.
template <typename T>
inline void turn(const T* x, int64_t step, int64_t rows, int64_t width, Matrix<Unit<T>>& to) {
  constexpr int64_t SOME = LANES<Pair>;  // a square of which fits into the cache
  for (int64_t first = 0; first < padded<float>(rows); first += SOME)
    for (int64_t d = 0; d < units<T>(width); d++)
      for (int64_t j = first; j < first + SOME; j++) to.row(d)[j] = j < rows ? neighbours(x + j * step, d, width) : 0;
}

// x as halves(rows) rows of pairs of two rows, zero past its width.
inline void zip(const BFloat16* x, int64_t step, int64_t rows, int64_t width, Matrix<Pair>& to) {
  for (int64_t j = 0; j < rows; j += 2) {
    const BFloat16 *even = x + j * step, *odd = even + step;
    Pair* row = to.row(j / 2);
    if (j + 1 < rows)
      for (int64_t d = 0; d < width; d++) row[d] = pair_of(even[d], odd[d]);
    else
      for (int64_t d = 0; d < width; d++) row[d] = pair_of(even[d], BFloat16{0});
    std::fill(row + width, row + to.stride, Pair(0));
  }
}

// x as rows of units of neighbours, which is how they lie.
template <typename T>
inline void take(const T* x, int64_t step, int64_t rows, int64_t width, Matrix<Unit<T>>& to) {
  for (int64_t r = 0; r < rows; r++) {
    to.row(r)[units<T>(width) - 1] = 0;
    std::memcpy(to.row(r), x + r * step, width * sizeof(T));
  }
}

// `zip` of fp32, whose units are the values of rows.
inline void zip(const float* x, int64_t step, int64_t rows, int64_t width, Matrix<float>& to) {
  take(x, step, rows, width, to);
}

}  // namespace arcforge
