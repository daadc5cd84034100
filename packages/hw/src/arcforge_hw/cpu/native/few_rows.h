// Pieces of what few tokens pass through. Those whose names end in `part` share the threads of the parallel region that
// they are called in, and do not wait for each other.
//
// T rows, K inputs, N outputs. Widths of inputs are whole vectors.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "rows16.h"

namespace arcforge {

constexpr int64_t OUTPUTS = 48;             // of a product that a thread computes at a time
constexpr int64_t WORTH_THREADS = 1 << 15;  // values read, below which a second thread comes too late

inline int threads_for(int64_t values, int64_t threads) { return values < WORTH_THREADS ? 1 : int(threads); }

// x / (1 + e^-x) and 1 / (1 + e^-x), of which e^x is only taken for x <= 0.
template <typename A>
inline A sigmoid(A x) {
  A small = exp_of(x < 0 ? x : -x);
  if constexpr (sizeof(A) == 4) small = x < A(-104) ? A(0) : small;  // `exp_of` ends at e^-87, which 1e38 would make much of
  return (x < 0 ? small : A(1)) / (A(1) + small);
}

template <typename A>
inline A silu(A x) {
  return x * sigmoid(x);
}

// silu(gate) * up, rounded where the reference rounds.
template <typename A>
inline A gated(A gate, A up) {
  return silu(gate) * up;
}
inline float gated16(float gate, float up) { return near16(near16(silu(gate)) * up); }
inline BFloat16 gated(BFloat16 gate, BFloat16 up) {
  BFloat16 out;
  narrow(gated16(float(gate), float(up)), &out);
  return out;
}

// This thread's outputs of a product: as many as each other thread's but for a tile.
struct Share {
  int64_t first, last;
  explicit Share(int64_t outputs) {
    constexpr int64_t TILE = SUMS / 4;
    const int64_t threads = omp_get_num_threads(), each = (outputs + threads * TILE - 1) / (threads * TILE) * TILE;
    first = std::min(outputs, omp_get_thread_num() * each);
    last = std::min(outputs, first + each);
  }
};

// The compute type of values stored in T.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

// out [T, N] = x [T, K] times weight [N, K] turned; rows of out lie `stride` apart.
template <typename A, std::enable_if_t<std::is_floating_point_v<A>, int> = 0>
void product_part(const A* x, const A* weight, const A* bias, A* out, int64_t stride, int64_t rows, int64_t inputs,
                  int64_t outputs) {
  const Share mine(outputs);
  for (int64_t first = mine.first; first < mine.last; first += OUTPUTS) {
    const int64_t count = std::min(OUTPUTS, mine.last - first);
    const A* some = weight + first * inputs;
    dot_rows(x, inputs, rows, some, inputs, count, inputs, out + first, stride, some + rows_ahead<A>(inputs) * inputs);
    if (bias)
      for (int64_t r = 0; r < rows; r++)
        for (int64_t n = first; n < first + count; n++) out[r * stride + n] += bias[n];
  }
}

// The same in bfloat16, of sums in fp32 that are rounded once, or not where `out` is in fp32.
template <typename O>
void product_part(const BFloat16* x, const BFloat16* weight, const BFloat16* bias, O* out, int64_t stride, int64_t rows,
                  int64_t inputs, int64_t outputs) {
  constexpr int64_t ROWS = 64;  // whose sums are kept at a time
  const int64_t apart_by = apart<float>(inputs);
  float sums[ROWS * OUTPUTS];
  Room<float> wide, panel;
  if (rows >= ROWS_TO_WIDEN_FOR) {
    wide.resize(rows * apart_by);
    for (int64_t r = 0; r < rows; r++) widen_pairs(x + r * inputs, inputs, &wide[r * apart_by]);
  }
  const Share mine(outputs);
  for (int64_t first = mine.first; first < mine.last; first += OUTPUTS) {
    const int64_t count = std::min(OUTPUTS, mine.last - first);
    const BFloat16 *from = weight + first * inputs, *ahead = from + rows_ahead<BFloat16>(inputs) * inputs;
    for (int64_t begin = 0; begin < rows; begin += ROWS) {
      const int64_t some = std::min(ROWS, rows - begin);
      const BFloat16* next = begin ? nullptr : ahead;
      if (some >= ROWS_TO_WIDEN_FOR)
        dot_wide_rows(&wide[begin * apart_by], apart_by, some, from, inputs, count, inputs, sums, OUTPUTS, next, panel);
      else
        dot_rows(x + begin * inputs, inputs, some, from, inputs, count, inputs, sums, OUTPUTS, next);
      for (int64_t r = 0; r < some; r++) {
        float* row = sums + r * OUTPUTS;
        if (bias)
          for (int64_t n = 0; n < count; n++) row[n] += float(bias[first + n]);
        narrow_row(row, count, out + (begin + r) * stride + first);
      }
    }
  }
}

template <typename T, typename A>
inline void norm_row(const T* from, const T* weight, T* to, int64_t width, A eps) {
  A squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t n = 0; n < width; n++) squares += A(from[n]) * A(from[n]);
  const A scale = A(1) / std::sqrt(squares / A(width) + eps);
  for (int64_t n = 0; n < width; n++) {
    T normed;
    narrow(A(from[n]) * scale, &normed);
    narrow(A(normed) * A(weight[n]), to + n);
  }
}

// Rotates pairs by cos and sin [width / 2]; `sign` -1 turns back.
template <typename T, typename A>
inline void turn_row(const T* from, const A* cos, const A* sin, A sign, T* to, int64_t width) {
  for (int64_t f = 0; f < width / 2; f++) {
    const A even = A(from[2 * f]), odd = A(from[2 * f + 1]), c = cos[f], s = sign * sin[f];
    narrow(even * c - odd * s, to + 2 * f);
    narrow(even * s + odd * c, to + 2 * f + 1);
  }
}

// The weights of a token's experts: gate_up [E, 2f, D], down [E, D, f]; `chosen` experts of each token with gates.
template <typename T>
struct Experts {
  const T *gate_up, *down;
  const int64_t* expert;
  const Wide<T>* gate;
  int64_t chosen, hidden, width;
};

// inner [T * chosen, 2f]: the gate's and the up projection of each token's experts.
template <typename T>
void experts_up_part(const T* x, const Experts<T>& e, int64_t tokens, T* inner) {
  const int64_t twice = 2 * e.width, parts = (twice + OUTPUTS - 1) / OUTPUTS;
#pragma omp for schedule(static) nowait
  for (int64_t part = 0; part < tokens * e.chosen * parts; part++) {
    const int64_t r = part / parts, first = part % parts * OUTPUTS, count = std::min(OUTPUTS, twice - first);
    Wide<T> one[OUTPUTS];
    const T* weight = e.gate_up + (e.expert[r] * twice + first) * e.hidden;
    dot_rows(x + r / e.chosen * e.hidden, e.hidden, 1, weight, e.hidden, count, e.hidden, one, OUTPUTS,
             weight + rows_ahead<T>(e.hidden) * e.hidden);
    narrow_row(one, count, inner + r * twice + first);
  }
}

// gated [T * chosen, f] of inner [T * chosen, 2f].
template <typename T>
void gate_experts_part(const T* inner, const Experts<T>& e, int64_t tokens, T* out) {
  const int64_t width = e.width;
#pragma omp for schedule(static)
  for (int64_t r = 0; r < tokens * e.chosen; r++)
    for (int64_t n = 0; n < width; n++)
      narrow(Wide<T>(gated(inner[r * 2 * width + n], inner[(r * 2 + 1) * width + n])) * e.gate[r], out + r * width + n);
}

// out += the sum over a token's experts, in the order of its choices; gated [T * chosen, f].
template <typename T>
void experts_down_part(const T* gated, const Experts<T>& e, int64_t tokens, T* out) {
  const int64_t parts = (e.hidden + OUTPUTS - 1) / OUTPUTS;
#pragma omp for schedule(static) nowait
  for (int64_t part = 0; part < tokens * parts; part++) {
    const int64_t t = part / parts, first = part % parts * OUTPUTS, count = std::min(OUTPUTS, e.hidden - first);
    T* to = out + t * e.hidden + first;
    Wide<T> sum[OUTPUTS], one[OUTPUTS];
    for (int64_t n = 0; n < count; n++) sum[n] = Wide<T>(to[n]);
    for (int64_t r = t * e.chosen; r < (t + 1) * e.chosen; r++) {
      const T* weight = e.down + (e.expert[r] * e.hidden + first) * e.width;
      dot_rows(gated + r * e.width, e.width, 1, weight, e.width, count, e.width, one, OUTPUTS,
               weight + rows_ahead<T>(e.width) * e.width);
      for (int64_t n = 0; n < count; n++) sum[n] += one[n];
    }
    narrow_row(sum, count, to);
  }
}

}  // namespace arcforge
