/**
 * `text`, `json`, `arrayBuffer`, `bytes`, `blob` and `formData` of Request and Response, on streams alone, and their constructors.
 *
 * Node's own ones look up the global `Buffer` when they are called, and tenants have none: whoever reaches its prototype reads and alters
 * the frames of every later context. Semantics are those of the Fetch standard's "consume body"; the body itself (bodyUsed, locks, tee)
 * stays Node's.
 */

import { Buffer } from "node:buffer";
import {
  ArrayPush,
  ObjectFreeze,
  ObjectSetPrototypeOf,
  ReflectApply,
  ReflectConstruct,
  ReflectDefineProperty,
  SafeTypeError,
  SafeUint8Array,
  TypedArrayBuffer,
  TypedArrayByteLength,
  TypedArrayByteOffset,
  TypedArraySet,
  TypedArrayTag,
  newList,
} from "./intrinsics.mjs";

const own = (/** @type {object} */ owner, /** @type {PropertyKey} */ key) =>
  /** @type {any} */ (Object.getOwnPropertyDescriptor(owner, key));
const getReader = ReadableStream.prototype.getReader;
const lockedOf = own(ReadableStream.prototype, "locked").get;
const { read } = ReadableStreamDefaultReader.prototype;
const decoder = new TextDecoder("utf-8");
const { decode } = TextDecoder.prototype;
const headersGet = Headers.prototype.get;
const { parse } = JSON;
const TheBlob = Blob;
const TheFile = File;
const TheFormData = FormData;
const { append } = FormData.prototype;
const TheParams = URLSearchParams;
const paramsForEach = URLSearchParams.prototype.forEach;

const CR = 13;
const LF = 10;
const DASH = 45;

const textOf = (/** @type {Uint8Array} */ bytes) => ReflectApply(decode, decoder, [bytes]);

/** Everything that a stream gives, as one Uint8Array. */
async function drain(/** @type {ReadableStream<Uint8Array>} */ stream) {
  const reader = ReflectApply(getReader, stream, []);
  /** @type {Uint8Array[]} */
  const chunks = newList();
  let total = 0;
  for (;;) {
    const { done, value } = await ReflectApply(read, reader, []);
    if (done) break;
    if (TypedArrayTag(value) !== "Uint8Array") throw new SafeTypeError("a body stream may only hold Uint8Array chunks");
    ArrayPush(chunks, value);
    total += TypedArrayByteLength(value);
  }
  const whole = new SafeUint8Array(total);
  let at = 0;
  for (let index = 0; index < chunks.length; index++) {
    TypedArraySet(whole, chunks[index], at);
    at += TypedArrayByteLength(chunks[index]);
  }
  return whole;
}

function find(/** @type {Uint8Array} */ bytes, /** @type {Uint8Array} */ wanted, /** @type {number} */ from) {
  outer: for (let at = from; at + wanted.length <= bytes.length; at++) {
    for (let index = 0; index < wanted.length; index++) if (bytes[at + index] !== wanted[index]) continue outer;
    return at;
  }
  return -1;
}

const malformed = () => new SafeTypeError("the body is not well-formed multipart/form-data");
const unescaped = (/** @type {string} */ name) =>
  name.replaceAll("%0A", "\n").replaceAll("%0D", "\r").replaceAll("%22", '"');

/** RFC 7578 as the Fetch standard reads it: parts with a name, files with a filename, no transfer encodings. */
function multipart(/** @type {Uint8Array} */ bytes, /** @type {string} */ boundary) {
  const delimiter = ReflectApply(encode, encoder, [`--${boundary}`]);
  const blank = new SafeUint8Array([CR, LF, CR, LF]);
  const form = new TheFormData();
  let at = find(bytes, delimiter, 0);
  if (at < 0) throw malformed();
  const inner = ReflectApply(encode, encoder, [`\r\n--${boundary}`]);
  at += delimiter.length;
  for (;;) {
    if (bytes[at] === DASH && bytes[at + 1] === DASH) return form;
    if (bytes[at] !== CR || bytes[at + 1] !== LF) throw malformed();
    const headersEnd = find(bytes, blank, at);
    if (headersEnd < 0) throw malformed();
    const headers = textOf(bytes.subarray(at + 2, headersEnd));
    const bodyStart = headersEnd + blank.length;
    const bodyEnd = find(bytes, inner, bodyStart - 2);
    if (bodyEnd < 0) throw malformed();
    const name = /^content-disposition:\s*form-data\b[^\r\n]*?;\s*name="([^"\r\n]*)"/im.exec(headers);
    if (name === null) throw malformed();
    const filename = /^content-disposition:\s*form-data\b[^\r\n]*?;\s*filename="([^"\r\n]*)"/im.exec(headers);
    const content = bytes.slice(bodyStart, Math.max(bodyStart, bodyEnd));
    const key = unescaped(/** @type {string} */ (name[1]));
    if (filename === null) {
      ReflectApply(append, form, [key, textOf(content)]);
    } else {
      const type = /^content-type:\s*([^\r\n]+)/im.exec(headers);
      const file = new TheFile([content], unescaped(/** @type {string} */ (filename[1])), { type: type?.[1] ?? "text/plain" });
      ReflectApply(append, form, [key, file]);
    }
    at = bodyEnd + inner.length;
  }
}

function formData(/** @type {Uint8Array} */ bytes, /** @type {string} */ type) {
  const boundary = /^multipart\/form-data\b.*?;\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))/i.exec(type);
  if (boundary !== null) return multipart(bytes, /** @type {string} */ (boundary[1] ?? boundary[2]));
  if (!/^application\/x-www-form-urlencoded\s*(?:;|$)/i.test(type)) {
    throw new SafeTypeError("the body is neither multipart/form-data nor application/x-www-form-urlencoded");
  }
  const form = new TheFormData();
  const params = new TheParams(textOf(bytes));
  ReflectApply(paramsForEach, params, [
    (/** @type {string} */ value, /** @type {string} */ key) => ReflectApply(append, form, [key, value]),
  ]);
  return form;
}

const encoder = new TextEncoder();
const { encode } = TextEncoder.prototype;
const TheStream = ReadableStream;
const { enqueue, close } = ReadableByteStreamController.prototype;
const requestOf = own(ReadableByteStreamController.prototype, "byobRequest").get;
const { respond } = ReadableStreamBYOBRequest.prototype;
const bufferOf = own(ArrayBuffer.prototype, "byteLength").get;
const dataViewBuffer = own(DataView.prototype, "buffer").get;
const dataViewOffset = own(DataView.prototype, "byteOffset").get;
const dataViewLength = own(DataView.prototype, "byteLength").get;
const { asyncIterator } = Symbol;

/** A copy of what one step of an async iterable gave: text as UTF-8, or bytes. */
function bytesOf(/** @type {unknown} */ value) {
  if (typeof value === "string") return ReflectApply(encode, encoder, [value]);
  if (TypedArrayTag(value) === "Uint8Array") return new SafeUint8Array(/** @type {Uint8Array} */ (value));
  if (TypedArrayTag(value) !== undefined) {
    const view = /** @type {Uint8Array} */ (value);
    return new SafeUint8Array(new SafeUint8Array(TypedArrayBuffer(view), TypedArrayByteOffset(view), TypedArrayByteLength(view)));
  }
  try {
    ReflectApply(bufferOf, value, []); // throws for all but an ArrayBuffer
    return new SafeUint8Array(new SafeUint8Array(/** @type {ArrayBuffer} */ (value)));
  } catch {
    // not one
  }
  try {
    const buffer = ReflectApply(dataViewBuffer, value, []);
    const from = ReflectApply(dataViewOffset, value, []);
    return new SafeUint8Array(new SafeUint8Array(buffer, from, ReflectApply(dataViewLength, value, [])));
  } catch {
    throw new SafeTypeError("a body's async iterable may only give strings, buffers and views of them");
  }
}

/** The stream of an async iterable, read step by step as it is wanted. */
function streamOf(/** @type {any} */ iterable, /** @type {Function} */ start) {
  const iterator = ReflectApply(start, iterable, []);
  const { next } = iterator;
  const source = /** @type {any} */ ({
    __proto__: null,
    type: "bytes",
    async pull(/** @type {any} */ controller) {
      for (;;) {
        const step = await ReflectApply(next, iterator, []);
        if (step.done) {
          ReflectApply(close, controller, []);
          const request = ReflectApply(requestOf, controller, []);
          if (request !== null) ReflectApply(respond, request, [0]);
          return;
        }
        const bytes = bytesOf(step.value);
        if (TypedArrayByteLength(bytes) > 0) {
          ReflectApply(enqueue, controller, [bytes]);
          return;
        }
      }
    },
    async cancel(/** @type {unknown} */ reason) {
      const end = iterator.return;
      if (typeof end === "function") await ReflectApply(end, iterator, [reason]);
    },
  });
  return new TheStream(source, /** @type {any} */ ({ __proto__: null }));
}

const isStream = (/** @type {object} */ value) => {
  try {
    ReflectApply(lockedOf, value, []);
    return true;
  } catch {
    return false;
  }
};

/** A body that is an async iterable as the stream that it is sent as; any other body as it is. */
function bodyFrom(/** @type {unknown} */ body) {
  if (typeof body !== "object" || body === null || isStream(body)) return body;
  const start = /** @type {any} */ (body)[asyncIterator];
  return typeof start === "function" ? streamOf(body, start) : body;
}

/** The arguments of a constructor with the body that Node understands: its own way with async iterables needs the global `Buffer`. */
function withBody(/** @type {string} */ name, /** @type {any[]} */ args) {
  if (name === "Response") {
    if (args.length > 0) args[0] = bodyFrom(args[0]);
    return args;
  }
  const init = args[1];
  if (init === null || (typeof init !== "object" && typeof init !== "function")) return args;
  const { body } = init;
  const made = bodyFrom(body);
  if (made === body) return args;
  const value = /** @type {any} */ ({ __proto__: null, value: made, writable: true, enumerable: true, configurable: true });
  args[1] = ObjectSetPrototypeOf({}, init);
  ReflectDefineProperty(args[1], "body", value);
  return args;
}

/** How many constructors of Node's are at work. */
let working = 0;
/** All that these take from `Buffer`. It is harmless in anybody's hands. */
const { byteLength } = Buffer;
const counter = ObjectFreeze({ __proto__: null, byteLength: ObjectFreeze((/** @type {string} */ text) => byteLength(`${text}`)) });

/** While a Request or Response is made, the global `Buffer` can count the bytes of a string; else it is undefined, and whoever wants one defines it. */
function lendCounter() {
  Object.defineProperty(Object.getPrototypeOf(globalThis), "Buffer", {
    get: () => (working > 0 ? counter : undefined),
    set(value) {
      const own = /** @type {any} */ ({ __proto__: null, value, writable: true, enumerable: true, configurable: true });
      ReflectDefineProperty(globalThis, "Buffer", own);
    },
    enumerable: false,
    configurable: false,
  });
  for (const name of ["Request", "Response"]) {
    const original = /** @type {any} */ (globalThis)[name];
    const handler = {
      __proto__: null,
      construct(/** @type {any} */ target, /** @type {any[]} */ args, /** @type {Function} */ newTarget) {
        const given = withBody(name, args);
        working++;
        try {
          return ReflectConstruct(target, given, newTarget);
        } finally {
          working--;
        }
      },
    };
    const wrapper = new Proxy(original, handler);
    Object.defineProperty(original.prototype, "constructor", { value: wrapper, writable: true, configurable: true });
    Object.defineProperty(globalThis, name, { value: wrapper, writable: true, configurable: true });
  }
}

// At once: the host's own code keeps the classes that it finds when it is loaded.
lendCounter();

/** Puts the methods on Request and Response. Runs once, before the realm is captured as pristine. */
export function installBodies() {
  for (const owner of [Request, Response]) {
    const bodyOf = own(owner.prototype, "body").get;
    const usedOf = own(owner.prototype, "bodyUsed").get;
    const headersOf = own(owner.prototype, "headers").get;

    /** @type {(self: any, convert: (bytes: Uint8Array, type: string) => unknown) => Promise<unknown>} */
    const consume = async (self, convert) => {
      // A foreign `this` throws in the getters, as it should.
      const type = ReflectApply(headersGet, ReflectApply(headersOf, self, []), ["content-type"]) ?? "";
      const stream = ReflectApply(bodyOf, self, []);
      if (stream === null) return convert(new SafeUint8Array(0), type);
      if (ReflectApply(usedOf, self, []) || ReflectApply(lockedOf, stream, [])) {
        throw new SafeTypeError("Body is unusable: Body has already been read");
      }
      return convert(await drain(stream), type);
    };

    const methods = {
      text: (/** @type {any} */ self) => consume(self, textOf),
      json: (/** @type {any} */ self) => consume(self, (bytes) => parse(textOf(bytes))),
      bytes: (/** @type {any} */ self) => consume(self, (bytes) => bytes),
      arrayBuffer: (/** @type {any} */ self) => consume(self, TypedArrayBuffer),
      blob: (/** @type {any} */ self) => consume(self, (bytes, type) => new TheBlob([/** @type {Uint8Array<ArrayBuffer>} */ (bytes)], { type })),
      formData: (/** @type {any} */ self) => consume(self, formData),
    };
    for (const [name, method] of Object.entries(methods)) {
      const found = Object.getOwnPropertyDescriptor(owner.prototype, name);
      if (found === undefined) continue;
      const shown = {
        [name]() {
          return method(this);
        },
      }[name];
      Object.defineProperty(owner.prototype, name, { ...found, value: shown });
    }
  }
}
