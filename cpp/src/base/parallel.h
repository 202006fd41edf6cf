// Splits a call over threads that end with it.
#pragma once

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace kvcache {

// Calls body(part, first, count) for `parts` ranges that cover [0, total); the last on this thread.
// A thread the system refuses is work this thread does instead.
template <typename Body>
void for_each_part(std::size_t total, std::size_t parts, const Body& body) {
  if (parts <= 1) return body(0, 0, total);
  std::vector<std::thread> workers;
  workers.reserve(parts - 1);
  std::size_t first = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t end = total / parts * (part + 1) + (total % parts) * (part + 1) / parts;
    const std::size_t count = end - first;
    if (part + 1 < parts) {
      try {
        workers.emplace_back([&body, part, first, count] { body(part, first, count); });
      } catch (const std::system_error&) {
        body(part, first, count);
      }
    } else {
      body(part, first, count);
    }
    first = end;
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace kvcache
