// Files, folders and lines of JSON as documents.
#include "tapehead/models/documents.h"

#include <gmock/gmock-more-matchers.h>

#include <map>
#include <string>
#include <vector>

#include "tapehead/core/error.h"
#include "tapehead/tests/models/sources_fixture.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

struct ReadDocument {
  std::string prompt, text;
  bool held_out;
};

std::vector<ReadDocument> read_all(const std::string& path, const ReadDocumentsOptions& options,
                                   DocumentCounts* counts = nullptr) {
  std::vector<ReadDocument> documents;
  bool fresh = true;
  int64_t bytes = 0;
  const SourceFiles source = find_files(path);
  const DocumentCounts counted = read_documents(
      source, options,
      [&](const DocumentPart& part) {
        if (fresh) documents.push_back({"", "", part.held_out});
        (part.prompt ? documents.back().prompt : documents.back().text) += part.text;
        EXPECT_EQ(documents.back().held_out, part.held_out);
        fresh = part.ends;
      },
      [&](int64_t read) { bytes += read; });
  EXPECT_TRUE(fresh);
  EXPECT_EQ(bytes, source.bytes);
  if (counts) *counts = counted;
  return documents;
}

std::vector<std::string> texts(const std::vector<ReadDocument>& documents) {
  std::vector<std::string> list;
  for (const ReadDocument& document : documents) list.push_back(document.text);
  return list;
}

TEST_F(SourcesTest, AFolderIsItsFilesInTheirOrderAndLeavesOutWhatIsNoText) {
  const std::string large = std::string(3 << 20, 'x') + "end";
  write("notes/b.txt", large);
  write("notes/a/z.md", "first");
  write("notes/c.jsonl", "{\"text\": \"third\"}\n\n  \r\n{\"text\": \"fourth\", \"id\": 4}");
  write("notes/empty.txt", "");
  write("notes/picture.png", std::string("\x89PNG\0\0", 6));
  write("notes/.git/config", "hidden");
  write("notes/.secret", "hidden");
  EXPECT_THAT(texts(read_all(path("notes"), {.held_out = 0})),
              ElementsAre("first", large, "third", "fourth"));
  EXPECT_THAT(find_files(path("notes")).left_out,
              ElementsAre(path("notes/empty.txt"), path("notes/picture.png")));
  write("none/empty.txt", "");
  EXPECT_THAT([&] { find_files(path("none")); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("none holds no text"), HasSubstr("empty or binary: 1"))));
  EXPECT_THAT([&] { find_files(path("none/empty.txt")); }, ThrowsMessage<ValueError>(HasSubstr("is empty")));
  EXPECT_THAT([&] { find_files(path("missing")); }, ThrowsMessage<ValueError>(HasSubstr("missing")));
  EXPECT_THAT([&] { find_files("/dev/null"); }, ThrowsMessage<ValueError>(HasSubstr("no file or folder")));
}

TEST_F(SourcesTest, ALineOfJsonIsATextOrAPromptAndItsCompletion) {
  write("a.ndjson",
        "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n"
        "{\"completion\": \"\\u00e9\\n\", \"prompt\": \"\"}\n"
        "{\"text\": \"plain\"}\n"
        "{\"text\": \"\"}\n"
        "{\"prompt\": \"to nothing\", \"completion\": \"\"}");
  DocumentCounts counts;
  const std::vector<ReadDocument> documents = read_all(path("a.ndjson"), {.held_out = 0}, &counts);
  EXPECT_THAT(texts(documents), ElementsAre("2", "\u00e9\n", "plain"));
  EXPECT_EQ(documents[0].prompt, "1+1=");
  EXPECT_EQ(documents[1].prompt, "");
  EXPECT_EQ(counts.documents, 3);
  EXPECT_EQ(counts.empty, 2);
}

TEST_F(SourcesTest, ABadLineIsNamedOrCounted) {
  const std::map<std::string, std::string> bad = {
      {"{\"text\": \"cut of", "parse error"},
      {"{\"text\": \"\xff\"}", "UTF-8"},
      {"{\"text\": 7}", "its \"text\" is no string"},
      {"[1, 2]", "it is no JSON object"},
      {"7 8", "parse error"},
      {"{}", "it has neither \"text\" nor"},
      {"{\"prompt\": \"p\"}", "it has no \"completion\""},
      {"{\"completion\": \"c\"}", "it has no \"prompt\""},
      {"{\"prompt\": \"p\", \"completion\": null}", "its \"completion\" is no string"},
      {"{\"prompt\": \"p\", \"completion\": \"c\", \"text\": \"t\"}", "beside"},
  };
  for (const auto& [line, reason] : bad) {
    write("bad.jsonl", "{\"text\": \"good\"}\n\n" + line + "\n{\"text\": \"better\"}\n" + line + "\n");
    EXPECT_THAT([&] { read_all(path("bad.jsonl"), {}); },
                ThrowsMessage<ValueError>(AllOf(HasSubstr(path("bad.jsonl") + ":3 cannot be read: "),
                                                HasSubstr(reason), HasSubstr("--skip-bad-lines"))));
    DocumentCounts counts;
    EXPECT_THAT(texts(read_all(path("bad.jsonl"), {.held_out = 0, .skip_bad_lines = true}, &counts)),
                ElementsAre("good", "better"));
    EXPECT_EQ(counts.bad_lines, 2);
    EXPECT_THAT(counts.first_bad_line, AllOf(HasSubstr("bad.jsonl:3: "), HasSubstr(reason)));
  }
  write("bad.jsonl", "{}\n{\"text\": \"\"}\n");
  EXPECT_THAT([&] { read_all(path("bad.jsonl"), {.skip_bad_lines = true}); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("no document"), HasSubstr("1 are empty"),
                                              HasSubstr("1 lines cannot be read, the first"))));
}

TEST_F(SourcesTest, DocumentsAreHeldOutByTheirNumberAndBySeed) {
  write("a.jsonl", json_lines(200));
  const auto held_out = [&](double fraction, uint64_t seed) {
    std::vector<std::string> list;
    for (const ReadDocument& document : read_all(path("a.jsonl"), {.held_out = fraction, .split_seed = seed}))
      if (document.held_out) list.push_back(document.text);
    return list;
  };
  EXPECT_EQ(held_out(0.05, 1).size(), 10);
  EXPECT_EQ(held_out(0.05, 1), held_out(0.05, 1));
  EXPECT_NE(held_out(0.05, 1), held_out(0.05, 2));
  EXPECT_THAT(held_out(0, 1), IsEmpty());
  EXPECT_EQ(held_out(1e-9, 1).size(), 1);
  EXPECT_EQ(held_out(0.999, 1).size(), 199);
  EXPECT_THROW(held_out(1, 1), ValueError);
  EXPECT_THROW(held_out(-0.1, 1), ValueError);
  // Drawn once and written down here.
  write("a.jsonl", json_lines(20));
  EXPECT_THAT(held_out(0.15, 3), ElementsAre("document 1 of 1", "document 13 of 14", "document 19 of 20"));
}

}  // namespace
}  // namespace tapehead
