// The few parts of GoogleTest that a small test file and our listener use.
#ifndef TOY_GTEST_H
#define TOY_GTEST_H
#include <stdlib.h>
#include <string>
#include <vector>
namespace testing {
struct TestPartResult { bool bad; bool failed() const { return bad; } };
class UnitTest;
struct EmptyTestEventListener {
  virtual ~EmptyTestEventListener() {}
  virtual void OnTestPartResult(const TestPartResult &) {}
  virtual void OnTestProgramEnd(const UnitTest &) {}
};
struct TestEventListeners {
  std::vector<EmptyTestEventListener *> all;
  void Append(EmptyTestEventListener *one) { all.push_back(one); }
};
struct Test {
  virtual ~Test() {}
  virtual void TestBody() = 0;
};
class UnitTest {
  TestEventListeners heard;

public:
  struct Known { std::string name; Test *(*make)(); };
  std::vector<Known> known;
  int passed = 0, failed = 0, skipped = 0;
  bool bad = false, left = false;
  static UnitTest *GetInstance() { static UnitTest one; return &one; }
  TestEventListeners &listeners() { return heard; }
  bool Passed() const { return !failed; }
  int successful_test_count() const { return passed; }
  int failed_test_count() const { return failed; }
  int skipped_test_count() const { return skipped; }
  int add(const char *name, Test *(*make)()) { known.push_back({name, make}); return 0; }
  void fail() {
    bad = true;
    for (auto *one : heard.all) one->OnTestPartResult(TestPartResult{true});
  }
  int Run() {
    const char *wanted = getenv("GTEST_FILTER");
    for (auto &one : known) {
      if (wanted && one.name != wanted) continue;
      bad = left = false;
      Test *test = one.make();
      try { test->TestBody(); } catch (...) { fail(); }
      delete test;
      bad ? failed++ : left ? skipped++ : passed++;
    }
    for (auto *one : heard.all) one->OnTestProgramEnd(*this);
    return failed != 0;
  }
};
}
#define GTEST_TEST(a, b) \
  struct a##_##b : ::testing::Test { void TestBody() override; }; \
  static int a##_##b##_known = ::testing::UnitTest::GetInstance()->add( \
    #a "." #b, [] { return static_cast< ::testing::Test *>(new a##_##b); }); \
  void a##_##b::TestBody()
#define TEST(a, b) GTEST_TEST(a, b)
#define GTEST_SKIP() return (void)(::testing::UnitTest::GetInstance()->left = true)
#define EXPECT_EQ(a, b) ((a) == (b) ? (void)0 : ::testing::UnitTest::GetInstance()->fail())
#define EXPECT_TRUE(a) EXPECT_EQ(bool(a), true)
#define ASSERT_EQ(a, b) if (!((a) == (b))) return ::testing::UnitTest::GetInstance()->fail()
#define RUN_ALL_TESTS() ::testing::UnitTest::GetInstance()->Run()
#endif
