/** Bodies as streams with credit (MW-23): nothing is gathered, and a slow reader holds its writer back. */

import {
  ArrayPush,
  ArrayShift,
  PromiseThen,
  SafePromise,
  SafeTypeError,
  SafeUint8Array,
  TypedArrayBuffer,
  TypedArrayByteLength,
  TypedArrayByteOffset,
  TypedArrayTag,
  getterOf,
  namedError,
  newList,
  uncurryThis,
} from "./intrinsics.mjs";
import { needStack } from "./stack.mjs";

/** Bytes that may be on their way in one direction before the other side has taken any; the runtime uses the same number. */
export const WINDOW = 262_144;
const CHUNK = 65_536;

const Stream = ReadableStream;
const getReader = uncurryThis(ReadableStream.prototype.getReader);
const read = uncurryThis(ReadableStreamDefaultReader.prototype.read);
const cancel = uncurryThis(ReadableStreamDefaultReader.prototype.cancel);
const enqueue = uncurryThis(ReadableByteStreamController.prototype.enqueue);
const closeStream = uncurryThis(ReadableByteStreamController.prototype.close);
const failStream = uncurryThis(ReadableByteStreamController.prototype.error);
const byobRequest = getterOf(ReadableByteStreamController.prototype, "byobRequest");
const respond = uncurryThis(ReadableStreamBYOBRequest.prototype.respond);

/** A body that arrives from the runtime and that the tenant reads. */
export class IncomingBody {
  /**
   * @param {(bytes: number) => void} onTaken the tenant took so many bytes: the runtime may send as many more
   * @param {() => void} onDropped the tenant will not read the rest
   */
  constructor(onTaken, onDropped) {
    this.onTaken = onTaken;
    /** @type {Uint8Array[]} */
    this.chunks = newList();
    this.ended = false;
    /** Why the body broke off. @type {unknown} */
    this.error = null;
    /** Set while the stream waits for a chunk. @type {(() => void) | null} */
    this.pulling = null;
    /** @type {any} */
    this.sink = null;
    const options = /** @type {any} */ ({ __proto__: null });
    this.stream = new Stream(/** @type {any} */ ({
      __proto__: null,
      type: "bytes",
      start: (/** @type {any} */ sink) => {
        this.sink = sink;
      },
      pull: () => {
        needStack();
        return new SafePromise((resolve) => {
          this.pulling = () => resolve(undefined);
          this.#feed();
        });
      },
      cancel: () => {
        needStack();
        this.ended = true;
        this.chunks = newList();
        onDropped();
      },
    }), options); // prettier-ignore
  }

  /** @param {Uint8Array<ArrayBuffer>} chunk with a buffer of its own */
  push(chunk) {
    if (this.ended || TypedArrayByteLength(chunk) === 0) return;
    ArrayPush(this.chunks, chunk);
    this.#feed();
  }

  /** @param {unknown} error null when the body is complete */
  end(error) {
    if (this.ended) return;
    this.ended = true;
    this.error = error;
    this.#feed();
  }

  #feed() {
    const { pulling, sink } = this;
    if (pulling === null) return;
    if (this.chunks.length > 0) {
      const chunk = /** @type {Uint8Array} */ (ArrayShift(this.chunks));
      this.pulling = null;
      this.onTaken(TypedArrayByteLength(chunk));
      enqueue(sink, chunk);
      pulling();
    } else if (this.ended) {
      this.pulling = null;
      if (this.error !== null) failStream(sink, this.error);
      else {
        closeStream(sink);
        const pendingRead = byobRequest(sink);
        if (pendingRead !== null) respond(pendingRead, 0);
      }
      pulling();
    }
  }
}
Object.setPrototypeOf(IncomingBody.prototype, null);

const nothing = () => {};

/** A body that the tenant made and that goes to the runtime, as far as there is credit. */
export class OutgoingBody {
  /**
   * @param {ReadableStream} stream unlocked; throws when it is not
   * @param {(chunk: Uint8Array) => void} send
   * @param {(error: unknown) => void} onEnd once: null, or why the body broke off; not after `stop`
   */
  constructor(stream, send, onEnd) {
    this.send = send;
    this.onEnd = onEnd;
    this.reader = getReader(stream);
    this.credit = WINDOW;
    this.reading = false;
    this.over = false;
    /** What is left of the chunk that was read last. @type {Uint8Array | null} */
    this.rest = null;
  }

  grant(/** @type {number} */ bytes) {
    this.credit += bytes;
    this.pump();
  }

  /** Reads no further and tells the stream so. */
  stop(/** @type {unknown} */ reason) {
    if (this.over) return;
    this.over = true;
    PromiseThen(cancel(this.reader, reason), nothing, nothing);
  }

  /** Reads no further and runs nothing of the tenant's. */
  abandon() {
    this.over = true;
  }

  /** Sends as much of the bytes as there is credit for. @param {Uint8Array} bytes @returns {Uint8Array | null} the rest */
  #sendOf(bytes) {
    let rest = bytes;
    while (this.credit > 0) {
      const size = TypedArrayByteLength(rest);
      const part = size > CHUNK ? CHUNK : size;
      const at = TypedArrayByteOffset(rest);
      this.credit -= part;
      this.send(size > CHUNK ? new SafeUint8Array(TypedArrayBuffer(rest), at, CHUNK) : rest);
      if (size <= CHUNK) return null;
      rest = new SafeUint8Array(TypedArrayBuffer(rest), at + CHUNK, size - CHUNK);
    }
    return rest;
  }

  pump() {
    if (this.rest !== null && !this.over) this.rest = this.#sendOf(this.rest);
    if (this.over || this.reading || this.rest !== null || this.credit <= 0) return;
    this.reading = true;
    PromiseThen(
      read(this.reader),
      (/** @type {{ done: boolean, value: any }} */ { done, value }) => {
        this.reading = false;
        if (this.over) return;
        if (done) {
          this.over = true;
          this.onEnd(null);
        } else if (TypedArrayTag(value) !== "Uint8Array") {
          const error = new SafeTypeError("a body stream may only hold Uint8Array chunks");
          this.stop(error);
          this.onEnd(error);
        } else {
          const rest = TypedArrayByteLength(value) > 0 ? this.#sendOf(value) : null;
          // A copy: the tenant may resize or transfer its own before there is credit again.
          if (rest !== null) this.rest = new SafeUint8Array(rest);
          this.pump();
        }
      },
      (/** @type {unknown} */ error) => {
        this.reading = false;
        if (this.over) return;
        this.over = true;
        this.onEnd(error);
      },
    );
  }
}
Object.setPrototypeOf(OutgoingBody.prototype, null);

export const cutOff = () => namedError("AbortError", "the body was cut off");
