// The epilogue of the lightning indexer: head sums of index scores, and the best keys of each query.
//
// Ties go to the lower key and keys come out ascending: the k-th largest score is found first, then one walk over the
// row takes what is above it and, of what equals it, as many as are missing.
#include <algorithm>
#include <cstring>
#include <vector>

#include "rows.h"

namespace arcforge {
namespace {

constexpr int BINS = 2048;
constexpr int BIN_SHIFT = 21;
constexpr int64_t KEYS_AT_ONCE = 48;  // whose dot products are summed over heads before the next ones are computed

// An integer that grows with the score; -0 and +0 must have become one before.
inline uint32_t rank_of(float score) {
  uint32_t bits;
  std::memcpy(&bits, &score, 4);
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
}

// dots [I, stride] of one query, n of each row are visible; out[n] = sum over heads of weight * ReLU(dot).
template <bool RELU>
void head_sum(const float* dots, int64_t stride, const float* weight, int64_t heads, int64_t n, uint32_t* ranks) {
#pragma omp simd
  for (int64_t s = 0; s < n; s++) {
    float score = 0.0f;
    for (int64_t i = 0; i < heads; i++) {
      const float dot = dots[i * stride + s];
      score += weight[i] * (RELU ? (dot > 0.0f ? dot : 0.0f) : dot);
    }
    ranks[s] = rank_of(score + 0.0f);
  }
}

// Writes the numbers of the k best of n ranks, k < n, ascending.
void best(const uint32_t* ranks, int64_t n, int64_t k, uint32_t* counts, std::vector<uint32_t>& boundary, int64_t* out) {
  std::fill(counts, counts + BINS, 0u);
  for (int64_t s = 0; s < n; s++) counts[ranks[s] >> BIN_SHIFT]++;
  int64_t bin = BINS - 1, missing = k;
  for (; int64_t(counts[bin]) < missing; bin--) missing -= counts[bin];
  boundary.clear();
  for (int64_t s = 0; s < n; s++)
    if (int64_t(ranks[s] >> BIN_SHIFT) == bin) boundary.push_back(ranks[s]);
  std::nth_element(boundary.begin(), boundary.begin() + (missing - 1), boundary.end(), std::greater<uint32_t>());
  const uint32_t last = boundary[missing - 1];
  int64_t ties = missing;
  for (const uint32_t rank : boundary) ties -= rank > last;
  for (int64_t s = 0, taken = 0; taken < k; s++) {
    const bool tie = ranks[s] == last && ties > 0;
    if (ranks[s] > last || tie) out[taken++] = s;
    ties -= tie;
  }
}

// A query that sees no more than k keys takes them all.
void all_keys(int64_t n, int64_t k, int64_t* out) {
  for (int64_t s = 0; s < k; s++) out[s] = s < n ? s : -1;
}

// Scores a few queries' keys as they are read, so that dot products never leave the first cache; then selects.
// q [queries, heads, width], k [S, width]; query b sees the first `visible + b` keys.
template <typename T>
void index_few(const T* q, const T* k, const float* weights, int64_t queries, int64_t heads, int64_t width,
               int64_t visible, int64_t topk, bool relu, int64_t* out, int64_t threads) {
  const int64_t stride = padded<float>(width), keys = visible + queries - 1;
  std::vector<float> query(queries * heads * stride);
  std::vector<uint32_t> ranks(queries * keys);
  for (int64_t r = 0; r < queries * heads; r++) widen_row(q + r * width, width, 1.0f, &query[r * stride]);
  const auto sum = relu ? head_sum<true> : head_sum<false>;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> wide(KEYS_AT_ONCE * stride), dots(heads * KEYS_AT_ONCE);
    std::vector<uint32_t> counts(BINS), boundary;
#pragma omp for schedule(static)
    for (int64_t first = 0; first < keys; first += KEYS_AT_ONCE) {
      const int64_t count = std::min(KEYS_AT_ONCE, keys - first);
      const float* entries = wide.data();
      if constexpr (std::is_same_v<T, float>) entries = k + first * width;
      if (!std::is_same_v<T, float> || stride != width) {
        entries = wide.data();
        for (int64_t n = 0; n < count; n++) widen_row(k + (first + n) * width, width, 1.0f, &wide[n * stride]);
      }
      for (int64_t b = 0; b < queries; b++) {
        dot_rows(&query[b * heads * stride], stride, heads, entries, stride, count, stride, dots.data(), KEYS_AT_ONCE);
        sum(dots.data(), KEYS_AT_ONCE, weights + b * heads, heads, count, &ranks[b * keys + first]);
      }
    }
#pragma omp for schedule(static)
    for (int64_t b = 0; b < queries; b++) {
      const int64_t n = visible + b;
      int64_t* row = out + b * topk;
      if (n > topk)
        best(&ranks[b * keys], n, topk, counts.data(), boundary, row);
      else
        all_keys(n, topk, row);
    }
  }
}

}  // namespace
}  // namespace arcforge

// dots [queries, heads, stride]; query b sees the first `visible + b` keys. out [queries, topk], -1 where keys are short.
extern "C" void arcforge_select(const float* dots, const float* weights, int64_t queries, int64_t heads, int64_t stride,
                                int64_t visible, int64_t topk, int64_t relu, int64_t* out, int64_t threads) {
  using namespace arcforge;
#pragma omp parallel num_threads(threads)
  {
    std::vector<uint32_t> ranks(visible + queries), counts(BINS), boundary;
#pragma omp for schedule(dynamic, 4)
    for (int64_t b = 0; b < queries; b++) {
      const int64_t n = visible + b;
      int64_t* row = out + b * topk;
      if (n <= topk) {
        all_keys(n, topk, row);
        continue;
      }
      const auto sum = relu ? head_sum<true> : head_sum<false>;
      sum(dots + b * heads * stride, stride, weights + b * heads, heads, n, ranks.data());
      best(ranks.data(), n, topk, counts.data(), boundary, row);
    }
  }
}

#define ARCFORGE_INDEX_FEW(NAME, T)                                                                                  \
  extern "C" void arcforge_index_few_##NAME(const T* q, const T* k, const float* weights, int64_t queries,           \
                                            int64_t heads, int64_t width, int64_t visible, int64_t topk,             \
                                            int64_t relu, int64_t* out, int64_t threads) {                           \
    arcforge::index_few<T>(q, k, weights, queries, heads, width, visible, topk, relu, out, threads);                 \
  }

ARCFORGE_INDEX_FEW(float32, float)
ARCFORGE_INDEX_FEW(bfloat16, arcforge::BFloat16)
