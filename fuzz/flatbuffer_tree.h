// A FlatBuffer as a tree that can be changed: read through the schema's own description (reflection), mutated by
// meaning, and written back. What is written is well formed whatever was changed, so that a fuzzer gets past the
// verifier and reaches the checks behind it.
//
// Fuzz targets for FlatBuffers use it in LLVMFuzzerCustomMutator, beside mutations of the raw bytes.
#pragma once

#include <flatbuffers/reflection.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace offgraph::fuzz {

using Random = std::minstd_rand;

// One value. What it is, is in `type` and, where that is an object, in `object`; the rest depends on it:
//   scalar                       bits: the value, as int64 or the bits of a double
//   string, vector of bytes      text
//   struct                       text: its bytes
//   vector of anything else      items
//   table                        items, field for field in the order of field ids; absent ones have `present` false
//   union                        items[0]: the table, as `object` says; absent where the union is
struct Node {
  reflection::BaseType type = reflection::None;
  reflection::BaseType element = reflection::None;  // of a vector
  const reflection::Object* object = nullptr;
  const reflection::Enum* choices = nullptr;  // of a union
  bool present = true;
  int64_t bits = 0;
  std::string text;
  std::vector<Node> items;
};

class TreeCodec {
 public:
  // The verifier that the schema's generated reader brings. (The one of flatbuffers' reflection reads out of bounds
  // where bytes are no FlatBuffer.)
  using Verify = bool (*)(flatbuffers::Verifier&);

  // `schema`: a binary schema, which must stay valid.
  TreeCodec(const reflection::Schema& schema, Verify verify) : schema_(schema), verify_(verify) {}

  // The tree of a FlatBuffer that begins with its root offset; absent where the bytes are none of this schema.
  std::optional<Node> Read(std::span<const uint8_t> bytes) const;
  std::vector<uint8_t> Write(const Node& root, const char* identifier = nullptr) const;

  // Changes one place of the tree.
  void Mutate(Node* root, Random& random) const;
  // Replaces one part of `root` by a part of `other` of the same type.
  void Splice(Node* root, const Node& other, Random& random) const;

 private:
  Node ReadTable(const flatbuffers::Table& table, const reflection::Object& object) const;
  Node ReadField(const flatbuffers::Table& table, const reflection::Object& object,
                 const reflection::Field& field) const;
  Node ReadVector(const flatbuffers::VectorOfAny& vector, const reflection::Type& type) const;

  void MutateVector(Node* node, const std::vector<Node*>& all, Random& random) const;
  void MutateUnion(Node* node, const std::vector<Node*>& all, Random& random) const;
  // A new value for `field`: like one that is elsewhere in the tree, or empty.
  Node Make(const reflection::Field& field, const std::vector<Node*>& all, Random& random) const;

  const reflection::Object& ObjectAt(int32_t index) const {
    return *schema_.objects()->Get(static_cast<uint32_t>(index));
  }
  const reflection::Enum& EnumAt(int32_t index) const { return *schema_.enums()->Get(static_cast<uint32_t>(index)); }

  // What the union `field` of `table` holds; null where that is nothing that the schema knows.
  const reflection::Object* Chosen(const flatbuffers::Table& table, const reflection::Object& object,
                                   const reflection::Field& field) const;

  const reflection::Schema& schema_;
  Verify verify_;
};

// An integer that parsers get wrong: ends of ranges, their neighbours, powers of two, or a small one.
int64_t InterestingInteger(Random& random);
// Whether something that happens once in `n` times happens.
bool OneIn(uint32_t n, Random& random);
// A number below `n`. REQUIRES: n > 0.
size_t Below(size_t n, Random& random);

}  // namespace offgraph::fuzz
