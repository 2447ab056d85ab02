import { hex, throws, utf8 } from "./checks.mjs";

const decode = (bytes, label = "utf-8", options = {}) => new TextDecoder(label, options).decode(new Uint8Array(bytes));
const into = (text, size) => {
  const view = new Uint8Array(size);
  const { read, written } = new TextEncoder().encodeInto(text, view);
  return [read, written, [...view]];
};

export default [
  ["encode", () => hex(new TextEncoder().encode("aüß€😀")), "61c3bcc39fe282acf09f9880"],
  ["encode nothing", () => new TextEncoder().encode().length, 0],
  ["lone surrogates", () => hex(utf8("\ud800")), "efbfbd"],
  ["encodeInto", () => into("aü", 4), [2, 3, [97, 195, 188, 0]]],
  ["encodeInto cuts at a character", () => into("aü", 2), [1, 1, [97, 0]]],
  ["encodeInto counts units", () => into("😀", 4).slice(0, 2), [2, 4]],
  ["encoding of an encoder", () => new TextEncoder().encoding, "utf-8"],
  ["decode", () => decode([0x61, 0xc3, 0xbc]), "aü"],
  ["decode of a view's part", () => new TextDecoder().decode(utf8("abc").subarray(1, 2)), "b"],
  ["decode of a buffer", () => new TextDecoder().decode(utf8("abc").buffer), "abc"],
  ["decode of a DataView", () => new TextDecoder().decode(new DataView(utf8("abc").buffer, 1)), "bc"],
  ["decode of nothing", () => new TextDecoder().decode(), ""],
  ["replacement characters", () => decode([0x61, 0xff, 0x62]), "a\ufffdb"],
  ["one replacement for a cut sequence", () => decode([0xe2, 0x82]), "\ufffd"],
  ["overlong forms", () => decode([0xc0, 0x80]), "\ufffd\ufffd"],
  ["fatal", () => decode([0xff], "utf-8", { fatal: true }), throws("TypeError")],
  ["fatal and valid", () => decode([0x61], "utf-8", { fatal: true }), "a"],
  ["a BOM goes", () => decode([0xef, 0xbb, 0xbf, 0x61]), "a"],
  ["ignoreBOM keeps it", () => decode([0xef, 0xbb, 0xbf, 0x61], "utf-8", { ignoreBOM: true }), "\ufeffa"],
  ["stream", () => { const d = new TextDecoder(); return [d.decode(new Uint8Array([0xe2, 0x82]), { stream: true }), d.decode(new Uint8Array([0xac]), { stream: true }), d.decode()]; }, ["", "€", ""]],
  ["a stream that ends early", () => { const d = new TextDecoder(); d.decode(new Uint8Array([0xe2]), { stream: true }); return d.decode(); }, "\ufffd"],
  ["a fatal stream that ends early", () => { const d = new TextDecoder("utf-8", { fatal: true }); d.decode(new Uint8Array([0xe2]), { stream: true }); d.decode(); }, throws("TypeError")],
  ["labels", () => ["UTF8", " utf-8 ", "unicode-1-1-utf-8"].map((label) => new TextDecoder(label).encoding), ["utf-8", "utf-8", "utf-8"]],
  ["latin1 is windows-1252", () => ["latin1", "ascii", "iso-8859-1"].map((label) => new TextDecoder(label).encoding), ["windows-1252", "windows-1252", "windows-1252"]],
  ["windows-1252", () => decode([0x80, 0xe4], "windows-1252"), "€ä"],
  ["utf-16le", () => decode([0x61, 0, 0xac, 0x20], "utf-16"), "a€"],
  ["utf-16be", () => decode([0, 0x61], "utf-16be"), "a"],
  ["shift_jis", () => decode([0x82, 0xa0], "sjis"), "あ"],
  ["gbk", () => decode([0xc4, 0xe3], "gb2312"), "你"],
  ["euc-kr", () => decode([0xb0, 0xa1], "euc-kr"), "가"],
  ["big5", () => decode([0xa7, 0x41], "big5"), "你"],
  ["koi8-r", () => decode([0xc1], "koi8-r"), "а"],
  ["iso-8859-2", () => decode([0xb1], "iso-8859-2"), "ą"],
  ["unknown label", () => new TextDecoder("nothing"), throws("RangeError")],
  ["properties of a decoder", () => { const d = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }); return [d.encoding, d.fatal, d.ignoreBOM]; }, ["utf-8", true, true]],
  ["decode of what is no bytes", () => new TextDecoder().decode("x"), throws("TypeError")],
  ["btoa", () => [btoa(""), btoa("a"), btoa("ab\xff")], ["", "YQ==", "YWL/"]],
  ["atob", () => [atob("YQ=="), atob("YWL/"), atob(" Y Q = = ")], ["a", "ab\xff", "a"]],
  ["atob without padding", () => atob("YQ"), "a"],
  ["btoa beyond latin1", () => btoa("€"), throws("InvalidCharacterError", DOMException)],
  ["bad atob", () => atob("%"), throws("InvalidCharacterError", DOMException)],
  ["atob of a bad length", () => atob("YQaab"), throws("InvalidCharacterError", DOMException)],
  ["encodeURIComponent", () => [encodeURIComponent("a b/ü"), decodeURIComponent("%C3%BC")], ["a%20b%2F%C3%BC", "ü"]],
  ["bad percent-encoding", () => decodeURIComponent("%"), throws("URIError")],
  ["Intl", () => new Intl.NumberFormat("de-DE", { style: "currency", currency: "EUR" }).format(1234.5), "1.234,50\u00a0€"],
  ["dates are in UTC", () => new Date(0).getTimezoneOffset(), 0],
  ["normalize", () => "e\u0301".normalize("NFC"), "é"],
]; // prettier-ignore
