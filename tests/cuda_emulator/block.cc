#include "tapehead/tests/cuda_emulator/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_emulator {

static BlockRunner* runner = nullptr;  // of the block that runs

void barrier(std::source_location where) { runner->barrier(where); }

uint64_t meet_warp(WarpOp op, unsigned mask, uint64_t value, int argument, int width,
                   std::source_location where) {
  return runner->meet_warp(op, mask, value, argument, width, where);
}

void trap(const char* reason) { runner->trap(reason); }

static std::string place(const std::source_location& where) {
  const std::string_view path = where.file_name();
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), where.line());
}

static bool same_place(const std::source_location& a, const std::source_location& b) {
  if (a.line() != b.line()) return false;
  return a.file_name() == b.file_name() || std::string_view(a.file_name()) == b.file_name();
}

std::optional<std::string> BlockRunner::run(dim3 size, void (*call)(const void*), const void* body,
                                            Random& random) {
  runner = this;
  call_ = call;
  body_ = body;
  random_ = &random;
  problem_.reset();
  workers_.assign(size_t{size.x} * size.y * size.z, {});
  for (size_t i = 0; i < workers_.size(); ++i) {
    const auto flat = static_cast<unsigned>(i);
    workers_[i].index = {flat % size.x, flat / size.x % size.y, flat / size.x / size.y};
  }
  in_warp_.assign((workers_.size() + warpSize - 1) / warpSize, 0);
  order_.resize(workers_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  random.shuffle(order_);
  started_ = done_ = 0;
  ready_.clear();
  free_.clear();
  for (const auto& fibre : fibres_) free_.push_back(fibre.get());

  Worker* worker = nullptr;
  Fibre* first = next(worker);
  enter(host_, *first, worker);
  runner = nullptr;
  running_ = nullptr;
  if (problem_) {  // fibres stand in the middle of threads that nobody will finish
    for (const auto& fibre : fibres_) fibre->reset();
  }
  return problem_;
}

void BlockRunner::set_running(Worker* worker) {
  running_ = worker;
  if (worker) threadIdx = worker->index;
}

void BlockRunner::fibre_main() {
  for (;;) runner->work();
}

void BlockRunner::work() {
  while (started_ < order_.size()) {
    Worker& worker = workers_[order_[started_++]];
    worker.state = State::ready;
    worker.fibre = current_;
    set_running(&worker);
    call_(body_);
    self().state = State::done;
    ++done_;
  }
  OwnFibre* own = current_;
  free_.push_back(own);
  Worker* worker = nullptr;
  Fibre* to = next(worker);
  if (to != own) enter(*own, *to, worker);
}

void BlockRunner::enter(Fibre& from, Fibre& to, Worker* worker) {
  current_ = &to == &host_ ? nullptr : static_cast<OwnFibre*>(&to);
  set_running(worker);
  switch_to(from, to);
}

// The fibre to go on with: a fresh one while threads have not started,
// else that of a thread that may go on, or the host's if there is none.
Fibre* BlockRunner::next(Worker*& worker) {
  worker = nullptr;
  if (problem_) return &host_;
  if (started_ < order_.size()) {
    if (free_.empty()) {
      fibres_.push_back(std::make_unique<OwnFibre>(&fibre_main));
      free_.push_back(fibres_.back().get());
    }
    OwnFibre* fibre = free_.back();
    free_.pop_back();
    return fibre;
  }
  if (ready_.empty() && done_ < workers_.size() && !release_barrier()) problem_ = describe();
  if (ready_.empty()) return &host_;
  std::swap(ready_[random_->below(ready_.size())], ready_.back());
  worker = ready_.back();
  ready_.pop_back();
  return worker->fibre;
}

void BlockRunner::wait() {
  Worker& worker = self();
  OwnFibre* own = current_;
  Worker* other = nullptr;
  Fibre* to = next(other);
  if (other == &worker) return;
  enter(*own, *to, other);
}

void BlockRunner::make_ready(Worker& worker) {
  worker.state = State::ready;
  ready_.push_back(&worker);
}

void BlockRunner::barrier(std::source_location where) {
  self().request.where = where;
  self().state = State::at_barrier;
  wait();
}

// Whether all threads stood at one barrier; then they may go on.
bool BlockRunner::release_barrier() {
  for (const Worker& w : workers_) {
    if (w.state != State::at_barrier || !same_place(w.request.where, workers_[0].request.where)) return false;
  }
  for (Worker& w : workers_) make_ready(w);
  return true;
}

uint64_t BlockRunner::meet_warp(WarpOp op, unsigned mask, uint64_t value, int argument, int width,
                                std::source_location where) {
  Worker& worker = self();
  const auto index = static_cast<size_t>(&worker - workers_.data());
  const size_t warp = index / warpSize, first = warp * warpSize;
  worker.request = {op, mask, value, argument, width, where};
  worker.state = State::in_warp;
  if (!(mask >> (index - first) & 1)) {
    problem_ = fmt::format("thread {} is not in its own mask at {}", index, place(where));
    abandon();
  }
  if (const size_t lanes = workers_.size() - first; lanes < warpSize && mask >> lanes != 0) {
    problem_ = fmt::format("the mask at {} names lane {}, which a block of {} threads has not", place(where),
                           lanes + static_cast<size_t>(std::countr_zero(mask >> lanes)), workers_.size());
    abandon();
  }
  in_warp_[warp] |= 1u << (index - first);
  if ((in_warp_[warp] & mask) != mask || !same_request(worker.request, first)) {
    wait();
    return worker.result;
  }
  in_warp_[warp] &= ~mask;
  for (unsigned lanes = mask; lanes != 0; lanes &= lanes - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(lanes));
    Worker& other = workers_[first + lane];
    other.result = result_of(other.request, lane, first);
    if (&other != &worker) make_ready(other);
  }
  worker.state = State::ready;
  return worker.result;
}

// Whether all lanes of the mask ask for what one of them does, in the same place.
bool BlockRunner::same_request(const Request& request, size_t first) const {
  for (unsigned lanes = request.mask; lanes != 0; lanes &= lanes - 1) {
    const Request& other = workers_[first + static_cast<size_t>(std::countr_zero(lanes))].request;
    if (other.op != request.op || other.mask != request.mask || !same_place(other.where, request.where))
      return false;
  }
  return true;
}

// What lane `lane` of the warp that begins at thread `first` gets.
uint64_t BlockRunner::result_of(const Request& r, unsigned lane, size_t first) const {
  if (r.op == WarpOp::sync) return 0;
  if (r.op == WarpOp::ballot) {
    uint64_t votes = 0;
    for (unsigned other = 0; other < static_cast<unsigned>(warpSize); ++other) {
      if (r.mask >> other & 1) votes |= workers_[first + other].request.value << other;
    }
    return votes;
  }
  const int own = static_cast<int>(lane), base = own / r.width * r.width;
  int source = own;
  switch (r.op) {
    case WarpOp::shuffle: source = base + (r.argument & (r.width - 1)); break;
    case WarpOp::shuffle_up: source = own - r.argument < base ? own : own - r.argument; break;
    case WarpOp::shuffle_down: source = own + r.argument >= base + r.width ? own : own + r.argument; break;
    default: source = (own ^ r.argument) >= base + r.width ? own : own ^ r.argument; break;
  }
  // A device gives something undefined for a lane outside the mask; so do we, the same each time.
  if (!(r.mask >> source & 1)) return 0xdeaddeaddeaddead;
  return workers_[first + static_cast<size_t>(source)].request.value;
}

void BlockRunner::trap(const char* reason) {
  problem_ = reason;
  abandon();
}

// Ends the block, for its problem_. The fibre that runs is never entered again: what it still holds is lost,
// so whoever calls this holds nothing.
void BlockRunner::abandon() {
  OwnFibre* own = current_;
  enter(*own, host_, nullptr);
  __builtin_unreachable();
}

// Where threads stand that can never go on.
std::string BlockRunner::describe() const {
  std::map<std::string, int> places;
  for (const Worker& w : workers_) {
    if (w.state == State::done) {
      ++places["have ended"];
    } else {
      ++places[fmt::format("wait at {} {}", w.state == State::at_barrier ? "barrier" : "warp function",
                           place(w.request.where))];
    }
  }
  std::string text = "threads of a block went different ways:";
  for (const auto& [where, count] : places) text += fmt::format(" {} {};", count, where);
  text.pop_back();
  return text;
}

}  // namespace cuda_emulator
