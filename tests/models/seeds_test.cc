#include "tapehead/models/seeds.h"

#include <gtest/gtest.h>

#include <set>

namespace tapehead {
namespace {

constexpr Purpose kPurposes[] = {Purpose::order, Purpose::dropout, Purpose::filter, Purpose::split};

// Hazard: a run that is resumed draws other numbers than it would have drawn. Computed apart from this code,
// by Philox4x32-10 as its paper states it.
TEST(Seeds, StayWhatTheyWere) {
  constexpr uint64_t kOf7[] = {0x4ba2833093de8871, 0x12dd772efc90ba25, 0x7f7b5fe2bd5cd31b,
                               0x0ca230fa69f710d1};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(derive_seed(7, kPurposes[i]), kOf7[i]) << i;
  EXPECT_EQ(derive_seed(0, Purpose::order), 0xf3ce744ddfb9980f);
}

// Hazard: rows are held out, or dropped, in the order in which they are drawn.
TEST(Seeds, EveryPurposeOfEveryRunHasItsOwn) {
  std::set<uint64_t> seeds;
  for (const uint64_t run : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
    seeds.insert(run);
    for (const Purpose purpose : kPurposes) seeds.insert(derive_seed(run, purpose));
  }
  EXPECT_EQ(seeds.size(), 4 * (1 + std::size(kPurposes)));
}

}  // namespace
}  // namespace tapehead
