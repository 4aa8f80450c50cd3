// Runs programs with AMX instructions on processors without them: each one traps as an illegal
// instruction (SIGILL), is decoded and done here, for every thread by itself. What is emulated:
// ldtilecfg, tilerelease, tilezero, tileloadd, tilestored, tdpbf16ps, tdpbsud; what a processor would refuse
// (rows that were not configured, a missing configuration) ends the program. Semantics and
// encodings: Intel's Software Developer's Manual, volume 2.
#pragma once
#include <signal.h>
#include <trtspec/isa.hpp>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace amx_emulator {

struct State {
  bool is_configured = false;
  int bytes[8] = {};
  int rows[8] = {};
  alignas(64) std::uint8_t tiles[8][16][64] = {};
};

inline thread_local State state;

[[noreturn]] inline void refuse(const char* reason) {
  std::fprintf(stderr, "amx_emulator: %s\n", reason);
  std::abort();
}

// One instruction, with a VEX prefix of three bytes.
class Instruction {
 public:
  Instruction(const std::uint8_t* code, const greg_t* registers)
      : code_(code), registers_(registers) {
    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2) refuse("no VEX prefix of the map 0F38");
    if ((code[2] & 0x84) != 0) refuse("W or L is not 0");
    reg_ = code[4] >> 3 & 7;
    mod_ = code[4] >> 6;
    rm_ = code[4] & 7;
    length_ = 5;
    if (mod_ != 3) find_address();
  }

  int opcode() const { return code_[3]; }
  int prefix() const { return code_[2] & 3; }  // none, 66, F3, F2
  bool has_address() const { return mod_ != 3; }
  int reg() const { return reg_; }
  int rm() const { return rm_; }
  int third() const { return ~code_[2] >> 3 & 7; }  // vvvv
  int length() const { return length_; }
  std::uint8_t* address() const { return reinterpret_cast<std::uint8_t*>(base_ + stride_); }
  // Of a row of a tile, in memory.
  std::uint8_t* row(int index) const {
    return reinterpret_cast<std::uint8_t*>(base_ + stride_ * index);
  }

 private:
  void find_address() {
    int base = rm_, index = 4;  // 4: none
    int scale = 0;
    const bool has_sib = rm_ == 4;
    if (has_sib) {
      const std::uint8_t sib = code_[length_++];
      scale = sib >> 6;
      index = (sib >> 3 & 7) | (code_[1] & 0x40 ? 0 : 8);
      base = sib & 7;
    }
    if (mod_ == 0 && base == 5) {  // a displacement alone, from the next instruction on
      if (has_sib) refuse("an address without a base");
      base_ = displacement(4);
      base_ += registers_[REG_RIP] + length_;
      return;
    }
    if (mod_ != 0) base_ = displacement(mod_ == 1 ? 1 : 4);
    base_ += general(base | (code_[1] & 0x20 ? 0 : 8));
    if (index != 4) stride_ = general(index) << scale;
  }

  std::intptr_t displacement(int bytes) {
    std::int32_t value = 0;
    std::memcpy(&value, code_ + length_, static_cast<std::size_t>(bytes));
    length_ += bytes;
    return bytes == 1 ? static_cast<std::int8_t>(value) : value;
  }

  std::intptr_t general(int number) const {
    static constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                     REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                     REG_R12, REG_R13, REG_R14, REG_R15};
    return static_cast<std::intptr_t>(registers_[kOrder[number]]);
  }

  const std::uint8_t* code_;
  const greg_t* registers_;
  int reg_, mod_, rm_, length_;
  std::intptr_t base_ = 0, stride_ = 0;
};

inline void configure(const std::uint8_t* from) {
  if (from[0] != 1) refuse("a palette other than 1");
  state = State{};
  state.is_configured = true;
  for (int tile = 0; tile < 8; ++tile) {
    state.bytes[tile] = from[16 + 2 * tile] | from[17 + 2 * tile] << 8;
    state.rows[tile] = from[48 + tile];
    if (state.bytes[tile] > 64 || state.rows[tile] > 16) refuse("too large a tile");
  }
}

// Zero in place of what is no normal number.
inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? 0.0f : x; }

inline float float_at(const std::uint8_t* row, int index) {
  float value;
  std::memcpy(&value, row + 4 * index, sizeof value);
  return flushed(value);
}

inline float bf16_at(const std::uint8_t* row, int index) {
  const auto bits = static_cast<std::uint32_t>(row[2 * index] | row[2 * index + 1] << 8) << 16;
  return flushed(__builtin_bit_cast(float, bits));
}

inline void check_product(int sums, int a, int b) {
  if (state.bytes[sums] != state.bytes[b] || state.rows[sums] != state.rows[a] ||
      state.rows[b] != state.bytes[a] / 4) {
    refuse("tiles that do not fit each other");
  }
}

// sums += a times b: even and odd inputs by themselves, then added to each other.
inline void multiply(int sums, int a, int b) {
  check_product(sums, a, b);
  const int pairs = state.bytes[a] / 4, columns = state.bytes[b] / 4;
  for (int row = 0; row < state.rows[a]; ++row) {
    for (int column = 0; column < columns; ++column) {
      float parts[2] = {};
      for (int pair = 0; pair < pairs; ++pair) {
        for (int i = 0; i < 2; ++i) {
          const float left = bf16_at(state.tiles[a][row], 2 * pair + i);
          const float right = bf16_at(state.tiles[b][pair], 2 * column + i);
          parts[i] = flushed(std::fma(left, right, parts[i]));
        }
      }
      std::uint8_t* const place = state.tiles[sums][row];
      const float sum = flushed(float_at(place, column) + flushed(parts[0] + parts[1]));
      std::memcpy(place + 4 * column, &sum, sizeof sum);
    }
  }
}

// The same of whole numbers: bytes with a sign of a, without one of b.
inline void multiply_bytes(int sums, int a, int b) {
  check_product(sums, a, b);
  for (int row = 0; row < state.rows[a]; ++row) {
    for (int column = 0; column < state.bytes[b] / 4; ++column) {
      std::uint8_t* const place = state.tiles[sums][row] + 4 * column;
      std::int32_t sum;
      std::memcpy(&sum, place, sizeof sum);
      for (int k = 0; k < state.bytes[a]; ++k) {
        const auto left = static_cast<std::int8_t>(state.tiles[a][row][k]);
        sum += left * state.tiles[b][k / 4][4 * column + k % 4];
      }
      std::memcpy(place, &sum, sizeof sum);
    }
  }
}

inline void run(const Instruction& now) {
  const int key = now.opcode() << 4 | now.prefix() << 1 | (now.has_address() ? 1 : 0);
  if (key == 0x491) return configure(now.address());  // ldtilecfg
  if (!state.is_configured) refuse("tiles are not configured");
  const int tile = now.reg();
  switch (key) {
    case 0x490:  // tilerelease
      state = State{};
      return;
    case 0x496:  // tilezero
      std::memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
      return;
    case 0x4b7:  // tileloadd
      std::memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
      for (int row = 0; row < state.rows[tile]; ++row) {
        std::memcpy(state.tiles[tile][row], now.row(row),
                    static_cast<std::size_t>(state.bytes[tile]));
      }
      return;
    case 0x4b5:  // tilestored
      for (int row = 0; row < state.rows[tile]; ++row) {
        std::memcpy(now.row(row), state.tiles[tile][row],
                    static_cast<std::size_t>(state.bytes[tile]));
      }
      return;
    case 0x5c4:  // tdpbf16ps
      return multiply(tile, now.rm(), now.third());
    case 0x5e4:  // tdpbsud
      return multiply_bytes(tile, now.rm(), now.third());
  }
  refuse("an instruction that is not emulated");
}

inline void on_illegal_instruction(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction now(reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]), registers);
  run(now);
  registers[REG_RIP] += now.length();
}

// From now on, for all threads.
inline void install() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGILL, &action, nullptr) != 0) refuse("sigaction failed");
}

// Whether kernels for AMX can run here, if need be on the emulator; prints why not.
inline bool can_run_kernels() {
  if (trtspec::detected_isa() == trtspec::Isa::amx) return true;
  if (trtspec::detected_isa() < trtspec::Isa::avx512_bf16) {
    std::printf("not run: this processor has no AVX512_BF16\n");
    return false;
  }
  if (__builtin_cpu_supports("amx-tile")) {
    std::printf("not run: the system does not let this process use AMX\n");
    return false;
  }
  std::printf("emulated: this processor has no AMX\n");
  install();
  return true;
}

}  // namespace amx_emulator
