#include "tapehead/ops/embedding.h"

#include "tapehead/backends/backend.h"
#include "tapehead/core/view.h"

namespace tapehead {

static void check_ids(const Tensor& ids, int64_t rows) {
  if (ids.numel() == 0) return;
  const int64_t bad = rows == 0 ? 0 : backend(ids).first_out_of_range(ids, rows, /*ignored=*/0);
  if (bad < 0) return;
  const int64_t id = ids.alias({}, {}, ids.offset() + bad).to(DType::i64).to_vector<int64_t>()[0];
  fail<ValueError>(
      "[embedding] index {} at position {} is out of range for a table of {} rows: it must be in [0, {})", id,
      bad, rows, rows);
}

Tensor embedding(const Tensor& weight, const Tensor& ids) {
  check<TypeError>(is_floating(weight.dtype()) && !is_floating(ids.dtype()),
                   "[embedding] takes a floating weight and indices of i64 or i32, not {} and {}",
                   weight.dtype(), ids.dtype());
  check<ValueError>(weight.dim() == 2, "[embedding] weight of shape {}: it must be (V, F)", weight.shape());
  const int64_t rows = weight.size(0), features = weight.size(1), count = ids.numel();
  const Tensor flat_ids = reshape(ids.contiguous(), {count});
  check_ids(flat_ids, rows);

  Tensor y(ids.shape().insert(ids.dim(), features), weight.dtype(), weight.device());
  Tensor y_rows = reshape(y, {count, features});
  backend(y).gather_rows(features > 1 && weight.strides()[1] != 1 ? weight.contiguous() : weight, flat_ids,
                         y_rows);
  return record("embedding", y, {weight, ids}, {flat_ids},
                [rows, features, count](const Upstream& up) -> Gradients {
                  const Tensor grad = reshape(up.grad.contiguous(), {count, features}), rows_of = up.saved(0);
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
