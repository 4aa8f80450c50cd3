// FakeGpu: a GPU on the host, whose memory nobody but its own work can touch, and whose work waits
// until somebody waits for it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <trtspec/error.hpp>
#include <trtspec/kv_compact.hpp>
#include <trtspec/runtime/gpu.hpp>
#include <trtspec/sampling.hpp>
#include <utility>
#include <vector>

namespace trtspec {

// Whoever reads or writes its memory from outside ends the process by a segmentation fault. New
// memory holds bytes that are NaN as floating-point numbers and negative as integers.
class FakeGpu final : public Gpu {
 public:
  explicit FakeGpu(std::size_t bytes = std::size_t{2} << 30) : free_(bytes) {}
  ~FakeGpu() override {
    for (const auto& [memory, bytes] : memory_) ::munmap(memory, bytes);
  }

  std::string name() const override { return "the fake GPU"; }
  std::string compute_capability() const override { return "8.9"; }
  std::int64_t free_memory() const override { return static_cast<std::int64_t>(free_); }
  double measure_bandwidth() override { return 1e12; }
  std::size_t num_allocations() const { return memory_.size(); }

  void* allocate(std::size_t bytes) override {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t whole = (bytes + page - 1) / page * page;
    if (bytes == 0) throw std::logic_error("no memory was asked for");
    if (whole > free_) {
      throw Error(std::to_string(whole) + " bytes are needed, " + std::to_string(free_) +
                  " are free");
    }
    void* memory =
        ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    std::memset(memory, 0xFF, whole);
    protect(memory, whole, PROT_NONE);
    memory_[memory] = whole;
    free_ -= whole;
    return memory;
  }
  void release(void* memory) noexcept override {
    synchronize();
    const auto found = memory_.find(memory);
    free_ += found->second;
    ::munmap(memory, found->second);
    memory_.erase(found);
  }

  void copy_to_device(void* to, const void* from, std::size_t bytes) override {
    own(to, bytes);
    enqueue([=] { std::memcpy(to, from, bytes); });
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override {
    own(from, bytes);
    enqueue([=] { std::memcpy(to, from, bytes); });
  }
  void copy_on_device(void* to, const void* from, std::size_t bytes) override {
    own(to, bytes);
    own(from, bytes);
    enqueue([=] { std::memcpy(to, from, bytes); });
  }
  void zero(void* memory, std::size_t bytes) override {
    own(memory, bytes);
    enqueue([=] { std::memset(memory, 0, bytes); });
  }
  void move_rows(std::span<void* const> caches, std::int64_t row_bytes, std::int64_t num_slots,
                 std::span<const std::int64_t> src_slots,
                 std::span<const std::int64_t> dst_slots) override {
    for (const void* cache : caches) own(cache, static_cast<std::size_t>(row_bytes * num_slots));
    enqueue([=, data = std::vector<void*>(caches.begin(), caches.end()),
             src = std::vector(src_slots.begin(), src_slots.end()),
             dst = std::vector(dst_slots.begin(), dst_slots.end())] {
      kv_compact(data.data(), std::ssize(data), row_bytes, num_slots, src.data(), dst.data(),
                 std::ssize(src));
    });
  }

  void sample(const float* logits, std::int64_t rows, std::int64_t vocab,
              const SamplingRows& params, std::int64_t* ids) override {
    own(logits, static_cast<std::size_t>(rows * vocab) * sizeof(float));
    own(params.seed, static_cast<std::size_t>(rows) * sizeof(std::int64_t));
    enqueue([=] { trtspec::sample(logits, rows, vocab, params, ids); });
  }
  void draft_candidates(const float* logits, std::int64_t rows, std::int64_t vocab,
                        const SamplingRows& params, const std::int64_t* token_map,
                        std::int64_t count, std::int64_t* ids, float* logprobs) override {
    own(logits, static_cast<std::size_t>(rows * vocab) * sizeof(float));
    if (token_map) own(token_map, static_cast<std::size_t>(vocab) * sizeof(std::int64_t));
    enqueue([=] {
      trtspec::draft_candidates(logits, rows, vocab, params, token_map, count, ids, logprobs);
    });
  }

  void synchronize() override {
    for (const auto& [memory, bytes] : memory_) protect(memory, bytes, PROT_READ | PROT_WRITE);
    for (const auto& work : std::exchange(pending_, {})) work();
    for (const auto& [memory, bytes] : memory_) protect(memory, bytes, PROT_NONE);
  }

  // Work of the device, behind all that was given before.
  void enqueue(std::function<void()> work) { pending_.push_back(std::move(work)); }
  // Refuses what is not within one allocation.
  void own(const void* data, std::size_t bytes) const {
    auto found = memory_.upper_bound(const_cast<void*>(data));
    const auto* begin = static_cast<const char*>(data);
    if (found != memory_.begin()) {
      --found;
      const auto* memory = static_cast<const char*>(found->first);
      if (begin >= memory && begin + bytes <= memory + found->second) return;
    }
    throw std::logic_error("this is no memory of the device");
  }

 private:
  static void protect(void* memory, std::size_t bytes, int how) {
    if (::mprotect(memory, bytes, how) != 0) throw std::logic_error("mprotect failed");
  }

  std::size_t free_;
  std::map<void*, std::size_t> memory_;
  std::vector<std::function<void()>> pending_;
};

}  // namespace trtspec
