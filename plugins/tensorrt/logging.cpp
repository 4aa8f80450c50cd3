#include "logging.hpp"

#include <atomic>
#include <cstdio>

namespace trtspec::tensorrt {

namespace {

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) { logger_finder = finder; }

void log_error(const std::string& message) noexcept {
  nvinfer1::ILoggerFinder* finder = logger_finder;
  nvinfer1::ILogger* logger = finder != nullptr ? finder->findLogger() : nullptr;
  if (logger != nullptr) {
    logger->log(nvinfer1::ILogger::Severity::kERROR, message.c_str());
  } else {
    std::fprintf(stderr, "trtspec: %s\n", message.c_str());
  }
}

}  // namespace trtspec::tensorrt
