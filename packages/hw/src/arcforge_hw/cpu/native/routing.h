// The choice of a token's experts.
#pragma once

#include <algorithm>
#include <vector>

#include "few_rows.h"

namespace arcforge {

// The `chosen` experts of highest score plus bias, in that order, ties to the lower number; gates sum to `scale`.
template <typename A>
inline void choose(A* score, const float* bias, int64_t experts, int64_t chosen, A scale, int64_t* expert, A* gate) {
  Memory<A> choice(experts);
  A total = 0;
  for (int64_t e = 0; e < experts; e++) {
    score[e] = sigmoid(score[e]);
    choice[e] = score[e] + A(bias[e]);
  }
  for (int64_t k = 0; k < chosen; k++) {
    const int64_t best = std::max_element(choice.begin(), choice.end()) - choice.begin();
    choice[best] = -INFINITY;
    expert[k] = best;
    total += gate[k] = score[best];
  }
  for (int64_t k = 0; k < chosen; k++) gate[k] = gate[k] / (total + A(1e-20)) * scale;
}

}  // namespace arcforge
