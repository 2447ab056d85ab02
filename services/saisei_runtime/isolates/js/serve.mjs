/** Role `serve`: many invocations of one Version's `fetch` at once, bodies streamed both ways (MW-20 … MW-25). */

import {
  ArrayPush,
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
  follow,
  namedError,
  newList,
  quote,
  uncurryThis,
} from "./intrinsics.mjs";
import { queueBatch, scheduledEvent } from "./batches.mjs";
import { Environment } from "./environment.mjs";
import { Graph, ModuleProblem } from "./modules.mjs";
import { needStack } from "./stack.mjs";
import { describeThrown } from "./thrown.mjs";
import { IncomingBody, OutgoingBody, cutOff } from "./streams.mjs";

const TenantRequest = Request;
const TenantController = AbortController;
const { get: statusOf } = own(Response.prototype, "status");
const { get: headersOf } = own(Response.prototype, "headers");
const { get: bodyOf } = own(Response.prototype, "body");
const { get: bodyUsedOf } = own(Response.prototype, "bodyUsed");
const { get: signalOf } = own(AbortController.prototype, "signal");
const abort = uncurryThis(AbortController.prototype.abort);
const forEachHeader = uncurryThis(Headers.prototype.forEach);

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
   * @param {import("./egress.mjs").Egress} egress
   */
  constructor(link, codeOf, tenantConsole, egress) {
    this.link = link;
    this.codeOf = codeOf;
    this.console = tenantConsole;
    this.egress = egress;
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
    if (header.t === "ping") return this.link.send(`{"t":"alive","number":${header.number}}`);
    if (header.t === "fetch" || header.t === "run") {
      const invocation = new Invocation(this, header, body);
      MapSet(this.invocations, header.id, invocation);
      if (this.main !== undefined || this.failed) invocation.start();
      return undefined;
    }
    return /** @type {Invocation | undefined} */ (MapGet(this.invocations, header.id))?.onFrame(header, body);
  }

  giveUp() {}

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

/** What a call through an `env` is refused with whose invocation is over. */
const ended = () => namedError("backend_unavailable", "the invocation that this env was given to has ended; ctx.waitUntil keeps one going");

class Invocation {
  /** @param {ServeRole} role @param {any} header @param {import("./frames.mjs").Body} body */
  constructor(role, header, body) {
    this.role = role;
    this.id = /** @type {number} */ (header.id);
    this.header = header;
    this.started = false;
    /** Kept: its signal follows the controller only as long as it lives. @type {Request | null} */
    this.request = null;
    this.controller = new TenantController();
    this.environment = new Environment(
      /** @type {any} */ (role.code),
      header.scope,
      (/** @type {string} */ text, /** @type {any} */ content) => role.link.send(text, content ?? null),
      role.egress,
      ended,
    );
    // Made at once: its chunks may arrive before the Worker's modules are evaluated.
    this.incoming = !header.has_body
      ? null
      : new IncomingBody(
          (bytes) => this.send("credit", `,"bytes":${bytes}`),
          () => this.send("drop"),
        );
    /** @type {OutgoingBody | null} */
    this.outgoing = null;
    /** The response is out, or the `scheduled` or `queue` handler has ended. */
    this.responded = false;
    this.waiting = 0;
    this.expired = false;
    /** Of a batch: copied, since the frame's memory is used again. @type {Uint8Array[]} */
    this.bodies = newList();
    if (header.t === "run") {
      let at = 0;
      for (let i = 0; i < header.messages.length; i++) {
        const { length } = header.messages[i];
        ArrayPush(this.bodies, body.copy(at, length));
        at += length;
      }
    }
  }

  send(/** @type {string} */ type, /** @type {string} */ more = "", /** @type {Uint8Array | string | null} */ body = null) {
    this.role.link.send(`{"t":"${type}","id":${this.id}${more}}`, body);
  }

  start() {
    if (this.started) return;
    this.started = true;
    const { main } = this.role;
    const isFetch = this.header.t === "fetch";
    const name = isFetch ? "fetch" : this.header.kind;
    const found = typeof main === "object" && main !== null ? ReflectGetOwnPropertyDescriptor(main, name) : undefined;
    const handler = found !== undefined && ObjectHasOwn(found, "value") ? found.value : undefined;
    if (typeof handler !== "function") {
      return isFetch ? this.#serverError(null) : this.#ran(false, "Error", `the Worker has no ${name} handler, or its modules do not load`);
    }
    try {
      const request = isFetch ? this.#request() : this.#event();
      const context = ObjectFreeze({ waitUntil: (/** @type {unknown} */ promise) => this.#waitUntil(promise) });
      const result = ReflectApply(handler, main, [request, this.environment.build(), context]);
      return void follow(
        result,
        (/** @type {unknown} */ response) => (isFetch ? this.#answer(response) : this.#ran(true, "", "")),
        (/** @type {unknown} */ error) => this.#failed(error),
      );
    } catch (error) {
      return this.#failed(error);
    }
  }

  #failed(/** @type {unknown} */ error) {
    if (this.header.t === "fetch") return this.#serverError(error);
    if (this.responded) return undefined;
    this.role.console.line("error", [`The ${this.header.kind} handler failed:`, error]);
    const { name, message } = describeThrown(error);
    return this.#ran(false, name, message);
  }

  /** A `scheduled` or `queue` handler has ended; what it failed with is recorded (MW-24). */
  #ran(/** @type {boolean} */ ok, /** @type {string} */ name, /** @type {string} */ message) {
    if (this.responded) return;
    this.responded = true;
    this.send("ran", `,"ok":${ok},"name":${quote(name)},"message":${quote(message)}`);
    this.#retire();
  }

  #event() {
    if (this.header.kind === "scheduled") return scheduledEvent(this.header);
    return queueBatch(this.header, this.bodies, this.environment, () => this.responded);
  }

  #request() {
    const { method, url, headers } = this.header;
    const init = /** @type {any} */ ({ __proto__: null, method, headers, signal: signalOf(this.controller), redirect: "manual" });
    if (this.incoming !== null && method !== "GET" && method !== "HEAD") {
      init.body = this.incoming.stream;
      init.duplex = "half";
    }
    this.request = new TenantRequest(url, init);
    return this.request;
  }

  onFrame(/** @type {any} */ header, /** @type {import("./frames.mjs").Body} */ body) {
    switch (header.t) {
      case "chunk":
        this.incoming?.push(body.copy());
        break;
      case "end":
        this.incoming?.end(header.cut ? cutOff() : null);
        break;
      case "credit":
        this.outgoing?.grant(header.bytes);
        break;
      case "cancel": {
        // The client is gone.
        const reason = namedError("AbortError", "the client closed the connection");
        this.responded = true;
        abort(this.controller, reason);
        this.incoming?.end(reason);
        this.outgoing?.stop(reason);
        this.#retire();
        break;
      }
      case "answer":
        this.environment.answer(header, body);
        break;
      case "expire":
        if (this.waiting > 0) this.role.console.line("error", ["A promise of waitUntil had its time; it is not waited for any longer."]);
        this.waiting = 0;
        this.#retire();
        break;
    }
  }

  #waitUntil(/** @type {unknown} */ promise) {
    needStack();
    if (this.expired) throw namedError("context_expired", "the invocation of this ctx has ended");
    this.waiting++;
    const settled = () => {
      if (this.expired) return;
      this.waiting--;
      this.#retire();
    };
    void follow(
      promise,
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
    /** @type {OutgoingBody | null} */
    let outgoing = null;
    try {
      status = statusOf(response); // throws for whatever is no Response
      forEachHeader(headersOf(response), (/** @type {string} */ value, /** @type {string} */ key) => {
        list += `${list === "" ? "" : ","}[${quote(key)},${quote(value)}]`;
      });
      if (list.length > MAX_HEADERS) throw namedError("TypeError", "the headers of the Response are over 256 KiB");
      const body = bodyOf(response);
      if (status < 200 || (body !== null && bodyUsedOf(response))) throw namedError("TypeError", "the Response cannot be sent");
      if (body !== null) {
        outgoing = new OutgoingBody(
          body,
          (chunk) => this.send("chunk", "", chunk),
          (error) => this.#sent(error),
        );
      }
    } catch (error) {
      this.#serverError(error);
      return;
    }
    this.send("head", `,"status":${status},"headers":[${list}]`);
    if (outgoing === null || this.header.method === "HEAD") {
      outgoing?.stop(undefined);
      this.#sent(null);
    } else {
      this.outgoing = outgoing;
      outgoing.pump();
    }
  }

  /** The response is out. One that broke off after its head ends as cut off, not as complete. */
  #sent(/** @type {unknown} */ error) {
    if (error !== null) this.role.console.line("error", ["The response body failed:", error]);
    this.responded = true;
    this.send("end", `,"cut":${error !== null}`);
    this.#retire();
  }

  /** A plain 500 without details (MW-23); what happened goes to the log only. */
  #serverError(/** @type {unknown} */ error) {
    if (this.responded) return;
    if (error !== null) this.role.console.line("error", ["The fetch handler failed:", error]);
    this.send("head", ',"status":500,"headers":[["content-type","text/plain;charset=UTF-8"]]');
    this.send("chunk", "", "Internal Server Error");
    this.#sent(null);
  }

  /** Over when the response is out and each `waitUntil` has settled (MW-25). */
  #retire() {
    if (!this.responded || this.waiting > 0 || this.expired) return;
    this.expired = true;
    this.environment.close();
    this.role.egress.dropScope(this.environment, ended());
    MapDelete(this.role.invocations, this.id);
    this.send("done");
  }
}

