// TensorRT's side of the plugins, in as much as can be had without the library: dimension
// expressions that are numbers, and a logger that remembers.
#pragma once
#include <NvInferRuntime.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace fakes {

// A dimension known at run time only (isConstant() is false, but `value` is what it will be), or a
// constant.
class Expr final : public nvinfer1::IDimensionExpr {
 public:
  Expr(std::int64_t value, bool constant) : value_(value), impl_(*this), constant_(constant) {
    mImpl = &impl_;
  }
  ~Expr() noexcept override = default;
  std::int64_t value() const { return value_; }

 private:
  struct Impl final : nvinfer1::apiv::VDimensionExpr {
    explicit Impl(const Expr& expr) : expr(expr) {}
    bool isConstant() const override { return expr.constant_; }
    std::int64_t getConstantValue() const override {
      return expr.constant_ ? expr.value_ : std::numeric_limits<std::int64_t>::min();
    }
    bool isSizeTensor() const override { return false; }
    const Expr& expr;
  };

  std::int64_t value_;
  Impl impl_;
  bool constant_;
};

class ExprBuilder final : public nvinfer1::IExprBuilder {
 public:
  ExprBuilder() : impl_(*this) { mImpl = &impl_; }
  ~ExprBuilder() noexcept override = default;

  const Expr* make(std::int64_t value, bool constant) {
    made_.push_back(std::make_unique<Expr>(value, constant));
    return made_.back().get();
  }

 private:
  struct Impl final : nvinfer1::apiv::VExprBuilder {
    explicit Impl(ExprBuilder& builder) : builder(builder) {}
    const nvinfer1::IDimensionExpr* constant(std::int64_t value) override {
      return builder.make(value, true);
    }
    const nvinfer1::IDimensionExpr* operation(nvinfer1::DimensionOperation op,
                                              const nvinfer1::IDimensionExpr& first,
                                              const nvinfer1::IDimensionExpr& second) override {
      if (op != nvinfer1::DimensionOperation::kSUB) return nullptr;
      return builder.make(
          static_cast<const Expr&>(first).value() - static_cast<const Expr&>(second).value(),
          first.isConstant() && second.isConstant());
    }
    const nvinfer1::IDimensionExpr* declareSizeTensor(std::int32_t, const nvinfer1::IDimensionExpr&,
                                                      const nvinfer1::IDimensionExpr&) override {
      return nullptr;
    }
    ExprBuilder& builder;
  };

  Impl impl_;
  std::vector<std::unique_ptr<Expr>> made_;
};

class Logger final : public nvinfer1::ILogger, public nvinfer1::ILoggerFinder {
 public:
  ~Logger() override = default;
  void log(Severity severity, const char* message) noexcept override {
    if (severity <= Severity::kERROR) last = message;
  }
  nvinfer1::ILogger* findLogger() override { return this; }

  // What was logged since the last call.
  std::string taken() { return std::exchange(last, ""); }

 private:
  std::string last;
};

}  // namespace fakes
