#include "tapehead/models/windows.h"

#include <algorithm>
#include <numeric>

#include "tapehead/core/error.h"

namespace tapehead {

Windows::Windows(const Dataset& data, int64_t context, bool within_documents)
    : data_(&data), context_(context), within_documents_(within_documents), first_{0} {
  check<ValueError>(context >= 1, "[windows] the context is {}: it must be at least 1", context);
  for (const TokenStream& stream : data.streams()) {
    std::vector<Place>& places = places_.emplace_back();
    const bool prompts = stream.documents() && stream.documents()->prompts() > 0;
    if (prompts) place_windows(stream, &places);
    const int64_t count =
        prompts ? std::ssize(places) : std::max<int64_t>(stream.size() - 1 + context - 1, 0) / context;
    first_.push_back(first_.back() + count);
  }
}

// Whether any of tokens first .. last is to be learnt.
static bool any_target(const DocumentTable& documents, int64_t first, int64_t last) {
  for (int64_t i = documents.find(first); i < documents.size(); ++i) {
    const DocumentPlace document = documents[i];
    if (document.begin > last) break;
    if (std::max(document.first_target, first) <= std::min(document.end - 1, last)) return true;
  }
  return false;
}

void Windows::place_windows(const TokenStream& stream, std::vector<Place>* places) const {
  const DocumentTable& documents = *stream.documents();
  const int64_t last = stream.size() - 1;  // a target, and no input
  for (int64_t begin = 0; begin < last;) {
    int64_t end = std::min(begin + context_, last);
    // The end of text that ends a document need not be an input.
    const DocumentPlace cut = documents[documents.find(end - 1)];
    const bool fits_alone = cut.end - 1 - cut.begin <= context_;
    if (cut.has_prompt() && cut.begin > begin && cut.end - 1 > end && fits_alone) end = cut.begin;
    if (any_target(documents, begin + 1, end)) places->push_back({begin, end - begin});
    // An end of text alone has nothing to say of the prompt that follows.
    const int64_t next = documents.find(end);
    const bool at_end = end + 1 == documents[next].end && next + 1 < documents.size();
    begin = at_end && documents[next + 1].has_prompt() ? end + 1 : end;
  }
}

Batch Windows::read(int64_t first, int64_t count) const {
  std::vector<int64_t> windows(static_cast<size_t>(count));
  std::iota(windows.begin(), windows.end(), first);
  return read(windows);
}

Batch Windows::read(std::span<const int64_t> windows) const {
  const auto rows = std::ssize(windows);
  const auto numbers = static_cast<size_t>(rows * context_);
  std::vector<int64_t> ids(numbers, 0), targets(numbers, kIgnoredTarget), first_seen;
  if (within_documents_) first_seen.resize(numbers);
  Batch batch;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * context_;
    batch.row_tokens.push_back(read_row(windows[static_cast<size_t>(row)], ids.data() + at,
                                        targets.data() + at,
                                        within_documents_ ? first_seen.data() + at : nullptr));
    batch.target_tokens += batch.row_tokens.back();
  }
  batch.ids = Tensor::from<int64_t>({rows, context_}, ids);
  batch.targets = Tensor::from<int64_t>({rows, context_}, targets);
  if (within_documents_) batch.first_seen = Tensor::from<int64_t>({rows, context_}, first_seen);
  return batch;
}

// Fills a row of what was made for it; returns how many targets count.
int64_t Windows::read_row(int64_t window, int64_t* ids, int64_t* targets, int64_t* first_seen) const {
  check<ValueError>(0 <= window && window < size(), "[windows] window {} of {} is asked for", window, size());
  const auto k =
      static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), window) - first_.begin() - 1);
  const TokenStream& stream = data_->streams()[k];
  const int64_t index = window - first_[k];
  const Place place = places_[k].empty()
                          ? Place{index * context_, std::min(context_, stream.size() - 1 - index * context_)}
                          : places_[k][static_cast<size_t>(index)];
  const auto [begin, count] = place;
  stream.copy(begin, count, ids);
  stream.copy(begin + 1, count, targets);
  int64_t target_tokens = count;
  if (first_seen) {
    std::fill_n(first_seen, count, 0);
    std::fill_n(first_seen + count, context_ - count, count);  // padding is a document of its own
  }
  const DocumentTable* documents = stream.documents();
  if (!documents) return target_tokens;
  // Document by document; input t is token begin + t, and its target the next.
  for (int64_t i = documents->find(begin); i < documents->size(); ++i) {
    const DocumentPlace document = (*documents)[i];
    if (document.begin > begin + count) break;
    if (first_seen && document.begin > begin) {
      const int64_t first = document.begin - begin, end = std::min(document.end - begin, count);
      for (int64_t t = first; t < end; ++t) first_seen[t] = first;
    }
    const int64_t first = std::max<int64_t>(document.begin - 1 - begin, 0);
    const int64_t end = std::min(document.first_target - 1 - begin, count);
    for (int64_t t = first; t < end; ++t) targets[t] = kIgnoredTarget;
    target_tokens -= std::max<int64_t>(end - first, 0);
  }
  return target_tokens;
}

}  // namespace tapehead
