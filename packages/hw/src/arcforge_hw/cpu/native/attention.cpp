// Causal attention inside segments: one segment and key/value group at a time, packed once, so that scores of some queries
// and, of short segments, all keys stay in the cache from the product to the gradient. Of a selection, scores of all keys are
// computed and those of unselected keys dropped.
//
// What a score sums over is packed transposed: a row of scores is a sum of its rows, without sums across a vector.
// A segment's sums are made by one thread in a fixed order: results do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "products.h"
#include "segments.h"

namespace arcforge {
namespace {

template <typename A>
struct Block {  // rows of some queries, `stride` apart
  Memory<A> values;
  std::vector<A*> places;
  int64_t stride;
  Block(int64_t rows, int64_t width) : values(rows * apart<A>(width)), places(rows), stride(apart<A>(width)) {
    for (int64_t r = 0; r < rows; r++) places[r] = &values[r * stride];
  }
  void clear(int64_t rows) { std::fill_n(values.data(), rows * stride, A(0)); }
  A* row(int64_t r) { return places[r]; }
};

template <typename T, typename A>
void take(const T* x, int64_t step, int64_t rows, int64_t width, A scale, Block<A>& to) {
  for (int64_t r = 0; r < rows; r++) widen_row(x + r * step, width, scale, to.row(r));
}

// x, rows `step` apart, transposed, zero past its end.
template <typename T, typename A>
void turn(const T* x, int64_t step, int64_t rows, int64_t width, Block<A>& to) {
  constexpr int64_t SOME = LANES<A>;  // a square of which fits into the cache
  for (int64_t first = 0; first < padded<A>(rows); first += SOME)
    for (int64_t d = 0; d < width; d++)
      for (int64_t j = first; j < first + SOME; j++) to.row(d)[j] = j < rows ? A(x[j * step + d]) : A(0);
}

template <typename T, typename A>
void forward(const T* q, const T* k, const T* v, const int64_t* cu_query, const int64_t* cu_key, T* out, A* lse,
             const Sizes& s) {
  const int64_t most = longest(cu_key, s.segments), per_group = s.heads / s.groups, cuts = cuts_of(cu_query, s.segments);
#pragma omp parallel num_threads(busy(s, s.segments * s.groups * cuts))
  {
    const int64_t value_width = padded<A>(s.value_dim);
    Block<A> keys_t(s.key_dim, most), values(most, s.value_dim);
    Block<A> query(QUERIES, s.key_dim), scores(QUERIES, most), result(QUERIES, s.value_dim);
    Memory<A> gathered(s.selected);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < s.segments * s.groups * cuts; task++) {
      const Segment part(cu_query, cu_key, task / cuts / s.groups);
      const int64_t begin = task % cuts * QUERIES;
      if (begin >= part.queries) continue;
      const int64_t group = task / cuts % s.groups, past = part.keys - part.queries, first_key = part.key * s.groups + group;
      turn(k + first_key * s.key_dim, s.groups * s.key_dim, part.keys, s.key_dim, keys_t);
      take(v + first_key * s.value_dim, s.groups * s.value_dim, part.keys, s.value_dim, A(1), values);
      for (int64_t h = group * per_group; h < (group + 1) * per_group; h++)
        for (int64_t first = begin; first < part.queries; first += cuts * QUERIES) {
          const int64_t rows = std::min(QUERIES, part.queries - first), seen = past + first + rows;
          const int64_t at = (part.query + first) * s.heads + h;
          take(q + at * s.key_dim, s.heads * s.key_dim, rows, s.key_dim, A(s.scale), query);
          add_rows(query.row(0), query.stride, 1, keys_t.row(0), keys_t.stride, s.key_dim, padded<A>(seen),
                   scores.places.data(), rows, false);
          A totals[QUERIES];
          for (int64_t r = 0; r < rows; r++) {
            const Row<A> row(scores.row(r), part.query + first + r, past + first + r + 1, s, gathered.data());
            A top = -INFINITY, total = 0;
#pragma omp simd reduction(max : top)
            for (int64_t j = 0; j < row.count; j++) top = row.values[j] > top ? row.values[j] : top;
#pragma omp simd reduction(+ : total)
            for (int64_t j = 0; j < row.count; j++) total += row.values[j] = exp_of(row.values[j] - top);
            row.put_back(scores.row(r), seen);
            totals[r] = total;
            lse[at + r * s.heads] = top + std::log(total);
          }
          add_rows(scores.row(0), scores.stride, 1, values.row(0), values.stride, seen, value_width,
                   result.places.data(), rows, false);
          for (int64_t r = 0; r < rows; r++)
            for (int64_t d = 0; d < s.value_dim; d++)
              narrow(result.row(r)[d] / totals[r], out + (at + r * s.heads) * s.value_dim + d);
        }
    }
  }
}

template <typename T, typename A>
void backward(const T* grad, const T* q, const T* k, const T* v, const A* lse, const int64_t* cu_query,
              const int64_t* cu_key, T* dq, T* dk, T* dv, const Sizes& s) {
  const int64_t most = longest(cu_key, s.segments), per_group = s.heads / s.groups;
#pragma omp parallel num_threads(busy(s, s.segments * s.groups))
  {
    const int64_t key_width = padded<A>(s.key_dim), value_width = padded<A>(s.value_dim);
    Block<A> keys(most, s.key_dim), keys_t(s.key_dim, most), values_t(s.value_dim, most);
    Block<A> query(QUERIES, s.key_dim), cotangent(QUERIES, s.value_dim), probs(QUERIES, most), dscores(QUERIES, most);
    Block<A> dquery(QUERIES, s.key_dim), dkeys(most, s.key_dim), dvalues(most, s.value_dim);
    Memory<A> gathered(2 * s.selected);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < s.segments * s.groups; task++) {
      const Segment part(cu_query, cu_key, task / s.groups);
      const int64_t group = task % s.groups, past = part.keys - part.queries, first_key = part.key * s.groups + group;
      take(k + first_key * s.key_dim, s.groups * s.key_dim, part.keys, s.key_dim, A(1), keys);
      turn(k + first_key * s.key_dim, s.groups * s.key_dim, part.keys, s.key_dim, keys_t);
      turn(v + first_key * s.value_dim, s.groups * s.value_dim, part.keys, s.value_dim, values_t);
      dkeys.clear(part.keys);
      dvalues.clear(part.keys);
      for (int64_t h = group * per_group; h < (group + 1) * per_group; h++)
        for (int64_t first = 0; first < part.queries; first += QUERIES) {
          const int64_t rows = std::min(QUERIES, part.queries - first), seen = past + first + rows;
          const int64_t at = (part.query + first) * s.heads + h;
          take(q + at * s.key_dim, s.heads * s.key_dim, rows, s.key_dim, A(s.scale), query);
          take(grad + at * s.value_dim, s.heads * s.value_dim, rows, s.value_dim, A(1), cotangent);
          add_rows(query.row(0), query.stride, 1, keys_t.row(0), keys_t.stride, s.key_dim, padded<A>(seen),
                   probs.places.data(), rows, false);
          add_rows(cotangent.row(0), cotangent.stride, 1, values_t.row(0), values_t.stride, s.value_dim, padded<A>(seen),
                   dscores.places.data(), rows, false);
          for (int64_t r = 0; r < rows; r++) {
            const int64_t token = part.query + first + r, visible = past + first + r + 1;
            const Row<A> p_row(probs.row(r), token, visible, s, gathered.data());
            const Row<A> ds_row(dscores.row(r), token, visible, s, gathered.data() + s.selected);
            A *p = p_row.values, *ds = ds_row.values;
            const A sum = lse[at + r * s.heads];
            A mean = 0;
#pragma omp simd
            for (int64_t j = 0; j < p_row.count; j++) p[j] = exp_of(p[j] < sum ? p[j] - sum : A(0));
#pragma omp simd reduction(+ : mean)
            for (int64_t j = 0; j < p_row.count; j++) mean += p[j] * ds[j];
            for (int64_t j = 0; j < p_row.count; j++) ds[j] = p[j] * (ds[j] - mean);
            p_row.put_back(probs.row(r), seen);
            ds_row.put_back(dscores.row(r), seen);
          }
          add_rows(dscores.row(0), dscores.stride, 1, keys.row(0), keys.stride, seen, key_width,
                   dquery.places.data(), rows, false);
          add_rows(dscores.row(0), 1, dscores.stride, query.row(0), query.stride, rows, key_width,
                   dkeys.places.data(), seen);
          add_rows(probs.row(0), 1, probs.stride, cotangent.row(0), cotangent.stride, rows, value_width,
                   dvalues.places.data(), seen);
          for (int64_t r = 0; r < rows; r++)
            for (int64_t d = 0; d < s.key_dim; d++)
              narrow(A(s.scale) * dquery.row(r)[d], dq + (at + r * s.heads) * s.key_dim + d);
        }
      for (int64_t j = 0; j < part.keys; j++) {
        narrow_row(dkeys.row(j), s.key_dim, dk + (first_key + j * s.groups) * s.key_dim);
        narrow_row(dvalues.row(j), s.value_dim, dv + (first_key + j * s.groups) * s.value_dim);
      }
    }
  }
}

}  // namespace
}  // namespace arcforge

ARCFORGE_ATTENTION(float32, float, float)
#ifndef ARCFORGE_PAIRS
ARCFORGE_ATTENTION(bfloat16, arcforge::BFloat16, float)
#endif
ARCFORGE_ATTENTION(float64, double, double)
