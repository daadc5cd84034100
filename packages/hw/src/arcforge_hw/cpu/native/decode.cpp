// Attention of few queries over a whole cache, which may lie in pages. Keys are cut into chunks of a fixed size, each with
// a softmax of its own, so that threads share one query's keys; the chunks are then joined in their order.
//
// Absorbed attention is that of one key/value head, whose values are the first part of its keys.
//
// S keys, H heads, G key/value heads, K key size, V value size.
#include <algorithm>
#include <vector>

#include "record.h"
#include "rows16.h"

namespace arcforge {
namespace {

constexpr int64_t CHUNK = 256;
constexpr int64_t KEYS_AT_ONCE = 32;           // that stay in the first cache from their scores to their weighted sum
constexpr int64_t QUERIES = 8;                 // of a segment that share a chunk's keys while these are near
constexpr int64_t PARTIAL = int64_t(1) << 22;  // values of chunks' results that wait to be joined

struct Sizes {
  int64_t heads, groups, width, value;
  double scale;
  int threads;
  int64_t shared_by() const { return heads / groups; }  // heads that read a key/value head
};

// Rows of keys [G, K] and of values [G, V]; absorbed, values lie in the keys' rows.
template <typename T>
struct Source {
  Keys<T> keys, values;
  bool absorbed;
};

// Up to QUERIES queries of one segment.
struct Block {
  int64_t query, queries, segment, visible;  // first row, rows, the segment, keys that the first row sees
  int64_t chunks() const { return (visible + queries - 1 + CHUNK - 1) / CHUNK; }
};

struct Task {
  int64_t block, chunk, group, place;  // place: where its result is, in rows of all tasks
};

std::vector<Block> blocks_of(const int32_t* cu_query, const int32_t* cu_key, int64_t segments) {
  std::vector<Block> blocks;
  for (int64_t n = 0; n < segments; n++) {
    const int64_t past = (cu_key[n + 1] - cu_key[n]) - (cu_query[n + 1] - cu_query[n]);
    for (int64_t t = cu_query[n]; t < cu_query[n + 1]; t += QUERIES)
      blocks.push_back({t, std::min(QUERIES, cu_query[n + 1] - t), n, past + (t - cu_query[n]) + 1});
  }
  return blocks;
}

// Unnormalised outputs of one chunk, with each row's largest score and sum.
template <typename A>
struct Partial {
  A *out, *top, *total;
};

// What a thread works in.
template <typename T, typename A>
struct Scratch {
  std::vector<A> query, keys, values, scores;
  std::vector<T> narrow_query;
  std::vector<A*> places;
  Scratch(int64_t rows, int64_t stride, int64_t value_stride)
      : query(rows * stride), keys(KEYS_AT_ONCE * stride), values(KEYS_AT_ONCE * value_stride),
        scores(rows * KEYS_AT_ONCE), narrow_query(rows * stride), places(rows) {}
};

template <typename A>
struct Rows {
  const A* first;
  int64_t stride;
  bool in_place;
};

// Rows as they are computed with: where they lie, or copied into `wide`, in whole vectors.
template <typename T, typename A>
Rows<A> as_vectors(const T* from, int64_t step, int64_t count, int64_t width, std::vector<A>& wide) {
  if constexpr (std::is_same_v<T, A>)
    if (padded<A>(width) == width) return {from, step, true};
  for (int64_t j = 0; j < count; j++) {
    if (step == width) fetch(from + (j + rows_ahead<T>(width)) * width, width);
    widen_row(from + j * step, width, A(1), &wide[j * padded<A>(width)]);
  }
  return {wide.data(), padded<A>(width), false};
}

// Takes `keys` more scores of a row into its softmax: makes weights of them, relative to the largest score so far, and
// brings what was summed before to the same measure.
template <typename A>
void weigh(A* row, int64_t keys, A* out, int64_t width, A& top, A& total) {
  A highest = top;
#pragma omp simd reduction(max : highest)
  for (int64_t k = 0; k < keys; k++) highest = row[k] > highest ? row[k] : highest;
  if (highest > top) {
    const A share = total > 0 ? exp_of(top - highest) : A(0);
    for (int64_t n = 0; n < width; n++) out[n] *= share;
    total *= share;
    top = highest;
  }
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < keys; k++) sum += row[k] = exp_of(row[k] - highest);
  total += sum;
}

// Whether keys of bfloat16 are multiplied as they are: their products with queries are exact, and summed in fp32.
template <typename T>
bool paired(int64_t width) {
  return std::is_same_v<T, BFloat16> && width % PAIRED == 0;
}

template <typename T, typename A>
void attend(const T* q, const Source<T>& source, const Block& block, const Task& task, const Sizes& s,
            Scratch<T, A>& scratch, Partial<A> result) {
  const int64_t stride = padded<A>(s.width), value_stride = padded<A>(s.value), per = s.shared_by();
  const int64_t rows = block.queries * per, first = task.chunk * CHUNK;
  const int64_t keys = std::min(CHUNK, block.visible + block.queries - 1 - first);
  for (int64_t r = 0; r < rows; r++) {
    const int64_t head = (block.query + r / per) * s.heads + task.group * per + r % per;
    if (paired<T>(s.width))
      std::copy_n(q + head * s.width, s.width, &scratch.narrow_query[r * s.width]);
    else
      widen_row(q + head * s.width, s.width, A(s.scale), &scratch.query[r * stride]);
    result.top[r] = -INFINITY;
    result.total[r] = 0;
    scratch.places[r] = result.out + r * value_stride;
  }
  std::fill_n(result.out, rows * value_stride, A(0));
  for (int64_t k = 0, count; k < keys; k += count) {
    count = source.keys.run(first + k, std::min(KEYS_AT_ONCE, keys - k));
    const T* at = source.keys.at(first + k) + task.group * s.width;
    A* scores = scratch.scores.data();
    Rows<A> key{};
    if constexpr (std::is_same_v<T, BFloat16>)
      if (paired<T>(s.width)) {
        dot_rows(scratch.narrow_query.data(), s.width, rows, at, source.keys.width, count, s.width, scores, KEYS_AT_ONCE);
        for (int64_t n = 0; n < rows * KEYS_AT_ONCE; n++) scores[n] *= A(s.scale);
      }
    if (!paired<T>(s.width) || source.absorbed) key = as_vectors(at, source.keys.width, count, s.width, scratch.keys);
    if (!paired<T>(s.width))
      dot_rows(scratch.query.data(), stride, rows, key.first, key.stride, count, stride, scores, KEYS_AT_ONCE,
               key.in_place && s.groups == 1 ? rows_ahead<A>(stride) : 0);
    for (int64_t r = 0; r < rows; r++) {
      A* row = scores + r * KEYS_AT_ONCE;
      const int64_t seen = std::clamp<int64_t>(block.visible + r / per - first - k, 0, count);
      if (seen) weigh(row, seen, scratch.places[r], value_stride, result.top[r], result.total[r]);
      std::fill(row + seen, row + count, A(0));
    }
    const Rows<A> value = source.absorbed ? key
                                          : as_vectors(source.values.at(first + k) + task.group * s.value,
                                                       source.values.width, count, s.value, scratch.values);
    add_rows(scores, KEYS_AT_ONCE, 1, value.first, value.stride, count, value_stride, scratch.places.data(), rows);
  }
}

// Joins the chunks of a row; `step` rows lie between its results. The first holds the sum afterwards.
template <typename T, typename A>
void join(Partial<A> first, int64_t chunks, int64_t step, const Sizes& s, T* out) {
  const int64_t value_stride = padded<A>(s.value);
  A top = -INFINITY, total = 0;
  for (int64_t c = 0; c < chunks; c++) top = std::max(top, first.top[c * step]);
  for (int64_t c = 0; c < chunks; c++) {
    const A share = first.total[c * step] > 0 ? exp_of(first.top[c * step] - top) : A(0);
    const A* from = first.out + c * step * value_stride;
    total += share * first.total[c * step];
    for (int64_t n = 0; n < s.value; n++) first.out[n] = (c ? first.out[n] : A(0)) + share * from[n];
  }
  for (int64_t n = 0; n < s.value; n++) narrow(first.out[n] / total, out + n);
}

template <typename T, typename A>
void decode(const T* q, const T* k, const T* v, const int32_t* cu_query, const int32_t* cu_key, int64_t segments,
            const Pages& pages, T* out, const Sizes& s) {
  const std::vector<Block> blocks = blocks_of(cu_query, cu_key, segments);
  const int64_t stride = padded<A>(s.width), value_stride = padded<A>(s.value), per = s.shared_by();
  for (size_t next = 0; next < blocks.size();) {
    std::vector<Task> tasks;
    std::vector<int64_t> places;  // of each block's first result
    const size_t begin = next;
    int64_t rows = 0;
    do {  // at least one block at a time
      places.push_back(rows);
      for (int64_t chunk = 0; chunk < blocks[next].chunks(); chunk++)
        for (int64_t group = 0; group < s.groups; group++) {
          tasks.push_back({int64_t(next), chunk, group, rows});
          rows += blocks[next].queries * per;
        }
    } while (++next < blocks.size() && rows * value_stride < PARTIAL);
    std::vector<A> outs(rows * value_stride), tops(rows), totals(rows);
#pragma omp parallel num_threads(s.threads)
    {
      Scratch<T, A> scratch(QUERIES * per, stride, value_stride);
#pragma omp for schedule(dynamic, 1)
      for (size_t n = 0; n < tasks.size(); n++) {
        const int64_t at = tasks[n].place;
        const Block& block = blocks[tasks[n].block];
        const int64_t first = cu_key[block.segment];
        const Source<T> source{pages.keys_of(block.segment, k, first, s.groups * s.width),
                               pages.keys_of(block.segment, v, first, s.groups * s.value), k == v};
        attend<T, A>(q, source, block, tasks[n], s, scratch, {&outs[at * value_stride], &tops[at], &totals[at]});
      }
#pragma omp for schedule(static)
      for (size_t b = begin; b < next; b++) {
        const Block& block = blocks[b];
        for (int64_t head = 0; head < block.queries * s.heads; head++) {
          const int64_t t = head / s.heads, group = head % s.heads / per, h = head % per;
          const int64_t at = places[b - begin] + (group * block.queries + t) * per + h;
          join<T, A>({&outs[at * value_stride], &tops[at], &totals[at]}, block.chunks(), block.queries * s.heads, s,
                     out + (block.query * s.heads + head) * s.value);
        }
      }
    }
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_DECODE(NAME, T, A)                                                                                    \
  extern "C" void arcforge_mla_decode_##NAME(const T* q, const T* kv, const int32_t* cu_query, const int32_t* cu_key,  \
                                             int64_t segments, const int64_t* pages, int64_t each, int64_t size,       \
                                             T* out, int64_t heads, int64_t width, int64_t latent, double scale,       \
                                             int64_t threads) {                                                        \
    arcforge::decode<T, A>(q, kv, kv, cu_query, cu_key, segments, {pages, each, size}, out,                            \
                           {heads, 1, width, latent, scale, int(threads)});                                            \
  }                                                                                                                    \
  extern "C" void arcforge_attention_decode_##NAME(                                                                    \
      const T* q, const T* k, const T* v, const int32_t* cu_query, const int32_t* cu_key, int64_t segments,            \
      const int64_t* pages, int64_t each, int64_t size, T* out, int64_t heads, int64_t groups, int64_t key_dim,        \
      int64_t value_dim, double scale, int64_t threads) {                                                              \
    arcforge::decode<T, A>(q, k, v, cu_query, cu_key, segments, {pages, each, size}, out,                              \
                           {heads, groups, key_dim, value_dim, scale, int(threads)});                                  \
  }                                                                                                                    \
  ARCFORGE_RECORDED(arcforge_mla_decode_##NAME)                                                                        \
  ARCFORGE_RECORDED(arcforge_attention_decode_##NAME)

ARCFORGE_DECODE(float32, float, float)
ARCFORGE_DECODE(bfloat16, arcforge::BFloat16, float)
ARCFORGE_DECODE(float64, double, double)
