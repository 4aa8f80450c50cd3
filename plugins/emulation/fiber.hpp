// Fiber: a stack on which a function runs for ever, giving way to other fibers when it says so. One
// fiber runs at a time.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <memory>

#include <ucontext.h>

namespace emulation {

class Fiber {
 public:
  // A fiber without a stack of its own: the one that the program began on.
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Gives it a stack, and what it runs once it is switched to. `body` never returns.
  void create(void (*body)());
  bool is_created() const { return stack_ != nullptr; }

  // Stops the running fiber here, until it is switched to, and goes on in `next`.
  void switch_to(Fiber& next);

 private:
  static void enter();

  std::jmp_buf place_;
  bool started_ = false;
  ucontext_t start_;
  std::unique_ptr<char[]> stack_;
  void (*body_)() = nullptr;
  // What the address sanitizer has to know of a stack.
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace emulation
