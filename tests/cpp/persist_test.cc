#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "kvcache/cache.h"
#include "persist/files.h"
#include "persist/generation.h"
#include "persist/json.h"

namespace kvcache {
namespace {

namespace fs = std::filesystem;

// ---- CRC-32C ----------------------------------------------------------------------------------

TEST(Crc32c, MatchesTheVectorsOfRfc3720) {
  std::array<unsigned char, 32> bytes{};
  EXPECT_EQ(crc32c(0, bytes.data(), 32), 0x8a9136aaU);
  bytes.fill(0xff);
  EXPECT_EQ(crc32c(0, bytes.data(), 32), 0x62a8ab43U);
  for (unsigned i = 0; i < 32; ++i) bytes[i] = static_cast<unsigned char>(i);
  EXPECT_EQ(crc32c(0, bytes.data(), 32), 0x46dd794eU);
  EXPECT_EQ(crc32c(0, "123456789", 9), 0xe3069283U);
}

TEST(Crc32c, EveryLengthOffsetAndSplitGivesWhatThePortableOneGives) {
  std::vector<unsigned char> bytes(300);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 131 + 7);
  for (std::size_t from = 0; from < 9; ++from) {
    for (std::size_t size = 0; size + from <= bytes.size(); ++size) {
      const unsigned char* p = bytes.data() + from;
      const std::uint32_t whole = crc32c(0, p, size);
      ASSERT_EQ(whole, crc32c_portable(0, p, size));
      ASSERT_EQ(whole, crc32c(crc32c_portable(0, p, size / 3), p + size / 3, size - size / 3));
    }
  }
}

TEST(Crc32c, LongRunsGiveWhatThePortableOneGives) {
  std::vector<unsigned char> bytes(3 * 4096 * 2 + 3 * 256 + 100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i >> 3);
  for (const std::size_t size :
       {767, 768, 769, 1023, 1024, 1025, 1279, 1280, 4096, 12287, 12288, 12289, 13056, 25443}) {
    for (const std::size_t from : {0, 1}) {
      ASSERT_EQ(crc32c(7, bytes.data() + from, size), crc32c_portable(7, bytes.data() + from, size))
          << size << " bytes from " << from;
    }
  }
}

TEST(Crc32c, PiecesJoinToTheChecksumOfTheWhole) {
  std::vector<unsigned char> bytes(100000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i >> 3);
  const std::uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  for (const std::size_t cut : {0, 1, 2, 255, 256, 4097, 65535, 65536, 99999, 100000}) {
    const std::uint32_t first = crc32c(0, bytes.data(), cut);
    const std::uint32_t second = crc32c(0, bytes.data() + cut, bytes.size() - cut);
    EXPECT_EQ(crc32c_joined(first, second, bytes.size() - cut), whole) << cut;
  }
}

// ---- JSON -------------------------------------------------------------------------------------

TEST(StrictJson, ReadsWhatTheManifestNeeds) {
  const auto value = persist::json::parse(
      " {\"a\": [1, 18446744073709551615, -1, 0.5, 1e3], \"b\\u00e9\\ud83d\\ude00\\n\": "
      "{\"c\": [true, false, null]}, \"\": \"x\"} ");
  ASSERT_TRUE(value.is_ok()) << value.status().message();
  const persist::json::Value* a = value->find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->items[1].number, UINT64_MAX);
  EXPECT_EQ(a->items[2].kind, persist::json::Kind::kNumber);
  EXPECT_NE(value->find("b\xc3\xa9\xf0\x9f\x98\x80\n"), nullptr);
  EXPECT_EQ(value->find("missing"), nullptr);
}

TEST(StrictJson, RefusesWhatIsNoJson) {
  const std::string deep(17, '[');
  for (const std::string text : {"",
                                 " ",
                                 "{",
                                 "}",
                                 "[1,]",
                                 "{\"a\":1,}",
                                 "{\"a\" 1}",
                                 "{a:1}",
                                 "'a'",
                                 "01",
                                 "-",
                                 "1.",
                                 ".5",
                                 "1e",
                                 "+1",
                                 "nul",
                                 "tru",
                                 "NaN",
                                 "1 2",
                                 "\"\x01\"",
                                 "\"\\x\"",
                                 "\"\\u12\"",
                                 "\"\\u12g4\"",
                                 "\"\\ud800\"",
                                 "\"\\udc00\"",
                                 "\"\\ud800\\u0041\"",
                                 "\"",
                                 "\"\\",
                                 "\"\xff\"",
                                 "\"\xc0\x80\"",
                                 "\"\xed\xa0\x80\"",
                                 "\"\xf4\x90\x80\x80\"",
                                 "\"\xe2\x82\"",
                                 "{\"a\":1,\"a\":2}",
                                 "18446744073709551616",
                                 "[1",
                                 "\xef\xbb\xbf{}"}) {
    EXPECT_EQ(persist::json::parse(text).status().code(), StatusCode::kCorruption) << text;
  }
  EXPECT_FALSE(persist::json::parse(deep + std::string(17, ']')).is_ok());
  EXPECT_TRUE(persist::json::parse(deep.substr(1) + std::string(16, ']')).is_ok());
  EXPECT_FALSE(persist::json::parse(std::string(33, '1')).is_ok());
  EXPECT_FALSE(persist::json::parse(std::string("1\0", 2)).is_ok());
}

TEST(StrictJson, StringsSurviveWritingAndReading) {
  const std::string text("a\"\\/\b\n\x1f \xe2\x82\xac", 11);
  std::string written;
  persist::json::append_string(written, text);
  const auto value = persist::json::parse(written);
  ASSERT_TRUE(value.is_ok()) << written;
  EXPECT_EQ(value->text, text);
}

TEST(Generation, ADigestIsReadOnlyFromANameMadeOfTimeAndDigest) {
  const std::string name = persist::generation_name("manifest");
  ASSERT_TRUE(persist::manifest_digest(name).has_value());
  EXPECT_EQ(persist::manifest_digest(name)->size(), 64U);
  for (const std::string& wrong :
       {std::string("generation-1"), std::string("generation--") + std::string(64, 'a'),
        std::string("generation-1-") + std::string(64, 'A'), name + "0", name.substr(1)}) {
    EXPECT_FALSE(persist::manifest_digest(wrong).has_value()) << wrong;
  }
}

// ---- Save and load ----------------------------------------------------------------------------

constexpr std::uint64_t kHeads = 2, kWidth = 4, kStateElements = 6;

StatePlan make_plan(std::uint32_t block_tokens) {
  const StateDecl keys{.id = "k",
                       .layer = 0,
                       .component = "attention.keys",
                       .kind = StateKind::kPagedKv,
                       .dtype = DType::kF16,
                       .shape = {kHeads, kWidth}};
  StateDecl sliding = keys;
  sliding.id = "s";
  sliding.layer = 2;
  sliding.window = 5;
  const StateDecl state{.id = "r",
                        .layer = 1,
                        .component = "state.recurrent",
                        .kind = StateKind::kRecurrent,
                        .dtype = DType::kF32,
                        .shape = {kStateElements}};
  auto plan = StatePlan::create({keys, state, sliding},
                                {.memory_bytes = 4 << 20, .block_tokens = block_tokens});
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  return std::move(plan).value();
}

std::unique_ptr<Cache> make_cache(std::uint32_t block_tokens = 4) {
  auto cache = Cache::create(make_plan(block_tokens), {});
  EXPECT_TRUE(cache.is_ok());
  return std::move(cache).value();
}

std::vector<std::int32_t> tokens_of(std::uint64_t count) {
  std::vector<std::int32_t> tokens;
  for (std::uint64_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(i * 7 % 50));
  return tokens;
}

// Small integers, which float16 holds exactly.
float row_value(std::int32_t layer, std::uint64_t position, std::uint64_t lane) {
  return static_cast<float>((position * 11 + lane * 3 + static_cast<std::uint64_t>(layer)) % 1000);
}

void fill(Cache& cache, std::uint64_t count) {
  auto sequence = cache.open(tokens_of(count), {});
  ASSERT_TRUE(sequence.is_ok());
  std::vector<float> rows(count * kHeads * kWidth);
  for (const std::int32_t layer : {0, 2}) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = row_value(layer, i / (kHeads * kWidth), i % (kHeads * kWidth));
    }
    const codec::RowsView view{.data = rows.data(),
                               .dtype = DType::kF32,
                               .tokens = count,
                               .heads = kHeads,
                               .width = kWidth,
                               .token_stride = kHeads * kWidth * 4,
                               .head_stride = kWidth * 4};
    ASSERT_TRUE(sequence->write(layer, 0, {&view, 1}).is_ok());
  }
  const auto state = sequence->state(1, "state.recurrent");
  ASSERT_TRUE(state.is_ok());
  for (std::uint64_t i = 0; i < kStateElements; ++i) {
    const float value = static_cast<float>(count * 100 + i);
    std::memcpy(state->data + i * 4, &value, 4);
  }
  ASSERT_TRUE(sequence->advance(count).is_ok());
  ASSERT_TRUE(sequence->snapshot().is_ok());
  ASSERT_TRUE(sequence->publish().is_ok());
}

void expect_restored(Cache& cache, std::uint64_t count) {
  auto tokens = tokens_of(count);
  tokens.push_back(999);
  const auto sequence = cache.open(tokens, {});
  ASSERT_TRUE(sequence.is_ok());
  ASSERT_EQ(sequence->cached_tokens(), count);
  for (const std::int32_t layer : {0, 2}) {
    const std::uint64_t start = layer == 0 || count < 4 ? 0 : count - 4;
    std::vector<float> rows((count - start) * kHeads * kWidth);
    const codec::MutableRowsView view{.data = rows.data(),
                                      .dtype = DType::kF32,
                                      .tokens = count - start,
                                      .heads = kHeads,
                                      .width = kWidth,
                                      .token_stride = kHeads * kWidth * 4,
                                      .head_stride = kWidth * 4};
    ASSERT_TRUE(sequence->read(layer, start, {&view, 1}).is_ok());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(rows[i], row_value(layer, start + i / (kHeads * kWidth), i % (kHeads * kWidth)));
    }
  }
  const auto state = sequence->state(1, "state.recurrent");
  ASSERT_TRUE(state.is_ok());
  for (std::uint64_t i = 0; i < kStateElements; ++i) {
    float value = 0;
    std::memcpy(&value, state->data + i * 4, 4);
    ASSERT_EQ(value, static_cast<float>(count * 100 + i));
  }
}

class Persist : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "kvcache-persist-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = name + "/p";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::uint64_t save(std::uint64_t count) {
    const auto cache = make_cache();
    fill(*cache, count);
    const auto saved = cache->save(path_, tokens_of(count), {}, {});
    EXPECT_TRUE(saved.is_ok()) << saved.status().message();
    return saved ? *saved : 0;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (entry.is_regular_file()) found.push_back(entry.path());
    }
    return found;
  }

  fs::path folder_;
  std::string path_;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// In place: file systems flush a file that is truncated and written anew.
void put_byte(const fs::path& path, std::size_t at, char byte) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

TEST_F(Persist, EveryLengthComesBackInEveryBlockSize) {
  for (std::uint64_t count = 1; count < 30; ++count) {
    fs::remove_all(path_);
    ASSERT_EQ(save(count), count);
    for (const std::uint32_t block_tokens : {1U, 3U, 4U, 16U}) {
      const auto cache = make_cache(block_tokens);
      const auto loaded = cache->load(path_, {});
      ASSERT_TRUE(loaded.is_ok()) << loaded.status().message();
      EXPECT_EQ(*loaded, count);
      expect_restored(*cache, count);
    }
  }
}

TEST_F(Persist, EveryFlippedBitAndEveryCutIsCorruptionAndKeepsNoMemory) {
  ASSERT_EQ(save(11), 11U);
  const auto cache = make_cache();
  for (const fs::path& file : files()) {
    const std::string whole = read_file(file);
    for (std::size_t at = 0; at < whole.size(); ++at) {
      put_byte(file, at, static_cast<char>(whole[at] ^ (1 << at % 8)));
      ASSERT_EQ(cache->load(path_, {}).status().code(), StatusCode::kCorruption) << file << at;
      put_byte(file, at, whole[at]);
    }
    for (std::size_t size = whole.size(); size-- > 0;) {
      fs::resize_file(file, size);
      ASSERT_EQ(cache->load(path_, {}).status().code(), StatusCode::kCorruption) << file << size;
    }
    write_file(file, whole);
  }
  EXPECT_EQ(cache->stats().used_bytes, 0U);
  ASSERT_TRUE(cache->load(path_, {}).is_ok());
  expect_restored(*cache, 11);
}

TEST_F(Persist, AFailedSaveLeavesNoTrace) {
  const auto cache = make_cache();
  fill(*cache, 11);
  fs::create_directory(path_);
  EXPECT_EQ(cache->save(path_, tokens_of(11), {}, {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->save(path_, tokens_of(11), {}, {.replace = true}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->save(folder_.string() + "/no/p", tokens_of(11), {}, {}).status().code(),
            StatusCode::kIoError);
  EXPECT_EQ(cache->save(path_ + "2", tokens_of(0), {}, {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(Persist, AGenerationThatIsReplacedWhileItIsReadGivesWayToTheNewerOne) {
  fs::create_directory(path_);
  const auto root = persist::open_directory(path_);
  ASSERT_TRUE(root.is_ok());
  const auto put = [&](int number) {
    std::ofstream(path_ + "/CURRENT") << "generation-" << number << '\n';
  };
  const auto is_ok = [](const Result<int>& found) { return found.is_ok(); };
  int calls = 0;
  put(0);
  const auto newest = persist::read_newest(
      *root,
      [&](const std::string& name) -> Result<int> {
        EXPECT_EQ(name, "generation-" + std::to_string(calls));
        if (++calls == 3) return calls;
        put(calls);
        return Status::corruption("missing");
      },
      is_ok);
  ASSERT_TRUE(newest.is_ok());
  EXPECT_EQ(*newest, 3);
  // Damage is no replacement, and one that never ends is not followed for ever.
  for (const bool replaced : {false, true}) {
    calls = 0;
    const auto damaged = persist::read_newest(
        *root,
        [&](const std::string&) -> Result<int> {
          ++calls;
          if (replaced) put(100 + calls);
          return Status::corruption("damaged");
        },
        is_ok);
    EXPECT_EQ(damaged.status().code(), StatusCode::kCorruption);
    EXPECT_EQ(calls, replaced ? persist::kMaxReplacements : 1);
  }
}

TEST_F(Persist, PinnedPagesAreGivenBack) {
  const auto cache = make_cache();
  fill(*cache, 11);
  const CacheStats before = cache->stats();
  ASSERT_TRUE(cache->save(path_, tokens_of(11), {}, {}).is_ok());
  EXPECT_EQ(cache->stats().used_bytes, before.used_bytes);
  cache->clear();
  EXPECT_EQ(cache->stats().used_bytes, 0U);
  ASSERT_TRUE(cache->load(path_, {}).is_ok());
  cache->clear();
  EXPECT_EQ(cache->stats().used_bytes, 0U);
}

}  // namespace
}  // namespace kvcache
