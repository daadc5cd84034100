// Shared by kernels over selected keys: gathered rows, probabilities, and sums that many queries give to one key.
//
// T queries, S keys, H heads, K selected keys. A row number of -1 is no key, and no query selects a key twice.
#pragma once

#include <algorithm>
#include <vector>

#include "products.h"

namespace arcforge {

constexpr int64_t KEYS_AT_ONCE = 32;        // whose values stay in the first cache while the heads pass over them
constexpr int64_t ROWS_AHEAD = 4;           // asked for while one is copied: they lie anywhere
constexpr int64_t KEPT = int64_t(1) << 22;  // coefficients of the queries whose gradients are added together

// Slots of a selection up to its last key: later slots cost nothing.
inline int64_t used_slots(const int64_t* rows, int64_t selected) {
  while (selected > 0 && rows[selected - 1] < 0) selected--;
  return selected;
}

// Copies the selected rows of x [S, width], widened and padded; missing ones become zeros.
template <typename T, typename A>
void gather(const T* x, int64_t width, const int64_t* rows, int64_t selected, A* to) {
  for (int64_t k = 0; k < selected; k++) {
    if (k + ROWS_AHEAD < selected && rows[k + ROWS_AHEAD] >= 0) fetch(x + rows[k + ROWS_AHEAD] * width, width);
    if (rows[k] >= 0)
      widen_row(x + rows[k] * width, width, A(1), to + k * padded<A>(width));
    else
      std::fill_n(to + k * padded<A>(width), padded<A>(width), A(0));
  }
}

// Copies rows that lie one after another, widened, scaled and padded.
template <typename T, typename A>
void widen_rows(const T* x, int64_t count, int64_t width, double scale, A* to) {
  for (int64_t n = 0; n < count; n++) widen_row(x + n * width, width, A(scale), to + n * padded<A>(width));
}

// result[h] = sum over keys of weight[h][k] * entry[k], the first `width` values of rows `stride` apart; a head's weights
// lie `weight_stride` after those of the previous head.
template <typename A>
void weigh(const A* weight, int64_t weight_stride, int64_t heads, int64_t keys, const A* entries, int64_t stride,
           int64_t width, A* result, std::vector<A*>& places) {
  std::fill_n(result, heads * stride, A(0));
  for (int64_t h = 0; h < heads; h++) places[h] = result + h * stride;
  for (int64_t k = 0; k < keys; k += KEYS_AT_ONCE)
    add_rows(weight + k, weight_stride, 1, entries + k * stride, stride, std::min(KEYS_AT_ONCE, keys - k), width,
             places.data(), heads);
}

// Makes probabilities of scores; padding gets none. Returns the log of the sum of their exponentials.
template <typename A>
A softmax(A* scores, const int64_t* rows, int64_t selected) {
  A top = -INFINITY, total = 0;
#pragma omp simd reduction(max : top)
  for (int64_t k = 0; k < selected; k++) top = rows[k] >= 0 && scores[k] > top ? scores[k] : top;
#pragma omp simd reduction(+ : total)
  for (int64_t k = 0; k < selected; k++) total += scores[k] = rows[k] >= 0 ? exp_of(scores[k] - top) : A(0);
  for (int64_t k = 0; k < selected; k++) scores[k] /= total;
  return top + std::log(total);
}

// Attention weights of one query over its first `keys` slots: query and entries are padded rows, the query is scaled,
// a head's weights lie `selected` after those of the previous head.
template <typename A>
void probabilities(const A* query, const A* entries, int64_t stride, const int64_t* rows, int64_t heads, int64_t keys,
                   int64_t selected, A* probs) {
  dot_rows(query, stride, heads, entries, stride, keys, stride, probs, selected);
  for (int64_t h = 0; h < heads; h++) softmax(probs + h * selected, rows, keys);
}

// Borders of ranges of keys that these selections name about equally often.
inline std::vector<int64_t> fair_ranges(const int64_t* rows, int64_t count, int64_t keys, int threads) {
  std::vector<int64_t> uses(keys);
  int64_t all = 0;
  for (int64_t n = 0; n < count; n++)
    if (rows[n] >= 0) uses[rows[n]]++, all++;
  std::vector<int64_t> borders{0};
  int64_t seen = 0;
  for (int64_t key = 0; key < keys; key++) {
    if (seen * threads >= all * int64_t(borders.size()) && int64_t(borders.size()) < threads) borders.push_back(key);
    seen += uses[key];
  }
  borders.resize(threads + 1, keys);
  return borders;
}

// out[key] += sum over the queries that selected it, and over heads, of coefficient[t][h][k] * x[t][h]. A thread has a
// range of keys to itself and goes through the queries in their order: sums do not depend on the number of threads.
// x [tokens, H, width], coefficient [tokens, H, K], rows [tokens, K]; rows of out lie `stride` apart.
template <typename T, typename A>
void add_to_keys(const T* x, int64_t width, const A* coefficient, const int64_t* rows, int64_t tokens, int64_t heads,
                 int64_t selected, const std::vector<int64_t>& borders, A* out, int64_t stride) {
  const int threads = int(borders.size()) - 1;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int range = 0; range < threads; range++) {
    Memory<A> values(heads * padded<A>(width)), weight(selected * heads);
    std::vector<A*> places(selected);
    for (int64_t t = 0; t < tokens; t++) {
      int64_t count = 0;
      for (int64_t k = 0; k < selected; k++) {
        const int64_t key = rows[t * selected + k];
        if (key < borders[range] || key >= borders[range + 1]) continue;
        for (int64_t h = 0; h < heads; h++) weight[count * heads + h] = coefficient[(t * heads + h) * selected + k];
        places[count++] = out + key * stride;
      }
      if (count == 0) continue;
      widen_rows(x + t * heads * width, heads, width, 1.0, values.data());
      add_rows(weight.data(), heads, 1, values.data(), padded<A>(width), heads, padded<A>(width), places.data(), count);
    }
  }
}

}  // namespace arcforge
