// attention.cpp in bfloat16: the same steps and sizes, its products of pairs with sums in fp32. Scores, their exponentials
// and sums are fp32; probabilities and their gradients are rounded to bfloat16 where they are multiplied.
//
// Keys and values are packed in the two forms in which a product reads them: pairs of neighbours, transposed, where values
// of a row are summed over, and pairs of rows where keys are.
#include <algorithm>
#include <cmath>

#include "packed.h"
#include "segments.h"

#ifdef ARCFORGE_PAIRS

namespace arcforge {
namespace {

// Fills a row up to whole vectors, so that no loop over scores has a tail; returns its length.
int64_t fill_up(float* row, int64_t count, float value) {
  std::fill(row + count, row + padded<float>(count), value);
  return padded<float>(count);
}

void forward(const BFloat16* q, const BFloat16* k, const BFloat16* v, const int64_t* cu_query, const int64_t* cu_key,
             BFloat16* out, float* lse, const Sizes& s) {
  const int64_t most = longest(cu_key, s.segments), per_group = s.heads / s.groups, cuts = cuts_of(cu_query, s.segments);
  const float scale = float(s.scale);
#pragma omp parallel num_threads(busy(s, s.segments * s.groups * cuts))
  {
    Matrix<Pair> keys_t(halves(s.key_dim), most), values_n(halves(most), s.value_dim);
    Matrix<Pair> query(QUERIES, halves(s.key_dim)), probs(QUERIES, halves(padded<float>(most)));
    Matrix<float> scores(QUERIES, most), result(QUERIES, s.value_dim);
    Memory<float> gathered(padded<float>(s.selected));
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < s.segments * s.groups * cuts; task++) {
      const Segment part(cu_query, cu_key, task / cuts / s.groups);
      const int64_t begin = task % cuts * QUERIES;
      if (begin >= part.queries) continue;
      const int64_t group = task / cuts % s.groups, past = part.keys - part.queries, first_key = part.key * s.groups + group;
      turn(k + first_key * s.key_dim, s.groups * s.key_dim, part.keys, s.key_dim, keys_t);
      zip(v + first_key * s.value_dim, s.groups * s.value_dim, part.keys, s.value_dim, values_n);
      for (int64_t h = group * per_group; h < (group + 1) * per_group; h++)
        for (int64_t first = begin; first < part.queries; first += cuts * QUERIES) {
          const int64_t rows = std::min(QUERIES, part.queries - first), seen = past + first + rows;
          const int64_t at = (part.query + first) * s.heads + h, length = padded<float>(seen);
          take(q + at * s.key_dim, s.heads * s.key_dim, rows, s.key_dim, query);
          pair_product(query.row(0), query.stride, 1, rows, keys_t.row(0), keys_t.stride, length, halves(s.key_dim),
                       scores.row(0), scores.stride, false);
          float totals[QUERIES];
          for (int64_t r = 0; r < rows; r++) {
            const Row<float> row(scores.row(r), part.query + first + r, past + first + r + 1, s, gathered.data());
            float *p = row.values, top = -INFINITY, total = 0;
            const int64_t count = fill_up(p, row.count, -INFINITY);
#pragma omp simd reduction(max : top)
            for (int64_t j = 0; j < count; j++) top = p[j] > top ? p[j] : top;
#pragma omp simd reduction(+ : total)
            for (int64_t j = 0; j < count; j++) total += p[j] = exp_of(scale * (p[j] - top));
            row.put_back(scores.row(r), length);
            pair_neighbours(scores.row(r), length, probs.row(r));
            totals[r] = total;
            lse[at + r * s.heads] = scale * top + std::log(total);
          }
          pair_product(probs.row(0), probs.stride, 1, rows, values_n.row(0), values_n.stride, padded<float>(s.value_dim),
                       halves(seen), result.row(0), result.stride, false);
          for (int64_t r = 0; r < rows; r++)
            put(result.row(r), s.value_dim, 1 / totals[r], out + (at + r * s.heads) * s.value_dim);
        }
    }
  }
}

void backward(const BFloat16* grad, const BFloat16* q, const BFloat16* k, const BFloat16* v, const float* lse,
              const int64_t* cu_query, const int64_t* cu_key, BFloat16* dq, BFloat16* dk, BFloat16* dv, const Sizes& s) {
  const int64_t most = longest(cu_key, s.segments), per_group = s.heads / s.groups;
  const float scale = float(s.scale);
#pragma omp parallel num_threads(busy(s, s.segments * s.groups))
  {
    Matrix<Pair> keys_t(halves(s.key_dim), most), keys_n(halves(most), s.key_dim), values_t(halves(s.value_dim), most);
    Matrix<Pair> query(QUERIES, halves(s.key_dim)), query_n(halves(QUERIES), s.key_dim);
    Matrix<Pair> cotangent(QUERIES, halves(s.value_dim)), cotangent_n(halves(QUERIES), s.value_dim);
    Matrix<Pair> probs_n(halves(QUERIES), most), dscores_n(halves(QUERIES), most);
    Matrix<Pair> dscores_2(QUERIES, halves(padded<float>(most)));
    Matrix<float> probs(QUERIES, most), dscores(QUERIES, most), dquery(QUERIES, s.key_dim);
    Matrix<float> dkeys(most, s.key_dim), dvalues(most, s.value_dim);
    const int64_t room = padded<float>(s.selected);
    Memory<float> gathered(2 * room);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < s.segments * s.groups; task++) {
      const Segment part(cu_query, cu_key, task / s.groups);
      const int64_t group = task % s.groups, past = part.keys - part.queries, first_key = part.key * s.groups + group;
      turn(k + first_key * s.key_dim, s.groups * s.key_dim, part.keys, s.key_dim, keys_t);
      zip(k + first_key * s.key_dim, s.groups * s.key_dim, part.keys, s.key_dim, keys_n);
      turn(v + first_key * s.value_dim, s.groups * s.value_dim, part.keys, s.value_dim, values_t);
      dkeys.clear(part.keys);
      dvalues.clear(part.keys);
      for (int64_t h = group * per_group; h < (group + 1) * per_group; h++)
        for (int64_t first = 0; first < part.queries; first += QUERIES) {
          const int64_t rows = std::min(QUERIES, part.queries - first), seen = past + first + rows;
          const int64_t at = (part.query + first) * s.heads + h, length = padded<float>(seen);
          const BFloat16 *own_q = q + at * s.key_dim, *own_grad = grad + at * s.value_dim;
          take(own_q, s.heads * s.key_dim, rows, s.key_dim, query);
          zip(own_q, s.heads * s.key_dim, rows, s.key_dim, query_n);
          take(own_grad, s.heads * s.value_dim, rows, s.value_dim, cotangent);
          zip(own_grad, s.heads * s.value_dim, rows, s.value_dim, cotangent_n);
          pair_product(query.row(0), query.stride, 1, rows, keys_t.row(0), keys_t.stride, length, halves(s.key_dim),
                       probs.row(0), probs.stride, false);
          pair_product(cotangent.row(0), cotangent.stride, 1, rows, values_t.row(0), values_t.stride, length,
                       halves(s.value_dim), dscores.row(0), dscores.stride, false);
          for (int64_t r = 0; r < rows; r++) {
            const int64_t token = part.query + first + r, visible = past + first + r + 1;
            const Row<float> p_row(probs.row(r), token, visible, s, gathered.data());
            const Row<float> ds_row(dscores.row(r), token, visible, s, gathered.data() + room);
            float *p = p_row.values, *ds = ds_row.values, mean = 0;
            const float sum = lse[at + r * s.heads];
            const int64_t count = fill_up(p, p_row.count, -INFINITY);
            fill_up(ds, p_row.count, 0.0f);
#pragma omp simd reduction(+ : mean)
            for (int64_t j = 0; j < count; j++) {
              const float over = scale * p[j] - sum;
              mean += ds[j] * (p[j] = exp_of(over < 0.0f ? over : 0.0f));
            }
#pragma omp simd
            for (int64_t j = 0; j < count; j++) ds[j] = p[j] * (ds[j] - mean);
            p_row.put_back(probs.row(r), length);
            ds_row.put_back(dscores.row(r), length);
            pair_neighbours(dscores.row(r), length, dscores_2.row(r));
          }
          if (rows % 2) {  // the last one's other half
            std::fill_n(probs.row(rows), length, 0.0f);
            std::fill_n(dscores.row(rows), length, 0.0f);
          }
          for (int64_t r = 0; r < rows; r += 2) {
            pair_rows(probs.row(r), probs.row(r + 1), length, probs_n.row(r / 2));
            pair_rows(dscores.row(r), dscores.row(r + 1), length, dscores_n.row(r / 2));
          }
          pair_product(dscores_2.row(0), dscores_2.stride, 1, rows, keys_n.row(0), keys_n.stride, padded<float>(s.key_dim),
                       halves(seen), dquery.row(0), dquery.stride, false);
          pair_product(dscores_n.row(0), 1, dscores_n.stride, seen, query_n.row(0), query_n.stride, padded<float>(s.key_dim),
                       halves(rows), dkeys.row(0), dkeys.stride, true);
          pair_product(probs_n.row(0), 1, probs_n.stride, seen, cotangent_n.row(0), cotangent_n.stride,
                       padded<float>(s.value_dim), halves(rows), dvalues.row(0), dvalues.stride, true);
          for (int64_t r = 0; r < rows; r++)
            put(dquery.row(r), s.key_dim, scale, dq + (at + r * s.heads) * s.key_dim);
        }
      for (int64_t j = 0; j < part.keys; j++) {
        put(dkeys.row(j), s.key_dim, scale, dk + (first_key + j * s.groups) * s.key_dim);
        put(dvalues.row(j), s.value_dim, 1.0f, dv + (first_key + j * s.groups) * s.value_dim);
      }
    }
  }
}

}  // namespace
}  // namespace arcforge

ARCFORGE_ATTENTION(bfloat16, arcforge::BFloat16, float)

#endif
