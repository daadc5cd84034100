// Products of few rows with weights of 8 and 4 bits, in tiles and by threads.
#pragma once

#include "quant_integer.h"
#include "quant_wide.h"

namespace arcforge {

// out [M, N] of rows from `row` on, for the outputs from `first` on; as many bytes of weights are asked for from `ahead` on.
template <int M, int N>
inline void quant_tile(const Activations& a, int64_t row, const QuantWeight& w, int64_t first, float* out,
                       int64_t stride, const uint8_t* ahead) {
  if (!a.rounds) return wide_tile<M, N>(&a.wide[row * a.width()], a.width(), w, first, a.steps, out, stride, ahead);
  int32_t sum[M][N];
  const auto tile = w.bits == 8 ? integer_tile<M, N, 8> : integer_tile<M, N, 4>;
  tile(&a.integers[row * a.width()], a.width(), &a.sum[row], w, first, a.steps, sum, ahead);
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) out[i * stride + j] = float(sum[i][j]) * a.scale[row + i] * w.scale[first + j];
}

template <int N>
inline void quant_rows(const Activations& a, int64_t row, int64_t rows, const QuantWeight& w, int64_t first, float* out,
                       int64_t stride) {
  const uint8_t* ahead = w.values + first * w.row_bytes() + BYTES_AHEAD;
  if (!a.rounds && rows >= 4) {
    ask(ahead, 0, (N * w.row_bytes() + 63) / 64);
    ahead = nullptr;
  }
  int64_t i = 0;
  const auto tiles = [&](auto m) {
    for (constexpr int M = decltype(m)::value; i + M <= rows; i += M)
      quant_tile<M, N>(a, row + i, w, first, out + i * stride, stride, i ? nullptr : ahead);
  };
  tiles(std::integral_constant<int, 4>{});
  tiles(std::integral_constant<int, 2>{});
  tiles(std::integral_constant<int, 1>{});
}

// out [rows, outputs first to first + count] of the activations' rows from `row` on.
inline void quant_block(const Activations& a, int64_t row, int64_t rows, const QuantWeight& w, int64_t first,
                        int64_t count, float* out, int64_t stride) {
#ifndef __AVX512F__
  if (!a.rounds && rows >= WIDENED_ROWS)
    return widened_block(&a.wide[row * a.width()], a.width(), rows, w, first, count, out, stride);
#endif
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) quant_rows<4>(a, row, rows, w, first + j, out + j, stride);
  for (; j < count; j++) quant_rows<1>(a, row, rows, w, first + j, out + j, stride);
}

// out [rows, N] = activations times weights turned, then `finish(first, count)` of each block of outputs; shares the
// threads of the region that it is called in.
template <typename F>
void quant_part(const Activations& a, const QuantWeight& w, float* out, int64_t rows, F finish) {
#pragma omp for schedule(static) nowait
  for (int64_t first = 0; first < w.outputs; first += OUTPUTS) {
    const int64_t count = std::min(OUTPUTS, w.outputs - first);
    quant_block(a, 0, rows, w, first, count, out + first, w.outputs);
    finish(first, count);
  }
}

inline void quant_part(const Activations& a, const QuantWeight& w, float* out, int64_t rows) {
  quant_part(a, w, out, rows, [](int64_t, int64_t) {});
}

}  // namespace arcforge
