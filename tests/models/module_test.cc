#include "tapehead/models/module.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace tapehead {
namespace {

using ::testing::ElementsAre;

TEST(ModuleTest, Conv1DHoldsItsWeightAsInByOut) {
  const Conv1D layer{.weight = Tensor::from<double>({2, 3}, std::vector<double>{1, 2, 3, 4, 5, 6}),
                     .bias = Tensor::from<double>({3}, std::vector<double>{0.5, 0, -0.5})};
  const Tensor y = layer(Tensor::from<double>({1, 2}, std::vector<double>{10, 1}));
  EXPECT_THAT(y.to_vector<double>(), ElementsAre(14.5, 25, 35.5));
}

TEST(ModuleTest, LinearHoldsItsWeightAsOutByInAndMayHaveNoBias) {
  Linear layer{.weight = Tensor::from<double>({3, 2}, std::vector<double>{1, 2, 3, 4, 5, 6})};
  const Tensor x = Tensor::from<double>({1, 2}, std::vector<double>{10, 1});
  EXPECT_THAT(layer(x).to_vector<double>(), ElementsAre(12, 34, 56));
  ParameterList list;
  layer.name_parameters("a.", list);
  EXPECT_EQ(list.size(), 1u);
  layer.bias = Tensor::from<double>({3}, std::vector<double>{0.5, 0, -0.5});
  EXPECT_THAT(layer(x).to_vector<double>(), ElementsAre(12.5, 34, 55.5));
  layer.name_parameters("b.", list);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[2].first, "b.bias");
}

TEST(ModuleTest, RMSNormScalesARowOfMeanSquare1) {
  const RMSNorm layer{.weight = Tensor::from<double>({2}, std::vector<double>{5, 10}), .epsilon = 0};
  const Tensor y = layer(Tensor::from<double>({1, 2}, std::vector<double>{2, -2}));  // mean square 4
  EXPECT_THAT(y.to_vector<double>(), ElementsAre(5, -10));
}

TEST(ModuleTest, HeadsAreSplitAndJoined) {
  const Tensor x = Tensor::from<double>({1, 2, 4}, std::vector<double>{0, 1, 2, 3, 10, 11, 12, 13});
  EXPECT_THAT(split_heads(x, 2, 2).contiguous().to_vector<double>(), ElementsAre(0, 1, 10, 11, 2, 3, 12, 13));
  EXPECT_THAT(split_heads(x, 1, 2, 1).contiguous().to_vector<double>(), ElementsAre(2, 3, 12, 13));
  EXPECT_EQ(join_heads(split_heads(x, 2, 2)).to_vector<double>(), x.to_vector<double>());
}

TEST(ModuleTest, LayerNormScalesAndShiftsAWhitenedRow) {
  const LayerNorm layer{.weight = Tensor::from<double>({2}, std::vector<double>{2, 3}),
                        .bias = Tensor::from<double>({2}, std::vector<double>{10, 20}),
                        .epsilon = 0};
  const Tensor y = layer(Tensor::from<double>({1, 2}, std::vector<double>{5, 9}));
  EXPECT_THAT(y.to_vector<double>(), ElementsAre(8, 23));
}

TEST(ModuleTest, ParametersAreNamedSharedAndCleared) {
  const Conv1D layer{.weight = Tensor::full({2, 3}, 1).set_requires_grad(),
                     .bias = Tensor::full({3}, 0).set_requires_grad()};
  ParameterList list;
  layer.name_parameters("block.", list);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].first, "block.weight");
  EXPECT_EQ(list[1].first, "block.bias");
  EXPECT_TRUE(list[0].second.is_same(layer.weight));

  backward(layer(Tensor::full({1, 2}, 1)), Tensor::full({1, 3}, 1));
  EXPECT_TRUE(layer.weight.grad().defined());
  zero_grad(list);
  EXPECT_FALSE(layer.weight.grad().defined());
  EXPECT_FALSE(layer.bias.grad().defined());
}

// Hazard: a model of whole weights was drawn at random before it was loaded, which took longer than loading it.
TEST(ModuleTest, ParametersToBeLoadedAreNotDrawn) {
  Initializer make{.generator = {.seed = 3}, .values = Initializer::unset};
  const Generator before = make.generator;
  const Tensor weight = make.matrix(2, 3, 0.02);
  EXPECT_EQ(make.generator.next, before.next);
  EXPECT_EQ(weight.shape(), Shape({2, 3}));
  EXPECT_TRUE(weight.requires_grad());
}

}  // namespace
}  // namespace tapehead
