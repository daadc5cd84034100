// Attention of few queries over a whole cache, which may lie in pages. Keys are cut into chunks of a fixed size, each with
// a softmax of its own, so that threads share one query's keys; the chunks are then joined in their order.
//
// Absorbed attention is that of one key/value head, whose values are the first part of its keys.
//
// S keys, H heads, G key/value heads, K key size, V value size.
#include <algorithm>
#include <vector>

#include "decode16.h"
#include "record.h"

namespace arcforge {
namespace {

constexpr int64_t CHUNK = 256;
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
  int64_t keys() const { return visible + queries - 1; }
  int64_t chunks() const { return (keys() + CHUNK - 1) / CHUNK; }
  int64_t last_of(int64_t chunk_begin) const { return std::min(chunk_begin + CHUNK, keys()); }
};

struct Task {
  int64_t block, chunk, group, groups, place;  // the first group and how many; where its result is, in rows of all tasks
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

// A thread's work buffers.
template <typename A>
struct Scratch {
  Memory<A> query, keys, values, scores;
  std::vector<A*> places;
  Scratch(int64_t rows, int64_t groups, int64_t stride, int64_t value_stride)
      : query(groups * rows * stride), keys(BLOCK * std::max(stride, value_stride)), values(BLOCK * value_stride),
        scores(rows * BLOCK), places(groups * rows) {}
};

template <typename A>
struct Rows {
  const A* first;
  int64_t stride;
  bool in_place;
};

// Rows as they are computed with: where they lie, or copied into `wide`, in whole vectors.
template <typename T, typename A>
Rows<A> as_vectors(const T* from, int64_t step, int64_t count, int64_t width, Memory<A>& wide) {
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

// Keys that come next are asked for by scores, of absorbed ones half, and the rest by the sum; each group of a task that has
// all of them asks for its share of the rows.
template <typename T, typename A>
void attend(const T* q, const Source<T>& source, const Block& block, const Task& task, const Sizes& s,
            Scratch<A>& scratch, Partial<A> result) {
  const int64_t stride = padded<A>(s.width), value_stride = padded<A>(s.value), per = s.shared_by();
  const int64_t rows = block.queries * per, first = task.chunk * CHUNK;
  const int64_t keys = std::min(CHUNK, block.visible + block.queries - 1 - first);
  for (int64_t r = 0; r < rows * task.groups; r++) {
    const int64_t group = task.group + r / rows, t = r % rows / per;
    const int64_t head = (block.query + t) * s.heads + group * per + r % per;
    widen_row(q + head * s.width, s.width, A(s.scale), &scratch.query[r * stride]);
    result.top[r] = -INFINITY;
    result.total[r] = 0;
    scratch.places[r] = result.out + r * value_stride;
  }
  std::fill_n(result.out, rows * task.groups * value_stride, A(0));
  for (int64_t k = 0, count; k < keys; k += count) {
    count = source.keys.run(first + k, std::min(BLOCK, keys - k));
    for (int64_t g = 0; g < task.groups; g++) {
      const int64_t group = task.group + g, at = g * rows;
      const Rows<A> key = as_vectors(source.keys.at(first + k) + group * s.width, source.keys.width, count, s.width,
                                     scratch.keys);
      A* scores = scratch.scores.data();
      const A* ahead = nullptr;
      Meanwhile later;
      if constexpr (std::is_same_v<T, A>)
        if (key.in_place && task.groups == s.groups) {
          const int64_t next = std::min(first + k + count, block.keys() - 1);
          ahead = source.keys.at(next) + g * count * s.width;
          const A* rest = source.absorbed ? ahead + (count + 1) / 2 * key.stride : source.values.at(next) + g * count * s.value;
          const int64_t values = source.absorbed ? count / 2 * key.stride : count * s.value;
          if (source.absorbed || value_stride == s.value)
            later = {reinterpret_cast<const char*>(rest), values * int64_t(sizeof(A))};
        }
      dot_rows(&scratch.query[at * stride], stride, rows, key.first, key.stride, count, stride, scores, BLOCK, ahead,
               source.absorbed);
      for (int64_t r = 0; r < rows; r++) {
        A* row = scores + r * BLOCK;
        const int64_t seen = std::clamp<int64_t>(block.visible + r / per - first - k, 0, count);
        if (seen) weigh(row, seen, scratch.places[at + r], value_stride, result.top[at + r], result.total[at + r]);
        std::fill(row + seen, row + count, A(0));
      }
      const Rows<A> value = source.absorbed ? key
                                            : as_vectors(source.values.at(first + k) + group * s.value,
                                                         source.values.width, count, s.value, scratch.values);
      add_rows(scores, BLOCK, 1, value.first, value.stride, count, value_stride, &scratch.places[at], rows, true, later);
    }
  }
}

// Keys and values of bfloat16 in whole vectors, multiplied as they are, by all groups of a task a block at a time: so that
// what lies side by side is read together. `now` are the places of the chunk's first block; at its last one `follow` finds
// those of the next chunk, which are asked for meanwhile.
template <typename Follow>
void attend_pairs(const BFloat16* q, const Source<BFloat16>& source, const Block& block, const Task& task,
                  const Sizes& s, Places& now, const Follow& follow, Scratch<float>& scratch, Partial<float> result) {
  const int64_t per = s.shared_by(), rows = block.queries * per, first = task.chunk * CHUNK;
  const int64_t last = block.last_of(first);
  auto* query = reinterpret_cast<BFloat16*>(scratch.query.data());
  for (int64_t r = 0; r < rows * task.groups; r++) {
    const int64_t group = task.group + r / rows, t = r % rows / per;
    std::copy_n(q + ((block.query + t) * s.heads + group * per + r % per) * s.width, s.width, query + r * s.width);
    result.top[r] = -INFINITY;
    result.total[r] = 0;
  }
  std::fill_n(result.out, rows * task.groups * s.value, 0.0f);
  float* scores = scratch.scores.data();
  for (int64_t k = first; k < last; k += BLOCK) {
    const int64_t end = std::min(last, k + BLOCK);
    Places then;
    if (end < last)
      then.find(source.keys, source.values, end, std::min(last, end + BLOCK));
    else
      follow(then);
    Ahead keys{then.key, then.count, task.group * s.width, task.groups * s.width, task.groups};
    Ahead values{then.value, source.absorbed ? 0 : then.count, task.group * s.value, task.groups * s.value, task.groups};
    for (int64_t g = 0; g < task.groups; g++) {
      const int64_t at = g * rows, key = (task.group + g) * s.width, value = (task.group + g) * s.value;
      for (int64_t j = 0; j < now.count; j += COLUMNS) {
        keys.ask(COLUMNS);
        in_tiles(rows, [&](auto m, int64_t r) {
          score_tile<decltype(m)::value>(query + (at + r) * s.width, now.key + j, key, s.width, scores + r * BLOCK + j);
        });
      }
      for (int64_t r = 0; r < rows; r++) {
        const int64_t seen = std::clamp<int64_t>(block.visible + r / per - k, 0, end - k);
        float* row = scores + r * BLOCK;
        if (seen)
          weigh_block(row, seen, float(s.scale), result.out + (at + r) * s.value, s.value, result.top[at + r],
                      result.total[at + r]);
        else
          std::fill_n(row, BLOCK, 0.0f);
      }
      for (int64_t j = 0; j < now.count; j += SUMMED) {
        values.ask(SUMMED);
        in_tiles(rows, [&](auto m, int64_t r) {
          const auto tile = [&](auto n, int64_t d) {
            value_tile<decltype(m)::value, decltype(n)::value>(
                scores + r * BLOCK + j, now.value + j, value + d, std::min(SUMMED, now.count - j),
                result.out + (at + r) * s.value + d, s.value);
          };
          int64_t d = 0;
          for (; d + VALUES * PAIRED <= s.value; d += VALUES * PAIRED) tile(std::integral_constant<int, VALUES>{}, d);
          for (; d < s.value; d += PAIRED) tile(std::integral_constant<int, 1>{}, d);
        });
      }
    }
    now = then;
  }
}

// Joins the chunks of a row; `step` rows lie between its results. The first holds the sum afterwards.
template <typename T, typename A>
void join(Partial<A> first, int64_t chunks, int64_t step, const Sizes& s, bool halves, T* out) {
  const int64_t value_stride = padded<A>(s.value);
  A top = -INFINITY, total = 0;
  for (int64_t c = 0; c < chunks; c++) top = std::max(top, first.top[c * step]);
  for (int64_t c = 0; c < chunks; c++) {
    const A share = first.total[c * step] > 0 ? exp_of(first.top[c * step] - top) : A(0);
    const A* from = first.out + c * step * value_stride;
    total += share * first.total[c * step];
    for (int64_t n = 0; n < s.value; n++) first.out[n] = (c ? first.out[n] : A(0)) + share * from[n];
  }
  if constexpr (std::is_same_v<T, BFloat16>)
    if (halves) {
      for (int64_t n = 0; n < s.value; n += PAIRED)
        narrow_halves(load(first.out + n) / total, load(first.out + n + LANES<A>) / total, out + n);
      return;
    }
  for (int64_t n = 0; n < s.value; n++) narrow(first.out[n] / total, out + n);
}

template <typename T, typename A>
void decode(const T* q, const T* k, const T* v, const int32_t* cu_query, const int32_t* cu_key, int64_t segments,
            const Pages& pages, T* out, const Sizes& s) {
  const std::vector<Block> blocks = blocks_of(cu_query, cu_key, segments);
  const int64_t stride = padded<A>(s.width), value_stride = padded<A>(s.value), per = s.shared_by();
  const bool pairs = std::is_same_v<T, BFloat16> && s.width % PAIRED == 0 && s.value % PAIRED == 0, absorbed = k == v;
  int64_t chunks = 0;
  for (const Block& block : blocks) chunks += block.chunks();
  const int64_t groups = s.threads == 1 || chunks >= 4 * s.threads ? s.groups : 1;  // of a task
  const auto source_of = [&](const Task& task) {
    const Block& block = blocks[task.block];
    const int64_t first = cu_key[block.segment], value_width = absorbed ? s.width : s.groups * s.value;
    return Source<T>{pages.keys_of(block.segment, k, first, s.groups * s.width),
                     pages.keys_of(block.segment, v, first, value_width), absorbed};
  };
  for (size_t next = 0; next < blocks.size();) {
    std::vector<Task> tasks;
    std::vector<int64_t> places;  // of each block's first result
    const size_t begin = next;
    int64_t rows = 0;
    do {  // at least one block at a time
      places.push_back(rows);
      for (int64_t chunk = 0; chunk < blocks[next].chunks(); chunk++)
        for (int64_t group = 0; group < s.groups; group += groups) {
          tasks.push_back({int64_t(next), chunk, group, groups, rows});
          rows += blocks[next].queries * per * groups;
        }
    } while (++next < blocks.size() && rows * value_stride < PARTIAL);
    Memory<A> outs(rows * value_stride), tops(rows), totals(rows);
    // tasks that a thread takes at a time: keys of several that follow one another are asked for in advance
    const int64_t at_once = pairs ? std::max<int64_t>(1, tasks.size() / (4 * s.threads)) : 1;
#pragma omp parallel num_threads(s.threads)
    {
      Scratch<A> scratch(QUERIES * per, groups, stride, value_stride);
      [[maybe_unused]] Places now;
#pragma omp for schedule(dynamic, at_once)
      for (size_t n = 0; n < tasks.size(); n++) {
        const int64_t at = tasks[n].place;
        const Block& block = blocks[tasks[n].block];
        const Partial<A> result{&outs[at * value_stride], &tops[at], &totals[at]};
        if constexpr (std::is_same_v<T, BFloat16>)
          if (pairs) {
            const auto find_first = [&](size_t task, Places& where) {
              const Source<T> source = source_of(tasks[task]);
              const int64_t first = tasks[task].chunk * CHUNK, last = blocks[tasks[task].block].last_of(first);
              where.find(source.keys, source.values, first, std::min(last, first + BLOCK));
            };
            const bool follows = (n + 1) % at_once && n + 1 < tasks.size();
            if (n % at_once == 0) find_first(n, now);
            attend_pairs(q, source_of(tasks[n]), block, tasks[n], s, now,
                         [&](Places& then) { if (follows) find_first(n + 1, then); }, scratch, result);
            continue;
          }
        attend<T, A>(q, source_of(tasks[n]), block, tasks[n], s, scratch, result);
      }
#pragma omp for schedule(static)
      for (size_t b = begin; b < next; b++) {
        const Block& block = blocks[b];
        for (int64_t head = 0; head < block.queries * s.heads; head++) {
          const int64_t t = head / s.heads, group = head % s.heads / per, h = head % per;
          const int64_t at = places[b - begin] + (group * block.queries + t) * per + h;
          join<T, A>({&outs[at * value_stride], &tops[at], &totals[at]}, block.chunks(), block.queries * s.heads, s,
                     pairs, out + (block.query * s.heads + head) * s.value);
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
