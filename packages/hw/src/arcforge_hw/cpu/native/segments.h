// Shared by the two forms of attention inside segments: sizes, segments, and rows of scores.
#pragma once

#include <algorithm>
#include <cstdint>

namespace arcforge {

constexpr int64_t QUERIES = 32;  // whose scores exist at a time

struct Sizes {
  int64_t segments, heads, groups, key_dim, value_dim;
  double scale;
  int threads;
  const int64_t* indices;  // [T, selected] keys of the segment, -1 for none; or null: all visible keys
  int64_t selected;
};

// The scores of one query that count: all that are visible, or the selected ones, which are gathered and put back.
template <typename A>
struct Row {
  A* values;
  int64_t count;
  const int64_t* keys;  // null: the first `count`

  Row(A* row, int64_t token, int64_t visible, const Sizes& s, A* gathered) : values(row), count(visible), keys(nullptr) {
    if (!s.indices) return;
    keys = s.indices + token * s.selected;
    for (count = 0; count < s.selected && keys[count] >= 0; count++) gathered[count] = row[keys[count]];
    values = gathered;
  }
  // Makes the row [0, seen) zero but for these values.
  void put_back(A* row, int64_t seen) const {
    if (!keys) return std::fill(row + count, row + seen, A(0));
    std::fill(row, row + seen, A(0));
    for (int64_t n = 0; n < count; n++) row[keys[n]] = values[n];
  }
};

struct Segment {
  int64_t query, queries, key, keys;
  Segment(const int64_t* cu_query, const int64_t* cu_key, int64_t n)
      : query(cu_query[n]), queries(cu_query[n + 1] - cu_query[n]), key(cu_key[n]), keys(cu_key[n + 1] - cu_key[n]) {}
};

inline int64_t longest(const int64_t* cu_key, int64_t segments) {
  int64_t most = 0;
  for (int64_t n = 0; n < segments; n++) most = std::max(most, cu_key[n + 1] - cu_key[n]);
  return most;
}

constexpr int64_t CUT = 1024;  // queries of one task forward, taken from all over a segment, since later ones see more

inline int64_t cuts_of(const int64_t* cu_query, int64_t segments) { return (longest(cu_query, segments) + CUT - 1) / CUT; }

// Threads that have a task: each has memory for the longest segment.
inline int busy(const Sizes& s, int64_t tasks) { return int(std::max<int64_t>(1, std::min<int64_t>(s.threads, tasks))); }

}  // namespace arcforge

#define ARCFORGE_ATTENTION(NAME, T, A)                                                                                 \
  extern "C" void arcforge_attention_##NAME(const T* q, const T* k, const T* v, const int64_t* cu_query,               \
                                            const int64_t* cu_key, const int64_t* indices, T* out, A* lse,             \
                                            int64_t segments, int64_t heads, int64_t groups, int64_t key_dim,          \
                                            int64_t value_dim, int64_t selected, double scale, int64_t threads) {      \
    arcforge::forward(q, k, v, cu_query, cu_key, out, lse,                                                       \
                            {segments, heads, groups, key_dim, value_dim, scale, int(threads), indices, selected});          \
  }                                                                                                                    \
  extern "C" void arcforge_attention_backward_##NAME(                                                                  \
      const T* grad, const T* q, const T* k, const T* v, const A* lse, const int64_t* cu_query, const int64_t* cu_key, \
      const int64_t* indices, T* dq, T* dk, T* dv, int64_t segments, int64_t heads, int64_t groups, int64_t key_dim,   \
      int64_t value_dim, int64_t selected, double scale, int64_t threads) {                                            \
    arcforge::backward(grad, q, k, v, lse, cu_query, cu_key, dq, dk, dv,                                         \
                             {segments, heads, groups, key_dim, value_dim, scale, int(threads), indices, selected});   \
  }
