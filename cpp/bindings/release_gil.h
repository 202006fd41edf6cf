// Releases the GIL for a scope, and survives an interpreter that exits meanwhile.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace kvcache::bindings {

// Before 3.14, CPython ends a daemon thread that wants the GIL back during exit by pthread_exit,
// whose unwinding aborts the process where it meets a destructor, as every C++ guard is one. Such a
// thread sleeps here until the process has ended, as newer versions have it.
class ReleaseGil {
 public:
  ReleaseGil() : thread_(PyEval_SaveThread()) {}
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;
  ~ReleaseGil() {
#ifdef __GLIBCXX__
    try {
      PyEval_RestoreThread(thread_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
#else
    PyEval_RestoreThread(thread_);
#endif
  }

 private:
  PyThreadState* thread_;
};

}  // namespace kvcache::bindings
