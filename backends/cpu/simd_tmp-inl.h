#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
HWY_BEFORE_NAMESPACE();
namespace tapehead {
namespace HWY_NAMESPACE {
template <class D, class V>
HWY_INLINE V FastExp(D d, V x) {
  return hwy::HWY_NAMESPACE::IfThenElse(hwy::HWY_NAMESPACE::IsNaN(x), x, hwy::HWY_NAMESPACE::Exp(d, x));
}
}  // namespace HWY_NAMESPACE
}  // namespace tapehead
HWY_AFTER_NAMESPACE();
