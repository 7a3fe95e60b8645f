#include "tapehead/ops/embedding.h"

#include "tapehead/backends/backend.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/operands.h"

namespace tapehead {

// ids (R), all of the table's rows.
static Tensor checked_ids(const Tensor& ids, int64_t rows) {
  const auto fault = [rows](int64_t position, int64_t index) {
    fail<ValueError>(
        "[embedding] index {} at position {} is out of range for a table of {} rows: it must be in [0, {})",
        index, position, rows, rows);
  };
  if (rows == 0 && ids.numel() > 0) fault(0, ids.to(DType::i64).to_vector<int64_t>()[0]);
  return backend(ids).checked_indices(ids, {.n = rows}, fault);
}

Tensor embedding(const Tensor& weight, const Tensor& ids) {
  check<TypeError>(is_floating(weight.dtype()) && !is_floating(ids.dtype()),
                   "[embedding] takes a floating weight and indices of i64 or i32, not {} and {}",
                   weight.dtype(), ids.dtype());
  check_devices("embedding", {{"weight", weight}, {"ids", ids}});
  check<ValueError>(weight.dim() == 2, "[embedding] weight of shape {}: it must be (V, F)", weight.shape());
  const int64_t rows = weight.size(0), features = weight.size(1), count = ids.numel();
  const Tensor flat_ids = reshape(ids.contiguous(), {count}), checked = checked_ids(flat_ids, rows);

  Tensor y(ids.shape().insert(ids.dim(), features), weight.dtype(), weight.device());
  Tensor y_rows = reshape(y, {count, features});
  backend(y).gather_rows(features > 1 && weight.strides()[1] != 1 ? weight.contiguous() : weight, checked,
                         y_rows);
  return record("embedding", y, {weight, ids}, {checked, flat_ids},
                [rows, features, count](const Upstream& up) -> Gradients {
                  const Tensor grad = reshape(up.grad.contiguous(), {count, features}), rows_of = up.saved(0);
                  up.saved(1);                           // throws if the ids were changed in place
                  if (Tensor* sum = up.sum_so_far(0)) {  // most rows of the table are not touched
                    sum->bump_version();
                    backend(*sum).scatter_add_rows(grad, rows_of, {}, *sum);
                    return {Tensor(), Tensor()};
                  }
                  Tensor gweight = Tensor::zeros({rows, features}, grad.dtype(), grad.device());
                  backend(gweight).scatter_add_rows(grad, rows_of, {}, gweight);
                  return {gweight, Tensor()};
                });
}

}  // namespace tapehead
