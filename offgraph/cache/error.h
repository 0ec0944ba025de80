// The error that every room throws for something that the caller, a file or the machine did wrong.
//
// Lives in the lowest room so that all rooms share it. A message is for people: what was wrong, where, what was
// expected, what was found, and what to do about it where that is known.
#pragma once

#include <stdexcept>
#include <string>

namespace offgraph {

enum class ErrorCode {
  kInvalidArgument,  // the caller asked for something that has no meaning: a negative capacity, a gap in positions
  kOutOfRange,       // a valid request that does not fit: a full cache, a step longer than the ring admits
  kBadFile,          // bytes from outside that are cut, damaged or of another kind
  kUnsupported,      // well formed, and not something that this build can do; the message names it
  kOutOfMemory,      // the machine or a limit set by the user refused memory
  kIo,               // the operating system refused to read or write
  kCancelled,        // somebody asked for the work to stop
  kInternal,         // an invariant of offgraph itself is broken: please report
};

// Thrown by all rooms. what() is the whole message.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace offgraph
