/**
 * `structuredClone(value, { transfer: [stream] })` without the ports of Node's own, whose messages nobody could count (W-014): a stream
 * stays in its realm, is locked, and feeds or is fed by the one that takes its place. Chunks are cloned on their way, as the Streams
 * standard has it.
 *
 * The engine asks a stream for its members under symbols of Node's. They are there only while a clone is under way.
 */

import { createRequire } from "node:module";
import {
  ArrayPush,
  ObjectFreeze,
  ObjectSetPrototypeOf,
  PromiseThen,
  ReflectApply,
  ReflectDeleteProperty,
  SafeTypeError,
  getterOf,
  newList,
  uncurryThis,
} from "./intrinsics.mjs";
import { taint } from "./quiescence.mjs";

const require = createRequire(import.meta.url);
const { kTransfer, kDeserialize } = require("internal/worker/js_transferable");
const { setupReadableStreamDefaultControllerFromSource: setupReadable } = require("internal/webstreams/readablestream");
const { setupWritableStreamDefaultControllerFromSink: setupWritable } = require("internal/webstreams/writablestream");

const getReader = uncurryThis(ReadableStream.prototype.getReader);
const read = uncurryThis(ReadableStreamDefaultReader.prototype.read);
const cancelReader = uncurryThis(ReadableStreamDefaultReader.prototype.cancel);
const enqueue = uncurryThis(ReadableStreamDefaultController.prototype.enqueue);
const closeReadable = uncurryThis(ReadableStreamDefaultController.prototype.close);
const getWriter = uncurryThis(WritableStream.prototype.getWriter);
const { write, close, abort } = WritableStreamDefaultWriter.prototype;
const readyOf = getterOf(WritableStreamDefaultWriter.prototype, "ready");
const closedOf = getterOf(WritableStreamDefaultWriter.prototype, "closed");
const failWritable = uncurryThis(WritableStreamDefaultController.prototype.error);
const readableLocked = getterOf(ReadableStream.prototype, "locked");
const writableLocked = getterOf(WritableStream.prototype, "locked");
const readableOf = getterOf(TransformStream.prototype, "readable");
const writableOf = getterOf(TransformStream.prototype, "writable");
const Exception = DOMException;
const clone = structuredClone;
const TheReadable = ReadableStream;
const TheWritable = WritableStream;
const TheTransform = TransformStream;
/** Where Node keeps what a TransformStream consists of. */
const kState = /** @type {symbol} */ (
  Object.getOwnPropertySymbols(new TransformStream()).find((key) => key.description === "kState")
);

const one = () => 1;
const nothing = () => {};

/** The streams that the clone under way takes over, or null. @type {any[] | null} */
let taken = null;

/** Feeds `target`, a bare stream, from `origin`. */
function feed(/** @type {ReadableStream} */ target, /** @type {ReadableStream} */ origin) {
  const reader = getReader(origin);
  const source = {
    __proto__: null,
    async pull(/** @type {any} */ controller) {
      const { done, value } = await read(reader);
      if (done) return closeReadable(controller);
      let copy;
      try {
        copy = clone(value);
      } catch (error) {
        PromiseThen(cancelReader(reader, error), nothing, nothing);
        throw error;
      }
      return enqueue(controller, copy);
    },
    cancel: (/** @type {unknown} */ reason) => cancelReader(reader, reason),
  };
  setupReadable(target, source, 0, one);
}

/** Lets what is written to `target`, a bare stream, be written to `destination`. */
function drain(/** @type {WritableStream} */ target, /** @type {WritableStream} */ destination) {
  const writer = getWriter(destination);
  const sink = {
    __proto__: null,
    start(/** @type {any} */ controller) {
      PromiseThen(closedOf(writer), nothing, (/** @type {unknown} */ error) => failWritable(controller, error));
    },
    async write(/** @type {unknown} */ chunk) {
      const copy = clone(chunk);
      await readyOf(writer);
      await ReflectApply(write, writer, [copy]);
    },
    close: () => ReflectApply(close, writer, []),
    abort: (/** @type {unknown} */ reason) => ReflectApply(abort, writer, [reason]),
  };
  setupWritable(target, sink, 1, one);
}

const refuse = (/** @type {string} */ what) => {
  throw new Exception(`a locked ${what} cannot be transferred`, "DataCloneError");
};

/** For each class: is one of it free, and how does a bare object become the one that takes its place? */
const KINDS = [
  {
    Class: TheReadable,
    info: "internal/webstreams/readablestream:TransferredReadableStream",
    check: (/** @type {any} */ stream) => readableLocked(stream) && refuse("ReadableStream"),
    replace: feed,
  },
  {
    Class: TheWritable,
    info: "internal/webstreams/writablestream:TransferredWritableStream",
    check: (/** @type {any} */ stream) => writableLocked(stream) && refuse("WritableStream"),
    replace: drain,
  },
  {
    Class: TheTransform,
    info: "internal/webstreams/transformstream:TransferredTransformStream",
    check: (/** @type {any} */ stream) => {
      if (readableLocked(readableOf(stream))) refuse("ReadableStream");
      if (writableLocked(writableOf(stream))) refuse("WritableStream");
    },
    replace: (/** @type {any} */ target, /** @type {any} */ origin) => {
      const parts = { readable: readableOf(origin), writable: writableOf(origin) };
      const copies = transferAll(parts);
      target[kState] = { readable: copies.readable, writable: copies.writable };
    },
  },
];

/** Both halves of a TransformStream. */
function transferAll(/** @type {{ readable: any, writable: any }} */ parts) {
  return during(() => clone(parts, /** @type {any} */ ({ __proto__: null, transfer: [parts.readable, parts.writable] })));
}

/** @template T @param {() => T} work a clone that may take streams over @returns {T} */
function during(work) {
  const outer = taken;
  taken = newList();
  try {
    return work();
  } finally {
    taken = outer;
  }
}

function installKind(/** @type {(typeof KINDS)[number]} */ { Class, info, check, replace }) {
  const { prototype } = Class;
  const transfer = {
    /** @this {any} */
    transfer() {
      check(this); // throws for what is no such stream
      if (taken === null) throw new SafeTypeError("no clone is under way");
      ArrayPush(taken, { stream: this, Class });
      return { data: { number: taken.length - 1 }, deserializeInfo: info };
    },
  }.transfer;
  const restore = {
    /** @this {any} */
    restore(/** @type {any} */ data) {
      const number = data?.number;
      const entry = taken !== null && typeof number === "number" && number >= 0 && number < taken.length ? taken[number] : null;
      if (entry === null || taken === null || entry.Class !== Class) throw new SafeTypeError("the stream was not transferred");
      taken[number] = { stream: null, Class: null };
      check(entry.stream);
      ReflectDeleteProperty(this, "constructor");
      ObjectSetPrototypeOf(this, prototype);
      replace(this, entry.stream);
    },
  }.restore;
  ObjectFreeze(transfer);
  ObjectFreeze(restore);
  for (const [key, value] of /** @type {[symbol, Function][]} */ ([[kTransfer, transfer], [kDeserialize, restore]])) {
    const get = () => (taken === null ? undefined : value);
    Object.defineProperty(prototype, key, { get, set: undefined, enumerable: false, configurable: false });
  }
}

/** Puts the members and `structuredClone` in place. Runs once, after Node's own members were taken away. */
export function installTransfers() {
  for (const kind of KINDS) installKind(kind);
  const wrapper = {
    structuredClone(/** @type {any} */ value, /** @type {any} */ options = undefined) {
      if (options === undefined) return ReflectApply(clone, undefined, arguments);
      taint("structuredClone with options");
      return during(() => clone(value, options));
    },
  }.structuredClone;
  Object.defineProperty(wrapper, "length", { value: 1, configurable: true });
  Object.defineProperty(globalThis, "structuredClone", { value: wrapper, writable: true, enumerable: false, configurable: true });
}
