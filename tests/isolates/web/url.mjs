import { throws } from "./checks.mjs";

const url = (text, base) => new URL(text, base).href;
const params = (init) => `${new URLSearchParams(init)}`;
const changed = (text, change) => {
  const made = new URL(text);
  change(made);
  return made.href;
};
const edited = (init, change) => {
  const made = new URLSearchParams(init);
  change(made);
  return `${made}`;
};
const full = new URL("https://user:pass@example.com:8080/a/b?c=d#e");

export default [
  ["href of a URL", () => full.href, "https://user:pass@example.com:8080/a/b?c=d#e"],
  ["its parts", () => [full.protocol, full.host, full.hostname, full.port, full.pathname, full.search, full.hash],
    ["https:", "example.com:8080", "example.com", "8080", "/a/b", "?c=d", "#e"]],
  ["origin", () => full.origin, "https://example.com:8080"],
  ["origin of an opaque URL", () => new URL("data:x").origin, "null"],
  ["username and password", () => [full.username, full.password], ["user", "pass"]],
  ["default port", () => url("https://a:443/"), "https://a/"],
  ["default port of http", () => url("http://a:80/"), "http://a/"],
  ["dot segments", () => url("https://a/b/../c/./d"), "https://a/c/d"],
  ["escaped dot segments", () => url("https://a/b/%2e%2e/c"), "https://a/c"],
  ["relative to a base", () => url("../x?y", "https://a/b/c/d"), "https://a/b/x?y"],
  ["scheme-relative", () => url("//b/c", "https://a/"), "https://b/c"],
  ["only a fragment", () => url("#x", "https://a/b?c"), "https://a/b?c#x"],
  ["upper-case host", () => url("https://EXAMPLE.com"), "https://example.com/"],
  ["internationalised host", () => url("https://bücher.example/"), "https://xn--bcher-kva.example/"],
  ["IPv4 as one number", () => url("http://2130706433/"), "http://127.0.0.1/"],
  ["IPv4 in hexadecimal", () => url("http://0x7f.1/"), "http://127.0.0.1/"],
  ["IPv6", () => url("http://[0:0::1]/"), "http://[::1]/"],
  ["path is percent-encoded", () => url("https://a/ü b"), "https://a/%C3%BC%20b"],
  ["tabs and newlines go", () => url(" ht\ntps://a/\tb "), "https://a/b"],
  ["backslashes of special schemes", () => url("https:\\\\a\\b"), "https://a/b"],
  ["no base", () => url("/x"), throws("TypeError")],
  ["bad port", () => url("https://a:99999/"), throws("TypeError")],
  ["bad host", () => url("https://a b/"), throws("TypeError")],
  ["canParse", () => [URL.canParse("x:y"), URL.canParse("/x"), URL.canParse("/x", "https://a")], [true, false, true]],
  ["parse", () => [URL.parse("/x"), URL.parse("/x", "https://a").href], [null, "https://a/x"]],
  ["toJSON and toString", () => [JSON.stringify({ u: new URL("x:y") }), `${new URL("x:y")}`], ['{"u":"x:y"}', "x:y"]],
  ["set pathname", () => changed("https://a/b", (u) => (u.pathname = "c d")), "https://a/c%20d"],
  ["set search", () => changed("https://a/b", (u) => (u.search = "x=1")), "https://a/b?x=1"],
  ["empty search", () => changed("https://a/b?c", (u) => (u.search = "")), "https://a/b"],
  ["set hash", () => changed("https://a/b", (u) => (u.hash = "h")), "https://a/b#h"],
  ["set port", () => changed("https://a/b", (u) => (u.port = "81")), "https://a:81/b"],
  ["set host", () => changed("https://a/b", (u) => (u.host = "c:82")), "https://c:82/b"],
  ["set protocol", () => changed("https://a/b", (u) => (u.protocol = "http")), "http://a/b"],
  ["special to other protocol is ignored", () => changed("https://a/b", (u) => (u.protocol = "foo")), "https://a/b"],
  ["set href", () => changed("https://a/b", (u) => (u.href = "http://c/")), "http://c/"],
  ["searchParams are live", () => changed("https://a/?x=1", (u) => u.searchParams.append("y", "2 3")), "https://a/?x=1&y=2+3"],
  ["searchParams follow search", () => {
    const u = new URL("https://a/?x=1");
    const { searchParams } = u;
    u.search = "?z=9";
    return searchParams.get("z");
  }, "9"],
  ["params of a string", () => params("?a=1&b=2"), "a=1&b=2"],
  ["params of pairs", () => params([["a", "1"], ["a", "2"]]), "a=1&a=2"],
  ["params of a record", () => params({ a: 1, b: "ü" }), "a=1&b=%C3%BC"],
  ["params of params", () => params(new URLSearchParams("x=y")), "x=y"],
  ["params of a bad pair", () => params([["a"]]), throws("TypeError")],
  ["plus is a space", () => new URLSearchParams("a=b+c").get("a"), "b c"],
  ["escapes", () => new URLSearchParams("a=%41%20%zz").get("a"), "A %zz"],
  ["get of nothing", () => new URLSearchParams("").get("a"), null],
  ["getAll", () => new URLSearchParams("a=1&b=2&a=3").getAll("a"), ["1", "3"]],
  ["has with a value", () => [new URLSearchParams("a=1").has("a", "1"), new URLSearchParams("a=1").has("a", "2")], [true, false]],
  ["set replaces all", () => edited("a=1&b=2&a=3", (p) => p.set("a", "x")), "a=x&b=2"],
  ["delete", () => edited("a=1&b=2&a=3", (p) => p.delete("a")), "b=2"],
  ["delete with a value", () => edited("a=1&a=3", (p) => p.delete("a", "1")), "a=3"],
  ["sort is stable", () => edited("b=1&a=2&b=0&a=1", (p) => p.sort()), "a=2&a=1&b=1&b=0"],
  ["size", () => new URLSearchParams("a=1&b=2").size, 2],
  ["iteration", () => [...new URLSearchParams("a=1&b=2")], [["a", "1"], ["b", "2"]]],
  ["keys and values", () => [[...new URLSearchParams("a=1").keys()], [...new URLSearchParams("a=1").values()]], [["a"], ["1"]]],
  ["forEach", () => {
    const got = [];
    new URLSearchParams("a=1").forEach((value, key, owner) => got.push(value, key, owner instanceof URLSearchParams));
    return got;
  }, ["1", "a", true]],
  ["lone surrogates", () => params({ a: "\ud800" }), "a=%EF%BF%BD"],
  ["no object URLs", () => typeof URL.createObjectURL, "undefined"],
  ["pattern with a name", () => new URLPattern({ pathname: "/users/:id" }).exec("https://a/users/7").pathname.groups.id, "7"],
  ["pattern without a match", () => new URLPattern({ pathname: "/users/:id" }).exec("https://a/x"), null],
  ["pattern test", () => new URLPattern("https://*.example/*").test("https://a.example/b"), true],
  ["pattern with an expression", () => new URLPattern({ pathname: "/:n(\\d+)" }).test("https://a/x1"), false],
  ["pattern with a base", () => new URLPattern("/x/:y", "https://a").test("https://a/x/1"), true],
  ["pattern with an optional part", () => ["/a", "/a/b"].map((path) => new URLPattern({ pathname: "/a{/:x}?" }).test(`https://h${path}`)), [true, true]],
  ["pattern ignores case", () => new URLPattern({ pathname: "/A" }, { ignoreCase: true }).test("https://h/a"), true],
  ["pattern parts", () => new URLPattern({ pathname: "/:a", search: "x=*" }).pathname, "/:a"],
  ["bad pattern", () => new URLPattern({ pathname: "/(" }), throws("TypeError")],
]; // prettier-ignore
