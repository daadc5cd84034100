// Absorbed attention to selected keys. A query's keys are gathered once, in the precision that is computed in, and serve both
// products. Threads have queries of their own; where these are few, all share one query's keys, then its heads.
//
// T queries, S keys, H heads, K selected keys, C latent plus rope, L latent.
#include "record.h"
#include "selected.h"

namespace arcforge {
namespace {

struct Sizes {
  int64_t tokens, keys, heads, selected, width, latent;
  double scale;
  int threads;
};

// Memory of a thread that is kept between calls, and not cleared: gathered keys are megabytes.
template <typename A>
A* kept(int64_t values) {
  static thread_local Memory<A> memory;
  if (int64_t(memory.size()) < values) memory.resize(values);
  return memory.data();
}

// A thread's work buffers for some heads of a query.
template <typename A>
struct Heads {
  Memory<A> query, result, probs;
  std::vector<A*> places;
  Heads(int64_t heads, int64_t stride, int64_t selected)
      : query(heads * stride), result(heads * stride), probs(heads * selected), places(heads) {}
};

// The outputs of `heads` heads of a query over its gathered entries; q and out are at the first of them.
template <typename T, typename A>
void attend(const T* q, const A* entries, const int64_t* selected, int64_t keys, int64_t heads, T* out, const Sizes& s,
            Heads<A>& own) {
  const int64_t stride = padded<A>(s.width);
  widen_rows(q, heads, s.width, s.scale, own.query.data());
  probabilities(own.query.data(), entries, stride, selected, heads, keys, s.selected, own.probs.data());
  weigh(own.probs.data(), s.selected, heads, keys, entries, stride, padded<A>(s.latent), own.result.data(), own.places);
  for (int64_t h = 0; h < heads; h++) narrow_row(&own.result[h * stride], s.latent, out + h * s.latent);
}

template <typename T, typename A>
void forward_shared(const T* q, const T* kv, const int64_t* selected, T* out, const Sizes& s) {
  const int64_t stride = padded<A>(s.width), keys = used_slots(selected, s.selected);
  const int64_t each = std::max<int64_t>(1, (s.heads + s.threads - 1) / s.threads);
  A* entries = kept<A>(s.selected * stride);
#pragma omp parallel num_threads(s.threads)
  {
#pragma omp for schedule(static)
    for (int64_t k = 0; k < keys; k += KEYS_AT_ONCE)
      gather(kv, s.width, selected + k, std::min(KEYS_AT_ONCE, keys - k), entries + k * stride);
    Heads<A> own(each, stride, s.selected);
#pragma omp for schedule(static)
    for (int64_t h = 0; h < s.heads; h += each)
      attend(q + h * s.width, entries, selected, keys, std::min(each, s.heads - h), out + h * s.latent, s, own);
  }
}

template <typename T, typename A>
void forward(const T* q, const T* kv, const int64_t* rows, T* out, const Sizes& s) {
  const int64_t stride = padded<A>(s.width);
  const auto of = [&](int64_t t, int64_t width) { return t * s.heads * width; };
  if (2 * s.tokens <= std::min<int64_t>(s.threads, s.heads)) {  // else threads of their own queries take no longer
    for (int64_t t = 0; t < s.tokens; t++)
      forward_shared<T, A>(q + of(t, s.width), kv, rows + t * s.selected, out + of(t, s.latent), s);
    return;
  }
#pragma omp parallel num_threads(s.threads)
  {
    Heads<A> own(s.heads, stride, s.selected);
    A* entries = kept<A>(s.selected * stride);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < s.tokens; t++) {
      const int64_t* selected = rows + t * s.selected;
      const int64_t keys = used_slots(selected, s.selected);
      gather(kv, s.width, selected, keys, entries);
      attend(q + of(t, s.width), entries, selected, keys, s.heads, out + of(t, s.latent), s, own);
    }
  }
}

// The gradient of some queries, and what the gradient of the entries is made of: probabilities and the gradients of
// scores, both [tokens, H, K].
template <typename T, typename A>
void query_gradients(const T* grad, const T* q, const T* kv, const int64_t* rows, T* dq, A* probs, A* dscores,
                     int64_t tokens, const Sizes& s) {
  const int64_t stride = padded<A>(s.width), latent_stride = padded<A>(s.latent);
#pragma omp parallel num_threads(s.threads)
  {
    Memory<A> entries(s.selected * stride), query(s.heads * stride), result(s.heads * stride);
    Memory<A> cotangent(s.heads * latent_stride);
    std::vector<A*> places(s.heads);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
      const int64_t* selected = rows + t * s.selected;
      const int64_t keys = used_slots(selected, s.selected);
      A* p = probs + t * s.heads * s.selected;
      A* ds = dscores + t * s.heads * s.selected;
      gather(kv, s.width, selected, keys, entries.data());
      widen_rows(q + t * s.heads * s.width, s.heads, s.width, s.scale, query.data());
      widen_rows(grad + t * s.heads * s.latent, s.heads, s.latent, 1.0, cotangent.data());
      probabilities(query.data(), entries.data(), stride, selected, s.heads, keys, s.selected, p);
      dot_rows(cotangent.data(), latent_stride, s.heads, entries.data(), stride, keys, latent_stride, ds,
               s.selected);
      for (int64_t h = 0; h < s.heads; h++) {
        A* row = ds + h * s.selected;
        const A* weight = p + h * s.selected;
        A mean = 0;
#pragma omp simd reduction(+ : mean)
        for (int64_t k = 0; k < keys; k++) mean += weight[k] * row[k];
        for (int64_t k = 0; k < keys; k++) row[k] = A(s.scale) * weight[k] * (row[k] - mean);
      }
      weigh(ds, s.selected, s.heads, keys, entries.data(), stride, stride, result.data(), places);
      for (int64_t h = 0; h < s.heads; h++)
        narrow_row(&result[h * stride], s.width, dq + (t * s.heads + h) * s.width);
    }
  }
}

template <typename T, typename A>
void backward(const T* grad, const T* q, const T* kv, const int64_t* rows, T* dq, A* dkv, const Sizes& s) {
  const int64_t stride = padded<A>(s.width);
  const int64_t block = std::max<int64_t>(1, std::min(s.tokens, KEPT / (s.heads * s.selected)));
  Memory<A> probs(block * s.heads * s.selected), dscores(probs.size());
  for (int64_t first = 0; first < s.tokens; first += block) {
    const int64_t tokens = std::min(block, s.tokens - first), query = first * s.heads;
    const int64_t* selected = rows + first * s.selected;
    const T *some_grad = grad + query * s.latent, *some_q = q + query * s.width;
    query_gradients(some_grad, some_q, kv, selected, dq + query * s.width, probs.data(), dscores.data(), tokens, s);
    const std::vector<int64_t> borders = fair_ranges(selected, tokens * s.selected, s.keys, s.threads);
    add_to_keys(some_q, s.width, dscores.data(), selected, tokens, s.heads, s.selected, borders, dkv, stride);
    add_to_keys(some_grad, s.latent, probs.data(), selected, tokens, s.heads, s.selected, borders, dkv, stride);
  }
}

}  // namespace
}  // namespace arcforge

// dkv [S, padded width] is added to, in the precision that is computed in.
#define ARCFORGE_SPARSE_MLA(NAME, T, A)                                                                               \
  extern "C" void arcforge_sparse_mla_##NAME(const T* q, const T* kv, const int64_t* rows, T* out, int64_t tokens,    \
                                             int64_t keys, int64_t heads, int64_t selected, int64_t width,            \
                                             int64_t latent, double scale, int64_t threads) {                         \
    arcforge::forward<T, A>(q, kv, rows, out, {tokens, keys, heads, selected, width, latent, scale, int(threads)});   \
  }                                                                                                                   \
  ARCFORGE_RECORDED(arcforge_sparse_mla_##NAME)                                                                       \
  extern "C" void arcforge_sparse_mla_backward_##NAME(                                                                \
      const T* grad, const T* q, const T* kv, const int64_t* rows, T* dq, A* dkv, int64_t tokens, int64_t keys,       \
      int64_t heads, int64_t selected, int64_t width, int64_t latent, double scale, int64_t threads) {                \
    arcforge::backward<T, A>(grad, q, kv, rows, dq, dkv,                                                              \
                             {tokens, keys, heads, selected, width, latent, scale, int(threads)});                    \
  }

ARCFORGE_SPARSE_MLA(float32, float, float)
ARCFORGE_SPARSE_MLA(bfloat16, arcforge::BFloat16, float)
ARCFORGE_SPARSE_MLA(float64, double, double)

// Rows [T, K] of keys that are numbered in their segment; -1 stays.
extern "C" void arcforge_key_rows(const int64_t* indices, const int32_t* cu_query, const int32_t* cu_key, int64_t segments,
                                  const int64_t* pages, int64_t each, int64_t size, int64_t selected, int64_t* rows) {
  const arcforge::Pages table{pages, each, size};
  for (int64_t n = 0; n < segments; n++) {
    const auto keys = table.keys_of<char>(n, nullptr, cu_key[n], 0);
    for (int64_t i = cu_query[n] * selected; i < cu_query[n + 1] * selected; i++)
      rows[i] = indices[i] < 0 ? -1 : keys.row(indices[i]);
  }
}

ARCFORGE_RECORDED(arcforge_key_rows)

extern "C" int arcforge_vector_bytes() { return int(arcforge::VECTOR_BYTES); }
