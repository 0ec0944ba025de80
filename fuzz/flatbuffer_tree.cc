#include "fuzz/flatbuffer_tree.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace offgraph::fuzz {
namespace {

using flatbuffers::uoffset_t;
using flatbuffers::voffset_t;

constexpr uoffset_t kMaxDepth = 32;
constexpr uoffset_t kMaxTables = 200'000;
// A vector that grows doubles at most up to here.
constexpr size_t kMaxItems = 4096;

bool IsByte(reflection::BaseType type) { return flatbuffers::IsInteger(type) && flatbuffers::GetTypeSize(type) == 1; }

bool IsStruct(const Node& node) { return node.type == reflection::Obj && node.object->is_struct(); }

bool SameType(const Node& a, const Node& b) {
  return a.type == b.type && a.element == b.element && a.choices == b.choices &&
         (a.type == reflection::Union || a.object == b.object);
}

std::vector<const reflection::Field*> FieldsById(const reflection::Object& object) {
  std::vector<const reflection::Field*> fields(object.fields()->size());
  for (const reflection::Field* field : *object.fields()) fields[field->id()] = field;
  return fields;
}

// Every present value below `node`, and itself.
void Collect(Node* node, std::vector<Node*>* all) {
  if (!node->present) return;
  all->push_back(node);
  for (Node& item : node->items) Collect(&item, all);
}

const Node* Pick(const std::vector<Node*>& all, const Node& like, Random& random) {
  std::vector<const Node*> fitting;
  for (const Node* node : all) {
    if (SameType(*node, like)) fitting.push_back(node);
  }
  return fitting.empty() ? nullptr : fitting[Below(fitting.size(), random)];
}

double InterestingReal(Random& random) {
  constexpr double kReals[] = {0.0,
                               -0.0,
                               1.0,
                               -1.0,
                               0.5,
                               1e-6,
                               1e-30,
                               3e38,
                               1e300,
                               std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
  return kReals[Below(std::size(kReals), random)];
}

int64_t ChangedInteger(int64_t value, const std::vector<Node*>& all, Random& random) {
  switch (Below(4, random)) {
    case 0:
      return static_cast<int64_t>(static_cast<uint64_t>(value) + (OneIn(2, random) ? 1 : ~uint64_t{0}));
    case 1: {
      const Node& other = *all[Below(all.size(), random)];
      return flatbuffers::IsInteger(other.type) ? other.bits : static_cast<int64_t>(Below(16, random));
    }
    case 2:
      return static_cast<int64_t>(Below(64, random));
    default:
      return InterestingInteger(random);
  }
}

void MutateBytes(std::string* text, Random& random) {
  std::string bytes = *text;
  const size_t size = bytes.size();
  bytes.resize(size + 16);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, bytes.size()));
  *text = OneIn(16, random) ? std::string() : std::move(bytes);
}

// The integers of a struct, each four or eight bytes: slot numbers.
void MutateStruct(Node* node, const std::vector<Node*>& all, Random& random) {
  if (const Node* other = Pick(all, *node, random); other != nullptr && !OneIn(3, random)) {
    node->text = other->text;
    return;
  }
  const reflection::Field& field =
      *node->object->fields()->Get(static_cast<uoffset_t>(Below(node->object->fields()->size(), random)));
  auto* at = reinterpret_cast<uint8_t*>(node->text.data()) + field.offset();
  const int64_t value = flatbuffers::GetAnyValueI(field.type()->base_type(), at);
  flatbuffers::SetAnyValueI(field.type()->base_type(), at, ChangedInteger(value, all, random));
}

// Writes a tree, children first.
class Writer {
 public:
  Writer(const reflection::Schema& schema, const char* identifier) : schema_(schema), identifier_(identifier) {
    builder_.ForceDefaults(true);
  }

  std::vector<uint8_t> Write(const Node& root) {
    builder_.Finish(flatbuffers::Offset<void>(WriteTable(root)), identifier_);
    return {builder_.GetBufferPointer(), builder_.GetBufferPointer() + builder_.GetSize()};
  }

 private:
  uoffset_t WriteValue(const Node& node) {
    if (node.type == reflection::String) return builder_.CreateString(node.text).o;
    if (node.type == reflection::Vector) return WriteVector(node);
    return WriteTable(node.type == reflection::Union ? node.items.front() : node);
  }

  uoffset_t WriteTable(const Node& node) {
    const std::vector<const reflection::Field*> fields = FieldsById(*node.object);
    std::vector<uoffset_t> offsets(fields.size(), 0);
    for (size_t i = 0; i < fields.size(); ++i) {
      const Node& item = node.items[i];
      if (item.present && !flatbuffers::IsScalar(item.type) && !IsStruct(item)) offsets[i] = WriteValue(item);
    }
    const uoffset_t start = builder_.StartTable();
    for (size_t i = 0; i < fields.size(); ++i) {
      const Node& item = node.items[i];
      if (!item.present) continue;
      if (item.type == reflection::UType) {
        builder_.PushElement(Choice(node.items[i + 1]));  // the union that the number belongs to comes next
      } else if (flatbuffers::IsScalar(item.type)) {
        WriteScalar(item, item.type);
      } else if (IsStruct(item)) {
        builder_.Align(static_cast<size_t>(item.object->minalign()));
        builder_.PushBytes(reinterpret_cast<const uint8_t*>(item.text.data()), item.text.size());
      } else {
        builder_.PushElement(builder_.ReferTo(offsets[i]));
      }
      builder_.AddStructOffset(fields[i]->offset(), builder_.GetSize());
    }
    return builder_.EndTable(start);
  }

  uoffset_t WriteVector(const Node& node) {
    if (IsByte(node.element)) {
      return builder_.CreateVector(reinterpret_cast<const uint8_t*>(node.text.data()), node.text.size()).o;
    }
    const size_t count = node.items.size();
    if (flatbuffers::IsScalar(node.element)) {
      builder_.StartVector(count, flatbuffers::GetTypeSize(node.element));
      for (size_t i = count; i-- > 0;) WriteScalar(node.items[i], node.element);
      return builder_.EndVector(count);
    }
    if (node.object != nullptr && node.object->is_struct()) {
      const auto align = static_cast<size_t>(node.object->minalign());
      builder_.StartVector(count * static_cast<size_t>(node.object->bytesize()) / align, align);
      for (size_t i = count; i-- > 0;) {
        builder_.PushBytes(reinterpret_cast<const uint8_t*>(node.items[i].text.data()), node.items[i].text.size());
      }
      return builder_.EndVector(count);
    }
    std::vector<uoffset_t> offsets;
    for (const Node& item : node.items) offsets.push_back(WriteValue(item));
    builder_.StartVector(count, sizeof(uoffset_t));
    for (size_t i = count; i-- > 0;) builder_.PushElement(builder_.ReferTo(offsets[i]));
    return builder_.EndVector(count);
  }

  // The number of a union's table.
  uint8_t Choice(const Node& node) const {
    if (!node.present) return 0;
    for (const reflection::EnumVal* value : *node.choices->values()) {
      const reflection::Type* type = value->union_type();
      if (type == nullptr || type->base_type() != reflection::Obj) continue;
      if (schema_.objects()->Get(static_cast<uoffset_t>(type->index())) == node.object) {
        return static_cast<uint8_t>(value->value());
      }
    }
    return 0;
  }

  void WriteScalar(const Node& node, reflection::BaseType type) {
    uint8_t bytes[sizeof(int64_t)] = {};
    if (flatbuffers::IsFloat(type)) {
      flatbuffers::SetAnyValueF(type, bytes, std::bit_cast<double>(node.bits));
    } else {
      flatbuffers::SetAnyValueI(type, bytes, node.bits);
    }
    const size_t size = flatbuffers::GetTypeSize(type);
    builder_.Align(size);
    builder_.PushBytes(bytes, size);
  }

  const reflection::Schema& schema_;
  flatbuffers::FlatBufferBuilder builder_;
  const char* identifier_;
};

}  // namespace

int64_t InterestingInteger(Random& random) {
  const auto power = static_cast<int64_t>(uint64_t{1} << Below(64, random));
  switch (Below(4, random)) {
    case 0:
      return power;
    case 1:
      return static_cast<int64_t>(static_cast<uint64_t>(power) - 1);
    case 2:
      return static_cast<int64_t>(~static_cast<uint64_t>(power) + 1);
    default:
      return static_cast<int64_t>(Below(9, random)) - 4;
  }
}

bool OneIn(uint32_t n, Random& random) { return Below(n, random) == 0; }
size_t Below(size_t n, Random& random) { return random() % n; }

std::optional<Node> TreeCodec::Read(std::span<const uint8_t> bytes) const {
  if (bytes.size() < 2 * sizeof(uoffset_t) || bytes.size() >= FLATBUFFERS_MAX_BUFFER_SIZE) return std::nullopt;
  std::vector<uint64_t> aligned(bytes.size() / sizeof(uint64_t) + 1);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const auto* data = reinterpret_cast<const uint8_t*>(aligned.data());
  flatbuffers::Verifier verifier(data, bytes.size(), kMaxDepth, kMaxTables);
  if (!verify_(verifier)) return std::nullopt;
  return ReadTable(*flatbuffers::GetAnyRoot(data), *schema_.root_table());
}

std::vector<uint8_t> TreeCodec::Write(const Node& root, const char* identifier) const {
  return Writer(schema_, identifier).Write(root);
}

Node TreeCodec::ReadTable(const flatbuffers::Table& table, const reflection::Object& object) const {
  Node node;
  node.type = reflection::Obj;
  node.object = &object;
  for (const reflection::Field* field : FieldsById(object)) node.items.push_back(ReadField(table, object, *field));
  return node;
}

Node TreeCodec::ReadField(const flatbuffers::Table& table, const reflection::Object& object,
                          const reflection::Field& field) const {
  const reflection::Type& type = *field.type();
  Node node;
  node.type = type.base_type();
  node.present = table.CheckField(field.offset());
  if (node.type == reflection::Obj) node.object = &ObjectAt(type.index());
  if (node.type == reflection::Union) node.choices = &EnumAt(type.index());
  if (node.type == reflection::Vector) {
    node.element = type.element();
    if (node.element == reflection::Obj) node.object = &ObjectAt(type.index());
  }
  if (!node.present) return node;
  if (flatbuffers::IsFloat(node.type)) {
    node.bits = std::bit_cast<int64_t>(flatbuffers::GetAnyFieldF(table, field));
  } else if (flatbuffers::IsScalar(node.type)) {
    node.bits = flatbuffers::GetAnyFieldI(table, field);
  } else if (node.type == reflection::String) {
    node.text = flatbuffers::GetFieldS(table, field)->str();
  } else if (node.type == reflection::Vector) {
    node = ReadVector(*flatbuffers::GetFieldAnyV(table, field), type);
  } else if (node.type == reflection::Union) {
    node.object = Chosen(table, object, field);
    node.present = node.object != nullptr;
    if (node.present) node.items.push_back(ReadTable(*flatbuffers::GetFieldT(table, field), *node.object));
  } else if (node.object->is_struct()) {
    const auto* at = reinterpret_cast<const char*>(table.GetStruct<const uint8_t*>(field.offset()));
    node.text.assign(at, static_cast<size_t>(node.object->bytesize()));
  } else {
    node = ReadTable(*flatbuffers::GetFieldT(table, field), *node.object);
  }
  return node;
}

const reflection::Object* TreeCodec::Chosen(const flatbuffers::Table& table, const reflection::Object& object,
                                            const reflection::Field& field) const {
  const std::string name = field.name()->str() + flatbuffers::UnionTypeFieldSuffix();
  const auto choice = flatbuffers::GetFieldI<uint8_t>(table, *object.fields()->LookupByKey(name.c_str()));
  const reflection::EnumVal* value = EnumAt(field.type()->index()).values()->LookupByKey(choice);
  const bool is_table = value != nullptr && value->union_type()->base_type() == reflection::Obj;
  return is_table ? &ObjectAt(value->union_type()->index()) : nullptr;
}

Node TreeCodec::ReadVector(const flatbuffers::VectorOfAny& vector, const reflection::Type& type) const {
  Node node;
  node.type = reflection::Vector;
  node.element = type.element();
  if (node.element == reflection::Obj) node.object = &ObjectAt(type.index());
  if (IsByte(node.element)) {
    node.text.assign(reinterpret_cast<const char*>(vector.Data()), vector.size());
    return node;
  }
  for (uoffset_t i = 0; i < vector.size(); ++i) {
    Node item;
    item.type = node.element;
    item.object = node.object;
    if (flatbuffers::IsFloat(node.element)) {
      item.bits = std::bit_cast<int64_t>(flatbuffers::GetAnyVectorElemF(&vector, node.element, i));
    } else if (flatbuffers::IsScalar(node.element)) {
      item.bits = flatbuffers::GetAnyVectorElemI(&vector, node.element, i);
    } else if (node.element == reflection::String) {
      item.text = flatbuffers::GetAnyVectorElemPointer<const flatbuffers::String>(&vector, i)->str();
    } else if (node.object->is_struct()) {
      const auto size = static_cast<size_t>(node.object->bytesize());
      item.text.assign(flatbuffers::GetAnyVectorElemAddressOf<const char>(&vector, i, size), size);
    } else {
      item = ReadTable(*flatbuffers::GetAnyVectorElemPointer<const flatbuffers::Table>(&vector, i), *node.object);
    }
    node.items.push_back(std::move(item));
  }
  return node;
}

void TreeCodec::Mutate(Node* root, Random& random) const {
  std::vector<Node*> all;
  Collect(root, &all);
  Node* node = all[Below(all.size(), random)];
  if (flatbuffers::IsFloat(node->type)) {
    node->bits = std::bit_cast<int64_t>(InterestingReal(random));
  } else if (flatbuffers::IsScalar(node->type)) {
    node->bits = ChangedInteger(node->bits, all, random);
  } else if (node->type == reflection::String) {
    const Node* other = OneIn(2, random) ? Pick(all, *node, random) : nullptr;
    if (other != nullptr) {
      node->text = other->text;
    } else {
      MutateBytes(&node->text, random);
    }
  } else if (node->type == reflection::Vector) {
    MutateVector(node, all, random);
  } else if (node->type == reflection::Union) {
    MutateUnion(node, all, random);
  } else if (IsStruct(*node)) {
    MutateStruct(node, all, random);
  } else if (!node->items.empty()) {
    const std::vector<const reflection::Field*> fields = FieldsById(*node->object);
    const size_t i = Below(fields.size(), random);
    // The number of a union's table belongs to the union.
    if (fields[i]->type()->base_type() == reflection::UType) return;
    if (node->items[i].present && !fields[i]->required()) {
      node->items[i].present = false;
    } else {
      node->items[i] = Make(*fields[i], all, random);
    }
  }
}

void TreeCodec::MutateVector(Node* node, const std::vector<Node*>& all, Random& random) const {
  if (IsByte(node->element)) {
    MutateBytes(&node->text, random);
    return;
  }
  std::vector<Node>& items = node->items;
  if (items.empty()) {
    if (const Node* other = Pick(all, *node, random); other != nullptr) items = other->items;
    return;
  }
  const size_t i = Below(items.size(), random);
  const size_t j = Below(items.size(), random);
  switch (Below(6, random)) {
    case 0:
      items.erase(items.begin() + static_cast<ptrdiff_t>(i));
      break;
    case 1:
      items.resize(i);
      break;
    case 2:
      std::swap(items[i], items[j]);
      break;
    case 3: {
      Node copy = items[i];
      items.insert(items.begin() + static_cast<ptrdiff_t>(j), std::move(copy));
      break;
    }
    case 4: {
      const Node* other = Pick(all, items[i], random);
      Node copy = other != nullptr ? *other : items[j];
      items[i] = std::move(copy);
      break;
    }
    default: {
      const size_t copies = items.size() < kMaxItems ? items.size() : 0;
      for (size_t k = 0; k < copies; ++k) items.push_back(Node(items[k]));
    }
  }
}

// Another table of the union, with the old one's fields where they have the same name and type.
void TreeCodec::MutateUnion(Node* node, const std::vector<Node*>& all, Random& random) const {
  const auto& values = *node->choices->values();
  const reflection::EnumVal& choice = *values.Get(static_cast<uoffset_t>(Below(values.size(), random)));
  if (choice.union_type() == nullptr || choice.union_type()->base_type() != reflection::Obj) return;
  const reflection::Object& object = ObjectAt(choice.union_type()->index());
  const Node old = std::move(node->items.front());
  const std::vector<const reflection::Field*> old_fields = FieldsById(*old.object);
  Node table;
  table.type = reflection::Obj;
  table.object = &object;
  for (const reflection::Field* field : FieldsById(object)) {
    Node made = Make(*field, all, random);
    for (size_t i = 0; i < old_fields.size(); ++i) {
      if (old_fields[i]->name()->string_view() == field->name()->string_view() && SameType(old.items[i], made)) {
        made = old.items[i];
      }
    }
    table.items.push_back(std::move(made));
  }
  node->items.front() = std::move(table);
  node->object = &object;
}

Node TreeCodec::Make(const reflection::Field& field, const std::vector<Node*>& all, Random& random) const {
  const reflection::Type& type = *field.type();
  Node node;
  node.type = type.base_type();
  if (node.type == reflection::Vector) node.element = type.element();
  if (node.type == reflection::Obj || node.element == reflection::Obj) node.object = &ObjectAt(type.index());
  if (node.type == reflection::Union) node.choices = &EnumAt(type.index());
  if (const Node* other = Pick(all, node, random); other != nullptr) return *other;
  if (flatbuffers::IsScalar(node.type)) {
    node.bits =
        flatbuffers::IsFloat(node.type) ? std::bit_cast<int64_t>(InterestingReal(random)) : InterestingInteger(random);
  } else if (node.type == reflection::Union) {
    node.present = false;
  } else if (node.type == reflection::Obj && node.object->is_struct()) {
    node.text.assign(static_cast<size_t>(node.object->bytesize()), '\0');
  } else if (node.type == reflection::Obj) {
    for (const reflection::Field* inner : FieldsById(*node.object)) {
      node.items.push_back(Make(*inner, all, random));
      node.items.back().present = inner->required() || flatbuffers::IsScalar(node.items.back().type);
    }
  }
  return node;
}

void TreeCodec::Splice(Node* root, const Node& other, Random& random) const {
  Node source = other;
  std::vector<Node*> all;
  std::vector<Node*> others;
  Collect(root, &all);
  Collect(&source, &others);
  Node* node = all[Below(all.size(), random)];
  if (const Node* part = Pick(others, *node, random); part != nullptr && node != root) {
    Node copy = *part;
    *node = std::move(copy);
  }
}

}  // namespace offgraph::fuzz
