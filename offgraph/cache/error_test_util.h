// For tests of what is refused.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "offgraph/cache/error.h"

namespace offgraph {

// The message of the error that `call` throws, which has this code. Where it throws none, the test has failed.
template <typename Call>
std::string Refusal(ErrorCode code, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

}  // namespace offgraph
