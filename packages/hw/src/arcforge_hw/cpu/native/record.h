// Calls that are made again without whoever made them first: a function and its arguments as words of 64 bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace arcforge {

template <typename T>
T from_word(int64_t word) {
  if constexpr (std::is_floating_point_v<T>) {
    double value;
    std::memcpy(&value, &word, 8);
    return T(value);
  } else if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(word);
  } else {
    return T(word);
  }
}

template <typename... Args, size_t... I>
void call(void (*function)(Args...), const int64_t* words, std::index_sequence<I...>) {
  function(from_word<Args>(words[I])...);
}

template <typename... Args>
void call(void (*function)(Args...), const int64_t* words) {
  call(function, words, std::index_sequence_for<Args...>{});
}

}  // namespace arcforge

// The recorded form of a function: the same with its arguments in an array.
#define ARCFORGE_RECORDED(NAME) \
  extern "C" void NAME##_recorded(const int64_t* words) { arcforge::call(NAME, words); }
