#include "offgraph/pte/methods.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "offgraph/pte/constants.h"
#include "offgraph/pte/schema/program_generated.h"

namespace offgraph::pte {
namespace {

namespace fb = executorch_flatbuffer;
using Indices = flatbuffers::Vector<int32_t>;

template <typename Vector>
int64_t Count(const Vector* vector) {
  return vector == nullptr ? 0 : static_cast<int64_t>(vector->size());
}

class MethodReader {
 public:
  MethodReader(const fb::Program& program, const Segments& segments, const fb::ExecutionPlan& plan, uint32_t number,
               const std::string& file, Budget& budget)
      : program_(program), segments_(segments), plan_(plan), file_(file), budget_(budget) {
    if (plan.name() == nullptr || plan.name()->size() == 0) {
      throw BadFile(file, "method " + std::to_string(number) + " has no name");
    }
    budget_.Charge(plan.name()->size());
    method_.name = plan.name()->str();
  }

  MethodInfo Read() {
    CheckIndices(plan_.inputs(), "inputs");
    CheckIndices(plan_.outputs(), "outputs");
    method_.n_inputs = Count(plan_.inputs());
    method_.n_outputs = Count(plan_.outputs());
    ReadDelegates();
    for (int64_t chain = 0; chain < Count(plan_.chains()); ++chain) ReadChain(chain);
    if (instructions_ == 1 && method_.delegate_calls == 1) method_.whole_delegate = WholeDelegate();
    if (instructions_ == 0 && method_.n_inputs == 0 && method_.n_outputs > 0) method_.constants = ReadConstants();
    return std::move(method_);
  }

 private:
  Error Bad(const std::string& what) const { return BadFile(file_, "method '" + method_.name + "', " + what); }

  // Throws unless 0 <= index < count. `what` says whose index of what it is; `where` is put in front.
  void CheckIndex(int64_t index, int64_t count, const std::string& where, const char* what) const {
    if (index >= 0 && index < count) return;
    throw Bad(where + ": " + what + " " + std::to_string(index) + ", but there are " + std::to_string(count));
  }

  void CheckIndices(const Indices* indices, const std::string& where) {
    if (indices == nullptr) return;
    budget_.Charge(indices->size());
    const int64_t values = Count(plan_.values());
    for (const int32_t index : *indices) {
      if (index < 0 || index >= values) CheckIndex(index, values, where, "value");
    }
  }

  void ReadDelegates() {
    const int64_t count = Count(plan_.delegates());
    budget_.Charge(static_cast<uint64_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const std::string part = "delegate " + std::to_string(i);
      const fb::BackendDelegate& delegate = *plan_.delegates()->Get(static_cast<uint32_t>(i));
      if (delegate.id() == nullptr || delegate.id()->size() == 0) throw Bad(part + " has no id");
      if (delegate.processed() == nullptr) throw Bad(part + " has no payload");
      budget_.Charge(delegate.id()->size());
      method_.delegates.push_back({.id = delegate.id()->str(), .processed = Payload(*delegate.processed(), part)});
    }
  }

  std::span<const std::byte> Payload(const fb::BackendDelegateDataReference& reference, const std::string& part) const {
    switch (reference.location()) {
      case fb::DataLocation_SEGMENT:
        return segments_.At(reference.index(), "method '" + method_.name + "', " + part);
      case fb::DataLocation_INLINE: {
        CheckIndex(reference.index(), Count(program_.backend_delegate_data()), part, "inline data");
        const auto* data = program_.backend_delegate_data()->Get(reference.index())->data();
        if (data == nullptr) return {};
        return std::as_bytes(std::span(data->data(), data->size()));
      }
    }
    throw Bad(part + ": location " + std::to_string(static_cast<int>(reference.location())) +
              ", expected 0 (inline) or 1 (segment)");
  }

  void ReadChain(int64_t number) {
    const fb::Chain& chain = *plan_.chains()->Get(static_cast<uint32_t>(number));
    const int64_t count = Count(chain.instructions());
    budget_.Charge(static_cast<uint64_t>(count) + 1);
    instructions_ += count;
    for (int64_t i = 0; i < count; ++i) {
      const std::string where = "chain " + std::to_string(number) + ", instruction " + std::to_string(i);
      ReadInstruction(*chain.instructions()->Get(static_cast<uint32_t>(i)), count, where);
    }
  }

  void ReadInstruction(const fb::Instruction& instruction, int64_t n_instructions, const std::string& where) {
    const int64_t values = Count(plan_.values());
    if (const auto* call = instruction.instr_args_as_KernelCall()) {
      ++method_.kernel_calls;
      CheckIndex(call->op_index(), Count(plan_.operators()), where, "operator");
      CheckIndices(call->args(), where);
    } else if (const auto* delegate = instruction.instr_args_as_DelegateCall()) {
      ++method_.delegate_calls;
      CheckIndex(delegate->delegate_index(), static_cast<int64_t>(method_.delegates.size()), where, "delegate");
      CheckIndices(delegate->args(), where);
      last_call_ = delegate;
    } else if (const auto* move = instruction.instr_args_as_MoveCall()) {
      CheckIndex(move->move_from(), values, where, "moved value");
      CheckIndex(move->move_to(), values, where, "moved value");
    } else if (const auto* jump = instruction.instr_args_as_JumpFalseCall()) {
      CheckIndex(jump->cond_value_index(), values, where, "condition");
      // A jump behind the last instruction ends the chain.
      CheckIndex(jump->destination_instruction(), n_instructions + 1, where, "jump to instruction");
    } else if (const auto* free = instruction.instr_args_as_FreeCall()) {
      CheckIndex(free->value_index(), values, where, "freed value");
    } else {
      throw Bad(where + ": kind " + std::to_string(static_cast<int>(instruction.instr_args_type())) +
                ", which this version of ExecuTorch's schema does not know");
    }
  }

  std::optional<size_t> WholeDelegate() const {
    const auto* args = last_call_->args();
    if (Count(args) != method_.n_inputs + method_.n_outputs) return std::nullopt;
    const auto follows = [&](const Indices* expected, int64_t from) {
      return Count(expected) == 0 || std::equal(expected->begin(), expected->end(), args->begin() + from);
    };
    if (!follows(plan_.inputs(), 0) || !follows(plan_.outputs(), method_.n_inputs)) return std::nullopt;
    return static_cast<size_t>(last_call_->delegate_index());
  }

  std::optional<std::vector<ConstantValue>> ReadConstants() const {
    std::vector<ConstantValue> constants;
    for (const int32_t index : *plan_.outputs()) {
      const std::string part = "method '" + method_.name + "', value " + std::to_string(index);
      auto constant = ReadConstant(program_, segments_, plan_, static_cast<uint32_t>(index), file_, part, budget_);
      if (!constant) return std::nullopt;
      constants.push_back(std::move(*constant));
    }
    return constants;
  }

  const fb::Program& program_;
  const Segments& segments_;
  const fb::ExecutionPlan& plan_;
  const std::string& file_;
  Budget& budget_;
  MethodInfo method_;
  int64_t instructions_ = 0;
  const fb::DelegateCall* last_call_ = nullptr;
};

}  // namespace

std::vector<MethodInfo> ReadMethods(const fb::Program& program, const Segments& segments, const std::string& file,
                                    Budget& budget) {
  std::vector<MethodInfo> methods;
  std::unordered_set<std::string> names;
  for (int64_t i = 0; i < Count(program.execution_plan()); ++i) {
    const auto number = static_cast<uint32_t>(i);
    methods.push_back(
        MethodReader(program, segments, *program.execution_plan()->Get(number), number, file, budget).Read());
    if (!names.insert(methods.back().name).second) {
      throw BadFile(file, "two methods are named '" + methods.back().name + "'");
    }
  }
  if (methods.empty()) throw BadFile(file, "the program has no method");
  return methods;
}

}  // namespace offgraph::pte
