/** Role `serve`: many invocations of one Version's `fetch` at once, bodies streamed both ways (MW-20 … MW-25). */

import {
  ArrayPush,
  ArrayShift,
  MapDelete,
  MapForEach,
  MapGet,
  MapSet,
  ObjectFreeze,
  ObjectHasOwn,
  PromiseThen,
  ReflectApply,
  ReflectGetOwnPropertyDescriptor,
  SafeMap,
  SafePromise,
  TypedArrayByteLength,
  TypedArrayTag,
  namedError,
  quote,
  uncurryThis,
} from "./intrinsics.mjs";
import { Environment } from "./environment.mjs";
import { Graph, ModuleProblem } from "./modules.mjs";

const TenantRequest = Request;
const TenantController = AbortController;
const Stream = ReadableStream;
const { get: statusOf } = own(Response.prototype, "status");
const { get: headersOf } = own(Response.prototype, "headers");
const { get: bodyOf } = own(Response.prototype, "body");
const { get: bodyUsedOf } = own(Response.prototype, "bodyUsed");
const { get: signalOf } = own(AbortController.prototype, "signal");
const abort = uncurryThis(AbortController.prototype.abort);
const forEachHeader = uncurryThis(Headers.prototype.forEach);
const getReader = uncurryThis(ReadableStream.prototype.getReader);
const subarray = uncurryThis(Object.getPrototypeOf(Uint8Array).prototype.subarray);
const read = uncurryThis(ReadableStreamDefaultReader.prototype.read);
const cancel = uncurryThis(ReadableStreamDefaultReader.prototype.cancel);
const enqueue = uncurryThis(ReadableByteStreamController.prototype.enqueue);
const closeStream = uncurryThis(ReadableByteStreamController.prototype.close);
const failStream = uncurryThis(ReadableByteStreamController.prototype.error);
const byobRequest = own(ReadableByteStreamController.prototype, "byobRequest").get;
const respond = uncurryThis(ReadableStreamBYOBRequest.prototype.respond);

/** Bytes that may be on their way to the runtime before it has taken any; also the runtime's window towards us. */
const WINDOW = 262_144;
const CHUNK = 65_536;
const MAX_HEADERS = 262_144;
const LOG_WINDOW_MS = 1_000;
const now = Date.now;

function own(/** @type {object} */ owner, /** @type {PropertyKey} */ key) {
  const found = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(owner, key));
  return { get: uncurryThis(/** @type {any} */ (found.get)) };
}

export class ServeRole {
  /**
   * @param {import("./frames.mjs").Link} link
   * @param {(version: string) => import("./modules.mjs").Code} codeOf
   * @param {import("./console.mjs").TenantConsole} tenantConsole
   */
  constructor(link, codeOf, tenantConsole) {
    this.link = link;
    this.codeOf = codeOf;
    this.console = tenantConsole;
    this.logsSince = 0;
    /** @type {Map<number, Invocation>} */
    this.invocations = new SafeMap();
    /** The default export once the modules are evaluated. @type {any} */
    this.main = undefined;
    this.failed = false;
    /** @type {import("./modules.mjs").Code | null} */
    this.code = null;
  }

  onFrame(/** @type {any} */ header, /** @type {import("./frames.mjs").Body} */ body) {
    const at = now();
    if (at - this.logsSince >= LOG_WINDOW_MS) {
      this.logsSince = at;
      this.console.reset(this.console.scope);
    }
    if (header.t === "open") return this.#open(header.version);
    if (header.t === "ping") return this.link.send('{"t":"alive"}');
    if (header.t === "fetch") {
      const invocation = new Invocation(this, header);
      MapSet(this.invocations, header.id, invocation);
      if (this.main !== undefined || this.failed) invocation.start();
      return undefined;
    }
    return /** @type {Invocation | undefined} */ (MapGet(this.invocations, header.id))?.onFrame(header, body);
  }

  onUncaught(/** @type {unknown} */ error, /** @type {string} */ what) {
    this.console.line("error", [what, error]);
  }

  #open(/** @type {string} */ version) {
    this.console.reset(version);
    this.code = this.codeOf(version);
    const ready = () => MapForEach(this.invocations, (/** @type {Invocation} */ invocation) => invocation.start());
    const failed = (/** @type {unknown} */ error) => {
      this.failed = true;
      this.console.line("error", ["The Worker's modules do not load:", error instanceof ModuleProblem ? error.message : error]);
      ready();
    };
    try {
      const graph = new Graph(this.code, "worker:/");
      const main = graph.link();
      PromiseThen(
        graph.evaluate(main),
        () => {
          const found = ReflectGetOwnPropertyDescriptor(main.namespace, "default");
          this.main = found?.value ?? null;
          ready();
        },
        failed,
      );
    } catch (error) {
      failed(error);
    }
  }
}

class Invocation {
  /** @param {ServeRole} role @param {any} header */
  constructor(role, header) {
    this.role = role;
    this.id = /** @type {number} */ (header.id);
    this.header = header;
    this.started = false;
    this.controller = new TenantController();
    this.environment = new Environment(
      /** @type {any} */ (role.code),
      header.scope,
      (/** @type {string} */ text, /** @type {any} */ content) => role.link.send(text, content ?? null),
    );
    /** Request chunks that the Worker has not pulled yet. @type {Uint8Array[]} */
    this.chunks = [];
    this.ended = false;
    this.cut = false;
    /** @type {ReadableByteStreamController | null} */
    this.sink = null;
    /** Set while the stream waits for a chunk. @type {(() => void) | null} */
    this.pulling = null;
    this.credit = WINDOW;
    /** @type {any} */
    this.reader = null;
    this.reading = false;
    /** What is left of the chunk that was read last. @type {Uint8Array | null} */
    this.rest = null;
    this.responded = false;
    this.waiting = 0;
    this.expired = false;
  }

  send(/** @type {string} */ type, /** @type {string} */ more = "", /** @type {Uint8Array | string | null} */ body = null) {
    this.role.link.send(`{"t":"${type}","id":${this.id}${more}}`, body);
  }

  start() {
    if (this.started) return;
    this.started = true;
    const { main } = this.role;
    const found = typeof main === "object" && main !== null ? ReflectGetOwnPropertyDescriptor(main, "fetch") : undefined;
    const handler = found !== undefined && ObjectHasOwn(found, "value") ? found.value : undefined;
    if (typeof handler !== "function") return this.#serverError(null);
    try {
      const request = this.#request();
      const context = ObjectFreeze({ waitUntil: (/** @type {unknown} */ promise) => this.#waitUntil(promise) });
      const result = ReflectApply(handler, main, [request, this.environment.build(), context]);
      return PromiseThen(
        new SafePromise((resolve) => resolve(result)),
        (/** @type {unknown} */ response) => this.#answer(response),
        (/** @type {unknown} */ error) => this.#serverError(error),
      );
    } catch (error) {
      return this.#serverError(error);
    }
  }

  #request() {
    const { method, url, headers, has_body: hasBody } = this.header;
    const init = /** @type {any} */ ({ __proto__: null, method, headers, signal: signalOf(this.controller), redirect: "manual" });
    if (hasBody && method !== "GET" && method !== "HEAD") {
      init.body = this.#stream();
      init.duplex = "half";
    }
    return new TenantRequest(url, init);
  }

  /** The request body: chunks as they come, credit returned as they are taken. */
  #stream() {
    return new Stream(/** @type {any} */ ({
      __proto__: null,
      type: "bytes",
      start: (/** @type {any} */ sink) => {
        this.sink = sink;
      },
      pull: () =>
        new SafePromise((resolve) => {
          this.pulling = () => resolve(undefined);
          this.#feed();
        }),
      cancel: () => {
        this.ended = true;
        this.chunks = [];
        this.send("drop");
      },
    })); // prettier-ignore
  }

  #feed() {
    const { pulling, sink } = this;
    if (pulling === null || sink === null) return;
    if (this.chunks.length > 0) {
      const chunk = /** @type {Uint8Array} */ (ArrayShift(this.chunks));
      this.pulling = null;
      this.send("credit", `,"bytes":${TypedArrayByteLength(chunk)}`);
      enqueue(sink, chunk);
      pulling();
    } else if (this.cut) {
      this.pulling = null;
      failStream(sink, namedError("AbortError", "the request body was cut off"));
      pulling();
    } else if (this.ended) {
      this.pulling = null;
      closeStream(sink);
      const pendingRead = byobRequest(sink);
      if (pendingRead !== null) respond(pendingRead, 0);
      pulling();
    }
  }

  onFrame(/** @type {any} */ header, /** @type {import("./frames.mjs").Body} */ body) {
    switch (header.t) {
      case "chunk":
        if (this.ended) return;
        if (body.size() > 0) ArrayPush(this.chunks, body.copy());
        this.#feed();
        break;
      case "end":
        this.ended = true;
        this.cut = header.cut;
        this.#feed();
        break;
      case "credit":
        this.credit += header.bytes;
        this.#pump();
        break;
      case "cancel": // the client is gone
        this.cut = true;
        this.ended = true;
        abort(this.controller, namedError("AbortError", "the client closed the connection"));
        this.#feed();
        if (this.reader !== null) {
          const { reader } = this;
          this.reader = null;
          PromiseThen(cancel(reader, undefined), () => {}, () => {});
        }
        this.responded = true;
        this.#retire();
        break;
      case "answer":
        this.environment.answer(header, body);
        break;
    }
  }

  #waitUntil(/** @type {unknown} */ promise) {
    if (this.expired) throw namedError("context_expired", "the invocation of this ctx has ended");
    this.waiting++;
    const settled = () => {
      this.waiting--;
      this.#retire();
    };
    PromiseThen(
      new SafePromise((resolve) => resolve(promise)),
      settled,
      (/** @type {unknown} */ error) => {
        this.role.console.line("error", ["A promise of waitUntil was rejected:", error]);
        settled();
      },
    );
  }

  #answer(/** @type {unknown} */ response) {
    if (this.responded) return; // the client left meanwhile
    let status = 0;
    let list = "";
    /** @type {any} */
    let body = null;
    try {
      status = statusOf(response); // throws for whatever is no Response
      forEachHeader(headersOf(response), (/** @type {string} */ value, /** @type {string} */ key) => {
        list += `${list === "" ? "" : ","}[${quote(key)},${quote(value)}]`;
      });
      body = bodyOf(response);
      if (list.length > MAX_HEADERS) throw namedError("TypeError", "the headers of the Response are over 256 KiB");
      if (status < 200 || (body !== null && bodyUsedOf(response))) throw namedError("TypeError", "the Response cannot be sent");
      if (body !== null) this.reader = getReader(body);
    } catch (error) {
      this.#serverError(error);
      return;
    }
    this.send("head", `,"status":${status},"headers":[${list}]`);
    if (this.reader === null) this.#finish();
    else if (this.header.method === "HEAD") {
      const { reader } = this;
      this.reader = null;
      PromiseThen(cancel(reader, undefined), () => {}, () => {});
      this.#finish();
    } else this.#pump();
  }

  #pump() {
    if (this.reader === null || this.reading || this.credit <= 0) return;
    if (this.rest !== null) {
      const { rest } = this;
      const size = TypedArrayByteLength(rest);
      this.rest = size > CHUNK ? subarray(rest, CHUNK) : null;
      this.credit -= size > CHUNK ? CHUNK : size;
      this.send("chunk", "", size > CHUNK ? subarray(rest, 0, CHUNK) : rest);
      this.#pump();
      return;
    }
    this.reading = true;
    PromiseThen(
      read(this.reader),
      (/** @type {{ done: boolean, value: any }} */ { done, value }) => {
        this.reading = false;
        if (this.reader === null) return;
        if (done) {
          this.reader = null;
          this.#finish();
          return;
        }
        if (TypedArrayTag(value) !== "Uint8Array") {
          this.#breakOff(namedError("TypeError", "a response body may only hold Uint8Array chunks"));
          return;
        }
        if (TypedArrayByteLength(value) > 0) this.rest = value;
        this.#pump();
      },
      (/** @type {unknown} */ error) => {
        this.reading = false;
        if (this.reader !== null) this.#breakOff(error);
      },
    );
  }

  /** The head is out already: the body ends as cut off, not as complete. */
  #breakOff(/** @type {unknown} */ error) {
    this.role.console.line("error", ["The response body failed:", error]);
    const { reader } = this;
    this.reader = null;
    PromiseThen(cancel(reader, error), () => {}, () => {});
    this.responded = true;
    this.send("end", ',"cut":true');
    this.#retire();
  }

  #finish() {
    this.responded = true;
    this.send("end", ',"cut":false');
    this.#retire();
  }

  /** A plain 500 without details (MW-23); what happened goes to the log only. */
  #serverError(/** @type {unknown} */ error) {
    if (this.responded) return;
    if (error !== null) this.role.console.line("error", ["The fetch handler failed:", error]);
    this.send("head", ',"status":500,"headers":[["content-type","text/plain;charset=UTF-8"]]');
    this.send("chunk", "", "Internal Server Error");
    this.#finish();
  }

  /** Over when the response is out and each `waitUntil` has settled (MW-25). */
  #retire() {
    if (!this.responded || this.waiting > 0 || this.expired) return;
    this.expired = true;
    this.environment.close();
    MapDelete(this.role.invocations, this.id);
    this.send("done");
  }
}

