#include <pybind11/pybind11.h>

#include <exception>
#include <new>
#include <stdexcept>

#include "kvcache/status.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

const char* error_class(kvcache::StatusCode code) {
  using kvcache::StatusCode;
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "InvalidArgumentError";
    case StatusCode::kNotFound:
      return "NotFoundError";
    case StatusCode::kOutOfCapacity:
      return "OutOfCapacityError";
    case StatusCode::kCorruption:
      return "CorruptionError";
    case StatusCode::kUnsupported:
      return "UnsupportedError";
    case StatusCode::kIoError:
      return "KVCacheIOError";
    case StatusCode::kNonFinite:
      return "NonFiniteError";
    case StatusCode::kOk:
    case StatusCode::kInternal:
      break;
  }
  return "InternalError";
}

// As the C face has it: memory of the process is a capacity too.
void set_out_of_memory(const char* text) {
  const py::object type = py::module_::import("kvcache.errors").attr("OutOfCapacityError");
  PyErr_SetString(type.ptr(), text);
}

}  // namespace

void bind_status(py::module_& m) {
  py::register_local_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const kvcache::bindings::StatusError& error) {
      const py::object type =
          py::module_::import("kvcache.errors").attr(error_class(error.status().code()));
      // A message may quote a path or a damaged file, whose bytes need not be UTF-8.
      const std::string& text = error.status().message();
      const auto length = static_cast<py::ssize_t>(text.size());
      const auto message = py::reinterpret_steal<py::object>(
          PyUnicode_DecodeUTF8(text.data(), length, "backslashreplace"));
      if (message) PyErr_SetObject(type.ptr(), message.ptr());
    } catch (const std::bad_alloc&) {
      set_out_of_memory("the process is out of memory");
    } catch (const std::length_error&) {
      set_out_of_memory("more elements than memory can hold");
    }
  });
  // For the test that every code has a class.
  m.def("_error_class",
        [](int code) { return error_class(static_cast<kvcache::StatusCode>(code)); });
}
