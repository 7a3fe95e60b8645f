// The optimisers' sweeps, over all tensors in one launch, and the norm of gradients.
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/launch.h"
#include "tapehead/backends/cuda/scratch.h"
#include "tapehead/backends/optimizer_steps.h"

namespace tapehead {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kPiece = 4096;  // elements of one tensor that a block goes through

// The addresses of one parameter and what belongs to it; what an optimiser does not have is null.
struct Addresses {
  void *p, *m, *v, *master;
  const void* g;
  int64_t count;
  int64_t first_piece;  // among the pieces of all tensors
};

// All tensors, on the device.
struct Tensors {
  const Addresses* list;
  int64_t size;
  int64_t pieces;
};

// The numbers of a step, as a kernel's parameter.
struct Numbers {
  double learning_rate, weight_decay, gradient_scale;
  const double* on_device;  // StepOnDevice; null: the fields hold

  template <class N>
  explicit Numbers(const N& n)
      : learning_rate(n.learning_rate),
        weight_decay(n.weight_decay),
        gradient_scale(n.gradient_scale),
        on_device(n.on_device.defined() ? n.on_device.template data<double>() : nullptr) {}

  /// With what stands on the device.
  __device__ void complete() {
    if (!on_device) return;
    learning_rate = on_device[0];
    gradient_scale = on_device[1];
  }
};

struct AdamWNumbers : Numbers {
  double beta1, beta2, epsilon;
  int64_t step;

  explicit AdamWNumbers(const AdamW& n)
      : Numbers(n), beta1(n.beta1), beta2(n.beta2), epsilon(n.epsilon), step(n.step) {}

  __device__ void complete() {
    Numbers::complete();
    if (on_device) step = static_cast<int64_t>(on_device[2]);
  }
};

struct SgdNumbers : Numbers {
  double momentum;
  bool nesterov, decoupled;

  explicit SgdNumbers(const Sgd& n)
      : Numbers(n), momentum(n.momentum), nesterov(n.nesterov), decoupled(n.decoupled) {}
};

// An element of p after the step.
template <class W>
struct AdamWUpdate : AdamWStep<W> {
  using Numbers = AdamWNumbers;
  using AdamWStep<W>::AdamWStep;

  __device__ W operator()(W p, W g, const Addresses& t, int64_t i) const {
    W &m = static_cast<W*>(t.m)[i], &v = static_cast<W*>(t.v)[i];
    g *= this->scale;
    m = this->b1 * m + this->c1 * g;
    v = this->b2 * v + this->c2 * (g * g);
    return this->keep * p - this->rate * m / (this->root * sqrt(v) + this->epsilon);
  }
};

// Without momentum, t.m is null.
template <class W>
struct SgdUpdate : SgdStep<W> {
  using Numbers = SgdNumbers;
  using SgdStep<W>::SgdStep;

  __device__ W operator()(W p, W g, const Addresses& t, int64_t i) const {
    g = this->decay * p + this->scale * g;
    W change = g;
    if (t.m) {
      W& b = static_cast<W*>(t.m)[i];
      b = this->momentum * b + g;
      change = this->nesterov ? g + this->momentum * b : b;
    }
    return this->keep * p - this->rate * change;
  }
};

}  // namespace

// Calls f(tensor, begin, end) for this block's pieces.
template <class F>
static __device__ void for_each_piece(const Tensors& tensors, F f) {
  for_each_row(tensors.pieces, [&](int64_t piece) {
    int64_t low = 0,
            high = tensors.size;  // the last tensor that begins at or before the piece is in [low, high)
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (tensors.list[middle].first_piece <= piece ? low : high) = middle;
    }
    const Addresses& t = tensors.list[low];
    const int64_t begin = (piece - t.first_piece) * kPiece;
    f(t, begin, min(begin + kPiece, t.count));
  });
}

// By one thread: powers and roots are taken once, and not by every thread of the sweep.
template <class Update>
static __global__ void numbers_kernel(typename Update::Numbers numbers, Update* update) {
  numbers.complete();
  *update = Update(numbers);
}

// p and g of their dtypes; the step is made on the master weights where there are some.
template <class P, class G, class Update>
static __global__ void step_kernel(Tensors tensors, const Update* once) {
  using W = wide_t<P>;
  const Update update = *once;
  for_each_piece(tensors, [&](const Addresses& t, int64_t begin, int64_t end) {
    P* p = static_cast<P*>(t.p);
    const G* g = static_cast<const G*>(t.g);
    W* master = static_cast<W*>(t.master);
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const W next = update(master ? master[i] : widen(p[i]), static_cast<W>(widen(g[i])), t, i);
      if (master) master[i] = next;
      p[i] = narrow<P>(next);
    }
  });
}

// Writes the list of addresses to the device, behind what
// was launched before; first(i) gives those of tensor i.
template <class F>
static Tensors upload(CudaBackend& backend, Scratch& memory, size_t size, F first) {
  std::vector<Addresses> list;
  int64_t pieces = 0;
  for (size_t i = 0; i < size; ++i) {
    Addresses t = first(i);
    t.first_piece = pieces;
    pieces += (t.count + kPiece - 1) / kPiece;
    if (t.count > 0) list.push_back(t);
  }
  const auto count = static_cast<int64_t>(list.size());
  if (count > 0)
    backend.copy_from_host(memory.as<void>(), list.data(), count * static_cast<int64_t>(sizeof(Addresses)));
  return {memory.as<Addresses>(), count, pieces};
}

static void* address_of(std::span<Tensor> tensors, size_t i) {
  return tensors.empty() ? nullptr : tensors[i].mutable_raw_data();
}

static int64_t bytes_for(size_t tensors) { return static_cast<int64_t>(tensors * sizeof(Addresses)); }

// One step for all parameters: `first` and `second` are what
// the optimiser keeps of each, empty lists for nothing.
template <template <class> class Update, class N>
static void sweep(CudaBackend& backend, const char* op, const N& numbers, std::span<Tensor> p,
                  std::span<const Tensor> g, std::span<Tensor> first, std::span<Tensor> second,
                  std::span<Tensor> master) {
  const DType dtype = p[0].dtype();
  Scratch memory(backend, bytes_for(p.size()));
  const Tensors tensors = upload(backend, memory, p.size(), [&](size_t i) -> Addresses {
    return {.p = p[i].mutable_raw_data(),
            .m = address_of(first, i),
            .v = address_of(second, i),
            .master = address_of(master, i),
            .g = g[i].raw_data(),
            .count = p[i].numel(),
            .first_piece = 0};
  });
  Stream& stream = backend.stream();
  const Grid grid = grid_of_rows(tensors.pieces, kThreads);
  visit_floating(dtype, op, [&]<class P>(std::type_identity<P>) {
    using W = wide_t<P>;
    const Scratch update(backend, sizeof(Update<W>));
    auto* once = update.as<Update<W>>();
    stream.launch(op, Grid{.blocks = dim3(1), .threads = 1}, numbers_kernel<Update<W>>,
                  typename Update<W>::Numbers(numbers), once);
    if (g[0].dtype() == dtype) {
      stream.launch(op, grid, step_kernel<P, P, Update<W>>, tensors, once);
    } else {
      stream.launch(op, grid, step_kernel<P, W, Update<W>>, tensors, once);
    }
  });
}

void CudaBackend::adamw(const AdamW& numbers, std::span<Tensor> p, std::span<const Tensor> g,
                        std::span<Tensor> m, std::span<Tensor> v, std::span<Tensor> master) {
  sweep<AdamWUpdate>(*this, "adamw", numbers, p, g, m, v, master);
}

void CudaBackend::sgd(const Sgd& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> b,
                      std::span<Tensor> master) {
  sweep<SgdUpdate>(*this, "sgd", numbers, p, g, b, {}, master);
}

// ---- The norm

template <class T>
static __global__ void squares_kernel(Tensors tensors, double* sums) {
  for_each_piece(tensors, [&](const Addresses& t, int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const double x = static_cast<double>(widen(static_cast<const T*>(t.g)[i]));
      sum += x * x;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[t.first_piece + begin / kPiece] = sum;
  });
}

static __global__ void total_kernel(const double* sums, int64_t n, double* total) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += sums[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

void CudaBackend::squared_norm(std::span<const Tensor> tensors, Tensor& y) {
  auto* total = y.mutable_data<double>();
  stream_.check("cudaMemsetAsync", cudaMemsetAsync(total, 0, sizeof(double), stream_.get()));
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    Scratch memory(*this, bytes_for(tensors.size()));
    const Tensors list = upload(*this, memory, tensors.size(), [&](size_t i) -> Addresses {
      return {.p = nullptr,
              .m = nullptr,
              .v = nullptr,
              .master = nullptr,
              .g = tensors[i].raw_data(),
              .count = tensors[i].dtype() == dtype ? tensors[i].numel() : 0,
              .first_piece = 0};
    });
    if (list.pieces == 0) continue;
    const Scratch sums(*this, list.pieces * static_cast<int64_t>(sizeof(double)));
    visit_floating(dtype, "squared_norm", [&]<class T>(std::type_identity<T>) {
      stream_.launch("squared_norm", grid_of_rows(list.pieces, kThreads), squares_kernel<T>, list,
                     sums.as<double>());
    });
    stream_.launch("squared_norm (total)", grid_of_rows(1, kThreads), total_kernel, sums.as<double>(),
                   list.pieces, total);
  }
}

}  // namespace tapehead
