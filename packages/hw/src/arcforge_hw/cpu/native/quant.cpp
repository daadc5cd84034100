// Layers of quantised weights while few tokens are decoded. T rows, K inputs, N outputs, f width of an MLP or expert.
#include "quant_part.h"

#include "record.h"
#include "routing.h"

namespace arcforge {
namespace {

template <typename T>
void quant_linear(const T* x, const QuantWeight& w, const T* bias, T* out, int64_t rows, int64_t threads) {
  Activations a(w, rows);
  Memory<float> sums(rows * w.outputs);
  const auto round = [&](int64_t first, int64_t count) {
    for (int64_t r = 0; r < rows; r++)
      for (int64_t n = first; n < first + count; n++) {
        T rounded;
        narrow(sums[r * w.outputs + n], &rounded);
        if (bias) narrow(float(rounded) + float(bias[n]), &rounded);
        out[r * w.outputs + n] = rounded;
      }
  };
#pragma omp parallel num_threads(threads_for(w.row_bytes() * w.outputs, threads))
  {
    lay_part(x, w.inputs, a, rows);
    quant_part(a, w, sums.data(), rows, round);
  }
}

template <typename T>
void narrow_all(const float* from, T* to, int64_t count) {
  for (int64_t n = 0; n < count; n++) narrow(from[n], to + n);
}

// silu(gate) * up of sums that a layer of its own would round to T.
template <typename T>
inline T gated_sums(float gate, float up) {
  T g, u;
  narrow(gate, &g);
  narrow(up, &u);
  return gated(g, u);
}

template <typename T>
void quant_mlp(const T* x, const QuantWeight& gate, const QuantWeight& up, const QuantWeight& down, T* out,
               int64_t rows, int64_t threads) {
  const int64_t width = gate.outputs;
  Activations outer(gate, rows), inner(down, rows);
  Memory<float> gates(rows * width), ups(rows * width), sums(rows * down.outputs);
  Memory<T> products(rows * width);
#pragma omp parallel num_threads(threads_for(gate.row_bytes() * width, threads))
  {
    lay_part(x, gate.inputs, outer, rows);
    quant_part(outer, gate, gates.data(), rows);
    quant_part(outer, up, ups.data(), rows);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows * width; n++) products[n] = gated_sums<T>(gates[n], ups[n]);
    lay_part(products.data(), width, inner, rows);
    quant_part(inner, down, sums.data(), rows);
  }
  narrow_all(sums.data(), out, rows * down.outputs);
}

// gate_up [E, 2f, D], down [E, D, f]: a token's chosen experts, added in the order of its choices.
template <typename T>
void quant_experts(const T* x, const QuantWeight& gate_up, const QuantWeight& down, const int64_t* expert,
                   const float* gate, T* out, int64_t tokens, int64_t chosen, int64_t threads) {
  const int64_t rows = tokens * chosen, twice = gate_up.outputs, width = down.inputs, hidden = down.outputs;
  Activations outer(gate_up, tokens), inner(down, rows);
  Memory<float> sums(rows * twice);
  Memory<T> products(rows * width);
#pragma omp parallel num_threads(threads_for(rows * gate_up.row_bytes() * width, threads))
  {
    lay_part(x, hidden, outer, tokens);
    const int64_t up_parts = (twice + OUTPUTS - 1) / OUTPUTS, down_parts = (hidden + OUTPUTS - 1) / OUTPUTS;
#pragma omp for schedule(static)
    for (int64_t part = 0; part < rows * up_parts; part++) {
      const int64_t r = part / up_parts, first = part % up_parts * OUTPUTS;
      quant_block(outer, r / chosen, 1, gate_up.part(expert[r]), first, std::min(OUTPUTS, twice - first),
                  &sums[r * twice + first], twice);
    }
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t n = 0; n < width; n++)
        products[r * width + n] = gated_sums<T>(sums[r * twice + n], sums[r * twice + width + n]);
      lay_row(&products[r * width], width, inner, r);
    }
#pragma omp for schedule(static)
    for (int64_t part = 0; part < tokens * down_parts; part++) {
      const int64_t t = part / down_parts, first = part % down_parts * OUTPUTS, count = std::min(OUTPUTS, hidden - first);
      float total[OUTPUTS] = {}, one[OUTPUTS];
      for (int64_t r = t * chosen; r < (t + 1) * chosen; r++) {
        quant_block(inner, r, 1, down.part(expert[r]), first, count, one, OUTPUTS);
        for (int64_t n = 0; n < count; n++) total[n] += one[n] * gate[r];
      }
      narrow_all(total, out + t * hidden + first, count);
    }
  }
}

// A mixture with a shared expert: the router, wide, chooses; then each token's experts and the shared one are added.
template <typename T>
void quant_moe(const T* x, const T* router, const float* bias, int64_t experts, const QuantWeight& gate_up,
               const QuantWeight& down, const QuantWeight (&shared)[3], T* out, int64_t tokens, int64_t chosen,
               double scale, int64_t threads) {
  const int64_t hidden = down.outputs;
  Memory<Wide<T>> scores(tokens * experts), gate(tokens * chosen);
  std::vector<int64_t> expert(tokens * chosen);
  Memory<T> common(tokens * hidden);
#pragma omp parallel num_threads(threads_for(hidden * experts, threads))
  product_part(x, router, (const T*)nullptr, scores.data(), experts, tokens, hidden, experts);
  for (int64_t t = 0; t < tokens; t++)
    choose(&scores[t * experts], bias, experts, chosen, Wide<T>(scale), &expert[t * chosen], &gate[t * chosen]);
  quant_experts(x, gate_up, down, expert.data(), gate.data(), out, tokens, chosen, threads);
  quant_mlp(x, shared[0], shared[1], shared[2], common.data(), tokens, threads);
  for (int64_t n = 0; n < tokens * hidden; n++) narrow(float(out[n]) + float(common[n]), out + n);
}

// Rows of a cache: int8, each followed by its scale.
template <typename T>
void records(const T* x, int8_t* out, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel for num_threads(threads_for(rows * width, threads)) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    Activations one({nullptr, nullptr, width, 1, 1, 8, true}, 1);
    lay_integers(x + r * width, width, one, 0);
    std::memcpy(out + r * (width + 4), one.integers.data(), width);
    std::memcpy(out + r * (width + 4) + width, one.scale.data(), 4);
  }
}

// Rows times Sylvester's Hadamard matrix, of a power of two, orthonormal.
template <typename T>
void hadamard(const T* x, T* out, int64_t rows, int64_t width, int64_t threads) {
  const float scale = 1.0f / std::sqrt(float(width));
#pragma omp parallel for num_threads(threads_for(rows * width, threads)) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    Memory<float> row(width);
    for (int64_t n = 0; n < width; n++) row[n] = float(x[r * width + n]);
    for (int64_t half = 1; half < width; half *= 2)
      for (int64_t first = 0; first < width; first += 2 * half)
        for (int64_t n = first; n < first + half; n++) {
          const float low = row[n], high = row[n + half];
          row[n] = low + high;
          row[n + half] = low - high;
        }
    for (int64_t n = 0; n < width; n++) narrow(row[n] * scale, out + r * width + n);
  }
}

// Integers [rows, K] of packed ones.
void unpack(const uint8_t* packed, int8_t* out, int64_t bytes, int64_t threads) {
#pragma omp parallel for num_threads(threads_for(bytes, threads)) schedule(static)
  for (int64_t n = 0; n < bytes; n++) {
    out[2 * n] = int8_t(((packed[n] & 15) ^ 8) - 8);
    out[2 * n + 1] = int8_t(((packed[n] >> 4) ^ 8) - 8);
  }
}

// `count` values of four bits times a scale, in the order of the columns.
template <typename T>
inline void widen_halves(const uint8_t* from, int64_t count, float scale, T* to) {
  int64_t k = 0;
#ifdef __AVX512F__
  if constexpr (std::is_same_v<T, float>) {
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512i shifts = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i words = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    for (; k + 16 <= count; k += 16) {
      int64_t pairs;
      std::memcpy(&pairs, from + k / 2, 8);
      const __m512i halves = _mm512_srlv_epi32(_mm512_permutexvar_epi32(words, _mm512_set1_epi64(pairs)), shifts);
      _mm512_storeu_ps(to + k, _mm512_mul_ps(_mm512_permutexvar_ps(halves, table), _mm512_set1_ps(scale)));
    }
  }
#endif
  for (; k < count; k += 2) {
    narrow(float(((from[k / 2] & 15) ^ 8) - 8) * scale, to + k);
    narrow(float(((from[k / 2] >> 4) ^ 8) - 8) * scale, to + k + 1);
  }
}

// Weights made wide, for products of many rows.
template <typename T>
void widen_weight(const QuantWeight& w, T* out, int64_t threads) {
  const int64_t group = w.inputs / w.groups;
#pragma omp parallel for num_threads(threads_for(w.row_bytes() * w.outputs, threads)) schedule(static)
  for (int64_t part = 0; part < w.outputs * w.groups; part++) {
    const uint8_t* from = w.values + part * group * w.bits / 8;
    const float scale = w.scale[part];
    T* to = out + part * group;
    if (w.bits == 8)
      for (int64_t k = 0; k < group; k++) narrow(float(int8_t(from[k])) * scale, to + k);
    else
      widen_halves(from, group, scale, to);
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_QUANT(NAME, T)                                                                                       \
  extern "C" void arcforge_quant_linear_##NAME(const T* x, const uint8_t* weight, const float* scale, const T* bias,  \
                                               T* out, int64_t rows, int64_t inputs, int64_t outputs, int64_t groups, \
                                               int64_t bits, int64_t rounds, int64_t threads) {                       \
    arcforge::quant_linear<T>(x, {weight, scale, inputs, outputs, groups, bits, rounds != 0}, bias, out, rows,        \
                              threads);                                                                               \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_quant_linear_##NAME)                                                                     \
  extern "C" void arcforge_quant_mlp_##NAME(                                                                          \
      const T* x, const uint8_t* gate, const float* gate_scale, const uint8_t* up, const float* up_scale,             \
      const uint8_t* down, const float* down_scale, T* out, int64_t rows, int64_t hidden, int64_t width,              \
      int64_t hidden_groups, int64_t width_groups, int64_t bits, int64_t rounds, int64_t threads) {                   \
    arcforge::quant_mlp<T>(x, {gate, gate_scale, hidden, width, hidden_groups, bits, rounds != 0},                    \
                           {up, up_scale, hidden, width, hidden_groups, bits, rounds != 0},                           \
                           {down, down_scale, width, hidden, width_groups, bits, rounds != 0}, out, rows, threads);   \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_quant_mlp_##NAME)                                                                        \
  extern "C" void arcforge_quant_experts_##NAME(                                                                      \
      const T* x, const uint8_t* gate_up, const float* gate_up_scale, const uint8_t* down, const float* down_scale,   \
      const int64_t* expert, const float* gate, T* out, int64_t tokens, int64_t chosen, int64_t hidden,               \
      int64_t width, int64_t hidden_groups, int64_t width_groups, int64_t bits, int64_t rounds, int64_t threads) {    \
    arcforge::quant_experts<T>(x, {gate_up, gate_up_scale, hidden, 2 * width, hidden_groups, bits, rounds != 0},      \
                               {down, down_scale, width, hidden, width_groups, bits, rounds != 0}, expert, gate, out, \
                               tokens, chosen, threads);                                                              \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_quant_experts_##NAME)                                                                    \
  extern "C" void arcforge_quant_moe_##NAME(                                                                          \
      const T* x, const T* router, const float* bias, const uint8_t* gate_up, const float* gate_up_scale,             \
      const uint8_t* down, const float* down_scale, const uint8_t* shared_gate, const float* shared_gate_scale,       \
      const uint8_t* shared_up, const float* shared_up_scale, const uint8_t* shared_down,                             \
      const float* shared_down_scale, T* out, int64_t tokens, int64_t hidden, int64_t experts, int64_t chosen,        \
      int64_t width, int64_t shared, int64_t hidden_groups, int64_t width_groups, int64_t bits,                       \
      int64_t shared_hidden_groups, int64_t shared_width_groups, int64_t shared_bits, int64_t rounds, double scale,   \
      int64_t threads) {                                                                                              \
    const bool r = rounds != 0;                                                                                       \
    arcforge::quant_moe<T>(                                                                                           \
        x, router, bias, experts, {gate_up, gate_up_scale, hidden, 2 * width, hidden_groups, bits, r},                \
        {down, down_scale, width, hidden, width_groups, bits, r},                                                     \
        {{shared_gate, shared_gate_scale, hidden, shared, shared_hidden_groups, shared_bits, r},                      \
         {shared_up, shared_up_scale, hidden, shared, shared_hidden_groups, shared_bits, r},                          \
         {shared_down, shared_down_scale, shared, hidden, shared_width_groups, shared_bits, r}},                      \
        out, tokens, chosen, scale, threads);                                                                         \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_quant_moe_##NAME)                                                                        \
  extern "C" void arcforge_records_##NAME(const T* x, int8_t* out, int64_t rows, int64_t width, int64_t threads) {    \
    arcforge::records<T>(x, out, rows, width, threads);                                                               \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_records_##NAME)                                                                          \
  extern "C" void arcforge_hadamard_##NAME(const T* x, T* out, int64_t rows, int64_t width, int64_t threads) {        \
    arcforge::hadamard<T>(x, out, rows, width, threads);                                                              \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_hadamard_##NAME)                                                                         \
  extern "C" void arcforge_dequantise_##NAME(const uint8_t* weight, const float* scale, T* out, int64_t inputs,       \
                                             int64_t outputs, int64_t groups, int64_t bits, int64_t threads) {        \
    arcforge::widen_weight<T>({weight, scale, inputs, outputs, groups, bits, false}, out, threads);                   \
  }

ARCFORGE_QUANT(float32, float)
ARCFORGE_QUANT(bfloat16, arcforge::BFloat16)

extern "C" void arcforge_unpack_int4(const uint8_t* packed, int8_t* out, int64_t bytes, int64_t threads) {
  arcforge::unpack(packed, out, bytes, threads);
}
