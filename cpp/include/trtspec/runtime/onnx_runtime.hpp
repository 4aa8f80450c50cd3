// OnnxRuntime: the shared library of ONNX Runtime, found and loaded when an engine needs it.
//
// Nothing of it is needed to build: its C API is one table of functions. By its rule of
// compatibility the table of a version is part of those of all later versions, in the same places,
// so the few functions that are used are declared here by their places, which have not moved since
// version 8 of the API (ONNX Runtime 1.8). No package that the tests can install has its header, so
// cpp/tests/runtime/test_onnx_runtime.cpp compares what they do with what their names say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace trtspec {

namespace ort {

constexpr int kErrors = 3;  // of the levels of its log

struct Allocator;
struct Env;
struct MemoryInfo;
struct RunOptions;
struct Session;
struct SessionOptions;
struct Status;  // null: no error
struct TensorInfo;
struct TypeInfo;
struct Value;

using AnyFunction = void (*)();

// A function at a place of the table.
template <std::size_t place, class Function>
struct Entry;
template <std::size_t place, class Result, class... Args>
struct Entry<place, Result(Args...)> {
  const AnyFunction* table = nullptr;
  Result operator()(Args... args) const {
    return reinterpret_cast<Result (*)(Args...)>(table[place])(args...);
  }
};

struct Api {
  explicit Api(const AnyFunction* table);

  Entry<2, const char*(const Status*)> error_message;
  Entry<3, Status*(int severity, const char* id, Env**)> create_env;
  Entry<6, Status*(const Env*)> disable_telemetry;
  Entry<7, Status*(const Env*, const char* path, const SessionOptions*, Session**)> create_session;
  Entry<9, Status*(Session*, const RunOptions*, const char* const* input_names,
                   const Value* const* inputs, std::size_t num_inputs,
                   const char* const* output_names, std::size_t num_outputs, Value** outputs)>
      run;
  Entry<10, Status*(SessionOptions**)> create_session_options;
  Entry<22, Status*(SessionOptions*, int severity)> set_log_severity;
  Entry<24, Status*(SessionOptions*, int threads)> set_num_threads;
  Entry<30, Status*(const Session*, std::size_t*)> input_count;
  Entry<31, Status*(const Session*, std::size_t*)> output_count;
  Entry<33, Status*(const Session*, std::size_t, TypeInfo**)> input_type;
  Entry<36, Status*(const Session*, std::size_t, Allocator*, char**)> input_name;
  Entry<37, Status*(const Session*, std::size_t, Allocator*, char**)> output_name;
  Entry<49, Status*(const MemoryInfo*, void* data, std::size_t bytes, const std::int64_t* shape,
                    std::size_t dim, int type, Value**)>
      create_tensor;
  Entry<51, Status*(Value*, void**)> tensor_data;
  Entry<55, Status*(const TypeInfo*, const TensorInfo**)> to_tensor_info;
  Entry<60, Status*(const TensorInfo*, int*)> element_type;
  Entry<61, Status*(const TensorInfo*, std::size_t*)> num_dimensions;
  Entry<62, Status*(const TensorInfo*, std::int64_t*, std::size_t)> dimensions;
  Entry<65, Status*(const Value*, TensorInfo**)> tensor_info;
  Entry<69, Status*(int allocator_type, int memory_type, MemoryInfo**)> create_cpu_memory_info;
  Entry<76, Status*(Allocator*, void*)> allocator_free;
  Entry<78, Status*(Allocator**)> default_allocator;
  Entry<92, void(Env*)> release_env;
  Entry<93, void(Status*)> release_status;
  Entry<94, void(MemoryInfo*)> release_memory_info;
  Entry<95, void(Session*)> release_session;
  Entry<96, void(Value*)> release_value;
  Entry<98, void(TypeInfo*)> release_type_info;
  Entry<99, void(TensorInfo*)> release_tensor_info;
  Entry<100, void(SessionOptions*)> release_session_options;
  Entry<150, Status*(SessionOptions*, const char* name, const Value*)> add_initializer;
};

}  // namespace ort

// The library, an environment in it, and what describes its memory.
class OnnxRuntime {
 public:
  // Loads the library at `path`; with "", the one that the build found beside TRTSPEC_PYTHON, else
  // one that the system's loader finds. Throws Error, naming what was tried and what to do.
  static std::shared_ptr<const OnnxRuntime> load(const std::string& path = "");
  ~OnnxRuntime();
  OnnxRuntime(const OnnxRuntime&) = delete;
  OnnxRuntime& operator=(const OnnxRuntime&) = delete;

  const ort::Api& api() const { return api_; }
  const ort::Env* env() const { return env_; }
  const ort::MemoryInfo* memory() const { return memory_; }
  // Throws Error with the status's own words, on one line, unless it is null.
  void check(ort::Status* status) const;

 private:
  explicit OnnxRuntime(const ort::AnyFunction* table);

  ort::Api api_;
  ort::Env* env_ = nullptr;
  ort::MemoryInfo* memory_ = nullptr;
};

}  // namespace trtspec
