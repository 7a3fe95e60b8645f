"""Counts the test cases of one `bazel test`, for tools/test: count_tests.py EVENTS STATUS

EVENTS is what --build_event_json_file wrote, STATUS how Bazel ended. The last line printed is "N passed, N
failed". A target that was not built, a test that ended badly without naming a failed case, and trouble of
Bazel's own are one failed case each. The exit status is 0 only if some passed and none failed. (python3 comes
with bazel-bootstrap.)
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree


def count_cases(path):
    """(passed, failed, skipped) of one test.xml, GoogleTest's or Bazel's own."""
    passed = failed = skipped = 0
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(events_path, bazel_status):
    passed = failed = skipped = remembered = 0
    with open(events_path, encoding="utf-8") as events:
        for event in map(json.loads, events):
            label = next(iter(event["id"].values())).get("label", "the build")
            if "testResult" in event:
                result = event["testResult"]
                remembered += bool(result.get("cachedLocally"))
                reports = [o["uri"] for o in result.get("testActionOutput", []) if o["name"] == "test.xml"]
                p = f = s = 0
                for uri in reports:
                    p, f, s = count_cases(urllib.parse.unquote(urllib.parse.urlparse(uri).path))
                if result["status"] != "PASSED" and f == 0:
                    f = 1
                passed, failed, skipped = passed + p, failed + f, skipped + s
            elif "aborted" in event or ("completed" in event and not event["completed"].get("success")):
                print(f"not built: {label}")
                failed += 1
    if bazel_status != "0" and not failed:
        failed = 1
    notes = [f"{n} {what}" for n, what in ((remembered, "test programs passed before, on the same inputs, and were skipped"),
                                           (skipped, "test cases do not apply here and were skipped")) if n]
    if notes:
        print("; ".join(notes))
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
