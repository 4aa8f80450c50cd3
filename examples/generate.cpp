// An engine folder without Python: token ids in, token ids out, drafts as the folder was built for.
//
//   build/example_generate <engine folder> <max tokens> <token id>...
#include <cstdint>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <trtspec/runtime/engine_runtime.hpp>
#include <vector>

using namespace trtspec;

namespace {

void generate(const std::string& path, const std::vector<std::int64_t>& prompt,
              std::int64_t max_tokens) {
  const EngineFolder folder = EngineFolder::read(path);
  const SchedulerLimits limits = runtime_limits(folder.build);
  EngineRuntime runtime(folder, limits, Speculation::of(folder), {}, Libraries::load(folder, {}));
  Executor& executor = runtime.executor();

  SamplingOptions sampling;  // greedy
  sampling.max_tokens = max_tokens;
  executor.add(Request::create(0, prompt, sampling, limits.max_seq_len));
  while (executor.has_work()) {
    for (const StepOutput& output : executor.step()) {
      if (output.finish_reason == FinishReason::error) throw std::runtime_error(output.error);
      for (const std::int64_t token : output.tokens) std::cout << token << ' ' << std::flush;
    }
  }
  std::cout << '\n';
  std::cerr << executor.metrics().total().acceptance_length() << " tokens a step\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: " << argv[0] << " <engine folder> <max tokens> <token id>...\n";
    return 2;
  }
  try {
    std::vector<std::int64_t> prompt;
    for (int i = 3; i < argc; ++i) prompt.push_back(std::stoll(argv[i]));
    generate(argv[1], prompt, std::stoll(argv[2]));
  } catch (const std::exception& error) {
    std::cerr << argv[0] << ": " << error.what() << '\n';
    return 1;
  }
}
