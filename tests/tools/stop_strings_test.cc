#include "tapehead/tools/stop_strings.h"

#include <gtest/gtest.h>

namespace tapehead {
namespace {

// What is shown after each of `parts`, with | between.
std::string shown(StopStrings stops, const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += stops.add(part) + "|";
  return text + stops.finish();
}

TEST(StopStrings, EndTheTextBeforeOneThatSpansParts) {
  EXPECT_EQ(shown(StopStrings({"\nQ:"}), {"yes\n", "Q", ": no", "more"}), "yes||||");
}

TEST(StopStrings, ShowWhatOnlyBeganLikeOne) {
  EXPECT_EQ(shown(StopStrings({"aab"}), {"a", "a", "a", "c"}), "||a|aac|");
  EXPECT_EQ(shown(StopStrings({"stop"}), {"st"}), "|st");
  EXPECT_EQ(shown(StopStrings({}), {"a", "b"}), "a|b|");
}

TEST(StopStrings, EndTheTextAtTheFirstOfSeveral) {
  StopStrings stops({"zzz", "cd", "b"});
  EXPECT_EQ(stops.add("abcd"), "a");
  EXPECT_TRUE(stops.found());
  EXPECT_EQ(stops.add("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

}  // namespace
}  // namespace tapehead
