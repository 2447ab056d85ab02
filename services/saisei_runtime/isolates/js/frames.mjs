/**
 * The thread's own line to the runtime: `u32 total, u32 header length, JSON header, raw body`, big endian, both lengths without the
 * first word. A header is built by hand from literals and `quote`, so no `toJSON` of a tenant can be met.
 */

import { Buffer } from "node:buffer";
import net from "node:net";
import { JSONParse, TypedArraySet, uncurryThis } from "./intrinsics.mjs";

export const PROTOCOL_VERSION = 1;
const CHUNK = 65_536;

const bufferByteLength = Buffer.byteLength;
const allocUnsafe = Buffer.allocUnsafe;
const allocUnsafeSlow = Buffer.allocUnsafeSlow;
const utf8Slice = uncurryThis(Buffer.prototype.utf8Slice);
const utf8Write = uncurryThis(Buffer.prototype.utf8Write);
const writeU32 = uncurryThis(Buffer.prototype.writeUInt32BE);
const readU32 = uncurryThis(Buffer.prototype.readUInt32BE);
const copyWithin = uncurryThis(Uint8Array.prototype.copyWithin);
const subarray = uncurryThis(Buffer.prototype.subarray);
const socketWrite = uncurryThis(net.Socket.prototype.write);

/** A part of a received frame: valid only until the handler returns. */
export class Body {
  /** @param {Buffer} buffer @param {number} start @param {number} end */
  constructor(buffer, start, end) {
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
    return utf8Slice(this.buffer, this.start + from, this.start + from + length);
  }
  /** A copy with an ArrayBuffer of its own. @returns {Uint8Array<ArrayBuffer>} */
  copy(from = 0, length = this.end - this.start - from) {
    const out = new Uint8Array(length);
    TypedArraySet(out, subarray(this.buffer, this.start + from, this.start + from + length));
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
   */
  constructor(target, onFrame, onClose) {
    this.onFrame = onFrame;
    /** @type {Buffer} */
    this.held = allocUnsafeSlow(CHUNK * 2);
    this.filled = 0;
    const take = (/** @type {number} */ count, /** @type {Uint8Array} */ chunk) => {
      this.#receive(count, chunk);
      return true;
    };
    if (target instanceof net.Socket) {
      this.socket = target;
      target.on("data", (chunk) => take(chunk.length, chunk));
    } else {
      this.socket = net.connect(
        /** @type {any} */ ({ ...target, onread: { buffer: allocUnsafeSlow(CHUNK), callback: take } }),
      );
    }
    this.socket.on("error", onClose);
    this.socket.on("close", onClose);
  }

  /** Sends a frame. The kernel has it when this returns, unless the line is congested: a busy loop afterwards holds nothing back. */
  send(/** @type {string} */ header, /** @type {string | Uint8Array | null} */ body = null) {
    const headerLength = bufferByteLength(header);
    const bodyLength = body === null ? 0 : bufferByteLength(body);
    const frame = allocUnsafe(8 + headerLength + bodyLength);
    writeU32(frame, 4 + headerLength + bodyLength, 0);
    writeU32(frame, headerLength, 4);
    utf8Write(frame, header, 8, headerLength);
    if (typeof body === "string") utf8Write(frame, body, 8 + headerLength, bodyLength);
    else if (body !== null) TypedArraySet(frame, body, 8 + headerLength);
    socketWrite(this.socket, frame);
  }

  #receive(/** @type {number} */ count, /** @type {Uint8Array} */ chunk) {
    if (this.filled + count > this.held.length) {
      const wider = allocUnsafeSlow((this.filled + count) * 2);
      TypedArraySet(wider, subarray(this.held, 0, this.filled));
      this.held = wider;
    }
    TypedArraySet(this.held, subarray(chunk, 0, count), this.filled);
    this.filled += count;
    let at = 0;
    while (this.filled - at >= 8) {
      const total = readU32(this.held, at);
      const end = at + 4 + total;
      if (end > this.filled) break;
      const bodyStart = at + 8 + readU32(this.held, at + 4);
      const header = JSONParse(utf8Slice(this.held, at + 8, bodyStart));
      this.onFrame(header, new Body(this.held, bodyStart, end));
      at = end;
    }
    if (at > 0) {
      copyWithin(this.held, 0, at, this.filled);
      this.filled -= at;
      if (this.filled === 0 && this.held.length > CHUNK * 16) this.held = allocUnsafeSlow(CHUNK * 2);
    }
  }
}
