// The indexer's loss over selected keys: for each query KL(p || softmax(I)), where p is the mean over heads of
// the attention weights and I are the index scores. The gradient of the scores is softmax(I) - p, in closed form.
//
// T queries, S keys, H heads, K selected keys, C latent plus rope, X index heads, D index head size.
#include "selected.h"

namespace arcforge {
namespace {

struct Sizes {
  int64_t tokens, keys, heads, selected, width, index_heads, index_width;
  double scale;
  bool relu;
  int threads;
};

// Products [X, K] of a query's index heads with the index values of its first `keys` slots, which are gathered.
template <typename T, typename A>
void index_dots(const T* index_q, const T* index_k, const int64_t* rows, int64_t keys, const Sizes& s,
                Memory<A>& query, Memory<A>& values, A* dots) {
  const int64_t stride = padded<A>(s.index_width);
  gather(index_k, s.index_width, rows, keys, values.data());
  widen_rows(index_q, s.index_heads, s.index_width, 1.0, query.data());
  dot_rows(query.data(), stride, s.index_heads, values.data(), stride, keys, stride, dots, s.selected);
}

// loss [T] and the gradients of the scores [T, K].
template <typename T, typename A>
void forward(const T* q, const T* kv, const T* index_q, const T* index_k, const A* weight, const int64_t* rows, A* loss,
             A* dscores, const Sizes& s) {
  const int64_t stride = padded<A>(s.width), index_stride = padded<A>(s.index_width);
#pragma omp parallel num_threads(s.threads)
  {
    Memory<A> entries(s.selected * stride), query(s.heads * stride), probs(s.heads * s.selected);
    Memory<A> index_keys(s.selected * index_stride), index_query(s.index_heads * index_stride);
    Memory<A> dots(s.index_heads * s.selected), scores(s.selected);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < s.tokens; t++) {
      const int64_t* selected = rows + t * s.selected;
      const int64_t keys = used_slots(selected, s.selected);
      gather(kv, s.width, selected, keys, entries.data());
      widen_rows(q + t * s.heads * s.width, s.heads, s.width, s.scale, query.data());
      probabilities(query.data(), entries.data(), stride, selected, s.heads, keys, s.selected,
                    probs.data());
      index_dots(index_q + t * s.index_heads * s.index_width, index_k, selected, keys, s, index_query, index_keys,
                 dots.data());
      A* ds = dscores + t * s.selected;
      std::fill(ds + keys, ds + s.selected, A(0));
      for (int64_t k = 0; k < keys; k++) {
        A score = 0, target = 0;
        for (int64_t i = 0; i < s.index_heads; i++) {
          const A dot = dots[i * s.selected + k];
          score += weight[t * s.index_heads + i] * (s.relu && dot < 0 ? A(0) : dot);
        }
        for (int64_t h = 0; h < s.heads; h++) target += probs[h * s.selected + k];
        scores[k] = ds[k] = score;
        probs[k] = target / A(s.heads);  // the first head's weights are not needed any more
      }
      const A log_sum = softmax(ds, selected, keys);
      A divergence = 0;
      for (int64_t k = 0; k < keys; k++) {
        const A p = probs[k];
        if (p > 0) divergence += p * (std::log(p) - scores[k] + log_sum);
        ds[k] -= p;
      }
      loss[t] = divergence;
    }
  }
}

// Gradients of index queries and weights of some queries, and of each product [tokens, X, K] for those of the keys.
template <typename T, typename A>
void query_gradients(const A* grad, const A* dscores, const T* index_q, const T* index_k, const A* weight,
                     const int64_t* rows, T* dindex_q, A* dweight, A* ddots, int64_t tokens, const Sizes& s) {
  const int64_t stride = padded<A>(s.index_width);
#pragma omp parallel num_threads(s.threads)
  {
    Memory<A> values(s.selected * stride), query(s.index_heads * stride), result(s.index_heads * stride);
    std::vector<A*> places(s.index_heads);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
      const int64_t first = t * s.index_heads;
      const int64_t* selected = rows + t * s.selected;
      const int64_t keys = used_slots(selected, s.selected);
      A* dots = ddots + first * s.selected;
      index_dots(index_q + first * s.index_width, index_k, selected, keys, s, query, values, dots);
      for (int64_t i = 0; i < s.index_heads; i++) {
        A* row = dots + i * s.selected;
        A sum = 0;
        for (int64_t k = 0; k < keys; k++) {
          const A ds = grad[t] * dscores[t * s.selected + k];
          const bool passes = !s.relu || row[k] > 0;
          sum += passes ? ds * row[k] : A(0);
          row[k] = passes ? ds * weight[first + i] : A(0);
        }
        dweight[first + i] = sum;
      }
      weigh(dots, s.selected, s.index_heads, keys, values.data(), stride, stride, result.data(), places);
      for (int64_t i = 0; i < s.index_heads; i++)
        narrow_row(&result[i * stride], s.index_width, dindex_q + (first + i) * s.index_width);
    }
  }
}

template <typename T, typename A>
void backward(const A* grad, const A* dscores, const T* index_q, const T* index_k, const A* weight, const int64_t* rows,
              T* dindex_q, A* dindex_k, A* dweight, const Sizes& s) {
  const int64_t block = std::max<int64_t>(1, std::min(s.tokens, KEPT / (s.index_heads * s.selected)));
  Memory<A> ddots(block * s.index_heads * s.selected);
  for (int64_t first = 0; first < s.tokens; first += block) {
    const int64_t tokens = std::min(block, s.tokens - first), query = first * s.index_heads;
    const int64_t* selected = rows + first * s.selected;
    const T* some_q = index_q + query * s.index_width;
    query_gradients(grad + first, dscores + first * s.selected, some_q, index_k, weight + query, selected,
                    dindex_q + query * s.index_width, dweight + query, ddots.data(), tokens, s);
    const std::vector<int64_t> borders = fair_ranges(selected, tokens * s.selected, s.keys, s.threads);
    add_to_keys(some_q, s.index_width, ddots.data(), selected, tokens, s.index_heads, s.selected, borders, dindex_k,
                padded<A>(s.index_width));
  }
}

}  // namespace
}  // namespace arcforge

// dindex_k [S, padded D] is added to, in the precision that is computed in.
#define ARCFORGE_INDEXER_KL(NAME, T, A)                                                                               \
  extern "C" void arcforge_indexer_kl_##NAME(                                                                         \
      const T* q, const T* kv, const T* index_q, const T* index_k, const A* weight, const int64_t* rows, A* loss,     \
      A* dscores, int64_t tokens, int64_t keys, int64_t heads, int64_t selected, int64_t width, int64_t index_heads,  \
      int64_t index_width, double scale, int64_t relu, int64_t threads) {                                             \
    arcforge::forward<T, A>(q, kv, index_q, index_k, weight, rows, loss, dscores,                                     \
                            {tokens, keys, heads, selected, width, index_heads, index_width, scale, relu != 0,        \
                             int(threads)});                                                                          \
  }                                                                                                                   \
  extern "C" void arcforge_indexer_kl_backward_##NAME(                                                                \
      const A* grad, const A* dscores, const T* index_q, const T* index_k, const A* weight, const int64_t* rows,      \
      T* dindex_q, A* dindex_k, A* dweight, int64_t tokens, int64_t keys, int64_t selected, int64_t index_heads,      \
      int64_t index_width, int64_t relu, int64_t threads) {                                                           \
    arcforge::backward<T, A>(grad, dscores, index_q, index_k, weight, rows, dindex_q, dindex_k, dweight,              \
                             {tokens, keys, 0, selected, 0, index_heads, index_width, 0.0, relu != 0, int(threads)}); \
  }

ARCFORGE_INDEXER_KL(float32, float, float)
ARCFORGE_INDEXER_KL(bfloat16, arcforge::BFloat16, float)
ARCFORGE_INDEXER_KL(float64, double, double)
