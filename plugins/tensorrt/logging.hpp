// Errors of the plugins go to TensorRT's logger.
#pragma once
#include <NvInferRuntime.h>

#include <string>

namespace trtspec::tensorrt {

// Remembers where to look for the logger; null forgets. TensorRT calls it through the exported
// setLoggerFinder when it loads the library.
void set_logger_finder(nvinfer1::ILoggerFinder* finder);

// To the logger of the engine that called, or to stderr where there is none.
void log_error(const std::string& message) noexcept;

}  // namespace trtspec::tensorrt
