// Whole files: read at once, mapped into memory, or written so that a reader never sees half of one; and the
// folders that they go to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tapehead {

/// The bytes of a file. A path that is missing or names a folder is a ValueError; a file that the machine
/// will not let us read is a SystemError with its reason.
std::string read_file(const std::string& path);

/// Puts `bytes` at `path`, replacing what was there. After a crash the old file or the new one is there,
/// whole. Whatever the machine refuses (no such folder, no permission, a full disk) is a SystemError with its
/// reason; then nothing has changed, unless all that failed was to sync the folder: the new file is there, and
/// a crash may bring the old one back.
void write_file_atomically(const std::string& path, std::string_view bytes);

/// Gives the file `existing` a second name, `path`, replacing what was there: a hard link, or a copy where
/// the file system has none. Crashes and errors are as for write_file_atomically.
void link_atomically(const std::string& existing, const std::string& path);

/// The last name in a path: "book" of "runs/book" and of "runs/book/".
std::string base_name(const std::string& path);

/// Makes a folder and those above it, unless it is there. SystemError if the machine refuses, or a file is in
/// its place.
void make_folder(const std::string& path);

/// Removes what the functions of this header left unfinished in a folder, because their process was killed.
/// To be called only while no other process writes there.
void remove_unfinished_files(const std::string& folder);

/// write_file_atomically for bytes that come in parts. They go to a temporary file beside `path`; commit()
/// syncs it, gives it its name and syncs the folder. Destroyed before that, it removes the temporary file and
/// leaves `path` as it was. Not thread-safe; two of them may write the same path, and the last commit stays.
class AtomicFile {
 public:
  /// SystemError if the folder cannot be written.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends. SystemError if the bytes cannot be written; nothing can be committed then.
  void write(std::string_view bytes);

  /// Replaces bytes that were written before, such as a header that counts what came after it.
  /// SystemError as above.
  void overwrite(int64_t offset, std::string_view bytes);

  /// Makes the file visible under its name, to be called once. SystemError if the machine cannot promise it.
  void commit();

 private:
  [[noreturn]] void refuse(const char* what) const;

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

/// A file's bytes, mapped: pages come in as they are touched. Movable. Any number of threads may
/// read. The file must not shrink while it is mapped; one that is replaced by AtomicFile does not.
class MappedFile {
 public:
  /// Errors are those of read_file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  /// The same for writing: a page that is written to becomes this process's copy; the file stays as it is.
  std::span<std::byte> private_bytes() { return bytes_; }

  /// Gives the memory of the bytes before `end` back, but for the last mebibyte: for a long file that is read
  /// from front to back, once or again. They come in again when they are touched, as they are in the file.
  void release_before(int64_t end);

 private:
  std::span<std::byte> bytes_;
  int64_t released_ = 0;  // bytes, from the front
};

}  // namespace tapehead
