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
        for (int64_t s = 0; s < topk; s++) row[s] = s < n ? s : -1;
        continue;
      }
      const auto sum = relu ? head_sum<true> : head_sum<false>;
      sum(dots + b * heads * stride, stride, weights + b * heads, heads, n, ranks.data());
      best(ranks.data(), n, topk, counts.data(), boundary, row);
    }
  }
}
