#include "fiber.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulation {
namespace {

// The sanitizer's instrumented frames take several times as much.
constexpr std::size_t kStackBytes = 256 * 1024;

// The fiber that is left and the one that is entered, while a new one starts.
Fiber* left = nullptr;
Fiber* entered = nullptr;

void announce_switch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* bottom,
                     [[maybe_unused]] std::size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
#endif
}

void finish_switch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** old_bottom,
                   [[maybe_unused]] std::size_t* old_size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, old_bottom, old_size);
#endif
}

}  // namespace

void Fiber::create(void (*body)()) {
  stack_.reset(new char[kStackBytes]);
  body_ = body;
  bottom_ = stack_.get();
  size_ = kStackBytes;
  getcontext(&start_);
  start_.uc_stack.ss_sp = stack_.get();
  start_.uc_stack.ss_size = kStackBytes;
  start_.uc_link = nullptr;
  makecontext(&start_, &Fiber::enter, 0);
}

void Fiber::enter() {
  const void* bottom = nullptr;
  std::size_t size = 0;
  finish_switch(nullptr, &bottom, &size);
  if (!left->is_created()) {
    left->bottom_ = bottom;
    left->size_ = size;
  }
  entered->body_();
}

// Jumps between places that are known are cheaper than switches of contexts, which ask the system
// for the mask of signals each time.
void Fiber::switch_to(Fiber& next) {
  if (_setjmp(place_) == 0) {
    announce_switch(&fake_stack_, next.bottom_, next.size_);
    if (next.started_ || !next.is_created()) _longjmp(next.place_, 1);
    next.started_ = true;
    left = this;
    entered = &next;
    setcontext(&next.start_);
  }
  finish_switch(fake_stack_, nullptr, nullptr);
}

}  // namespace emulation
