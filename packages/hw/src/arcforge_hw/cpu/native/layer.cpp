// Layers around attention for few decoded tokens: several ops in one parallel region each, so that neither calls
// nor waiting for threads cost more than reading the weights.
//
// T tokens, D hidden, Q query latent, H heads, N nope, R rope, V value size, C latent plus rope, L latent, I index heads,
// K index head size, E experts, f expert width.
#include <algorithm>
#include <vector>

#include "few_rows.h"
#include "record.h"
#include "routing.h"

namespace arcforge {
namespace {

template <typename T>
constexpr const T* nothing = nullptr;

struct MlaSizes {
  int64_t tokens, hidden, query, heads, nope, rope, value, latent;
  int64_t head() const { return nope + rope; }
  int64_t width() const { return latent + rope; }
  int64_t up() const { return nope + value; }  // rows of a head in the up-projection of keys and values
};

template <typename A>
struct MlaWeights {
  const A *q_a, *q_norm, *kv_a, *kv_norm;
};

// q_latent [T, Q], entries [T, C].
template <typename A>
void mla_prolog(const A* x, const MlaWeights<A>& w, const A* cos, const A* sin, A* q_latent, A* entries,
                const MlaSizes& s, double eps, int64_t threads) {
  const int64_t width = s.width(), pairs = s.rope / 2;
  Memory<A> raw_query(s.tokens * s.query), raw_entry(s.tokens * width);
#pragma omp parallel num_threads(threads_for(s.hidden * s.query, threads))
  {
    product_part<A>(x, w.q_a, nullptr, raw_query.data(), s.query, s.tokens, s.hidden, s.query);
    product_part<A>(x, w.kv_a, nullptr, raw_entry.data(), width, s.tokens, s.hidden, width);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t t = 0; t < s.tokens; t++) {
      norm_row(&raw_query[t * s.query], w.q_norm, q_latent + t * s.query, s.query, A(eps));
      norm_row(&raw_entry[t * width], w.kv_norm, entries + t * width, s.latent, A(eps));
      turn_row(&raw_entry[t * width + s.latent], cos + t * pairs, sin + t * pairs, A(1), entries + t * width + s.latent,
               s.rope);
    }
  }
}

// heads [T, H, N + R] -> q [T, H, C] with the key up-projection inside.
template <typename A>
void mla_absorb(const A* heads, const A* kv_b, const A* cos, const A* sin, A* q, const MlaSizes& s, int64_t threads) {
  const int64_t width = s.width(), pairs = s.rope / 2;
#pragma omp parallel for num_threads(threads_for(s.heads * s.nope * s.latent, threads)) schedule(static)
  for (int64_t h = 0; h < s.heads; h++) {
    std::vector<A*> places(s.tokens);
    for (int64_t t = 0; t < s.tokens; t++) {
      places[t] = q + (t * s.heads + h) * width;
      std::fill_n(places[t], s.latent, A(0));
      turn_row(heads + (t * s.heads + h) * s.head() + s.nope, cos + t * pairs, sin + t * pairs, A(1),
               places[t] + s.latent, s.rope);
    }
    add_rows(heads + h * s.head(), s.heads * s.head(), 1, kv_b + h * s.up() * s.latent, s.latent, s.nope, s.latent,
             places.data(), s.tokens);
  }
}

// attended [T, H, L] -> values [T, H, V].
template <typename A>
void mla_epilog(const A* attended, const A* kv_b, A* values, const MlaSizes& s, int64_t threads) {
#pragma omp parallel for num_threads(threads_for(s.heads * s.value * s.latent, threads)) schedule(static)
  for (int64_t h = 0; h < s.heads; h++)
    dot_rows(attended + h * s.latent, s.heads * s.latent, s.tokens, kv_b + (h * s.up() + s.nope) * s.latent, s.latent,
             s.value, s.latent, values + h * s.value, s.heads * s.value);
}

struct IndexSizes {
  int64_t tokens, hidden, heads, width, rope;
};

template <typename A>
struct IndexWeights {
  const A *wk, *norm, *norm_bias, *weights;
};

template <typename A>
void layer_norm_row(A* row, const A* weight, const A* bias, int64_t width, A eps) {
  A mean = 0, variance = 0;
  for (int64_t n = 0; n < width; n++) mean += row[n];
  mean /= A(width);
  for (int64_t n = 0; n < width; n++) variance += (row[n] - mean) * (row[n] - mean);
  const A scale = A(1) / std::sqrt(variance / A(width) + eps);
  for (int64_t n = 0; n < width; n++) row[n] = (row[n] - mean) * scale * weight[n] + bias[n];
}

// q [T, I, K] of `heads` as they are projected, keys [T, K], head weights [T, I].
template <typename A>
void index_prolog(const A* x, const A* heads, const IndexWeights<A>& w, const A* cos, const A* sin, A* q, A* keys,
                  A* head_weights, const IndexSizes& s, double eps, int64_t threads) {
  const int64_t rows = s.heads * s.width, pairs = s.rope / 2;
  const A scale = A(1) / std::sqrt(A(rows));
#pragma omp parallel num_threads(threads_for(s.hidden * s.width, threads))
  {
    product_part<A>(x, w.wk, nullptr, keys, s.width, s.tokens, s.hidden, s.width);
    product_part<A>(x, w.weights, nullptr, head_weights, s.heads, s.tokens, s.hidden, s.heads);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t t = 0; t < s.tokens; t++) {
      const A *c = cos + t * pairs, *n = sin + t * pairs;
      layer_norm_row(keys + t * s.width, w.norm, w.norm_bias, s.width, A(eps));
      turn_row(keys + t * s.width, c, n, A(1), keys + t * s.width, s.rope);
      std::copy_n(heads + t * rows, rows, q + t * rows);
      for (int64_t i = 0; i < s.heads; i++) {
        A* head = q + (t * s.heads + i) * s.width;
        turn_row(head, c, n, A(1), head, s.rope);
        head_weights[t * s.heads + i] *= scale;
      }
    }
  }
}

template <typename T>
struct MlpWeights {
  const T *gate, *up, *down;
  int64_t width;
};

template <typename T>
void mlp(const T* x, const MlpWeights<T>& w, T* out, int64_t tokens, int64_t hidden, int64_t threads) {
  Room<T> gates(tokens * w.width), ups(tokens * w.width);
#pragma omp parallel num_threads(threads_for(hidden * w.width, threads))
  {
    product_part(x, w.gate, nothing<T>, gates.data(), w.width, tokens, hidden, w.width);
    product_part(x, w.up, nothing<T>, ups.data(), w.width, tokens, hidden, w.width);
#pragma omp barrier
#pragma omp for simd schedule(static)
    for (int64_t n = 0; n < tokens * w.width; n++) gates[n] = gated(gates[n], ups[n]);
    product_part(gates.data(), w.down, nothing<T>, out, hidden, tokens, w.width, hidden);
  }
}

template <typename T>
void moe(const T* x, const T* router, const float* bias, int64_t experts, double scale, Experts<T> routed,
         const MlpWeights<T>& shared, T* out, int64_t tokens, int64_t threads) {
  const int64_t rows = tokens * routed.chosen, hidden = routed.hidden, width = routed.width;
  Memory<Wide<T>> scores(tokens * experts), gate(rows);
  Memory<T> inner(rows * 2 * width), chosen(rows * width), gates(tokens * shared.width), ups(tokens * shared.width);
  std::vector<int64_t> expert(rows);
  routed.expert = expert.data(), routed.gate = gate.data();
#pragma omp parallel num_threads(threads_for(rows * hidden * width, threads))
  {
    product_part(x, router, nothing<T>, scores.data(), experts, tokens, hidden, experts);
    product_part(x, shared.gate, nothing<T>, gates.data(), shared.width, tokens, hidden, shared.width);
    product_part(x, shared.up, nothing<T>, ups.data(), shared.width, tokens, hidden, shared.width);
#pragma omp barrier
#pragma omp for simd schedule(static) nowait
    for (int64_t n = 0; n < tokens * shared.width; n++) gates[n] = gated(gates[n], ups[n]);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < tokens; t++)
      choose(&scores[t * experts], bias, experts, routed.chosen, Wide<T>(scale), &expert[t * routed.chosen],
             &gate[t * routed.chosen]);
    product_part(gates.data(), shared.down, nothing<T>, out, hidden, tokens, shared.width, hidden);
    experts_up_part(x, routed, tokens, inner.data());
#pragma omp barrier
    gate_experts_part(inner.data(), routed, tokens, chosen.data());
    experts_down_part(chosen.data(), routed, tokens, out);
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_LAYER(NAME, A)                                                                                       \
  extern "C" void arcforge_mla_prolog_##NAME(const A* x, const A* q_a, const A* q_norm, const A* kv_a,                \
                                             const A* kv_norm, const A* cos, const A* sin, A* q_latent, A* entries,   \
                                             int64_t tokens, int64_t hidden, int64_t query, int64_t rope,             \
                                             int64_t latent, double eps, int64_t threads) {                           \
    arcforge::mla_prolog<A>(x, {q_a, q_norm, kv_a, kv_norm}, cos, sin, q_latent, entries,                             \
                            {tokens, hidden, query, 0, 0, rope, 0, latent}, eps, threads);                            \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_mla_prolog_##NAME)                                                                       \
  extern "C" void arcforge_mla_absorb_##NAME(const A* heads, const A* kv_b, const A* cos, const A* sin, A* q,         \
                                             int64_t tokens, int64_t count, int64_t nope, int64_t rope,               \
                                             int64_t value, int64_t latent, int64_t threads) {                        \
    arcforge::mla_absorb<A>(heads, kv_b, cos, sin, q, {tokens, 0, 0, count, nope, rope, value, latent}, threads);     \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_mla_absorb_##NAME)                                                                       \
  extern "C" void arcforge_mla_epilog_##NAME(const A* attended, const A* kv_b, A* values, int64_t tokens,             \
                                             int64_t heads, int64_t nope, int64_t value, int64_t latent,              \
                                             int64_t threads) {                                                       \
    arcforge::mla_epilog<A>(attended, kv_b, values, {tokens, 0, 0, heads, nope, 0, value, latent}, threads);          \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_mla_epilog_##NAME)                                                                       \
  extern "C" void arcforge_index_prolog_##NAME(                                                                       \
      const A* x, const A* raw, const A* wk, const A* norm, const A* norm_bias, const A* weights, const A* cos,       \
      const A* sin, A* q, A* keys, A* head_weights, int64_t tokens, int64_t hidden, int64_t heads, int64_t width,     \
      int64_t rope, double eps, int64_t threads) {                                                                    \
    arcforge::index_prolog<A>(x, raw, {wk, norm, norm_bias, weights}, cos, sin, q, keys, head_weights,                \
                              {tokens, hidden, heads, width, rope}, eps, threads);                                    \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_index_prolog_##NAME)

#define ARCFORGE_FEED_FORWARD(NAME, A)                                                                                 \
  extern "C" void arcforge_mlp_##NAME(const A* x, const A* gate, const A* up, const A* down, A* out, int64_t tokens,  \
                                      int64_t hidden, int64_t width, int64_t threads) {                               \
    arcforge::mlp<A>(x, {gate, up, down, width}, out, tokens, hidden, threads);                                       \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_mlp_##NAME)                                                                              \
  extern "C" void arcforge_moe_##NAME(                                                                                \
      const A* x, const A* router, const float* bias, const A* gate_up, const A* down, const A* shared_gate,          \
      const A* shared_up, const A* shared_down, A* out, int64_t tokens, int64_t hidden, int64_t experts,              \
      int64_t chosen, int64_t width, int64_t shared_width, double scale, int64_t threads) {                           \
    arcforge::moe<A>(x, router, bias, experts, scale, {gate_up, down, nullptr, nullptr, chosen, hidden, width},       \
                     {shared_gate, shared_up, shared_down, shared_width}, out, tokens, threads);                      \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_moe_##NAME)

ARCFORGE_LAYER(float32, float)
ARCFORGE_LAYER(float64, double)
ARCFORGE_FEED_FORWARD(float32, float)
ARCFORGE_FEED_FORWARD(bfloat16, arcforge::BFloat16)
ARCFORGE_FEED_FORWARD(float64, double)
