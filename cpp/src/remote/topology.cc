#include "remote/topology.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

namespace kvcache::remote {
namespace {

// The CRC of XMODEM: polynomial 0x1021, nothing reflected, from 0.
constexpr std::array<std::uint16_t, 256> crc_table() {
  std::array<std::uint16_t, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021 : 0);
    table[byte] = static_cast<std::uint16_t>(crc);
  }
  return table;
}
constexpr auto kCrc = crc_table();

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

// What names no host names the one that was asked, under any port. None: no address.
std::optional<Address> address_of(std::string_view host, std::int64_t port, const Address& asked) {
  constexpr std::size_t kMostHostBytes = 255;
  const bool plain =
      std::all_of(host.begin(), host.end(), [](char c) { return c > ' ' && c < 127; });
  if (port < 1 || port > UINT16_MAX || host.size() > kMostHostBytes || !plain || host == "?") {
    return std::nullopt;
  }
  Address address = asked;
  if (!host.empty()) address.host = host;
  address.port = static_cast<std::uint16_t>(port);
  return address;
}

Status no_slots(const auto&... what) {
  return Status::corruption("no answer to CLUSTER SLOTS: ", what...);
}

}  // namespace

std::uint16_t slot_of(std::string_view key) {
  const std::size_t open = key.find('{');
  if (open != key.npos) {
    const std::size_t close = key.find('}', open + 1);
    if (close != key.npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  }
  unsigned crc = 0;
  for (const char each : key) {
    crc = (crc << 8) ^ kCrc[((crc >> 8) ^ static_cast<unsigned char>(each)) & 0xff];
  }
  return static_cast<std::uint16_t>(crc % kSlots);
}

// Each item: the first slot, the last one, the primary as host and port and more, its replicas. A
// primary without an address has nobody to ask.
Result<SlotMap> read_slots(const Reply& reply, const Address& asked) {
  if (reply.kind != Reply::Kind::kArray) return no_slots("no list");
  SlotMap map;
  std::vector<bool> told(kSlots, false);
  std::map<std::string, std::uint16_t> numbers;
  for (const Reply& range : reply.items) {
    if (range.items.size() < 3 || range.items[0].kind != Reply::Kind::kInteger ||
        range.items[1].kind != Reply::Kind::kInteger || range.items[2].items.size() < 2) {
      return no_slots("a range without a node");
    }
    const std::int64_t first = range.items[0].integer;
    const std::int64_t last = range.items[1].integer;
    if (first < 0 || first > last || last >= kSlots) return no_slots("slots ", first, "..", last);
    const Reply& host = range.items[2].items[0];
    const bool named = host.kind == Reply::Kind::kBulk || host.is_nil();
    if (!named || range.items[2].items[1].kind != Reply::Kind::kInteger) {
      return no_slots("a node without an address");
    }
    const auto node = address_of(host.text, range.items[2].items[1].integer, asked);
    std::uint16_t number = kNobody;
    if (node) {
      const auto [at, is_new] =
          numbers.emplace(node->text(), static_cast<std::uint16_t>(map.nodes.size()));
      if (is_new) map.nodes.push_back(*node);
      number = at->second;
    }
    if (map.nodes.size() > kMostNodes) return no_slots("more than ", kMostNodes, " nodes");
    for (auto slot = static_cast<std::size_t>(first); slot <= static_cast<std::size_t>(last);
         ++slot) {
      if (told[slot]) return no_slots("slot ", slot, " twice");
      told[slot] = true;
      map.owners[slot] = number;
    }
  }
  return map;
}

std::optional<Redirection> read_redirection(std::string_view error, const Address& asked) {
  const bool asking = error.starts_with("ASK ");
  if (!asking && !error.starts_with("MOVED ")) return std::nullopt;
  error.remove_prefix(error.find(' ') + 1);
  const std::size_t space = error.find(' ');
  const std::size_t colon = error.rfind(':');  // an address of IPv6 has more of them
  if (space == error.npos || colon == error.npos || colon < space) return std::nullopt;
  const auto port = number_of<std::uint16_t>(error.substr(colon + 1));
  const std::string_view host = error.substr(space + 1, colon - space - 1);
  const auto to = address_of(host, port.value_or(0), asked);
  return to ? std::optional(Redirection{*to, asking}) : std::nullopt;
}

Result<Address> read_primary(const Reply& reply, const Address& asked) {
  if (reply.is_nil()) return Status::io_error("the sentinel does not know this service");
  if (reply.kind == Reply::Kind::kArray && reply.items.size() == 2 &&
      !reply.items[0].text.empty()) {
    const auto port = number_of<std::uint16_t>(reply.items[1].text);
    const auto primary = address_of(reply.items[0].text, port.value_or(0), asked);
    if (primary) return *primary;
  }
  return Status::corruption("no answer of a sentinel: no address");
}

Status check_primary(const Reply& reply) {
  if (reply.is_error()) return Status::io_error("the server says: ", printable(reply.text));
  const std::string role = reply.items.empty() ? "" : reply.items.front().text;
  if (role == "master") return Status::ok();
  return Status::io_error("the server is no primary, but a ", printable(role));
}

}  // namespace kvcache::remote
