#include "offgraph/llm/post_processor.h"

#include <algorithm>
#include <limits>
#include <string>

namespace offgraph::llm {
namespace {

int32_t ParseId(const JsonNode& node, int64_t id_end) {
  const int64_t id = node.Integer(std::numeric_limits<int32_t>::max());
  if (id >= id_end) {
    node.Fail(ErrorCode::kBadFile,
              "the id " + std::to_string(id) + " is no token's; ids end at " + std::to_string(id_end));
  }
  return static_cast<int32_t>(id);
}

// ["[CLS]", 101]
int32_t ParseNamedToken(const JsonNode& node, int64_t id_end) {
  const std::vector<JsonNode> parts = node.Items();
  if (parts.size() != 2) node.Fail(ErrorCode::kBadFile, "expected a token and its id");
  return ParseId(parts[1], id_end);
}

}  // namespace

PostProcessor::PostProcessor(const JsonNode& node, int64_t id_end) { Parse(node, id_end); }

void PostProcessor::Parse(const JsonNode& node, int64_t id_end) {
  const std::string type = node.At("type").String();
  if (type == "Sequence") {
    node.AllowOnly({"type", "processors"});
    for (const JsonNode& part : node.At("processors").Items()) Parse(part, id_end);
  } else if (type == "ByteLevel") {
    node.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // concerns positions only
  } else if (type == "TemplateProcessing") {
    templates_.push_back(ParseTemplate(node, id_end));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    node.AllowOnly({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    templates_.push_back(
        {ParseNamedToken(node.At("cls"), id_end), std::nullopt, ParseNamedToken(node.At("sep"), id_end)});
  } else {
    node.Unknown("the post-processor", type);
  }
}

PostProcessor::Template PostProcessor::ParseTemplate(const JsonNode& node, int64_t id_end) {
  node.AllowOnly({"type", "single", "pair", "special_tokens"});  // a pair of texts is never encoded here
  Template result;
  for (const JsonNode& piece : node.At("single").Items()) {
    piece.AllowOnly({"Sequence", "SpecialToken"});
    if (const std::optional<JsonNode> sequence = piece.Find("Sequence")) {
      sequence->AllowOnly({"id", "type_id"});
      if (sequence->At("id").String() != "A") {
        sequence->Fail(ErrorCode::kBadFile, "the template of a single text names sequence \"" +
                                                sequence->At("id").String() + "\"; it has only \"A\"");
      }
      result.emplace_back(std::nullopt);
      continue;
    }
    const JsonNode token = piece.At("SpecialToken");
    token.AllowOnly({"id", "type_id"});
    const JsonNode definition = node.At("special_tokens").At(token.At("id").String());
    definition.AllowOnly({"id", "ids", "tokens"});
    for (const JsonNode& id : definition.At("ids").Items()) result.emplace_back(ParseId(id, id_end));
  }
  // Each would repeat the text, twice as long with every further template.
  if (std::count(result.begin(), result.end(), std::nullopt) > 1) {
    node.Fail(ErrorCode::kUnsupported, "a template that repeats the text is not supported");
  }
  return result;
}

std::vector<int32_t> PostProcessor::Apply(std::vector<int32_t> ids, bool add_special_tokens) const {
  for (const Template& pieces : templates_) {
    std::vector<int32_t> result;
    for (const std::optional<int32_t>& piece : pieces) {
      if (!piece) {
        result.insert(result.end(), ids.begin(), ids.end());
      } else if (add_special_tokens) {
        result.push_back(*piece);
      }
    }
    ids = std::move(result);
  }
  return ids;
}

}  // namespace offgraph::llm
