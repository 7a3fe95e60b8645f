// Grad mode on, where it may be off (core/tape.h): for a backward that runs operations to differentiate.
#pragma once

namespace tapehead {

/// Grad mode on this thread, until destroyed.
class EnableGradGuard {
 public:
  EnableGradGuard();
  ~EnableGradGuard();
  EnableGradGuard(const EnableGradGuard&) = delete;
  EnableGradGuard& operator=(const EnableGradGuard&) = delete;

 private:
  bool outer_;
};

}  // namespace tapehead
