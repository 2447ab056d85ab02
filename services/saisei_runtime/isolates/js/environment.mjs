/** `env` (MW-21): exactly the variables, secrets and Bindings of the Version, and the calls that Bindings make. */

import {
  ArrayPush,
  ArrayShift,
  MapClear,
  MapDelete,
  MapGet,
  MapSet,
  ObjectFreeze,
  ReflectDefineProperty,
  ReflectOwnKeys,
  SafeMap,
  SafePromise,
  namedError,
  newList,
  quote,
} from "./intrinsics.mjs";
import { decodeDocument } from "./documents.mjs";
import { needStack } from "./stack.mjs";
import { resolveWith } from "./step.mjs";
import { serviceBinding } from "./bindings/service.mjs";
import { workflowBinding } from "./bindings/workflow.mjs";

/** Calls of one scope that the runtime is asked to perform at once; more wait here, in the tenant's own heap. */
const MAX_UNDER_WAY = 128;
/** Exchanges of one scope through its service Bindings, until the last byte of the response has come; more wait here. */
const MAX_EXCHANGES = 64;

/** @typedef {{ value: any, body: string | null }} Answer */

/** One context's or invocation's `env`. Calls that are under way when it closes never settle. */
export class Environment {
  /**
   * @param {import("./modules.mjs").Code} code
   * @param {string} scope the context or invocation
   * @param {(header: string, body?: string | null) => void} send
   * @param {import("./egress.mjs").Egress} egress what service Bindings go through
   * @param {(() => Error) | null} late what a call is refused with once the scope is closed; null: nothing settles then
   */
  constructor(code, scope, send, egress, late = null) {
    this.code = code;
    this.scope = scope;
    this.send = send;
    this.egress = egress;
    this.late = late;
    this.closed = false;
    /** @type {Map<number, { resolve: (answer: Answer) => void, reject: (error: unknown) => void, long: boolean }>} */
    this.calls = new SafeMap();
    this.lastCall = 0;
    this.underWay = 0;
    /** Calls that wait for their turn. @type {(() => void)[]} */
    this.queue = newList();
    /** Exchanges through service Bindings that are under way. */
    this.calling = 0;
    this.turning = false;
    /** @type {{ begin: () => void, refuse: (error: unknown) => void }[]} */
    this.callers = newList();
  }

  /** A fresh object with fresh values. */
  build() {
    const env = {};
    const put = (/** @type {string} */ name, /** @type {unknown} */ value) =>
      ReflectDefineProperty(env, name, /** @type {any} */ ({ __proto__: null, value, writable: true, enumerable: true, configurable: true }));
    const vars = decodeDocument(this.code.vars);
    const names = ReflectOwnKeys(vars);
    for (let i = 0; i < names.length; i++) put(/** @type {string} */ (names[i]), vars[/** @type {string} */ (names[i])]);
    const { secrets, bindings } = this.code;
    for (let i = 0; i < secrets.length; i++) put(/** @type {any} */ (secrets[i])[0], /** @type {any} */ (secrets[i])[1]);
    for (let i = 0; i < bindings.length; i++) {
      const entry = /** @type {any} */ (bindings[i]);
      const name = /** @type {string} */ (entry[0]);
      put(name, entry[1] === "service" ? serviceBinding(this, name) : workflowBinding(this, name));
    }
    return env;
  }

  /**
   * One method call. `done` turns the answer into what the method resolves with; an object of it is frozen when `sealed`.
   * @template T
   * @param {string} binding @param {string} method @param {string} args JSON
   * @param {string | null} body @param {(answer: Answer) => T} done
   * @returns {Promise<T>}
   */
  call(binding, method, args, body, done, sealed = false) {
    needStack();
    return new SafePromise((resolve, reject) => {
      if (this.closed) {
        if (this.late !== null) reject(this.late());
        return;
      }
      const id = ++this.lastCall;
      const settle = (/** @type {Answer} */ answer) => {
        const value = done(answer);
        resolveWith(/** @type {any} */ (resolve), value);
        if (sealed) ObjectFreeze(value);
      };
      // `next` waits for events as long as it takes and must not keep others from their turn.
      const long = method === "next";
      const begin = () => {
        MapSet(this.calls, id, { resolve: settle, reject, long });
        this.send(
          `{"t":"call","scope":${quote(this.scope)},"call":${id},"binding":${quote(binding)},"method":"${method}",` +
            `"arguments":${args},"has":${body !== null}}`,
          body,
        );
      };
      if (long) begin();
      else if (this.underWay < MAX_UNDER_WAY) {
        this.underWay++;
        begin();
      } else ArrayPush(this.queue, begin);
    });
  }

  answer(/** @type {any} */ header, /** @type {import("./frames.mjs").Body} */ body) {
    const waiting = MapGet(this.calls, header.call);
    if (waiting === undefined) return;
    MapDelete(this.calls, header.call);
    if (!waiting.long) {
      if (this.queue.length > 0) ArrayShift(this.queue)();
      else this.underWay--;
    }
    if (header.ok) waiting.resolve({ value: header.value, body: header.has ? body.text() : null });
    else waiting.reject(namedError(header.name, header.message));
  }

  /**
   * One exchange through a service Binding is to begin. False: `begin` is called when it has its turn.
   * @param {() => void} begin calls `leave` when the exchange is over @param {(error: unknown) => void} refuse
   */
  enter(begin, refuse) {
    if (this.closed) {
      if (this.late !== null) refuse(this.late());
      return true;
    }
    if (this.calling >= MAX_EXCHANGES) {
      ArrayPush(this.callers, { begin, refuse });
      return false;
    }
    this.calling++;
    begin();
    return true;
  }

  leave() {
    this.calling--;
    if (this.turning) return; // the loop below goes on
    this.turning = true;
    while (this.calling < MAX_EXCHANGES && this.callers.length > 0) {
      this.calling++;
      ArrayShift(this.callers).begin();
    }
    this.turning = false;
  }

  /** Those that wait for their turn, which they will not get. */
  takeCallers() {
    const { callers } = this;
    this.callers = newList();
    return callers;
  }

  close() {
    this.closed = true;
    MapClear(this.calls);
    this.queue = newList();
  }
}
Object.setPrototypeOf(Environment.prototype, null);
