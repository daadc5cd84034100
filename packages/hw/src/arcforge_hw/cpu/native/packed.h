// Matrices in the forms that products of pairs.h read: units are pairs of bfloat16 numbers where the processor multiplies
// these, else fp32 numbers.
#pragma once

#include <algorithm>
#include <vector>

#include "pairs.h"

namespace arcforge {

template <typename V>
struct Matrix {  // rows of whole vectors
  Memory<V> values;
  int64_t stride;
  Matrix(int64_t rows, int64_t width) : values(rows * apart<V>(width)), stride(apart<V>(width)) {}
  V* row(int64_t r) { return values.data() + r * stride; }
  void clear(int64_t rows) { std::fill_n(values.data(), rows * stride, V(0)); }
};

#ifdef ARCFORGE_PAIRS
template <typename T>
using Unit = std::conditional_t<std::is_same_v<T, BFloat16>, Pair, float>;
#else
template <typename T>
using Unit = float;
#endif

inline int64_t halves(int64_t n) { return (n + 1) / 2; }

// Units of `n` values, one after another.
template <typename T>
constexpr int64_t units(int64_t n) {
  return std::is_same_v<Unit<T>, Pair> ? (n + 1) / 2 : n;
}

#ifdef ARCFORGE_PAIRS
inline Pair pair_of(BFloat16 first, BFloat16 second) { return first.bits | Pair(second.bits) << 16; }

// Pair d of a row of `width` values, zero past its end.
inline Pair neighbours(const BFloat16* row, int64_t d, int64_t width) {
  return pair_of(row[2 * d], 2 * d + 1 < width ? row[2 * d + 1] : BFloat16{0});
}
#else
inline float neighbours(const BFloat16* row, int64_t d, int64_t) { return float(row[d]); }
#endif
inline float neighbours(const float* row, int64_t d, int64_t) { return row[d]; }

// x, rows `step` apart, as units<T>(width) rows of units of neighbours, one of each row.
template <typename T>
inline void turn(const T* x, int64_t step, int64_t rows, int64_t width, Matrix<Unit<T>>& to) {
  constexpr int64_t SOME = LANES<Pair>;  // a square of which fits into the cache
  for (int64_t first = 0; first < padded<float>(rows); first += SOME)
    for (int64_t d = 0; d < units<T>(width); d++)
      for (int64_t j = first; j < first + SOME; j++) to.row(d)[j] = j < rows ? neighbours(x + j * step, d, width) : 0;
}

// A row as units of neighbours: as it lies, or widened.
template <typename T, typename U>
inline void take_row(const T* x, int64_t width, U* to) {
  if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<U, float>) {
    widen_row(x, width, 1.0f, to);
  } else {
    to[units<T>(width) - 1] = 0;
    std::memcpy(to, x, width * sizeof(T));
  }
}

template <typename T>
inline void take(const T* x, int64_t step, int64_t rows, int64_t width, Matrix<Unit<T>>& to) {
  for (int64_t r = 0; r < rows; r++) take_row(x + r * step, width, to.row(r));
}

// x as rows of units of two rows, zero past its width: halves(rows) rows of pairs, or of fp32 the rows.
template <typename T>
inline void zip(const T* x, int64_t step, int64_t rows, int64_t width, Matrix<Unit<T>>& to) {
  if constexpr (std::is_same_v<Unit<T>, Pair>) {
    for (int64_t j = 0; j < rows; j += 2) {
      const T *even = x + j * step, *odd = even + step;
      Pair* row = to.row(j / 2);
      if (j + 1 < rows)
        for (int64_t d = 0; d < width; d++) row[d] = pair_of(even[d], odd[d]);
      else
        for (int64_t d = 0; d < width; d++) row[d] = pair_of(even[d], BFloat16{0});
      std::fill(row + width, row + to.stride, Pair(0));
    }
  } else {
    take(x, step, rows, width, to);
  }
}

// `zip` of rows of `take`; fp32 rows as they are.
template <typename T>
inline Matrix<Unit<T>>& zip_taken(Matrix<Unit<T>>& x, int64_t rows, int64_t width, Matrix<Unit<T>>& to) {
  if constexpr (std::is_same_v<Unit<T>, float>) {
    return x;
  } else {
    zip(reinterpret_cast<const T*>(x.row(0)), 2 * x.stride, rows, width, to);
    return to;
  }
}

}  // namespace arcforge
