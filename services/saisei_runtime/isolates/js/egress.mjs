/**
 * Outbound `fetch` (MW-26) and that of service Bindings (MW-40): the runtime performs both; this side only carries heads and bodies.
 */

import {
  MapClear,
  MapDelete,
  MapForEach,
  MapGet,
  MapSet,
  ReflectDefineProperty,
  SafeMap,
  SafePromise,
  SafeTypeError,
  StringStartsWith,
  getterOf,
  namedError,
  quote,
  uncurryThis,
} from "./intrinsics.mjs";
import { IncomingBody, OutgoingBody, cutOff } from "./streams.mjs";
import { resolveWith } from "./step.mjs";
import { needMuchStack, needStack } from "./stack.mjs";

const TenantRequest = Request;
const TenantResponse = Response;
const TenantHeaders = Headers;
const methodOf = getterOf(Request.prototype, "method");
const urlOf = getterOf(Request.prototype, "url");
const headersOf = getterOf(Request.prototype, "headers");
const bodyOf = getterOf(Request.prototype, "body");
const signalOf = getterOf(Request.prototype, "signal");
const redirectOf = getterOf(Request.prototype, "redirect");
const abortedOf = getterOf(AbortSignal.prototype, "aborted");
const reasonOf = getterOf(AbortSignal.prototype, "reason");
const listen = uncurryThis(EventTarget.prototype.addEventListener);
const forEachHeader = uncurryThis(Headers.prototype.forEach);
const append = uncurryThis(Headers.prototype.append);

/** `fetch` while a Version is inspected: nothing may depend on the outside then. */
export const closedFetch = {
  fetch(/** @type {any} */ _resource, /** @type {any} */ _init = undefined) {
    const message = "fetch failed: no request is let out while the modules are inspected";
    return new SafePromise((_, reject) => reject(new SafeTypeError(message)));
  },
}.fetch;

/** @typedef {import("./environment.mjs").Environment} Environment */

/** One fetch from its call to the last byte of its response. */
class Exchange {
  /**
   * @param {Request} request kept, because its signal follows the caller's only as long as it lives
   * @param {(response: Response) => void} resolve @param {(error: unknown) => void} reject
   * @param {Environment | null} scope whose service Binding it goes through; null: to the outside
   */
  constructor(request, resolve, reject, scope) {
    this.request = request;
    this.resolve = resolve;
    this.reject = reject;
    this.scope = scope;
    /** @type {OutgoingBody | null} */
    this.outgoing = null;
    /** @type {IncomingBody | null} */
    this.incoming = null;
  }
}
Object.setPrototypeOf(Exchange.prototype, null);

export class Egress {
  /** @param {(header: string, body?: Uint8Array | null) => void} send */
  constructor(send) {
    this.send = send;
    /** @type {Map<number, Exchange>} */
    this.exchanges = new SafeMap();
    this.count = 0;
  }

  /** The function that becomes `globalThis.fetch`. */
  surface() {
    const start = (/** @type {any} */ resource, /** @type {any} */ init) =>
      new SafePromise((resolve, reject) => this.#start(new TenantRequest(resource, init), resolve, reject, null, ""));
    return {
      fetch(/** @type {any} */ resource, /** @type {any} */ init = undefined) {
        needMuchStack();
        return start(resource, init);
      },
    }.fetch;
  }

  /**
   * `env.NAME.fetch` of a service Binding. Calls over what one scope may have under way wait in the tenant's own heap.
   * @param {Environment} scope @param {string} binding @param {any} resource @param {any} init
   */
  through(scope, binding, resource, init) {
    return new SafePromise((resolve, reject) => {
      const request = new TenantRequest(resource, init);
      const begin = () => {
        try {
          this.#start(request, resolve, reject, scope, binding);
        } catch (error) {
          scope.leave();
          reject(error);
        }
      };
      if (scope.enter(begin, reject)) return;
      const signal = signalOf(request);
      if (abortedOf(signal)) reject(reasonOf(signal));
      else listen(signal, "abort", () => reject(reasonOf(signal)));
    });
  }

  #start(
    /** @type {Request} */ request,
    /** @type {(response: Response) => void} */ resolve,
    /** @type {(error: unknown) => void} */ reject,
    /** @type {Environment | null} */ scope,
    /** @type {string} */ binding,
  ) {
    const url = /** @type {string} */ (urlOf(request));
    if (!StringStartsWith(url, "http://") && !StringStartsWith(url, "https://")) {
      throw new SafeTypeError("fetch failed: only http and https URLs can be fetched");
    }
    const signal = signalOf(request);
    if (abortedOf(signal)) throw reasonOf(signal);
    let headers = "";
    forEachHeader(headersOf(request), (/** @type {string} */ value, /** @type {string} */ key) => {
      headers += `${headers === "" ? "" : ","}[${quote(key)},${quote(value)}]`;
    });
    const id = ++this.count;
    const exchange = new Exchange(request, resolve, reject, scope);
    const body = bodyOf(request);
    if (body !== null) {
      exchange.outgoing = new OutgoingBody(
        body,
        (chunk) => this.send(`{"t":"out_chunk","id":${id}}`, chunk),
        (error) => this.send(`{"t":"out_end","id":${id},"cut":${error !== null}}`),
      );
    }
    MapSet(this.exchanges, id, exchange);
    this.send(
      `{"t":"out","id":${id},"method":${quote(methodOf(request))},"url":${quote(url)},"headers":[${headers}],` +
        `"redirect":${quote(redirectOf(request))},"has_body":${body !== null},` +
        `"scope":${quote(scope === null ? "" : scope.scope)},"binding":${quote(binding)}}`,
    );
    exchange.outgoing?.pump();
    listen(signal, "abort", () => this.#abort(id, reasonOf(signal)));
  }

  #abort(/** @type {number} */ id, /** @type {unknown} */ reason) {
    needStack();
    const exchange = MapGet(this.exchanges, id);
    if (exchange === undefined) return;
    this.send(`{"t":"out_abort","id":${id}}`);
    this.#fail(id, exchange, reason);
  }

  /** Nothing of the exchange is under way any more; what is left of its request is not read (`error`: why). */
  #over(/** @type {number} */ id, /** @type {Exchange} */ exchange, /** @type {unknown} */ error) {
    if (!MapDelete(this.exchanges, id)) return;
    exchange.outgoing?.stop(error);
    exchange.scope?.leave();
  }

  #fail(/** @type {number} */ id, /** @type {Exchange} */ exchange, /** @type {unknown} */ error) {
    this.#over(id, exchange, error);
    if (exchange.incoming !== null) exchange.incoming.end(error);
    else exchange.reject(error);
  }

  /** @returns {boolean} false when the frame is not about a fetch */
  onFrame(/** @type {any} */ header, /** @type {import("./frames.mjs").Body} */ body) {
    if (!StringStartsWith(header.t, "in_")) return false;
    const { id } = header;
    const exchange = /** @type {Exchange | undefined} */ (MapGet(this.exchanges, id));
    if (exchange === undefined) return true;
    switch (header.t) {
      case "in_head":
        this.#answer(id, exchange, header);
        break;
      case "in_chunk":
        exchange.incoming?.push(body.copy());
        break;
      case "in_end":
        this.#over(id, exchange, undefined);
        exchange.incoming?.end(header.cut ? cutOff() : null);
        break;
      case "in_credit":
        exchange.outgoing?.grant(header.bytes);
        break;
      default:
        this.#fail(id, exchange, namedError(header.name, header.message));
    }
    return true;
  }

  #answer(/** @type {number} */ id, /** @type {Exchange} */ exchange, /** @type {any} */ header) {
    try {
      const headers = new TenantHeaders();
      for (let i = 0; i < header.headers.length; i++) append(headers, header.headers[i][0], header.headers[i][1]);
      if (header.has_body) {
        exchange.incoming = new IncomingBody(
          (bytes) => this.send(`{"t":"out_credit","id":${id},"bytes":${bytes}}`),
          () => {
            this.#over(id, exchange, undefined);
            this.send(`{"t":"out_abort","id":${id}}`);
          },
        );
      }
      const init = /** @type {any} */ ({ __proto__: null, status: header.status, headers });
      const response = new TenantResponse(exchange.incoming === null ? null : exchange.incoming.stream, init);
      const show = (/** @type {string} */ key, /** @type {unknown} */ value) =>
        ReflectDefineProperty(response, key, /** @type {any} */ ({ __proto__: null, value, configurable: true }));
      show("url", header.url);
      show("redirected", header.redirected);
      resolveWith(/** @type {any} */ (exchange.resolve), response);
      if (exchange.incoming === null) this.#over(id, exchange, undefined);
    } catch {
      this.send(`{"t":"out_abort","id":${id}}`);
      exchange.incoming = null;
      this.#fail(id, exchange, new SafeTypeError("fetch failed: the response is not valid"));
    }
  }

  /** The invocation has ended: what it left under way through its service Bindings is broken off. */
  dropScope(/** @type {Environment} */ scope, /** @type {unknown} */ error) {
    if (scope.calling === 0) return;
    const waiting = scope.takeCallers();
    MapForEach(this.exchanges, (/** @type {Exchange} */ exchange, /** @type {number} */ id) => {
      if (exchange.scope !== scope) return;
      this.send(`{"t":"out_abort","id":${id}}`);
      this.#fail(id, exchange, error);
    });
    for (let i = 0; i < waiting.length; i++) /** @type {any} */ (waiting[i]).refuse(error);
  }

  /** The context is over: nothing of its fetches settles any more. The runtime cancels its side by itself. */
  dropAll() {
    MapForEach(this.exchanges, (/** @type {Exchange} */ exchange) => exchange.outgoing?.abandon());
    MapClear(this.exchanges);
  }
}
