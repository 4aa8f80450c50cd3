// Checks of the C++ unit tests: a failed one is printed and counted, and the test goes on.
#pragma once
#include <cmath>
#include <cstdio>
#include <iostream>

inline int& failed_checks() {
  static int count = 0;
  return count;
}

inline int check_result() {
  if (failed_checks() != 0) std::printf("%d checks failed\n", failed_checks());
  return failed_checks() == 0 ? 0 : 1;
}

// Torch's headers, where a test includes them, define this name too.
#undef CHECK
#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      ++failed_checks();                                                    \
      std::printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                       \
  } while (0)

#define CHECK_EQ(a, b)                                                                          \
  do {                                                                                          \
    const auto check_a = (a);                                                                   \
    const auto check_b = (b);                                                                   \
    if (!(check_a == check_b)) {                                                                \
      ++failed_checks();                                                                        \
      std::cout << __FILE__ << ":" << __LINE__ << ": " << #a << " is " << check_a << ", " << #b \
                << " is " << check_b << std::endl;                                              \
    }                                                                                           \
  } while (0)

#define CHECK_NEAR(a, b, tolerance)                                                             \
  do {                                                                                          \
    const double check_a = (a);                                                                 \
    const double check_b = (b);                                                                 \
    if (!(std::fabs(check_a - check_b) <= (tolerance))) {                                       \
      ++failed_checks();                                                                        \
      std::cout << __FILE__ << ":" << __LINE__ << ": " << #a << " is " << check_a << ", " << #b \
                << " is " << check_b << std::endl;                                              \
    }                                                                                           \
  } while (0)

#define CHECK_THROWS(statement)                                                  \
  do {                                                                           \
    bool check_thrown = false;                                                   \
    try {                                                                        \
      statement;                                                                 \
    } catch (const std::exception&) {                                            \
      check_thrown = true;                                                       \
    }                                                                            \
    if (!check_thrown) {                                                         \
      ++failed_checks();                                                         \
      std::printf("%s:%d: did not throw: %s\n", __FILE__, __LINE__, #statement); \
    }                                                                            \
  } while (0)
