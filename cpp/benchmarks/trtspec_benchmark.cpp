// trtspec_benchmark: runs a data set through an engine folder, without Python.
#include <ATen/Parallel.h>

#include <cstdio>
#include <exception>
#include <string>
#include <trtspec/files.hpp>
#include <trtspec/host.hpp>
#include <trtspec/team.hpp>
#include <vector>

#include "figures.hpp"
#include "memory_speed.hpp"
#include "options.hpp"
#include "report.hpp"
#include "run.hpp"
#include "samples.hpp"

namespace {

using namespace trtspec;
using namespace trtspec::bench;

constexpr int kFailed = 1;
constexpr int kUsage = 2;

void benchmark(const Options& options) {
  const int threads = options.num_threads ? static_cast<int>(*options.num_threads)
                                          : default_threads(at::get_num_threads());
  at::set_num_threads(threads);
  const EngineFolder folder = EngineFolder::read(options.engine_dir);
  const SchedulerLimits limits = runtime_limits(folder.build, options.max_batch_size,
                                                options.max_num_tokens, options.max_seq_len);
  const Speculation speculation = options.speculation(folder);
  options.sampling.check_vocabulary(folder.target.vocab_size);
  const std::vector<Sample> samples =
      read_samples(options.dataset, options.max_num_samples,
                   {.vocab_size = folder.target.vocab_size, .max_seq_len = limits.max_seq_len});
  for (const auto* path : {&options.output_csv, &options.output_json, &options.responses_json}) {
    if (*path) check_writable(**path);
  }
  const Libraries libraries = Libraries::load(folder, options.libraries);
  MemorySpeed speed(libraries.tensorrt
                        ? [&] { return libraries.tensorrt->gpu()->measure_bandwidth(); }
                        : host_memory_speed(threads));
  speed.sample();
  EngineRuntime runtime(folder, limits, speculation, options.kv, libraries);
  // Only now: sessions ask OpenMP for its threads.
  take_threads(threads);
  speed.sample();
  const RunResult result = run_samples(runtime, samples, options, folder, limits);
  speed.sample();

  const std::vector<Figure> figures = make_figures(result, speed.best());
  std::fputs(benchmark_lines(figures).c_str(), stdout);
  for (std::size_t i = 0; i < result.records.size(); ++i) {
    const Record& record = result.records[i];
    if (!record.failed()) continue;
    std::fprintf(stderr, "trtspec_benchmark: sample %zu failed: %s\n", i, record.error.c_str());
  }
  if (options.output_csv) write_file(*options.output_csv, csv_text(figures));
  if (options.output_json) {
    const Setting setting{options,     folder,    limits,
                          speculation, libraries, runtime.kv_cache_tokens()};
    write_file(*options.output_json, report_json(setting, result, figures));
  }
  if (options.responses_json) write_file(*options.responses_json, responses_json(result));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = Options::parse(argc, argv);
    if (options.help) {
      std::fputs(kHelp, stdout);
    } else {
      benchmark(options);
    }
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "trtspec_benchmark: %s\n", error.what());
    return kUsage;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    std::fprintf(stderr, "trtspec_benchmark: %s\n", what.substr(0, what.find('\n')).c_str());
    return kFailed;
  }
}
