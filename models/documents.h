// Documents of files and folders: what stands in them, one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tapehead {

/// The files of a source. A file whose name ends in .jsonl or .ndjson has a document on each line that is not
/// blank, a JSON object with a string "text", or with strings "prompt" and "completion" of which the
/// completion alone is learnt. Any other file is one document.
struct SourceFiles {
  std::string path = {};                ///< of the file or folder
  std::vector<std::string> files = {};  ///< sorted
  /// Of a folder: files that are empty, or hold a zero byte near their beginning.
  std::vector<std::string> left_out = {};
  int64_t bytes = 0;  ///< of all files

  /// Whether it is a text and no collection of documents.
  bool one_text() const;
};

/// The file at `path`, or all files below a folder; hidden files and folders are passed over, and links to
/// folders not followed. ValueError if there is nothing, or nothing but empty and binary files; SystemError
/// if the machine does not let us look.
SourceFiles find_files(const std::string& path);

struct ReadDocumentsOptions {
  double held_out = 0.05;       ///< fraction of the documents, or of the text where it is a single one
  uint64_t split_seed = 0;      ///< chooses them
  bool skip_bad_lines = false;  ///< pass over lines of JSON that are none, and count them
};

/// A stretch of a document, in the order of the source.
struct DocumentPart {
  std::string_view text;  ///< valid during the call
  bool prompt = false;    ///< read and not learnt; the whole prompt, if any, comes first
  bool held_out = false;
  bool ends = false;  ///< the document ends here; never in a source that is one text
};

struct DocumentCounts {
  int64_t documents = 0;            ///< whole ones, those held out included; 1 for a source that is one text
  int64_t held_out = 0;             ///< of them
  int64_t empty = 0;                ///< passed over: no text, or no completion
  int64_t bad_lines = 0;            ///< passed over
  std::string first_bad_line = {};  ///< file, line and reason

  DocumentCounts& operator+=(const DocumentCounts& other);
};

/// Hands all documents of a source to `take`. Memory: a mebibyte or two, the largest line, and, for a source
/// that is one text, 24 bytes for each block of lines (text.h).
///
/// A source that is one text is split by blocks of lines (split_held_out). Of documents, held_out · N are
/// drawn, at least 1 and at most N - 1; of a single line of JSON none. The same on every machine.
///   on_read   told after every stretch how many bytes were read since the last call; as many as the source
///             has, in the end
/// ValueError that names file and line for a line of JSON that is broken or of another form, unless such
/// lines are to be passed over; also unless 0 <= held_out < 1, and if no document is
/// left. SystemError if a file cannot be read.
DocumentCounts read_documents(const SourceFiles& source, const ReadDocumentsOptions& options,
                              const std::function<void(const DocumentPart&)>& take,
                              const std::function<void(int64_t bytes)>& on_read = {});

}  // namespace tapehead
