// Snippets against Jinja itself (tests/data/templates/make_expected.py), and what hostile templates end in.
#include "offgraph/llm/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "offgraph/cache/error.h"

namespace offgraph::llm::jinja {
namespace {

using ::testing::HasSubstr;

using Variables = std::vector<std::pair<std::string, Value>>;

Value ReadExpected() {
  std::ifstream file(OFFGRAPH_TEST_DATA "/templates/expected.json", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return ParseJson(text.str());
}

Variables ToVariables(const Value& dict) {
  Variables result;
  for (const auto& [name, value] : dict.dict().entries) result.emplace_back(name.text(), value);
  return result;
}

RenderOptions FixedTime() {
  std::tm now{};
  now.tm_year = 2026 - 1900;
  now.tm_mon = 6;
  now.tm_mday = 4;
  now.tm_hour = 15;
  now.tm_min = 9;
  now.tm_sec = 26;
  now.tm_wday = 6;
  now.tm_yday = 184;
  return {{}, now};
}

std::string Render(std::string_view source, const Variables& variables = {}, const RenderLimits& limits = {}) {
  RenderOptions options = FixedTime();
  options.limits = limits;
  return Template(source).Render(variables, options);
}

// The code of the error that rendering ends in, and its message.
std::pair<ErrorCode, std::string> Failure(std::string_view source, const RenderLimits& limits = {}) {
  try {
    ADD_FAILURE() << source << " rendered as: " << Render(source, {}, limits);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kInternal, ""};
}

TEST(Jinja, SnippetsRenderAsInPython) {
  // What Python can do and this refuses: integers beyond 64 bits, and inheritance of templates.
  const std::set<std::string> refused = {"{{ 10 ** 30 }}", "{{ 9223372036854775807 + 1 }}",
                                         "{{ 99999999999999999999 }}", "{{ -9223372036854775807 - 1 }}",
                                         "{% block a %}{% endblock %}"};
  const Value expected = ReadExpected();
  const Variables variables = ToVariables(*expected.Find("snippet_variables"));
  size_t compared = 0;
  for (const Value& snippet : expected.Find("snippets")->items()) {
    const std::string& source = snippet.Find("template")->text();
    SCOPED_TRACE(source);
    const Value* ok = snippet.Find("ok");
    try {
      const std::string text = Render(source, variables);
      ASSERT_NE(ok, nullptr) << "Python fails, this renders: " << text;
      EXPECT_EQ(text, ok->text());
      ++compared;
    } catch (const Error& error) {
      if (ok != nullptr) {
        EXPECT_TRUE(error.code() == ErrorCode::kUnsupported && refused.contains(source)) << error.what();
      }
      if (const Value* raised = snippet.Find("raised")) {
        EXPECT_THAT(error.what(), HasSubstr(raised->text()));
      }
      EXPECT_THAT(error.what(), HasSubstr("line "));
    }
  }
  EXPECT_GT(compared, 590u);
}

TEST(Jinja, ErrorsNameTheLine) {
  EXPECT_EQ(Failure("a\n{{ 1 }}\n{{ x.y }}\n").second, "chat template, line 3: 'x' is undefined");
  EXPECT_EQ(Failure("{{ 1 }}\n{% if true %}\n{{ [1,\n 2,\n none + 1] }}{% endif %}").second.substr(0, 22),
            "chat template, line 5:");
  EXPECT_EQ(Failure("{% macro m() %}\n\n{{ raise_exception('no') }}{% endmacro %}\n\n{{ m() }}"),
            std::make_pair(ErrorCode::kInvalidArgument, std::string("chat template, line 3: no")));
  EXPECT_EQ(Failure("\n\n{% zzz %}").second, "chat template, line 3: the statement 'zzz' is not supported");
  EXPECT_EQ(Failure("{{ 1\n\n ^ }}").second, "chat template, line 3: unexpected character '^'");
}

TEST(Jinja, UnknownPartsAreNamed) {
  for (const auto& [source, named] : std::vector<std::pair<std::string, std::string>>{
           {"{% include 'x' %}", "'include'"},
           {"{{ 1|nosuch }}", "'nosuch'"},
           {"{{ 'a'|urlencode }}", "'urlencode'"},
           {"{{ 1 is nosuch }}", "'nosuch'"},
           {"{{ 'a'.encode() }}", "str.encode"},
           {"{{ lipsum() }}", "lipsum"},
           {"{{ strftime_now('%Q') }}", "%Q"},
           {"{{ '\\ud800' }}", "surrogate"},
           {"{{ 99999999999999999999 }}", "64 bits"},
           {"{{ [1]|map('string') }}", "generator"},
           {"{{ 'a'.upper }}", "no text"},
       }) {
    const auto [code, message] = Failure(source);
    EXPECT_EQ(code, ErrorCode::kUnsupported) << source << ": " << message;
    EXPECT_THAT(message, HasSubstr(named));
    EXPECT_THAT(message, HasSubstr("line 1"));
  }
  // Not an error as long as it is not reached.
  EXPECT_EQ(Render("{% if false %}{{ 1|nosuch }}{% endif %}ok"), "ok");
}

TEST(Jinja, HostileTemplatesEnd) {
  const std::string many_parentheses = "{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}";
  std::string many_ifs, long_sum = "{{ 1", long_not = "{{ ";
  for (int i = 0; i < 5000; ++i) {
    many_ifs += "{% if 1 %}";
    long_sum += " + 1";
    long_not += "not ";
  }
  for (const std::string& source :
       {many_parentheses, many_ifs, long_sum + " }}", long_not + "1 }}", "{{ " + std::string(5000, '[') + " }}",
        "{{ x" + std::string(5000, '.') + " }}", "{{ " + std::string(5000, '-') + "1 }}"}) {
    EXPECT_EQ(Failure(source).first, ErrorCode::kBadFile) << source.substr(0, 40);
  }
  const std::string share =
      "{% set n = namespace(x=[]) %}{% for i in range(150) %}{% set n.x = [n.x, n.x] %}{% endfor %}";
  for (const std::string& source : {
           std::string("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
           std::string("{% set n = namespace(x='ab') %}{% for i in range(100) %}{% set n.x = n.x + n.x %}{% endfor %}"),
           std::string("{% set n = namespace(x='ab') %}{% for i in range(100) %}{% set n.x = n.x ~ n.x %}{% endfor %}"),
           std::string("{% set n = namespace(x=[1]) %}{% for i in range(100) %}{% set n.x = n.x + n.x %}{% endfor %}"),
           std::string("{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}"),
           std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
           std::string("{% macro f(x) %}{{ f(f) }}{% endmacro %}{{ f(f) }}"),
           std::string("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
           std::string("{% macro a() %}{{ caller() }}{% endmacro %}{% macro b() %}{% call a() %}{{ b() }}{% endcall %}"
                       "{% endmacro %}{{ b() }}"),
           share + "{{ n.x }}",
           share + "{{ n.x == n.x[0] + n.x[1] }}{{ n.x == [n.x[0], n.x[1]] }}",
           share + "{{ n.x|tojson }}",
           share + "{{ [n.x, n.x]|sort }}",
           share + "{{ {n.x|string: 1} }}",
           std::string("{{ 'a' * 9999999999 }}"),
           std::string("{{ [0] * 9999999999 }}"),
           std::string("{{ 'a'.ljust(9999999999) }}"),
           std::string("{{ 'a'|center(9999999999) }}"),
           std::string("{{ '5'.zfill(9999999999) }}"),
           std::string("{{ 'a'|indent(9999999999, true) }}"),
           std::string("{{ [1]|tojson(indent=9999999999) }}"),
           std::string("{{ [1]|batch(9999999999, 0)|list }}"),
           std::string("{{ [1]|slice(9999999999)|list }}"),
           std::string("{{ '%9999999999d' % 1 }}"),
           std::string("{{ '%*d' % (9999999999, 1) }}"),
           std::string("{{ '{:9999999999}'.format(1) }}"),
           std::string("{{ '%.99999999f' % 1.5 }}{{ '%.99999999f' % 1.5 }}{{ '%.99999999f' % 1.5 }}"),
           std::string("{{ range(9999999999) }}"),
           std::string(
               "{% set n = namespace(x='a' * 99999) %}{% for i in range(99) %}{% set n.x = n.x.replace('a', 'aa') %}"
               "{% endfor %}"),
           std::string("{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x[500000] }}{% endfor %}"),
           std::string(
               "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% if 'b' in x %}{% endif %}{% endfor %}"),
           std::string(
               "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% if x|length %}{% endif %}{% endfor %}"),
           std::string(
               "{% set a = 'a' * 500000 %}{% set b = 'a' * 250000 ~ 'b' %}{% for i in range(100000) %}"
               "{{ b in a }}{{ a.find(b) }}{{ a.rfind('b' ~ b) }}{{ a.split(b) }}{{ a.rsplit(b) }}{% endfor %}"),
           std::string("{% set x = ' ' * 1000000 %}{% for i in range(100000) %}{{ x|trim(' ' * 1000) }}{% endfor %}"),
           std::string("{% set n = namespace(x=()) %}{% for i in range(150) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
                       "{{ {n.x: 1} }}"),
           std::string("{% set x = ',' * 9000000 %}{% for i in range(100000) %}{% set y = x.split(',') %}{% endfor %}"),
           std::string("{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% set y = x|wordcount %}{% endfor %}"),
       }) {
    // Smaller than the default, for the sanitizers' sake.
    const auto [code, message] = Failure(source, {.steps = 500'000, .bytes = 32 << 20});
    EXPECT_EQ(code, ErrorCode::kOutOfRange) << source << ": " << message;
  }
}

TEST(Jinja, LimitsAreTheCallers) {
  const Template loop("{% for i in range(1000) %}x{% endfor %}");
  EXPECT_EQ(loop.Render({}).size(), 1000u);
  EXPECT_THROW(loop.Render({}, {{.steps = 500}, {}}), Error);
  EXPECT_THROW(loop.Render({}, {{.bytes = 500}, {}}), Error);
}

TEST(Jinja, ValuesAreChecked) {
  EXPECT_THROW(Value::String("\xff"), Error);
  EXPECT_THROW(Template("\xff"), Error);
  EXPECT_EQ(Render("{{ x }}", {{"x", Value::String("\xC3\xA9")}}), "\xC3\xA9");
  EXPECT_EQ(Render("{{ 'a\\u0000b'|length }}"), "3");
  // A caller's variable hides a global function of its name.
  EXPECT_EQ(Render("{{ range }}", {{"range", Value::Int(3)}}), "3");
}

TEST(Json, ReadsWhatItWrites) {
  const std::string text =
      R"({"z": [1, -2, 1.5, 1e+20, true, null, "é\n\"\\"], "a": {"z": {}, "b": []}, "n": 9223372036854775807})";
  EXPECT_EQ(Render("{{ x|tojson }}", {{"x", ParseJson(text)}}), text);
  // Of equal keys the last counts, in the place of the first.
  EXPECT_EQ(Render("{{ x }}", {{"x", ParseJson(R"({"a": 1, "b": 2, "a": 3})")}}), "{'a': 3, 'b': 2}");
}

TEST(Json, WideIntegersAreRefusedOrRounded) {
  for (const std::string& text : {std::string("9223372036854775808"), std::string("-9223372036854775809"),
                                  std::string("1000000000000000019884624838656")}) {
    EXPECT_THROW(ParseJson(text), Error) << text;
    EXPECT_EQ(Render("{{ x is float }}", {{"x", ParseJson(text, WideIntegers::kRound)}}), "True") << text;
  }
  EXPECT_EQ(Render("{{ x is integer }}", {{"x", ParseJson("9223372036854775807")}}), "True");
}

TEST(Json, RefusesWhatItCannotHold) {
  for (const std::string& text : {std::string(""), std::string("{"), std::string("[1,]"), std::string("{\"a\" 1}"),
                                  std::string("nul"), std::string("\"\xff\""), std::string("\"\\ud800\""),
                                  std::string("[1] 2"), std::string("1") + std::string(400, '0'), std::string("1e999"),
                                  std::string(100000, '['), std::string(300, '[') + std::string(300, ']')}) {
    try {
      ParseJson(text);
      ADD_FAILURE() << text.substr(0, 40);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadFile) << text.substr(0, 40);
    }
  }
}

}  // namespace
}  // namespace offgraph::llm::jinja
