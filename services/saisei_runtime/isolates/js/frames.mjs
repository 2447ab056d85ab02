/**
 * The thread's own line to the runtime: `u32 total, u32 header length, JSON header, raw body`, big endian, both lengths without the
 * first word. A header is built by hand from literals and `quote`, so no `toJSON` of a tenant can be met.
 *
 * Both directions run next to tenant code. Frames are made in memory of the line's own and written by one system call after the other
 * until the kernel has all of it: nothing of a frame waits in a queue that a busy loop could hold back (W-014), and no stream code of
 * Node's, which looks up properties that a tenant may have put on shared prototypes, takes part in the sending (W-051).
 */

import { Buffer } from "node:buffer";
import { createRequire } from "node:module";
import net from "node:net";
import { constants } from "node:os";
import {
  JSONParse,
  ReflectDefineProperty,
  SafeError,
  SafeUint8Array,
  TypedArrayBuffer,
  TypedArrayByteLength,
  TypedArraySet,
  uncurryThis,
} from "./intrinsics.mjs";

export const PROTOCOL_VERSION = 1;
const CHUNK = 65_536;
const { EAGAIN, EINTR } = constants.errno;
/** Memory for a frame is kept up to this size. */
const KEPT = 262_144;

const bufferByteLength = Buffer.byteLength;
const utf8Slice = uncurryThis(Buffer.prototype.utf8Slice);
const utf8Write = uncurryThis(Buffer.prototype.utf8Write);
const allocUnsafeSlow = Buffer.allocUnsafeSlow;
const copyWithin = uncurryThis(Object.getPrototypeOf(Uint8Array).prototype.copyWithin);
// `fs.writeSync` keeps the outcome in an object that inherits from Object.prototype; this is what it calls.
const { writeBuffer } = createRequire(import.meta.url)("internal/test/binding").internalBinding("fs");
const { wait: atomicsWait } = Atomics;
const never = new Int32Array(new SharedArrayBuffer(4));
const now = performance.now.bind(performance);

/** Bytes whose length is their own property: the getter that they would inherit can be replaced. */
function memory(/** @type {number} */ size) {
  const bytes = allocUnsafeSlow(size);
  const buffer = TypedArrayBuffer(bytes);
  const own = /** @type {any} */ ({ __proto__: null, value: size, writable: false, enumerable: false, configurable: false });
  ReflectDefineProperty(bytes, "length", own);
  ReflectDefineProperty(bytes, "byteLength", own);
  return { bytes, buffer, size };
}

function putU32(/** @type {Uint8Array} */ bytes, /** @type {number} */ value, /** @type {number} */ at) {
  bytes[at] = value >>> 24;
  bytes[at + 1] = value >>> 16;
  bytes[at + 2] = value >>> 8;
  bytes[at + 3] = value;
}

const u32 = (/** @type {any} */ bytes, /** @type {number} */ at) =>
  ((bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3]) >>> 0;

/** One system call. @returns {number} bytes taken, 0 when the line is full */
function write(/** @type {number} */ fd, /** @type {Uint8Array} */ bytes, /** @type {number} */ from, /** @type {number} */ count) {
  const problem = /** @type {any} */ ({ __proto__: null });
  const taken = writeBuffer(fd, bytes, from, count, null, undefined, problem);
  if (problem.errno === undefined) return taken;
  if (problem.errno === -EAGAIN || problem.errno === -EINTR) return 0;
  throw new SafeError("the line is gone");
}

/** A part of a received frame: valid only until the handler returns. */
export class Body {
  /** @param {Buffer} bytes @param {ArrayBufferLike} buffer of `bytes` @param {number} start @param {number} end */
  constructor(bytes, buffer, start, end) {
    this.bytes = bytes;
    this.buffer = buffer;
    this.start = start;
    this.end = end;
  }
  /** @returns {number} */
  size() {
    return this.end - this.start;
  }
  /** @returns {string} */
  text(from = 0, length = this.end - this.start - from) {
    return utf8Slice(this.bytes, this.start + from, this.start + from + length);
  }
  /** A copy with an ArrayBuffer of its own. @returns {Uint8Array<ArrayBuffer>} */
  copy(from = 0, length = this.end - this.start - from) {
    const out = new SafeUint8Array(length);
    TypedArraySet(out, new SafeUint8Array(this.buffer, this.start + from, length));
    return out;
  }
}
// The tenant cannot reach this class, but it inherits from Object.prototype: keep lookups of its methods on itself.
Object.setPrototypeOf(Body.prototype, null);

export class Link {
  /**
   * @param {net.Socket | import("node:net").NetConnectOpts} target an open socket, or where to connect
   * @param {(header: any, body: Body) => void} onFrame
   * @param {() => void} onClose
   * @param {{ patience?: number, onOpen?: () => void }} [options] `patience`: how long, in ms, the other side may take nothing
   */
  constructor(target, onFrame, onClose, { patience = Infinity, onOpen = () => {} } = {}) {
    this.onFrame = onFrame;
    this.onClose = onClose;
    this.patience = patience;
    this.held = memory(CHUNK * 2);
    this.filled = 0;
    this.out = memory(CHUNK);
    this.sending = false;
    this.fd = -1;
    const inbox = memory(CHUNK);
    const opened = () => {
      this.fd = /** @type {any} */ (this.socket)._handle.fd;
      onOpen();
    };
    if (target instanceof net.Socket) {
      this.socket = target;
      target.on("data", (chunk) => this.#receive(chunk.buffer, chunk.byteOffset, chunk.length));
      opened();
    } else {
      const take = (/** @type {number} */ count) => {
        this.#receive(inbox.buffer, 0, count);
        return true;
      };
      this.socket = net.connect(/** @type {any} */ ({ ...target, onread: { buffer: inbox.bytes, callback: take } }));
      this.socket.on("connect", opened);
    }
    this.socket.on("error", onClose);
    this.socket.on("close", onClose);
  }

  /** Sends a frame: the kernel has all of it when this returns. A line that cannot be written to any more is closed. */
  send(/** @type {string} */ header, /** @type {string | Uint8Array | null} */ body = null) {
    // A tenant's code that ran in the middle of a frame would tear it apart.
    if (this.sending) return this.onClose();
    this.sending = true;
    try {
      const headerLength = bufferByteLength(header);
      const bodyLength = body === null ? 0 : typeof body === "string" ? bufferByteLength(body) : TypedArrayByteLength(body);
      const size = 8 + headerLength + bodyLength;
      if (size > this.out.size) this.out = memory(size * 2);
      const { bytes } = this.out;
      putU32(bytes, size - 4, 0);
      putU32(bytes, headerLength, 4);
      utf8Write(bytes, header, 8, headerLength);
      if (typeof body === "string") utf8Write(bytes, body, 8 + headerLength, bodyLength);
      else if (body !== null) TypedArraySet(bytes, body, 8 + headerLength);
      this.#flush(bytes, size);
      if (this.out.size > KEPT) this.out = memory(CHUNK);
    } catch {
      this.onClose();
    }
    this.sending = false;
    return undefined;
  }

  #flush(/** @type {Uint8Array} */ bytes, /** @type {number} */ size) {
    let at = 0;
    let since = 0;
    while (at < size) {
      const taken = write(this.fd, bytes, at, size - at);
      at += taken;
      if (taken > 0) since = 0;
      else {
        if (since === 0) since = now();
        else if (now() - since > this.patience) throw new SafeError("the line is stuck");
        atomicsWait(never, 0, 0, 1);
      }
    }
  }

  #receive(/** @type {ArrayBufferLike} */ chunk, /** @type {number} */ offset, /** @type {number} */ count) {
    if (this.filled + count > this.held.size) {
      const wider = memory((this.filled + count) * 2);
      TypedArraySet(wider.bytes, new SafeUint8Array(this.held.buffer, 0, this.filled));
      this.held = wider;
    }
    const { bytes, buffer } = this.held;
    TypedArraySet(bytes, new SafeUint8Array(chunk, offset, count), this.filled);
    this.filled += count;
    let at = 0;
    while (this.filled - at >= 8) {
      const end = at + 4 + u32(bytes, at);
      if (end > this.filled) break;
      const bodyStart = at + 8 + u32(bytes, at + 4);
      const header = JSONParse(utf8Slice(bytes, at + 8, bodyStart));
      this.onFrame(header, new Body(bytes, buffer, bodyStart, end));
      at = end;
    }
    if (at > 0) {
      copyWithin(bytes, 0, at, this.filled);
      this.filled -= at;
      if (this.filled === 0 && this.held.size > CHUNK * 16) this.held = memory(CHUNK * 2);
    }
  }
}
Object.setPrototypeOf(Link.prototype, null);
