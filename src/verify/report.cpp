// Prints reports, and writes and reads them as JSON "plait.report/1".
#include "plait/report.hpp"

#include "base/json_place.hpp"
#include "base/text.hpp"

namespace plait {
namespace {

constexpr const char* kSchema = "plait.report/1";
constexpr const char* kDocument = "report JSON";

std::string place_of(const Finding& finding) {
  std::string place;
  if (finding.rank >= 0) place += text(" rank {}", finding.rank);
  if (finding.lane >= 0) place += text(" lane {}", finding.lane);
  if (finding.op >= 0) place += text(" op {}", finding.op);
  if (!finding.path.empty()) place += text(" {}", finding.path);
  return place;
}

}  // namespace

std::string print(const Finding& finding) {
  return text("{}{}: {}", finding.rule, place_of(finding), finding.sentence);
}

std::string print(const Report& report) {
  std::string out = text("{}: {} ops, ", report.plan, report.ops);
  if (report.proved())
    out += "proved\n";
  else
    out += text("{}{}", report.findings.size(),
                report.findings.size() == 1 ? " finding\n" : " findings\n");
  for (const Finding& finding : report.findings) out += text("  {}\n", print(finding));
  for (const std::string& order : report.orders) out += text("  sums {}\n", order);
  return out;
}

std::string to_json(const Report& report) {
  Json made = {
      {"schema", kSchema}, {"plan", report.plan}, {"proved", report.proved()}, {"ops", report.ops}};
  made["orders"] = report.orders;
  made["findings"] = Json::array();
  for (const Finding& finding : report.findings)
    made["findings"].push_back({{"rule", finding.rule},
                                {"rank", finding.rank},
                                {"lane", finding.lane},
                                {"op", finding.op},
                                {"path", finding.path},
                                {"sentence", finding.sentence}});
  return dumped(made);
}

Report report_from_json(std::string_view json) {
  const Json document = parse_json(json, kDocument);
  const JsonPlace root(document, "", kDocument);
  root.object({"schema", "plan", "proved", "ops", "orders", "findings"});
  if (root.at("schema").string() != kSchema) root.at("schema").refuse(text("\"{}\"", kSchema));
  Report report;
  report.plan = root.at("plan").string();
  report.ops = root.at("ops").bytes();
  for (const JsonPlace& item : root.at("orders").items()) report.orders.push_back(item.string());
  for (const JsonPlace& item : root.at("findings").items()) {
    item.object({"rule", "rank", "lane", "op", "path", "sentence"});
    report.findings.push_back({item.at("rule").string(), item.at("rank").index(-1),
                               item.at("lane").index(-1), item.at("op").index(-1),
                               item.at("path").string(), item.at("sentence").string()});
  }
  if (root.at("proved").boolean() != report.proved())
    root.at("proved").refuse("true just where there are no findings");
  return report;
}

}  // namespace plait
