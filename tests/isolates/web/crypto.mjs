import { hex, text, throws, utf8 } from "./checks.mjs";

const { subtle } = crypto;
const digest = async (name, data = "abc") => hex(await subtle.digest(name, utf8(data)));
const raw = (bytes, algorithm, usages, extractable = true) => subtle.importKey("raw", bytes, algorithm, extractable, usages);
const key = (algorithm, usages) => subtle.generateKey(algorithm, true, usages);
const hmac = { name: "HMAC", hash: "SHA-256" };
const gcm = (iv = new Uint8Array(12), more = {}) => ({ name: "AES-GCM", iv, ...more });
const flipped = (buffer) => { const bytes = new Uint8Array(buffer); bytes[0] ^= 1; return bytes; };
const sixteen = new Uint8Array(16);

async function signed(algorithm, signing, usages = ["sign", "verify"]) {
  const { publicKey, privateKey } = await key(algorithm, usages);
  const signature = await subtle.sign(signing, privateKey, utf8("text"));
  return [
    await subtle.verify(signing, publicKey, signature, utf8("text")),
    await subtle.verify(signing, publicKey, signature, utf8("other")),
    await subtle.verify(signing, publicKey, flipped(signature), utf8("text")),
  ];
}

async function sealed(algorithm, by, usages = ["encrypt", "decrypt"]) {
  const made = await key(algorithm, usages);
  const data = await subtle.encrypt(by, made.publicKey ?? made, utf8("secret"));
  return text(await subtle.decrypt(by, made.privateKey ?? made, data));
}

const rsa = (name) => ({ name, modulusLength: 2048, publicExponent: new Uint8Array([1, 0, 1]), hash: "SHA-256" });
const agreed = async (name, length, more = {}) => {
  const a = await key({ name, ...more }, ["deriveBits"]);
  const b = await key({ name, ...more }, ["deriveBits"]);
  const one = await subtle.deriveBits({ name, public: b.publicKey }, a.privateKey, length);
  const two = await subtle.deriveBits({ name, public: a.publicKey }, b.privateKey, length);
  return hex(one) === hex(two) && one.byteLength === length / 8;
};

export default [
  ["SHA-1", () => digest("SHA-1"), "a9993e364706816aba3e25717850c26c9cd0d89d"],
  ["SHA-256", () => digest("SHA-256"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"],
  ["SHA-384", () => digest({ name: "SHA-384" }), "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7"],
  ["SHA-512", async () => (await digest("sha-512")).slice(0, 32), "ddaf35a193617abacc417349ae204131"],
  ["digest of nothing", async () => (await digest("SHA-256", "")).slice(0, 16), "e3b0c44298fc1c14"],
  ["digest gives an ArrayBuffer", async () => (await subtle.digest("SHA-256", sixteen)) instanceof ArrayBuffer, true],
  ["unknown digest", () => subtle.digest("nothing", sixteen), throws("NotSupportedError", DOMException)],
  ["HMAC known value", async () => hex(await subtle.sign("HMAC", await raw(utf8("key"), hmac, ["sign"]), utf8("The quick brown fox jumps over the lazy dog"))), "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8"],
  ["HMAC verify", async () => { const k = await key(hmac, ["sign", "verify"]); const s = await subtle.sign("HMAC", k, utf8("x")); return [await subtle.verify("HMAC", k, s, utf8("x")), await subtle.verify("HMAC", k, s, utf8("y"))]; }, [true, false]],
  ["HMAC with a SHA-512 key", async () => (await subtle.sign("HMAC", await key({ name: "HMAC", hash: "SHA-512" }, ["sign"]), utf8("x"))).byteLength, 64],
  ["a key that may not sign", async () => subtle.sign("HMAC", await key(hmac, ["verify"]), utf8("x")), throws("InvalidAccessError", DOMException)],
  ["AES-GCM", () => sealed({ name: "AES-GCM", length: 256 }, gcm()), "secret"],
  ["AES-GCM known value", async () => hex(await subtle.encrypt(gcm(), await raw(sixteen, "AES-GCM", ["encrypt"]), new Uint8Array(0))), "58e2fccefa7e3061367f1d57a4e7455a"],
  ["AES-GCM with additional data", () => sealed({ name: "AES-GCM", length: 128 }, gcm(new Uint8Array(12), { additionalData: utf8("about"), tagLength: 96 })), "secret"],
  ["AES-GCM that was altered", async () => { const k = await key({ name: "AES-GCM", length: 256 }, ["encrypt", "decrypt"]); await subtle.decrypt(gcm(), k, flipped(await subtle.encrypt(gcm(), k, utf8("x")))); }, throws("OperationError", DOMException)],
  ["AES-CBC", () => sealed({ name: "AES-CBC", length: 256 }, { name: "AES-CBC", iv: sixteen }), "secret"],
  ["AES-CTR", () => sealed({ name: "AES-CTR", length: 128 }, { name: "AES-CTR", counter: sixteen, length: 64 }), "secret"],
  ["AES-KW", async () => { const wrap = await key({ name: "AES-KW", length: 256 }, ["wrapKey", "unwrapKey"]); const inner = await raw(sixteen, "AES-GCM", ["encrypt"]); const wrapped = await subtle.wrapKey("raw", inner, wrap, "AES-KW"); return hex(await subtle.exportKey("raw", await subtle.unwrapKey("raw", wrapped, wrap, "AES-KW", "AES-GCM", true, ["encrypt"]))); }, "0".repeat(32)],
  ["bad AES length", () => key({ name: "AES-GCM", length: 100 }, ["encrypt"]), throws("OperationError", DOMException)],
  ["ECDSA P-256", () => signed({ name: "ECDSA", namedCurve: "P-256" }, { name: "ECDSA", hash: "SHA-256" }), [true, false, false]],
  ["ECDSA P-384", () => signed({ name: "ECDSA", namedCurve: "P-384" }, { name: "ECDSA", hash: "SHA-384" }), [true, false, false]],
  ["Ed25519", () => signed({ name: "Ed25519" }, "Ed25519"), [true, false, false]],
  ["RSASSA-PKCS1-v1_5", () => signed(rsa("RSASSA-PKCS1-v1_5"), "RSASSA-PKCS1-v1_5"), [true, false, false]],
  ["RSA-PSS", () => signed(rsa("RSA-PSS"), { name: "RSA-PSS", saltLength: 32 }), [true, false, false]],
  ["RSA-OAEP", () => sealed(rsa("RSA-OAEP"), { name: "RSA-OAEP" }), "secret"],
  ["ECDH", () => agreed("ECDH", 256, { namedCurve: "P-256" }), true],
  ["X25519", () => agreed("X25519", 256), true],
  ["PBKDF2 known value", async () => hex(await subtle.deriveBits({ name: "PBKDF2", hash: "SHA-1", salt: utf8("salt"), iterations: 2 }, await raw(utf8("password"), "PBKDF2", ["deriveBits"], false), 160)), "ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957"],
  ["PBKDF2 as a key", async () => (await subtle.deriveKey({ name: "PBKDF2", hash: "SHA-256", salt: sixteen, iterations: 10 }, await raw(utf8("x"), "PBKDF2", ["deriveKey"], false), { name: "AES-GCM", length: 256 }, true, ["encrypt"])).algorithm.length, 256],
  ["HKDF known value", async () => hex(await subtle.deriveBits({ name: "HKDF", hash: "SHA-256", salt: new Uint8Array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]), info: new Uint8Array([0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9]) }, await raw(new Uint8Array(22).fill(0x0b), "HKDF", ["deriveBits"], false), 336)), "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"],
  ["jwk of an AES key", async () => { const jwk = await subtle.exportKey("jwk", await raw(sixteen, "AES-GCM", ["encrypt"])); return [jwk.kty, jwk.k, jwk.alg, jwk.ext]; }, ["oct", "AAAAAAAAAAAAAAAAAAAAAA", "A128GCM", true]],
  ["jwk of an EC key goes round", async () => { const { publicKey } = await key({ name: "ECDSA", namedCurve: "P-256" }, ["sign", "verify"]); const jwk = await subtle.exportKey("jwk", publicKey); const again = await subtle.importKey("jwk", jwk, { name: "ECDSA", namedCurve: "P-256" }, true, ["verify"]); return (await subtle.exportKey("jwk", again)).x === jwk.x; }, true],
  ["pkcs8 and spki", async () => { const { publicKey, privateKey } = await key({ name: "ECDSA", namedCurve: "P-256" }, ["sign", "verify"]); const p = await subtle.exportKey("pkcs8", privateKey); const s = await subtle.exportKey("spki", publicKey); const again = await subtle.importKey("spki", s, { name: "ECDSA", namedCurve: "P-256" }, true, ["verify"]); return [p instanceof ArrayBuffer, again.type]; }, [true, "public"]],
  ["properties of a key", async () => { const k = await key({ name: "AES-GCM", length: 128 }, ["encrypt", "decrypt"]); return [k instanceof CryptoKey, k.type, k.extractable, k.usages, k.algorithm.name]; }, [true, "secret", true, ["encrypt", "decrypt"], "AES-GCM"]],
  ["a key that stays inside", async () => subtle.exportKey("raw", await raw(sixteen, "AES-GCM", ["encrypt"], false)), throws("InvalidAccessError", DOMException)],
  ["a key of a bad length", () => raw(new Uint8Array(3), "AES-GCM", ["encrypt"]), throws("DataError", DOMException)],
  ["bad usages", () => key(hmac, ["encrypt"]), throws("SyntaxError", DOMException)],
  ["getRandomValues fills in place", () => { const a = new Uint8Array(64); const b = crypto.getRandomValues(a); return [a === b, a.some((byte) => byte !== 0)]; }, [true, true]],
  ["getRandomValues of other views", () => crypto.getRandomValues(new BigUint64Array(2)).length, 2],
  ["getRandomValues of floats", () => crypto.getRandomValues(new Float64Array(1)), throws("TypeMismatchError", DOMException)],
  ["getRandomValues of too much", () => crypto.getRandomValues(new Uint8Array(65537)), throws("QuotaExceededError", DOMException)],
  ["randomUUID", () => /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(crypto.randomUUID()), true],
  ["a thousand UUIDs differ", () => new Set(Array.from({ length: 1000 }, () => crypto.randomUUID())).size, 1000],
  ["crypto classes", () => [crypto instanceof Crypto, subtle instanceof SubtleCrypto], [true, true]],
]; // prettier-ignore
