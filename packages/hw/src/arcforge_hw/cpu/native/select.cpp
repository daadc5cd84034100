// The lightning indexer: head sums of index scores, and the best keys of each query.
//
// Scores of many queries are computed a panel of keys at a time; a key's dot products with all heads stay in registers
// until they are summed, so that nothing but the sums is written. Ties go to the lower key and keys come out ascending:
// the k-th largest score is found first, then all scores above it are taken and as many equal ones as are missing.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "record.h"
#include "turned.h"

namespace arcforge {
namespace {

constexpr int BINS = 2048;
constexpr int BIN_SHIFT = 21;
constexpr int VECTORS = 3;                           // of a panel
constexpr int64_t PANEL = VECTORS * LANES<float>;    // keys of a panel
constexpr int64_t QUERIES = 16;                      // that read a panel while it is near
constexpr int64_t FEW_QUERIES = 8;                   // of a segment, for which laying out keys as panels is a waste
constexpr int64_t KEYS_AT_ONCE = 48;                 // of few queries, whose dot products are summed before the next ones
constexpr int64_t NARROW_KEYS_AT_ONCE = 192;         // at most, where they are multiplied as they are
constexpr int64_t STEP = 32;                         // scores that are passed over together when all are too low
constexpr int64_t SAMPLED = 1 << 11;                 // keys from which on a sample guesses the k-th largest score

// An integer that grows with the score; -0 and +0 must have become one before.
inline uint32_t rank_of(float score) {
  uint32_t bits;
  std::memcpy(&bits, &score, 4);
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
}

struct Candidate {
  uint32_t rank;
  int32_t key;
};

// One thread's buffers for selection.
struct Scratch {
  Memory<uint32_t> counts = Memory<uint32_t>(BINS), sample;
  std::vector<Candidate> candidates, ordered;
};

// A bound that about `k` of n ranks reach: from a sample of them, or from a histogram, which never misses.
uint32_t guess_bound(const uint32_t* ranks, int64_t n, int64_t k, Scratch& scratch) {
  const int64_t step = n / (SAMPLED / 4), wanted = k / step + k / step / 2 + 8;
  scratch.sample.clear();
  for (int64_t s = 0; s < n; s += step) scratch.sample.push_back(ranks[s]);
  if (wanted >= int64_t(scratch.sample.size())) return 0;
  std::nth_element(scratch.sample.begin(), scratch.sample.begin() + wanted, scratch.sample.end(), std::greater<uint32_t>());
  return scratch.sample[wanted];
}

uint32_t sure_bound(const uint32_t* ranks, int64_t n, int64_t k, Scratch& scratch) {
  uint32_t* counts = scratch.counts.data();
  std::fill(counts, counts + BINS, 0u);
  for (int64_t s = 0; s < n; s++) counts[ranks[s] >> BIN_SHIFT]++;
  int64_t bin = BINS - 1;
  for (int64_t missing = k; int64_t(counts[bin]) < missing; bin--) missing -= counts[bin];
  return uint32_t(bin) << BIN_SHIFT;
}

void collect(const uint32_t* ranks, int64_t n, uint32_t bound, std::vector<Candidate>& found) {
  found.clear();
  int64_t s = 0;
  for (; s + STEP <= n; s += STEP) {
    uint32_t hit = 0;
    for (int64_t j = 0; j < STEP; j++) hit |= uint32_t(ranks[s + j] >= bound);
    if (!hit) continue;
    for (int64_t j = s; j < s + STEP; j++)
      if (ranks[j] >= bound) found.push_back({ranks[j], int32_t(j)});
  }
  for (; s < n; s++)
    if (ranks[s] >= bound) found.push_back({ranks[s], int32_t(s)});
}

// Writes the numbers of the k best of n ranks, k < n, ascending.
void best(const uint32_t* ranks, int64_t n, int64_t k, Scratch& scratch, int64_t* out) {
  std::vector<Candidate>& found = scratch.candidates;
  found.clear();
  if (n >= SAMPLED) collect(ranks, n, guess_bound(ranks, n, k, scratch), found);
  if (int64_t(found.size()) < k) collect(ranks, n, sure_bound(ranks, n, k, scratch), found);
  scratch.ordered = found;
  const auto higher = [](const Candidate& a, const Candidate& b) { return a.rank > b.rank; };
  std::nth_element(scratch.ordered.begin(), scratch.ordered.begin() + (k - 1), scratch.ordered.end(), higher);
  const uint32_t last = scratch.ordered[k - 1].rank;
  int64_t ties = k;
  for (const Candidate& x : found) ties -= x.rank > last;
  int64_t taken = 0;
  for (const Candidate& x : found) {
    const bool tie = x.rank == last && ties > 0;
    if (x.rank > last || tie) out[taken++] = x.key;
    ties -= tie;
  }
}

// A query that sees no more than k keys takes them all.
void all_keys(int64_t n, int64_t k, int64_t* out) {
  for (int64_t s = 0; s < k; s++) out[s] = s < n ? s : -1;
}

void select(const uint32_t* ranks, int64_t n, int64_t k, Scratch& scratch, int64_t* out) {
  if (n <= k)
    all_keys(n, k, out);
  else
    best(ranks, n, k, scratch, out);
}

// Keys of int8 are followed by the bytes of their scale.
template <typename T>
constexpr int64_t row_of(int64_t width) {
  return std::is_same_v<T, int8_t> ? width + 4 : width;
}

template <typename T>
inline float scale_of(const T* key, int64_t width) {
  float scale = 1.0f;
  if constexpr (std::is_same_v<T, int8_t>) std::memcpy(&scale, key + width, 4);
  return scale;
}

// ---- many queries ------------------------------------------------------------------------------------------------

// Keys as panels [width, PANEL], zeros after the last one.
template <typename T>
Memory<float> pack_panels(const Keys<T>& k, int64_t keys, int64_t width, int64_t threads) {
  const int64_t panels = (keys + PANEL - 1) / PANEL;
  Memory<float> packed(panels * width * PANEL);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t p = 0; p < panels; p++)
    for (int64_t j = 0; j < std::min(PANEL, keys - p * PANEL); j++) {
      const T* key = k.at(p * PANEL + j);
      const float scale = scale_of(key, width);
      for (int64_t d = 0; d < width; d++) packed[(p * width + d) * PANEL + j] = scale * float(key[d]);
    }
  return packed;
}

template <int HEADS, bool RELU>
inline void add_heads(const float* q, int64_t width, const float* weight, const float* panel, Vector<float>* sum) {
  Vector<float> dot[HEADS][VECTORS] = {};
  for (int64_t d = 0; d < width; d++) {
    Vector<float> key[VECTORS];
    for (int j = 0; j < VECTORS; j++) key[j] = keep<float>(load(panel + d * PANEL + j * LANES<float>));
    for (int i = 0; i < HEADS; i++) {
      const Vector<float> value = q[i * width + d] - Vector<float>{};
      for (int j = 0; j < VECTORS; j++) dot[i][j] = fused<float>(value, key[j], dot[i][j]);
    }
  }
  for (int i = 0; i < HEADS; i++) {
    const Vector<float> w = weight[i] - Vector<float>{};
    for (int j = 0; j < VECTORS; j++) {
      const Vector<float> x = RELU ? positive(dot[i][j]) : dot[i][j];
      sum[j] = fused<float>(w, x, sum[j]);
    }
  }
}

template <bool RELU>
void score_panel(const float* q, int64_t heads, int64_t width, const float* weight, const float* panel, uint32_t* ranks) {
  Vector<float> sum[VECTORS] = {};
  int64_t i = 0;
  for (; i + 4 <= heads; i += 4) add_heads<4, RELU>(q + i * width, width, weight + i, panel, sum);
  for (; i + 2 <= heads; i += 2) add_heads<2, RELU>(q + i * width, width, weight + i, panel, sum);
  for (; i < heads; i++) add_heads<1, RELU>(q + i * width, width, weight + i, panel, sum);
  float scores[PANEL];
  for (int j = 0; j < VECTORS; j++) store<float>(scores + j * LANES<float>, sum[j]);
  for (int64_t n = 0; n < PANEL; n++) ranks[n] = rank_of(scores[n] + 0.0f);
}

template <typename T>
void index_many(const float* q, const Keys<T>& k, const float* weights, int64_t queries, int64_t heads, int64_t width,
                int64_t visible, int64_t topk, bool relu, int64_t* out, int64_t threads) {
  const int64_t keys = visible + queries - 1, stride = (keys + PANEL - 1) / PANEL * PANEL;
  const Memory<float> panels = pack_panels(k, keys, width, threads);
  const auto score = relu ? score_panel<true> : score_panel<false>;
#pragma omp parallel num_threads(threads)
  {
    Memory<uint32_t> ranks(std::min(QUERIES, queries) * stride);
    Scratch scratch;
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < queries; first += QUERIES) {
      const int64_t count = std::min(QUERIES, queries - first), seen = visible + first + count - 1;
      if (seen > topk)
        for (int64_t p = 0; p * PANEL < seen; p++) {
          const float* panel = &panels[p * width * PANEL];
          const int64_t share = width * PANEL / count;  // of the next panel, which is fetched meanwhile
          for (int64_t b = 0; b < count; b++) {
            fetch(panel + width * PANEL + b * share, share);
            score(q + (first + b) * heads * width, heads, width, weights + (first + b) * heads, panel,
                  &ranks[b * stride + p * PANEL]);
          }
        }
      for (int64_t b = 0; b < count; b++)
        select(&ranks[b * stride], visible + first + b, topk, scratch, out + (first + b) * topk);
    }
  }
}

// ---- few queries ---------------------------------------------------------------------------------------------------

// dots [I, stride] of one query; ranks[n] is the rank of the key's scale times the sum over heads of weight * ReLU(dot).
template <bool RELU>
void head_sum(const float* dots, int64_t stride, const float* weight, const float* scale, int64_t heads, int64_t n,
              uint32_t* ranks) {
#pragma omp simd
  for (int64_t s = 0; s < n; s++) {
    float score = 0.0f;
    for (int64_t i = 0; i < heads; i++) {
      const float dot = dots[i * stride + s];
      score += weight[i] * (RELU ? (dot > 0.0f ? dot : 0.0f) : dot);
    }
    ranks[s] = rank_of(scale[s] * score + 0.0f);
  }
}

// Scores keys, all queries while these are near, in blocks that threads share: score(first, count, from) writes the scores
// of keys that lie one after another.
template <typename T, typename F>
void scan(const Keys<T>& k, int64_t keys, int64_t at_once, F score) {
#pragma omp for schedule(static)
  for (int64_t block = 0; block < keys; block += at_once) {
    const int64_t end = std::min(block + at_once, keys);
    for (int64_t first = block, count; first < end; first += count) {
      count = k.run(first, end - first);
      score(first, count, k.at(first));
    }
  }
}

#if defined(ARCFORGE_PAIRS) || defined(ARCFORGE_WHOLE)
// By products with the keys as they are.
template <typename T>
void scan_parts(const Keys<T>& k, const float* weights, int64_t queries, int64_t heads, int64_t width, int64_t keys,
                bool relu, uint32_t* ranks, const Parts<T>& parts) {
  constexpr int64_t MOST = NARROW_KEYS_AT_ONCE;
  Memory<float> dots(heads * MOST), scale(MOST);
  const auto sum = relu ? head_sum<true> : head_sum<false>;
  const int64_t share = keys / omp_get_num_threads() / 4 * 4, step = row_of<T>(width);
  scan(k, keys, std::clamp(share, KEYS_AT_ONCE, MOST), [&](int64_t first, int64_t count, const T* from) {
    for (int64_t n = 0; n < count; n++) scale[n] = scale_of(from + n * step, width);
    for (int64_t b = 0; b < queries; b++) {
      const T* ahead = b == 0 ? k.at(std::min(first + MOST, keys - 1)) : nullptr;
      dot_parts(parts, b * heads, heads, from, step, count, width, dots.data(), MOST, ahead);
      sum(dots.data(), MOST, weights + b * heads, scale.data(), heads, count, &ranks[b * keys + first]);
    }
  });
}
#endif

#ifdef ARCFORGE_TURNED
// By products with the bytes of keys, turned.
void scan_parts(const Keys<int8_t>& k, const float* weights, int64_t queries, int64_t heads, int64_t width, int64_t keys,
                bool relu, uint32_t* ranks, const Parts<int8_t>& parts) {
  Turned turned(width);
  float scale[TURNED], scores[TURNED];
#pragma omp for schedule(static)
  for (int64_t first = 0; first < keys; first += TURNED) {
    const int64_t count = std::min<int64_t>(TURNED, keys - first);
    turned.lay(k, first, count, width, k.at(std::min(first + TURNED_AHEAD, keys - 1)));
    for (int n = 0; n < TURNED; n++) scale[n] = scale_of(turned.key[n], width);
    for (int64_t b = 0; b < queries; b++) {
      const float* of = weights + b * heads;
      if (relu)
        turned.score<true>(parts, b * heads, heads, width, of, scores);
      else
        turned.score<false>(parts, b * heads, heads, width, of, scores);
      for (int64_t n = 0; n < count; n++) ranks[b * keys + first + n] = rank_of(scale[n] * scores[n] + 0.0f);
    }
  }
}
#endif

// By products in fp32.
template <typename T>
void scan_wide(const Keys<T>& k, const float* weights, int64_t queries, int64_t heads, int64_t width, int64_t keys,
               bool relu, uint32_t* ranks, const float* query, int64_t stride) {
  constexpr int64_t MOST = KEYS_AT_ONCE;
  Memory<float> wide(MOST * stride), dots(heads * MOST);
  const Memory<float> scale(MOST, 1.0f);  // keys are widened with theirs
  const auto sum = relu ? head_sum<true> : head_sum<false>;
  scan(k, keys, MOST, [&](int64_t first, int64_t count, const T* from) {
    const float* entries = wide.data();
    if constexpr (std::is_same_v<T, float>) entries = from;
    if (!std::is_same_v<T, float> || stride != width) {
      entries = wide.data();
      for (int64_t n = 0; n < count; n++) {
        const T* key = from + n * row_of<T>(width);
        fetch(key + rows_ahead<T>(width) * row_of<T>(width), row_of<T>(width));
        widen_row(key, width, scale_of(key, width), &wide[n * stride]);
      }
    }
    for (int64_t b = 0; b < queries; b++) {
      const float* ahead = nullptr;
      if constexpr (std::is_same_v<T, float>)
        if (b == 0 && entries == from) ahead = k.at(std::min(first + count, keys - 1));
      dot_rows(query + b * heads * stride, stride, heads, entries, stride, count, stride, dots.data(), MOST, ahead);
      sum(dots.data(), MOST, weights + b * heads, scale.data(), heads, count, &ranks[b * keys + first]);
    }
  });
}

// Keys are read once.
template <typename T>
void index_few(const float* q, const Keys<T>& k, const float* weights, int64_t queries, int64_t heads, int64_t width,
               int64_t visible, int64_t topk, bool relu, int64_t* out, int64_t threads) {
  const int64_t keys = visible + queries - 1, rows = queries * heads;
  Memory<uint32_t> ranks(queries * keys);
  const auto select_of = [&](auto scanned) {
#pragma omp parallel num_threads(threads)
    {
      Scratch scratch;
      scanned();
#pragma omp for schedule(static)
      for (int64_t b = 0; b < queries; b++) select(&ranks[b * keys], visible + b, topk, scratch, out + b * topk);
    }
  };
  if constexpr (MULTIPLIED<T>)
    if (multiplied<T>(width)) {
      Parts<T> parts(rows, width);
      Memory<float> scaled(rows);
      for (int64_t r = 0; r < rows; r++) {
        parts.lay(q + r * width, width, r);
        scaled[r] = weights[r] * parts.scale[r];
      }
      select_of([&] { scan_parts(k, scaled.data(), queries, heads, width, keys, relu, ranks.data(), parts); });
      return;
    }
  const int64_t stride = padded<float>(width);
  Memory<float> query(rows * stride);
  for (int64_t r = 0; r < rows; r++) widen_row(q + r * width, width, 1.0f, &query[r * stride]);
  select_of([&] { scan_wide(k, weights, queries, heads, width, keys, relu, ranks.data(), query.data(), stride); });
}

// Segment n has the queries from cu_query[n] and the keys from cu_key[n] on; a query sees the keys up to its own place,
// counted from the end. out [T, topk], -1 where keys are short.
template <typename T>
void index(const float* q, const T* k, const float* weights, const int32_t* cu_query, const int32_t* cu_key,
           int64_t segments, const Pages& pages, int64_t heads, int64_t width, int64_t topk, bool relu, int64_t* out,
           int64_t threads) {
  for (int64_t n = 0; n < segments; n++) {
    const int64_t query = cu_query[n], queries = cu_query[n + 1] - query, visible = cu_key[n + 1] - cu_key[n] - queries + 1;
    if (queries == 0) continue;
    (queries <= FEW_QUERIES ? index_few<T> : index_many<T>)(q + query * heads * width,
                                                            pages.keys_of(n, k, cu_key[n], row_of<T>(width)),
                                                            weights + query * heads, queries, heads, width, visible,
                                                            topk, relu, out + query * topk, threads);
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_INDEX(NAME, T)                                                                                      \
  extern "C" void arcforge_index_##NAME(const float* q, const T* k, const float* weights, const int32_t* cu_query,   \
                                        const int32_t* cu_key, int64_t segments, const int64_t* pages, int64_t each, \
                                        int64_t size, int64_t heads, int64_t width, int64_t topk, int64_t relu,      \
                                        int64_t* out, int64_t threads) {                                             \
    arcforge::index<T>(q, k, weights, cu_query, cu_key, segments, {pages, each, size}, heads, width, topk, relu,     \
                       out, threads);                                                                                \
  }                                                                                                                  \
  ARCFORGE_RECORDED(arcforge_index_##NAME)

ARCFORGE_INDEX(float32, float)
ARCFORGE_INDEX(bfloat16, arcforge::BFloat16)
ARCFORGE_INDEX(int8, int8_t)
